"""Layers of PyTorch for torchax, written so that they are fast inside loops of training steps on a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
from torch.nn import functional

from fedpd.core import Array
from fedpd.problems.layers import convolution, max_pool_of_images, product_by_rows


def use_fast_layers(environment: Any) -> None:
    """Give torchax's environment fedpd's layers; other cases stay torchax's, and on a GPU all but batch normalisation.

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
