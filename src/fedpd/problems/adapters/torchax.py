"""torchax as fedpd uses it: with versions of torch that lack names it reads, its random numbers, and faster layers.

Random numbers come from JAX's keys, are counted, and can be replaced. Importing this file imports torchax.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor
from torch.nn import functional

from fedpd.base.errors import extra
from fedpd.core import Array
from fedpd.problems.adapters.torch_reference import is_random
from fedpd.problems.layers import convolution, max_pool_of_images, product_by_rows

with extra("torch", "problems.network"):
    from torch._ops import OpOverloadPacket


class Missing:
    """Stands for an overload of an operation that torch no longer has; no module can call it."""


def is_named_dimension(overload: str) -> bool:
    """Return whether an overload takes names of dimensions, such as `dim_Dimname`; torch 2.13 removed these."""
    return "dimname" in overload.lower() or "names" in overload.split("_")


@contextmanager
def without_named_dimensions() -> Iterator[list[str]]:
    """Answer look-ups of overloads with named dimensions that torch lacks; the list says which were looked up.

    torchax 0.0.13 reads 22 of them while it is imported. Where torch has them, or torchax does not read them, nothing
    changes.
    """
    look_up, missing = OpOverloadPacket.__getattr__, []

    def answer(packet: Any, overload: str) -> Any:
        try:
            return look_up(packet, overload)
        except AttributeError:
            if not is_named_dimension(overload):
                raise
            missing.append(f"{packet}.{overload}")
            return Missing()

    setattr(OpOverloadPacket, "__getattr__", answer)  # noqa: B010 - mypy knows no assignment to a method
    try:
        yield missing
    finally:
        setattr(OpOverloadPacket, "__getattr__", look_up)  # noqa: B010


with extra("torch", "problems.network"), without_named_dimensions():
    from torchax import device_module, tensor

# PyTorch takes "jax" for an accelerator with streams, which it is not: torch.compile of a module would end in an error.
setattr(device_module, "is_available", lambda: False)  # noqa: B010


class ReplayError(Exception):
    """The module draws other random numbers by torchax than in PyTorch."""


class Environment(tensor.Environment):
    """torchax's environment, in which tensors that a module makes without a device are JAX's.

    Attributes:
        drawn: How often a module has drawn random numbers from JAX's key.
        given: Random numbers of PyTorch that take the place of the next ones; None: the module draws its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0
        self.given: Iterator[Tensor] | None = None

    def _should_use_torchax_tensor(self, device: Any) -> bool:
        """Return whether a new tensor is JAX's; PyTorch would draw `torch.rand(3)` once, while JAX traces."""
        return device is None or super()._should_use_torchax_tensor(device)

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> Any:
        self.drawn += generator is None  # torchax makes the same numbers from a generator in every call
        return super().get_and_rotate_prng_key(generator)

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.given is None or not is_random(func):
            return super().dispatch(func, types, args, kwargs)
        value = next(self.given, None)
        if value is None:
            raise ReplayError
        made = self.to_xla(value)
        if not str(getattr(func, "__name__", "")).partition(".")[0].endswith("_"):
            return made
        if tuple(args[0].shape) != tuple(made.shape):
            raise ReplayError
        with self:
            return args[0].copy_(made)  # an operation in place, such as bernoulli_

    @contextmanager
    def replaying(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Give modules these random numbers, in this order.

        Raises:
            ReplayError: If a module draws more, fewer or other numbers.
        """
        self.given = iter(values)
        try:
            yield
            if next(self.given, None) is not None:
                raise ReplayError
        finally:
            self.given = None


@cache
def environment() -> Environment:
    """Return the environment in which fedpd runs modules."""
    with without_named_dimensions():
        made = Environment()
    use_fast_layers(made)
    return made


def use_fast_layers(environment: Any) -> None:
    """Give torchax layers that are fast inside loops of training steps on a CPU; other cases stay torchax's.

    On a GPU, all layers but batch normalisation stay torchax's.
    Batch normalisation is one formula: torch refuses a batch of one row, which a trace of the module may have.
    """
    everywhere = [(functional.batch_norm, _batch_norm)]
    on_processors = [
        (functional.linear, _linear),
        (functional.conv2d, _convolution),
        (functional.max_pool2d, _max_pool),
    ]
    for name, mine in everywhere + (on_processors if jax.default_backend() == "cpu" else []):
        environment.override_op_definition(name, _with_usual(environment, name, mine))


def _with_usual(environment: Any, name: Any, mine: Any) -> Any:
    """Return an operation on torchax's tensors: `mine`, or torchax's own if `mine` returns None."""
    usual = environment._ops.get(name)

    def operation(*arguments: Any, **named: Any) -> Any:
        found = mine(*environment.t2j_iso(arguments), **environment.t2j_iso(named))
        if found is not None:
            return environment.j2t_iso(found)
        if usual is None:
            return name(*arguments, **named)  # in torch's own steps, which torchax knows
        return environment.j2t_iso(usual.func(*environment.t2j_iso(arguments), **environment.t2j_iso(named)))

    return operation


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array | None:
    if weight.ndim != 2:
        return None
    found = product_by_rows(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], len(weight))
    return found if bias is None else found + bias


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array | None:
    if x.ndim != 4 or groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str):
        return None
    found = convolution(x, weight, _pair(stride), _pair(padding))
    return found if bias is None else found + bias[:, None, None]


def _max_pool(
    x: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Array | None:
    squares = _pair(kernel_size) == (2, 2) == _pair(kernel_size if stride is None else stride)
    if x.ndim != 4 or not squares or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1) or ceil_mode:
        return None
    return None if return_indices else max_pool_of_images(x)


def _batch_norm(
    x: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array | None:
    axes, shape = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    if training and running_mean is None:
        mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    elif not training and running_mean is not None and running_var is not None:
        mean, variance = running_mean, running_var
    else:  # torchax updates running averages
        return None
    scale = jax.lax.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    found = (x - mean.reshape(shape)) * scale.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


def _pair(value: Any) -> tuple[int, int]:
    """Return PyTorch's sizes of two axes, which may be one number for both."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
