"""Batch normalisation in PyTorch by fedpd's rule: the module's running averages are replaced by an agent's statistics.

The statistics of a layer have the names and shapes of its buffers `running_mean` and `running_var`. The variance is the
mean of the squares, which PyTorch normalises by in training; it stores n/(n - 1) times that.
"""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import extra
from fedpd.base.typed import first_line

with extra("torch", "problems.network"):
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call

BATCH_NORM = nn.modules.batchnorm._BatchNorm
INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm


def copied(module: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Return a deep copy of a module.

    Args:
        shared: Parameters and buffers that the copy has in common with the module, so that they need no memory.

    Raises:
        FedpdError: If it cannot be copied.
    """
    try:
        return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})
    except Exception as error:
        remedy = "Make the module anew, without tensors of an earlier call in its attributes"
        sentence = f"module = {type(module).__name__!r}: cannot be copied ({first_line(error)})"
        raise FedpdError(f"{sentence}. {remedy}.") from error


def batch_norms(module: nn.Module) -> dict[str, Any]:
    """Return the layers that normalise batches, by name; refuse layers that keep other statistics."""
    for name, layer in module.named_modules():
        if isinstance(layer, INSTANCE_NORM) and layer.track_running_stats:
            rule = "keeps statistics of single samples, which fedpd does not support"
            refuse(f"layer {name}", type(layer).__name__, rule, "Use track_running_stats=False, or nn.GroupNorm")
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, BATCH_NORM)}


def buffer_names(module: nn.Module) -> set[str]:
    """Return the names of the buffers of all layers that normalise batches."""
    return {
        f"{name}.{own}".lstrip(".") for name, layer in batch_norms(module).items() for own, _ in layer.named_buffers()
    }


def normalised_by_batch(module: nn.Module) -> nn.Module:
    """Return a copy that normalises every batch by its own statistics, also after `eval()`, and keeps none.

    It shares the module's parameters, so that large frozen ones need no memory: call it with `functional_call`.
    """
    own = copied(module, module.parameters())
    for layer in batch_norms(own).values():
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return own


def normalised_by_buffers(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation that normalises by the buffers of its layers, also by those that it had not."""
    own = copied(module).eval()
    like = next(own.parameters())
    for layer in batch_norms(own).values():
        layer.track_running_stats = True
        for name in ("running_mean", "running_var"):
            layer.register_buffer(name, torch.ones(layer.num_features, dtype=like.dtype, device=like.device))
    return own


def statistics(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any) -> dict[str, Tensor]:
    """Return the mean and the variance that each layer normalises a batch by; a mean over calls if there are several.

    Args:
        module: A module that is `normalised_by_batch`.
    """
    found: dict[str, list[Tensor]] = {}

    def note(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0]
        axes = [0, *range(2, x.ndim)]
        for own, value in (("running_mean", x.mean(axes)), ("running_var", x.var(axes, unbiased=False))):
            found.setdefault(f"{name}.{own}".lstrip("."), []).append(value)

    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in batch_norms(module).items()]
    try:
        arguments = ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})
        functional_call(module, dict(tensors), *arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: sum(values[1:], values[0]) / len(values) for name, values in found.items()}
