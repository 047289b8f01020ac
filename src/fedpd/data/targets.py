"""Labels that are numbers to predict, not classes: `classes=False` of every loader.

Targets keep their shape, (n,) or (n, ...). Integers become int32, float16 becomes float32, other floating-point numbers
stay. NaN means that a target is missing: null in a table, None in a list. `problems.regression` leaves missing targets
out of the loss. Lazy data cannot have missing targets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fedpd.base.checks import refuse

K = TypeVar("K", bound=tuple[str, str])
Label = str | Sequence[str]  # one column, or several that become a vector
REMEDY = "Give numbers, or leave classes=False out if the labels are classes"


def encode_targets(labels: Mapping[K, np.ndarray], place: Callable[[str, str], str]) -> dict[K, np.ndarray]:
    """Return the targets of all agents in one dtype, after checking that they have one shape and are not infinite.

    Args:
        labels: {(part, agent): targets}; none of the arrays is empty.
        place: Says where the data of (agent, part) comes from, for errors.
    """
    found = {key: _numbers(y, place(key[1], key[0])) for key, y in labels.items()}
    (_, first), y = next(iter(found.items()))
    shape = y.shape[1:]
    for (part, agent), y in found.items():
        if y.shape[1:] != shape:
            rule = f"must be {shape}, as for agent {first!r}" if first else f"must be {shape}"
            refuse(f"{place(agent, part)}: shape of a target", y.shape[1:], rule, "Bring all targets to one shape")
    dtypes = {y.dtype for y in found.values()}
    double, single = np.dtype(np.float64), np.dtype(np.float32)
    wanted = double if double in dtypes else single if single in dtypes else np.dtype(np.int32)
    return {key: y.astype(wanted, copy=False) for key, y in found.items()}


def _numbers(y: np.ndarray, where: str) -> np.ndarray:
    """Return targets as int32, float32 or float64."""
    if y.dtype == object:
        try:
            y = y.astype(np.float64)  # None becomes NaN
        except (TypeError, ValueError):
            refuse(f"{where}: type of y", "object", "must be numbers", REMEDY)
    if y.dtype.kind not in "buif":
        refuse(f"{where}: type of y", str(y.dtype), "must be numbers", REMEDY)
    if y.dtype.kind != "f":
        whole = y.astype(np.int32)
        if not np.array_equal(whole, y):
            refuse(f"{where}: largest target", int(y.max()), "must fit 32 bits", "Give floating-point numbers")
        return whole
    infinite = np.isinf(y)
    if infinite.any():
        sample = int(np.argwhere(infinite)[0][0])
        refuse(
            f"{where}: target of sample {sample}", "infinity", "must be finite, or NaN if it is missing", "Correct it"
        )
    return y.astype(np.float32) if y.dtype.itemsize < 4 else y
