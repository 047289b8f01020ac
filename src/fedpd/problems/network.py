"""Classification with a module of PyTorch, flax, equinox or haiku: the model is the module's trained parameters."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import choice, refuse
from fedpd.base.process import use_cores
from fedpd.base.typed import explained
from fedpd.core import Array, Key, Problem, Tree
from fedpd.data.federated import Federated
from fedpd.problems.adapters.adapter import Adapter, Trainable
from fedpd.problems.augment import Augment, augmented, check_augment
from fedpd.problems.build import Weights
from fedpd.problems.classification import CROSS_ENTROPY, Loss, classify
from fedpd.problems.evaluation import Metrics
from fedpd.problems.modules import (
    adapted,
    confirmed,
    example_samples,
    explained_indices,
    function_of,
    in_jax,
    is_torch,
    library_of,
    plain_losses,
)


@explained
def network(
    module: Any,
    data: Federated,
    *,
    loss: Loss | Any = None,
    trainable: Trainable | None = None,
    augment: Augment | None = None,
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
        module: Returns scores (B, K) of x (B, ...), or one logit (B, 1) for two classes. A PyTorch nn.Module, which may
            also return an object or a dict with `logits`; it takes an x that is a dict, such as {"input_ids": ...,
            "attention_mask": ...}, by name. A flax.linen module whose __call__ takes (x) or (x, train). A flax.nnx
            module. An equinox module, which takes one sample and, for random layers, `key`; with
            eqx.nn.BatchNorm also the state. haiku's `hk.transform` of a function of (x) or (x, train), or
            `hk.transform_with_state` of a function of (x, train).
        data: The federated data.
        loss: (scores (B, K), numbers of the classes (B,)) -> (B,), in JAX, or a loss module of PyTorch. None: softmax
            cross entropy; of one output (B, 1) or (B,) for two classes, binary cross entropy with logits.
        trainable: (path of a parameter, such as "Dense_0/kernel") -> whether it is trained. The other arrays are
            frozen: all agents share them, and they are never sent. None: all are trained, in PyTorch those with
            `requires_grad`.
        augment: (key, x (B, ...)) -> x of the same shape, in JAX: changes a batch in training, never where fedpd
            measures. The key comes from (seed, round, agent, step). uint8 features are numbers in [0, 1] already.
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
    library, few = library_of(module), example_samples(data)
    own = _loss(loss)

    def build(backend: str, precision: str, change: Augment | None = None, check: bool = check) -> Problem:
        adapter = adapted(library, module, few["x"], backend=backend, seed=seed)
        adapter = _in_bfloat16(adapter, backend) if precision == "bfloat16" else adapter
        function = function_of(library, module, adapter, trainable)
        if change is not None:
            function = function._replace(random=augmented(function.apply, function.random, change))
        return classify(
            function.apply,
            data,
            function.start,
            l2=l2,
            normalisation=function.normalisation,
            weights=weights,
            loss=own,
            random=function.random,
            frozen=function.frozen,
            metrics=metrics,
            check=check,
            plain=plain_losses(function, lambda scores, batch: own(scores, batch["y"])),
        )

    chosen: str = backend

    def again() -> Problem:
        nonlocal chosen
        chosen = "callback"
        return build(chosen, precision)

    with explained_indices(module):
        problem = build(backend, precision)
        if check and is_torch(library):
            batch = {"x": few["x"], "y": np.searchsorted(data.classes, few["y"]).astype(np.int32)}
            if precision == "bfloat16":
                confirmed(module, build(backend, "float32"), batch, loss, backend=backend, again=None)
            else:
                fallback = again if backend == "jax" else None
                problem = confirmed(module, problem, batch, loss, backend=backend, again=fallback)
    if augment is None:
        return problem
    check_augment(augment, data)  # the library, with which the problem was compared, does not know of it
    return build(chosen, precision, augment, False)


def _in_bfloat16(adapter: Adapter, backend: str) -> Adapter:
    """Return a module that computes in bfloat16, from and to float32."""
    for name, value, unsupported in (
        ("backend", backend, backend == "callback"),
        ("module", "batch normalisation", adapter.normalisation is not None),
    ):
        if unsupported:
            refuse(name, value, 'does not go with precision="bfloat16"', "Leave precision out")
    return adapter._replace(scores=partial(_scores_in_bfloat16, adapter))


def _scores_in_bfloat16(adapter: Adapter, parameters: Tree, x: Tree, key: Key | None) -> Array:
    def lower(leaf: Array) -> Array:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    lowered, features = jax.tree.map(lower, (parameters, x))
    return adapter.scores(lowered, features, key).astype(jnp.float32)


def _loss(loss: Any) -> Loss:
    """Return a loss of JAX arrays, one per sample."""
    if loss is None:
        return CROSS_ENTROPY
    if any(base.__name__ == "BCELoss" for base in type(loss).__mro__):
        rule = "needs probabilities, and fedpd takes one output for a logit, so that its accuracies would be wrong"
        refuse("loss", "BCELoss", rule, "Use nn.BCEWithLogitsLoss(), and leave the sigmoid out of the module")
    loss = in_jax(loss)
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
    library = library_of(module)
    if not hasattr(library, "load"):
        rule = "holds no parameters"
        refuse("module", type(module).__name__, rule, 'Use module.apply({"params": run.model}, x), in haiku apply')
    return library.load(module, model)
