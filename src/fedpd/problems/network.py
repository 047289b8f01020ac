"""Classification with a module of PyTorch, flax, equinox or haiku: the model is the module's trained parameters."""

from functools import partial
from importlib import import_module
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import choice, refuse
from fedpd.base.errors import warn
from fedpd.base.precision import is_double, scope
from fedpd.base.process import use_cores
from fedpd.base.typed import explained
from fedpd.core import Array, Key, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.data.lazy import Lazy
from fedpd.problems.adapters.adapter import Adapter, Parts, Trainable, split
from fedpd.problems.build import Weights
from fedpd.problems.classification import SOFTMAX, Loss, Normalisation, classify
from fedpd.problems.evaluation import Metrics
from fedpd.problems.second_opinion import Plain

FEW = 8  # samples on which a PyTorch module is run when the problem is built


@explained
def network(
    module: Any,
    data: Federated,
    *,
    loss: Loss | Any = None,
    trainable: Trainable | None = None,
    backend: Literal["jax", "callback"] = "jax",
    precision: Literal["float32", "bfloat16"] = "float32",
    seed: int = 0,
    l2: float = 0.0,
    weights: Weights = None,
    metrics: Metrics = None,
    check: bool = True,
) -> Problem:
    """Return the problem of classifying federated data with a module, from the module's initialisation.

    Random layers (dropout) draw from (seed, round, agent, step) in training, and are off where fedpd measures. A
    PyTorch module trains as after `module.train()`, and fedpd measures it as after `module.eval()`. A module with batch
    normalisation normalises each training batch by its own statistics, and an agent's samples by that agent's
    statistics where fedpd measures.

    Args:
        module: Returns scores (B, K) of x (B, ...). A PyTorch nn.Module. A flax.linen module whose __call__ takes (x)
            or (x, train). A flax.nnx module. An equinox module, which takes one sample and, for random layers, `key`;
            with eqx.nn.BatchNorm also the state. haiku's `hk.transform` of a function of (x) or (x, train), or
            `hk.transform_with_state` of a function of (x, train).
        data: The federated data.
        loss: (scores (B, K), numbers of the classes (B,)) -> (B,), in JAX, or a loss module of PyTorch. None: softmax
            cross entropy.
        trainable: (path of a parameter, such as "Dense_0/kernel") -> whether it is trained. The other arrays are
            frozen: all agents share them, and they are never sent. None: all are trained, in PyTorch those with
            `requires_grad`.
        backend: For PyTorch: "jax" compiles the module with torchax. "callback" runs it in PyTorch, which is slower and
            works for every module. See `check`.
        precision: "bfloat16" computes the scores and their gradient in bfloat16. Models, duals, messages and losses
            stay in float32. "float32" computes in the precision of the data.
        seed: The seed of the initialisation; modules of PyTorch, nnx and equinox come initialised.
        l2: The weight of ||model||^2/2, of the trained parameters.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.
        metrics: More to measure on test samples, as for `classification`.
        check: Whether to compare one loss and one gradient of one agent with those that the module's own library
            computes, without compilation, padding and blocks, in training and in evaluation. If a module of PyTorch
            differs, because torchax does not see `torch.no_grad()`, `.data`, hooks or an autograd function of your own,
            fedpd warns and uses backend="callback".

    Returns:
        The problem. Its model has the trained parameters: for PyTorch a dict by name, for equinox a module with None in
        place of frozen arrays, otherwise nested dicts. `load_model` loads it into a module.

    Raises:
        FedpdError: If fedpd does not support a layer, nothing is trained, there are fewer scores than classes, or the
            gradient is not PyTorch's.
    """
    use_cores()  # before JAX computes anything
    choice("backend", backend, ("jax", "callback"))
    choice("precision", precision, ("float32", "bfloat16"))
    library = _library(module)
    is_torch = hasattr(library, "second_opinion")
    if backend == "callback" and not is_torch:
        refuse("backend", backend, "is for modules of PyTorch only", "Leave it out")
    few = _few_samples(data)
    few = {name: np.concatenate([leaf, *(one[name] for one in _extremes(data))]) for name, leaf in few.items()}
    example = few["x"] / np.float32(255) if few["x"].dtype == np.uint8 else few["x"]
    example = np.asarray(example if is_torch else example[:1])

    def build(backend: str, precision: str) -> Problem:
        with scope(is_double(example)):
            adapter: Adapter = library.adapt(module, jnp.asarray(example), backend=backend, seed=seed)
        adapter = _in_bfloat16(adapter, backend) if precision == "bfloat16" else adapter
        parts, rule = split(adapter, trainable), adapter.normalisation
        return classify(
            partial(_scores, adapter, parts),
            data,
            parts.trained,
            l2=l2,
            normalisation=None if rule is None else Normalisation(*(partial(_merged, parts, one) for one in rule)),
            weights=weights,
            loss=_loss(loss),
            random=partial(_random_scores, adapter, parts) if adapter.random else None,
            frozen=parts.frozen,
            metrics=metrics,
            check=check,
            plain=_plain(library, module, adapter, parts, _loss(loss)),
        )

    try:
        problem = build(backend, precision)
    except IndexError as error:  # of an embedding in PyTorch
        rule = f"fails for samples of the data: {error}"
        refuse("module", type(module).__name__, rule, "Check that all entries of x are indices that its layers have")
    if not check or not is_torch:
        return problem
    batch = {"x": few["x"], "y": np.searchsorted(data.classes, few["y"]).astype(np.int32)}
    opinion = partial(library.second_opinion, module, samples=batch, loss=loss)
    checked = problem if precision == "float32" else build(backend, "float32")
    difference = opinion(problem=checked, compiled=backend == "jax")
    if difference and backend == "jax" and precision == "float32":
        problem = build("callback", precision)
        found, difference = difference, opinion(problem=problem, compiled=False)
        if not difference:
            _warn_of_callback(module, found)
    if difference:
        rule = f"fedpd would train another function than PyTorch: {difference}"
        remedy = "Remove hooks of parameters, torch.no_grad(), .data and autograd functions of your own"
        refuse("module", type(module).__name__, rule, f"{remedy}, or give check=False to train that function")
    return problem


