"""How the outputs of a model become classes: one rule for simulations and for clients, in JAX, NumPy and PyTorch."""

from typing import Any

Shape = tuple[int, ...]


def is_right(outputs: Any, targets: Any) -> Any:
    """Return whether outputs predict the targets, in the shape of the targets.

    One output per sample is the logit of the second of two classes: a positive one predicts it. Its targets are 0 and
    1, or -1 and 1. Of several outputs, the largest one predicts its class.

    Raises:
        ValueError: If the shapes do not fit.

    Examples:
        >>> from fedpd.problems.predictions import is_right
        >>> import numpy as np
        >>> is_right(np.array([[-2.0], [3.0]]), np.array([1, 1])).tolist()
        [False, True]
        >>> is_right(np.array([[0.1, 0.9], [0.8, 0.3]]), np.array([1, 1])).tolist()
        [True, False]
    """
    if has_one_output(outputs.shape, targets.shape):
        return (outputs.reshape(targets.shape) > 0) == (targets > 0)
    axis = class_axis(outputs.shape, targets.shape)
    if axis is None:
        raise ValueError(f"outputs {tuple(outputs.shape)} are not scores of the classes of {tuple(targets.shape)}")
    return outputs.argmax(axis) == targets


def has_one_output(outputs: Shape, targets: Shape) -> bool:
    """Return whether there is one output per sample, and one target."""
    single = [tuple(outputs[1:]) in ((), (1,)), tuple(targets[1:]) in ((), (1,))]
    return all(single) and outputs[:1] == targets[:1]


def class_axis(outputs: Shape, targets: Shape) -> int | None:
    """Return the axis of the outputs that has one score per class; None: there is none."""
    if tuple(targets) == (*outputs[:1], *outputs[2:]):
        return 1
    return -1 if tuple(targets) == tuple(outputs[:-1]) else None
