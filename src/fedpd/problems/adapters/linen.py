"""Modules of flax.linen: the model is their parameters, and their batch statistics stay with the agents."""

import inspect
from functools import partial
from typing import Any

import jax
import numpy as np

from fedpd.base.checks import FedpdError, below, refuse
from fedpd.base.errors import extra
from fedpd.core import Array, Key, Tree
from fedpd.problems.adapters.adapter import Adapter, differ
from fedpd.problems.classification import Normalisation

STATISTICS = "batch_stats"  # flax's name for batch statistics
TRAIN = "Write __call__(self, x, train) and nn.BatchNorm(use_running_average=not train)"


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return a linen module as a function of its parameters.

    Args:
        module: A flax.linen module whose __call__ takes (x) or (x, train).

    Raises:
        FedpdError: If the module has other variables than parameters and batch statistics, or draws random numbers
            without an argument `train` that turns them off.
    """
    takes_train = _takes_train(module)
    variables, momenta = _initialise(module, seed, example, takes_train)
    start = jax.tree.map(np.asarray, variables["params"])
    unknown = [name for name in variables if name not in ("params", STATISTICS)]
    if unknown:
        rule = "fedpd supports only parameters and the statistics of batch normalisation"
        refuse("collection", unknown[0], rule, "Use a module without this collection")
    random = _draws(module, variables, example, takes_train)
    if STATISTICS not in variables:
        random = random or (takes_train and differ(module, start, example, plain))
        return Adapter(start, partial(_scores, module, takes_train), random)
    if not takes_train:
        refuse("module", type(module).__name__, "has batch normalisation, so its __call__ must take train", TRAIN)
    kept = _momenta(variables[STATISTICS], momenta)
    normalise = Normalisation(partial(_statistics, module, kept), partial(_evaluated, module))
    return Adapter(start, partial(_normalised, module, kept), random, normalise)


def plain(module: Any, parameters: Tree, x: Array, key: Key | None, train: bool) -> Array:
    """Return the scores as a user of flax computes them: `module.apply`."""
    named = {"mutable": [STATISTICS]} if train else {}
    found: Any = module.apply(
        {"params": parameters},
        x,
        **_mode(_takes_train(module), train),
        **named,
        rngs=None if key is None else {"params": key},
    )
    return found[0] if train else found


def _takes_train(module: Any) -> bool:
    """Return whether the module's __call__ takes `train`; other arguments must have defaults."""
    _, *others = inspect.signature(module.__call__).parameters.values()
    for one in others:
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "train":
            rule = "has no default, but fedpd calls the module with x, or with x and train, only"
            refuse(f"argument of {type(module).__name__}.__call__", one.name, rule, "Give it a default")
    return "train" in [one.name for one in others]


def _initialise(module: Any, seed: int, example: Array, takes_train: bool) -> tuple[Tree, dict[Any, float]]:
    """Return the module's variables, and the momentum of each batch normalisation by its path."""
    with extra("networks", "problems.network"):
        import flax.linen as nn

    momenta: dict[Any, float] = {}

    def note(function: Any, arguments: Any, named: Any, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            momenta[context.module.path] = context.module.momentum
        return function(*arguments, **named)

    with nn.intercept_methods(note):
        return module.init(jax.random.key(seed), example, **_mode(takes_train, True)), momenta


def _mode(takes_train: bool, train: bool) -> dict[str, bool]:
    return {"train": train} if takes_train else {}


def _draws(module: Any, variables: Tree, example: Array, takes_train: bool) -> bool:
    """Return whether the module draws random numbers in training, and check that it does not in evaluation."""
    from flax.errors import InvalidRngError

    def draws(train: bool) -> bool:
        try:
            jax.eval_shape(lambda: module.apply(variables, example, mutable=True, **_mode(takes_train, train)))
        except InvalidRngError:
            return True
        return False

    if draws(False):
        raise FedpdError(
            f"{type(module).__name__} draws random numbers (dropout), and nothing turns them off where fedpd measures. "
            "Write __call__(self, x, train) and nn.Dropout(rate, deterministic=not train)."
        )
    return takes_train and draws(True)


def _scores(module: Any, takes_train: bool, model: Tree, x: Array, key: Key | None) -> Array:
    """Return the scores of a module without batch normalisation."""
    if key is None:
        return module.apply({"params": model}, x, **_mode(takes_train, False))
    return module.apply({"params": model}, x, **_mode(takes_train, True), rngs={"params": key})


def _momenta(statistics: Tree, momenta: dict[Any, float]) -> Tree:
    """Return the momentum of every statistic, in the structure of the statistics."""
    from flax.traverse_util import flatten_dict, unflatten_dict

    kept = {}
    for path in flatten_dict(statistics):
        if path[:-1] not in momenta:
            refuse("statistic", "/".join(path), "must belong to nn.BatchNorm", "Remove it from the module")
        name = f"momentum of {'/'.join(path[:-1])}"
        kept[path] = below(name, momenta[path[:-1]], 1, "With 1 the statistics never change; 0.99 is usual")
    return unflatten_dict(kept)


def _train(module: Any, momenta: Tree, model: Tree, x: Array, key: Key | None) -> tuple[Array, Tree]:
    """Return the scores of a batch normalised by its own statistics, and flax's m s + (1 - m) b with s = 0."""
    import flax.linen as nn

    def without_dropout(function: Any, arguments: Any, named: Any, context: Any) -> Any:
        off = isinstance(context.module, nn.Dropout) and context.method_name == "__call__"
        return arguments[0] if off else function(*arguments, **named)

    nothing = jax.tree.map(lambda _: np.float32(0), momenta)
    variables = {"params": model, STATISTICS: nothing}
    if key is not None:
        return module.apply(variables, x, train=True, mutable=[STATISTICS], rngs={"params": key})
    with nn.intercept_methods(without_dropout):
        return module.apply(variables, x, train=True, mutable=[STATISTICS])


def _normalised(module: Any, momenta: Tree, model: Tree, x: Array, key: Key | None) -> Array:
    """Return the scores of a batch normalised by its own statistics."""
    return _train(module, momenta, model, x, key)[0]


def _statistics(module: Any, momenta: Tree, model: Tree, x: Array) -> Tree:
    """Return b, the statistics of the batch."""
    updated = _train(module, momenta, model, x, None)[1][STATISTICS]
    return jax.tree.map(lambda s, m: s / (1 - m), updated, momenta)


def _evaluated(module: Any, model: Tree, statistics: Tree, x: Array) -> Array:
    """Return the scores of samples normalised by the given statistics."""
    return module.apply({"params": model, STATISTICS: statistics}, x, train=False)