def _few_samples(data: Federated) -> Any:
    """Return a few samples of the smallest agent that has two, which batch normalisation needs."""
    sizes = np.asarray(data.sizes)
    agent = int(np.argmin(np.where(sizes > 1, sizes, np.inf)) if (sizes > 1).any() else np.argmax(sizes))
    samples = data.train[agent]
    rows = np.arange(min(max(len(samples["y"]), 2), FEW)) % max(len(samples["y"]), 1)
    return {name: samples[name][rows] for name in ("x", "y")} if len(samples["y"]) else samples


def _extremes(data: Federated) -> list[Any]:
    """Return the samples with the smallest and the largest integers: compiled programs accept indices out of range.

    Lazy samples are not looked at, because they are not in memory.
    """
    found: dict[str, tuple[int, Any]] = {}
    parts = [part for part in (data.train, data.test) if not isinstance(part, Lazy)]
    for x, y in ((own["x"], own["y"]) for part in parts for own in part):
        if not len(y) or x.dtype.kind not in "iu" or x.dtype == np.uint8:
            continue
        flat = x.reshape(len(y), -1)
        for name, row, value in (
            ("least", int(flat.min(1).argmin()), -int(flat.min())),
            ("most", int(flat.max(1).argmax()), int(flat.max())),
        ):
            if name not in found or value > found[name][0]:
                found[name] = value, {"x": x[row : row + 1], "y": y[row : row + 1]}
    return [sample for _, sample in found.values()]


def _warn_of_callback(module: Any, difference: str) -> None:
    rule = f"compiled by torchax, it is another function than in PyTorch: {difference}"
    does = 'fedpd runs it in PyTorch, which is right and slower: give backend="callback" if you want this'
    remedy = "To compile it, avoid torch.no_grad(), .data, hooks and autograd functions of your own"
    warn(f"module = {type(module).__name__!r}: {rule}. {does}. {remedy}.")


