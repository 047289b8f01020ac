"""Classification with a flax module: the model is its parameters, and its batch statistics stay with the agents."""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, below, refuse
from fedpd.base.devices import use_cores
from fedpd.base.extras import extra
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.problems.build import Weights
from fedpd.problems.classification import Normalisation, classification

STATISTICS = "batch_stats"  # flax's name for batch statistics
TRAIN = "Write __call__(self, x, train) and nn.BatchNorm(use_running_average=not train)"


@explained
def network(module: Any, data: Federated, *, seed: int = 0, l2: float = 0.0, weights: Weights = None) -> Problem:
    """Return the `classification` problem of a flax.linen module on federated data, from the module's initialisation.

    A module with batch normalisation must take `train`, for nn.BatchNorm(use_running_average=not train). Training
    normalises each batch by its own statistics; evaluation normalises an agent's samples by that agent's statistics.
    Models, duals and averages contain parameters only.

    Args:
        module: A flax.linen module whose __call__ takes (x) or (x, train) and returns scores (B, K).
        data: The federated data.
        seed: The seed of the initialisation.
        l2: The weight of ||model||^2/2.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.

    Raises:
        FedpdError: If the module draws random numbers in training (dropout), or has other variables than parameters and
            batch statistics.
    """
    use_cores()  # before JAX computes anything
    train = _arguments(module)
    x = data.train[0]["x"][:1]
    example = jnp.asarray(x / np.float32(255) if x.dtype == np.uint8 else x)
    variables, momenta = _initialise(module, seed, example, train)
    start = jax.tree.map(np.asarray, variables["params"])
    unknown = [name for name in variables if name not in ("params", STATISTICS)]
    if unknown:
        rule = "fedpd supports only parameters and the statistics of batch normalisation"
        refuse("collection", unknown[0], rule, "Use a module without this collection")
    if STATISTICS not in variables:
        return classification(
            lambda model, x: module.apply({"params": model}, x, **train), data, start, l2=l2, weights=weights
        )
    if not train:
        refuse("module", type(module).__name__, "has batch normalisation, so its __call__ must take train", TRAIN)
    kept = _momenta(variables[STATISTICS], momenta)
    normalise = Normalisation(partial(_statistics, module, kept), partial(_evaluated, module))
    return classification(partial(_trained, module, kept), data, start, l2=l2, normalisation=normalise, weights=weights)


def _arguments(module: Any) -> dict[str, Any]:
    """Return {"train": True} if the module's __call__ takes it, else {}; other arguments must have defaults."""
    with extra("networks", "problems.network"):
        import flax.linen as nn

    if not isinstance(module, nn.Module):
        remedy = "Give other models to problems.classification, as a function (model, features) -> scores"
        refuse("module", type(module).__name__, "must be a flax.linen module", remedy)
    _, *others = inspect.signature(module.__call__).parameters.values()
    for one in others:
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "train":
            rule = "has no default, but fedpd calls the module with x, or with x and train, only"
            refuse(f"argument of {type(module).__name__}.__call__", one.name, rule, "Give it a default")
    return {"train": True} if "train" in [one.name for one in others] else {}


def _initialise(module: Any, seed: int, example: Array, train: dict[str, Any]) -> tuple[Tree, dict[Any, float]]:
    """Return the module's variables, and the momentum of each batch normalisation by its path."""
    import flax.linen as nn
    from flax.errors import InvalidRngError

    momenta: dict[Any, float] = {}

    def note(function: Any, arguments: Any, named: Any, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            momenta[context.module.path] = context.module.momentum
        return function(*arguments, **named)

    try:
        with nn.intercept_methods(note):
            variables = module.init(jax.random.key(seed), example, **train)
        jax.eval_shape(lambda: module.apply(variables, example, mutable=True, **train))
        return variables, momenta
    except InvalidRngError as error:
        raise FedpdError(
            f"{type(module).__name__} draws random numbers in training (dropout): a loss must depend on the model and "
            "the batch only. Remove dropout; use l2= to regularise."
        ) from error


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


def _train(module: Any, momenta: Tree, model: Tree, x: Array) -> tuple[Array, Tree]:
    """Return the scores of a batch normalised by its own statistics, and flax's m s + (1 - m) b with s = 0."""
    nothing = jax.tree.map(lambda _: np.float32(0), momenta)
    return module.apply({"params": model, STATISTICS: nothing}, x, train=True, mutable=[STATISTICS])


def _trained(module: Any, momenta: Tree, model: Tree, x: Array) -> Array:
    """Return the scores of a batch normalised by its own statistics."""
    return _train(module, momenta, model, x)[0]


def _statistics(module: Any, momenta: Tree, model: Tree, x: Array) -> Tree:
    """Return b, the statistics of the batch."""
    updated = _train(module, momenta, model, x)[1][STATISTICS]
    return jax.tree.map(lambda s, m: s / (1 - m), updated, momenta)


def _evaluated(module: Any, model: Tree, statistics: Tree, x: Array) -> Array:
    """Return the scores of samples normalised by the given statistics."""
    return module.apply({"params": model, STATISTICS: statistics}, x, train=False)
