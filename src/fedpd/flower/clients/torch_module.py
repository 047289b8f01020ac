"""A PyTorch module inside a client: its parameters as arrays, its mode and random numbers, and its targets."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.extras import extra
from fedpd.problems.predictions import class_axis, has_one_output, is_right

with extra("torch", "fedpd.flower.torch"):
    import torch
    from torch import Tensor, nn

_ONE_AT_A_TIME = threading.Lock()


def one_per_sample(values: Tensor, number: int) -> Tensor:
    """Return the values (B,) of B samples, means over the other axes; refuse values that are averaged over samples."""
    if values.shape[:1] != (number,):
        shape = tuple(values.shape)
        refuse("shape of the loss", shape, f"must be ({number},), one per sample", "Give it reduction='none'")
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name; refuse a module without such parameters."""
    if not isinstance(module, nn.Module):
        refuse("module", module, "must be an nn.Module", "Give the model itself, not its class")
    parameters = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    if not parameters:
        raise FedpdError("the module has no parameters that require a gradient. Set requires_grad of some to True.")
    for name, tensor in parameters.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            refuse(f"type of parameter {name}", str(tensor.dtype), "must be float32 or float64", "Use module.float()")
    return parameters


def load(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Copy arrays into tensors, in place."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(tensor_of(values[name]))


def tensor_of(array: Any) -> Tensor:
    """Return a copy of an array as a tensor."""
    return torch.from_numpy(np.array(array))  # a copy: JAX's arrays must not be written to


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array on the CPU."""
    return tensor.detach().cpu().numpy()


@contextmanager
def locked(module: nn.Module) -> Iterator[None]:
    """Lock the module, and restore its buffers and mode at the end.

    JAX calls back from one thread per device, and there is one module. Without the lock, threads would compute with
    each other's parameters.
    """
    with _ONE_AT_A_TIME:
        mode, buffers = module.training, {name: tensor.clone() for name, tensor in module.named_buffers()}
        try:
            yield
        finally:
            module.train(mode)
            for name, tensor in module.named_buffers():
                tensor.copy_(buffers[name])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use this seed for the module's random numbers (dropout); restore the user's generators at the end."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # torchax adds a device without generators
        torch.manual_seed(seed)
        yield


def predicts_target(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether the outputs predict the targets, by the rule of simulations."""
    if not are_classes(outputs, targets):
        rule = "other targets of the same data set are classes, 0 and 1 or -1 and 1 for one output"
        refuse("targets", targets.unique().tolist()[:5], rule, "Give torch_local a function `correct`")
    return is_right(outputs, targets)


def are_classes(outputs: Tensor, targets: Any) -> bool:
    """Return whether targets are numbers of classes, for which the outputs are scores."""
    if not isinstance(targets, Tensor) or not isinstance(outputs, Tensor):
        return False
    if has_one_output(outputs.shape, targets.shape):
        found = set(targets.flatten().tolist())
        return found <= {0, 1} or found <= {-1, 1}
    whole = not targets.is_floating_point() or bool((targets == targets.round()).all())
    return whole and class_axis(outputs.shape, targets.shape) is not None