def _plain(library: Any, module: Any, adapter: Adapter, parts: Parts, loss: Loss) -> Plain | None:
    """Return the training losses as the library itself computes them; None for PyTorch, which has its own check.

    A module with random layers is compared in evaluation, and in training with the same random numbers. Beside batch
    normalisation only training is compared, because a library has no mode without random layers only.
    """
    if not hasattr(library, "plain"):
        return None

    def losses(train: bool, model: Tree, batch: Tree, key: Key | None = None) -> Array:
        arrays = parts.merge(parts.frozen, model)
        x = batch["x"] / jax.tree.leaves(arrays)[0].dtype.type(255) if batch["x"].dtype == jnp.uint8 else batch["x"]
        return loss(library.plain(module, arrays, x, key, train), batch["y"])

    if not adapter.random:
        return Plain(partial(losses, True))
    return Plain(None if adapter.normalisation else partial(losses, False), partial(losses, True))


LIBRARIES = {  # by the start of the name of a base class
    "torch.nn.modules.module.Module": "torch",
    "flax.linen.module.Module": "linen",
    "flax.nnx.": "nnx",
    "equinox.": "equinox",
    "haiku.": "haiku",
}


def _library(module: Any) -> Any:
    """Return the adapter of the library that the module belongs to."""
    kinds = [f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__]
    found = [name for start, name in LIBRARIES.items() if any(kind.startswith(start) for kind in kinds)]
    if not found:
        remedy = "Give other models to problems.classification, as a function (model, features) -> scores"
        rule = "must be a module of PyTorch, flax (linen or nnx), equinox or haiku, not its class"
        refuse("module", getattr(module, "__name__", type(module).__name__), rule, remedy)
    return import_module(f"fedpd.problems.adapters.{found[0]}")


def _in_bfloat16(adapter: Adapter, backend: str) -> Adapter:
    """Return a module that computes in bfloat16, from and to float32."""
    for name, value, unsupported in (
        ("backend", backend, backend == "callback"),
        ("module", "batch normalisation", adapter.normalisation is not None),
    ):
        if unsupported:
            refuse(name, value, 'does not go with precision="bfloat16"', "Leave precision out")
    return adapter._replace(scores=partial(_scores_in_bfloat16, adapter))


def _scores_in_bfloat16(adapter: Adapter, parameters: Tree, x: Array, key: Key | None) -> Array:
    def lower(leaf: Array) -> Array:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return adapter.scores(jax.tree.map(lower, parameters), lower(x), key).astype(jnp.float32)


def _arrays(parts: Parts, model: Tree) -> Tree:
    """Return all arrays of the module from the model, or from (frozen, model) if some are frozen."""
    return model if parts.frozen is None else parts.merge(*model)


def _scores(adapter: Adapter, parts: Parts, model: Tree, x: Array) -> Array:
    return adapter.scores(_arrays(parts, model), x, None)


def _random_scores(adapter: Adapter, parts: Parts, model: Tree, x: Array, key: Key) -> Array:
    return adapter.scores(_arrays(parts, model), x, key)


def _merged(parts: Parts, function: Any, model: Tree, *arguments: Any) -> Any:
    return function(_arrays(parts, model), *arguments)


def _loss(loss: Any) -> Loss:
    """Return a loss of JAX arrays, one per sample."""
    if loss is None:
        return SOFTMAX
    if any(base.__module__.startswith("torch.nn.") for base in type(loss).__mro__):
        from fedpd.problems.adapters.torch import TorchLoss

        return TorchLoss(loss)
    if not callable(loss):
        refuse("loss", loss, "must be a function of (scores, numbers of the classes)", "Return one loss per sample")
    return loss


def load_model(module: Any, model: Tree) -> Any:
    """Return the module with the trained parameters of a model; frozen arrays stay, and buffers that are not given.

    Args:
        module: The module that `network` got, of PyTorch, nnx or equinox. A module of linen or haiku holds no
            parameters: there the model itself is what its `apply` takes.
        model: The model of a run. For PyTorch it may also have buffers, such as an agent's batch statistics.

    Returns:
        The same object for PyTorch and nnx, which is changed, and a new module for equinox.

    Raises:
        FedpdError: If the model does not belong to this module.
    """
    library = _library(module)
    if not hasattr(library, "load"):
        rule = "holds no parameters"
        refuse("module", type(module).__name__, rule, 'Use module.apply({"params": run.model}, x), in haiku apply')
    return library.load(module, model)
