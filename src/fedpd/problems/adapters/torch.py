"""Modules of PyTorch, compiled by JAX through torchax, or called back: the model is a dict of parameters by name."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import extra
from fedpd.base.identity import fingerprint
from fedpd.base.precision import is_double
from fedpd.core import Array, Key, Spec, Tree
from fedpd.problems.adapters.adapter import Adapter, identify
from fedpd.problems.adapters.torch_batch_norm import (
    batch_norms,
    buffer_names,
    normalised_by_batch,
    normalised_by_buffers,
    statistics,
)
from fedpd.problems.adapters.torch_reference import (
    ONE_AT_A_TIME,
    arguments_of,
    check_names,
    fitted,
    scores_of,
    seeded,
    trains_differently,
    warn_of_mean,
)
from fedpd.problems.adapters.torch_reference import second_opinion as second_opinion
from fedpd.problems.classification import Normalisation
from fedpd.problems.external import call_back

with extra("torch", "problems.network"):
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call


class Compiled:
    """A module as a function of JAX arrays, by torchax."""

    def __init__(self, module: nn.Module) -> None:
        self.train, self.quiet = normalised_by_batch(module).train(), normalised_by_batch(module).eval()
        self.judged = normalised_by_buffers(module) if batch_norms(module) else None

    @property
    def spec(self) -> Spec:
        return identify(self.quiet.named_modules(), (Tensor, nn.Module))

    def __call__(self, arrays: Tree, x: Array, key: Key | None) -> Array:
        return _run(self.quiet if key is None else self.train, arrays, x, key)

    def statistics(self, arrays: Tree, x: Array) -> Tree:
        """Return the statistics that normalise a batch, by the names of the buffers."""
        return _in_torchax(partial(statistics, self.quiet), arrays, x, None)

    def evaluate(self, arrays: Tree, known: Tree, x: Array) -> Array:
        """Return the scores of samples that are normalised by known statistics."""
        assert self.judged is not None
        return _run(self.judged, arrays | known, x, None)


def _run(module: nn.Module, arrays: Tree, x: Tree, key: Key | None) -> Array:
    """Return the scores by torchax."""
    return _in_torchax(partial(_called, module), arrays, x, key)


def _called(module: nn.Module, tensors: dict[str, Tensor], x: Any) -> Tensor:
    return scores_of(functional_call(module, tensors, *arguments_of(x)))


def _in_torchax(call: Callable[..., Any], arrays: Tree, x: Any, key: Key | None) -> Any:
    """Return call(tensors, inputs) by torchax; random numbers come from the key."""
    from fedpd.problems.adapters.torchax import environment  # a module that is called back does without torchax

    first, env = jax.random.key(0) if key is None else key, environment()
    with ONE_AT_A_TIME, env.override_property(prng=first), torch.no_grad():
        tensors, inputs = env.j2t_iso(jax.tree.map(jnp.asarray, (dict(arrays), x)))
        with env, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype")  # 64-bit integers, as torch.arange has
            found = call(tensors, inputs)
    return env.t2j_iso(found)


class CalledBack:
    """A module as a function of JAX arrays, which JAX calls back in PyTorch."""

    def __init__(self, module: nn.Module, example: Array) -> None:
        self.train, self.quiet = normalised_by_batch(module).train(), normalised_by_batch(module).eval()
        self.judged = normalised_by_buffers(module) if batch_norms(module) else None
        dtype = next(module.parameters()).dtype
        x = jax.tree.map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, _tensors(example))
        with ONE_AT_A_TIME, torch.no_grad():
            self.outputs = tuple(_called(self.quiet, {}, x).shape[1:])
            known = statistics(self.quiet, dict(module.named_parameters()), x)
        self.shapes = {name: tuple(one.shape) for name, one in known.items()}
        self.names = frozenset(name for name, one in module.named_parameters() if one.requires_grad)
        self._scores = self._differentiable()

    @property
    def spec(self) -> Spec:
        return identify([("called back", self.quiet), *self.quiet.named_modules()], (Tensor, nn.Module))

    def __call__(self, arrays: Tree, x: Array, key: Key | None) -> Array:
        own = {name: array for name, array in arrays.items() if name in self.names}
        others = {name: array for name, array in arrays.items() if name not in self.names}
        seed = jnp.uint32(0) if key is None else jax.random.bits(key, dtype=jnp.uint32)
        return self._scores(own, others, x, seed, key is not None)

    def statistics(self, arrays: Tree, x: Array) -> Tree:
        """Return the statistics that normalise a batch, by the names of the buffers."""
        dtype = jnp.result_type(*arrays.values())
        shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in self.shapes.items()}
        return call_back(self._statistics, shapes, arrays, x)

    def evaluate(self, arrays: Tree, known: Tree, x: Array) -> Array:
        """Return the scores of samples that are normalised by known statistics."""
        shape = jax.ShapeDtypeStruct((_length(x), *self.outputs), jnp.result_type(*arrays.values()))
        return call_back(self._evaluate, shape, arrays | known, x)

    def _differentiable(self) -> Callable[..., Array]:
        """Return the scores as a function of arrays with a gradient, which PyTorch computes."""

        @partial(jax.custom_vjp, nondiff_argnums=(4,))
        def scores(own: Tree, others: Tree, x: Array, seed: Array, train: bool) -> Array:
            shape = jax.ShapeDtypeStruct((_length(x), *self.outputs), jnp.result_type(*own.values()))
            return call_back(partial(self._forward, train), shape, own, others, x, seed)

        def forward(own: Tree, others: Tree, x: Array, seed: Array, train: bool) -> tuple[Array, Any]:
            return scores(own, others, x, seed, train), (own, others, x, seed)

        def backward(train: bool, known: Any, slope: Array) -> tuple[Any, None, None, None]:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), known[0])
            return call_back(partial(self._backward, train), shapes, *known, slope), None, None, None

        scores.defvjp(forward, backward)
        return scores

    def _forward(self, train: bool, own: Tree, others: Tree, x: Tree, seed: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._call(train, _tensors(own), others, x, seed).numpy()

    def _backward(self, train: bool, own: Tree, others: Tree, x: Tree, seed: np.ndarray, slope: np.ndarray) -> Tree:
        tensors = {name: tensor.requires_grad_() for name, tensor in _tensors(own).items()}
        scores = self._call(train, tensors, others, x, seed)
        found = torch.autograd.grad(scores, list(tensors.values()), _tensor(slope), allow_unused=True)
        pairs = zip(tensors.items(), found, strict=True)
        return {name: np.zeros(one.shape, np.float32) if g is None else g.numpy() for (name, one), g in pairs}

    def _statistics(self, arrays: Tree, x: Tree) -> Tree:
        with ONE_AT_A_TIME, torch.no_grad():
            found = statistics(self.quiet, _tensors(arrays), _tensors(x))
        return {name: one.numpy() for name, one in found.items()}

    def _evaluate(self, arrays: Tree, x: Tree) -> np.ndarray:
        assert self.judged is not None
        with ONE_AT_A_TIME, torch.no_grad():
            return _called(self.judged, _tensors(arrays), _tensors(x)).numpy()

    def _call(self, train: bool, own: dict[str, Tensor], others: Tree, x: Any, seed: Any) -> Tensor:
        with seeded(int(seed)):
            return _called(self.train if train else self.quiet, own | _tensors(others), _tensors(x))


def adapt(module: nn.Module, example: Tree, *, backend: str, seed: int) -> Adapter:
    """Return a PyTorch module as a function of its parameters and buffers; the module itself does not change.

    Args:
        module: The module. Its parameters without `requires_grad`, and its buffers, are frozen; those of batch
            normalisation are not used.
        example: Some samples of one agent, (B, ...), or a dict of such arrays, which the module takes by name.
        backend: "jax" compiles the module by torchax; "callback" calls PyTorch back.

    Raises:
        FedpdError: If torchax lacks an operation of the module, or a layer keeps statistics of single samples.
    """
    check_names(module, example)
    measured = buffer_names(module)
    parameters = dict(module.named_parameters())
    buffers = {name: tensor for name, tensor in module.named_buffers() if name not in measured}
    for name, tensor in parameters.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            refuse(f"type of parameter {name}", str(tensor.dtype), "must be float32 or float64", "Use module.float()")
    start = {name: array_of(tensor) for name, tensor in (parameters | buffers).items()}
    frozen = frozenset(buffers) | {name for name, tensor in parameters.items() if not tensor.requires_grad}
    made: Compiled | CalledBack
    if backend == "callback":
        made = CalledBack(module, example)
    else:
        made = Compiled(module)
        jax.eval_shape(partial(_try, made.quiet), start, jax.tree.map(lambda leaf: leaf[:1], example))
    random = trains_differently(module, jax.tree.map(np.asarray, example), is_double(example, start))
    if random and isinstance(made, Compiled):
        jax.eval_shape(partial(_try, made.train), start, example)
    rule = Normalisation(partial(_statistics, made), partial(_evaluated, made)) if made.judged is not None else None
    return Adapter(start, made, random, rule, frozen)


def _statistics(made: Compiled | CalledBack, arrays: Tree, x: Array) -> Tree:
    return made.statistics(arrays, x)


def _evaluated(made: Compiled | CalledBack, arrays: Tree, known: Tree, x: Array) -> Array:
    return made.evaluate(arrays, known, x)


class TorchLoss:
    """A loss module of PyTorch as a function of JAX arrays, with one loss per sample."""

    def __init__(self, loss: nn.Module) -> None:
        own: Any = copy.copy(loss)
        warn_of_mean(own)
        if hasattr(own, "reduction"):
            own.reduction = "none"
        self.loss: Any = own
        self.arrays = {name: array_of(tensor) for name, tensor in loss.state_dict().items()}  # weights of classes

    @property
    def spec(self) -> Spec:
        own = identify(self.loss.named_modules(), (Tensor, nn.Module))
        return Spec("loss", (*own.settings, ("arrays", fingerprint(self.arrays))))

    def __call__(self, scores: Array, y: Array) -> Array:
        return _in_torchax(self._call, self.arrays, (scores, y), None)

    def _call(self, tensors: dict[str, Tensor], inputs: tuple[Tensor, Tensor]) -> Tensor:
        return functional_call(self.loss, tensors, fitted(self.loss, *inputs))


def load(module: nn.Module, model: Mapping[str, Any]) -> nn.Module:
    """Return the module, changed to have the parameters of a model, and statistics that are given with them."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    if not set(model) <= set(tensors):
        unknown = sorted(set(model) - set(tensors))
        refuse("model", unknown, "are not parameters of the module", "Give the model of this module")
    with torch.no_grad():
        for name, array in model.items():
            tensors[name].copy_(_tensor(array))
    return module


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array; JAX has no 64-bit integers beside float32."""
    array = tensor.detach().cpu().numpy().copy()
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _tensor(array: Any) -> Tensor:
    tensor = torch.from_numpy(np.array(array))  # a copy: JAX's arrays must not be written to
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def _tensors(arrays: Tree) -> Any:
    return jax.tree.map(_tensor, arrays)


def _length(x: Tree) -> int:
    return len(jax.tree.leaves(x)[0])


def _try(module: nn.Module, arrays: Tree, x: Tree) -> Array:
    """Return the scores; if the module fails, the error names the layer."""
    with _named_layers(module) as inside:
        try:
            return _run(module, arrays, x, None)
        except FedpdError:
            raise
        except Exception as error:
            from torchax.tensor import OperatorNotFound

            name, layer = inside[-1] if inside else ("", module)
            where = f"layer {name!r} ({type(layer).__name__})" if name else f"the module {type(layer).__name__}"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if isinstance(error, OperatorNotFound):
                sentence = f"{where} uses an operation that torchax does not have: {reason}."
            else:
                shape = f"for x of shape {jax.tree.map(jnp.shape, x)}"
                sentence = (
                    f"{where} cannot be compiled by torchax {shape}: {reason.rstrip('.')}. Check that it takes such x."
                )
            raise FedpdError(f'{sentence} Replace it, or give backend="callback", which runs it in PyTorch.') from error


@contextmanager
def _named_layers(module: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the layers that are running, from the outermost to the innermost."""
    inside: list[tuple[str, nn.Module]] = []
    hooks = []
    for name, layer in module.named_modules():
        hooks.append(layer.register_forward_pre_hook(lambda layer, _, name=name: inside.append((name, layer))))
        hooks.append(layer.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        yield inside
    finally:
        for hook in hooks:
            hook.remove()
