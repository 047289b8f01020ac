"""PyTorch's tensors as arguments: data, models and weights that require a gradient are taken without it."""

import sys
from typing import Any


def without_gradients(value: Any) -> Any:
    """Return a value in which no tensor of PyTorch requires a gradient, because NumPy refuses to read such tensors.

    Args:
        value: Any object. Lists, tuples and dicts are searched; they are copied only if there is such a tensor.
    """
    torch = sys.modules.get("torch")  # nobody has a tensor who has not imported it
    kind = getattr(torch, "Tensor", None)
    return value if kind is None else _detached(value, kind)


def _detached(value: Any, kind: type) -> Any:
    if isinstance(value, kind):
        tensor: Any = value
        return tensor.detach() if tensor.requires_grad else tensor
    if type(value) in (list, tuple):
        parts = [_detached(one, kind) for one in value]
        changed = any(one is not other for one, other in zip(parts, value, strict=True))
        return type(value)(parts) if changed else value
    if type(value) is dict:
        found = {name: _detached(one, kind) for name, one in value.items()}
        return found if any(found[name] is not one for name, one in value.items()) else value
    return value
