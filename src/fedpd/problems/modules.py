"""A module of PyTorch, flax, equinox or haiku as a function of its parameters, which all tasks train the same way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import warn
from fedpd.base.precision import is_double, scope
from fedpd.core import Array, Key, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.data.lazy import Lazy
from fedpd.problems.adapters.adapter import Adapter, Parts, Trainable, split
from fedpd.problems.classification import Apply, Normalisation, RandomApply, pixels_scaled
from fedpd.problems.second_opinion import Plain

FEW = 8  # samples on which a PyTorch module is run when the problem is built


class Function(NamedTuple):
    """A model as a function of its trained arrays. With frozen arrays, the functions take (frozen, model) for model."""

    apply: Apply  # (model, x) -> outputs, without random layers
    start: Tree  # the model x^0
    random: RandomApply | None = None  # (model, x, key) -> outputs in training, if the model has random layers
    frozen: Tree | None = None  # the arrays that are not trained; None: all are
    normalisation: Normalisation | None = None  # how the model normalises batches
    # (model, x, key, train) -> outputs as the library itself computes them; None: it has its own check
    plain: Callable[..., Array] | None = None


def example_samples(data: Federated) -> Any:
    """Return a few samples of one agent, and those with the smallest and the largest integers.

    The agent is the smallest one that has two samples, which batch normalisation needs. The integers are looked at,
    because compiled programs accept indices out of range; those of lazy samples are not, because they are not in
    memory.
    """
    sizes = np.asarray(data.sizes)
    agent = int(np.argmin(np.where(sizes > 1, sizes, np.inf)) if (sizes > 1).any() else np.argmax(sizes))
    few = {name: data.train[agent][name] for name in ("x", "y")}
    if number := len(few["y"]):
        few = _rows(few, np.arange(min(max(number, 2), FEW)) % number)
    found: dict[tuple[int, str], tuple[int, Any]] = {}
    parts = [part for part in (data.train, data.test) if not isinstance(part, Lazy)]
    for own in (own for part in parts for own in part if len(own["y"])):
        for place, x in enumerate(jax.tree.leaves(own["x"])):
            if x.dtype.kind not in "iu" or x.dtype == np.uint8:
                continue
            flat = x.reshape(len(x), -1)
            for name, row, value in (
                ("least", int(flat.min(1).argmin()), -int(flat.min())),
                ("most", int(flat.max(1).argmax()), int(flat.max())),
            ):
                if (place, name) not in found or value > found[place, name][0]:
                    found[place, name] = value, _rows({"x": own["x"], "y": own["y"]}, np.array([row]))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), few, *(sample for _, sample in found.values()))


def _rows(samples: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], samples)


LIBRARIES = {  # by the start of the name of a base class
    "torch.nn.modules.module.Module": "torch",
    "flax.linen.module.Module": "linen",
    "flax.nnx.": "nnx",
    "equinox.": "equinox",
    "haiku.": "haiku",
}


def name_of_library(module: Any) -> str | None:
    """Return the name of the adapter of the library that the module belongs to; None if it belongs to none."""
    kinds = [f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__]
    found = [name for start, name in LIBRARIES.items() if any(kind.startswith(start) for kind in kinds)]
    return found[0] if found else None


def library_of(module: Any) -> Any:
    """Return the adapter of the library that the module belongs to."""
    name = name_of_library(module)
    if name is None:
        remedy = "Give other models to problems.classification, as a function (model, features) -> scores"
        rule = "must be a module of PyTorch, flax (linen or nnx), equinox or haiku, not its class"
        refuse("module", getattr(module, "__name__", type(module).__name__), rule, remedy)
    return import_module(f"fedpd.problems.adapters.{name}")


def is_torch(library: Any) -> bool:
    """Return whether an adapter is that of PyTorch, whose modules have a check and a second backend."""
    return hasattr(library, "second_opinion")


def in_jax(loss: Any) -> Any:
    """Return a loss module of PyTorch as a function of JAX arrays, without a mean; other losses stay as they are."""
    if isinstance(loss, type):
        refuse("loss", loss.__name__, "is a class, not a loss", f"Call it first: {loss.__name__}()")
    if not any(base.__module__.startswith("torch.nn.") for base in type(loss).__mro__):
        return loss
    from fedpd.problems.adapters.torch import TorchLoss

    return TorchLoss(loss)


def adapted(library: Any, module: Any, x: Tree, *, backend: str, seed: int) -> Adapter:
    """Return a module as a function of all its arrays; `x` are samples of `example_samples`."""
    if backend == "callback" and not is_torch(library):
        refuse("backend", backend, "is for modules of PyTorch only", "Leave it out")
    rows = slice(None) if is_torch(library) else slice(1)
    example = jax.tree.map(lambda leaf: (leaf / np.float32(255) if leaf.dtype == np.uint8 else leaf)[rows], x)
    with scope(is_double(example)):
        return library.adapt(module, jax.tree.map(jnp.asarray, example), backend=backend, seed=seed)


def function_of(library: Any, module: Any, adapter: Adapter, trainable: Trainable | None) -> Function:
    """Return a module as a function of the arrays that are trained."""
    parts, rule = split(adapter, trainable), adapter.normalisation
    return Function(
        partial(_scores, adapter, parts),
        parts.trained,
        partial(_random_scores, adapter, parts) if adapter.random else None,
        parts.frozen,
        None if rule is None else Normalisation(*(partial(_merged, parts, one) for one in rule)),
        partial(_plain_scores, library.plain, module, parts) if hasattr(library, "plain") else None,
    )


def _arrays(parts: Parts, model: Tree) -> Tree:
    """Return all arrays of the module from the model, or from (frozen, model) if some are frozen."""
    return model if parts.frozen is None else parts.merge(*model)


def _scores(adapter: Adapter, parts: Parts, model: Tree, x: Array) -> Array:
    return adapter.scores(_arrays(parts, model), x, None)


def _random_scores(adapter: Adapter, parts: Parts, model: Tree, x: Array, key: Key) -> Array:
    return adapter.scores(_arrays(parts, model), x, key)


def _merged(parts: Parts, function: Any, model: Tree, *arguments: Any) -> Any:
    return function(_arrays(parts, model), *arguments)


def _plain_scores(plain: Any, module: Any, parts: Parts, model: Tree, x: Array, key: Key | None, train: bool) -> Array:
    arrays = parts.merge(parts.frozen, model)
    return plain(module, arrays, pixels_scaled(x, jax.tree.leaves(arrays)[0].dtype), key, train)


def plain_losses(function: Function, loss: Callable[[Array, Tree], Array]) -> Plain:
    """Return the training losses as the library itself computes them; those of PyTorch have their own check.

    A module with random layers is compared in evaluation, and in training with the same random numbers. Beside batch
    normalisation only training is compared, because a library has no mode without random layers only.
    """
    plain = function.plain
    if plain is None:
        return Plain(None, compiled=True)

    def losses(train: bool, model: Tree, batch: Tree, key: Key | None = None) -> Array:
        return loss(plain(model, batch["x"], key, train), batch)

    if function.random is None:
        return Plain(partial(losses, True))
    return Plain(None if function.normalisation else partial(losses, False), partial(losses, True))


@contextmanager
def explained_indices(module: Any) -> Iterator[None]:
    """Explain an IndexError of an embedding in PyTorch."""
    try:
        yield
    except IndexError as error:
        rule = f"fails for samples of the data: {error}"
        refuse("module", type(module).__name__, rule, "Check that all entries of x are indices that its layers have")


def confirmed(
    module: Any, problem: Problem, samples: Tree, loss: Any, *, backend: str, again: Callable[[], Problem] | None
) -> Problem:
    """Return the problem of a PyTorch module after a comparison of one loss and one gradient with PyTorch.

    Args:
        samples: A batch, as the problem holds samples.
        loss: None, a loss module of PyTorch, or a function of (scores, y) in JAX.
        again: Returns the problem with backend="callback", to use if the compiled one differs; None: fedpd refuses.

    Raises:
        FedpdError: If fedpd would train another function than PyTorch.
    """
    opinion = partial(library_of(module).second_opinion, module, samples=samples, loss=loss)
    difference = opinion(problem=problem, compiled=backend == "jax")
    if difference and again is not None:
        problem = again()
        found, difference = difference, opinion(problem=problem, compiled=False)
        if not difference:
            rule = f"compiled by torchax, it is another function than in PyTorch: {found}"
            does = 'fedpd runs it in PyTorch, which is right and slower: give backend="callback" if you want this'
            remedy = "To compile it, avoid torch.no_grad(), .data, hooks and autograd functions of your own"
            warn(f"module = {type(module).__name__!r}: {rule}. {does}. {remedy}.")
    if difference:
        rule = f"fedpd would train another function than PyTorch: {difference}"
        remedy = "Remove hooks of parameters, torch.no_grad(), .data and autograd functions of your own"
        refuse("module", type(module).__name__, rule, f"{remedy}, or give check=False to train that function")
    return problem
