"""fedpd computes in the precision of the data.

By default JAX computes in float32, and a switch for float64 holds for the whole process. fedpd sets the switch only
during its own computation: float64 data are computed in float64, and float32 data in float32. The user's own JAX code
does not change.
"""

from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from fedpd.base.arrays import as_array, seal
from fedpd.base.checks import FedpdError
from fedpd.base.process import use_compilation_cache, use_cores


def is_double(*trees: Any) -> bool:
    """Return whether any array of the trees is float64 (or complex128)."""
    return any(np.dtype(leaf.dtype) in (np.float64, np.complex128) for leaf in jax.tree.leaves(trees))


def scope(double: bool) -> AbstractContextManager[Any]:
    """Return the context in which JAX computes in this precision."""
    use_cores()
    use_compilation_cache()
    return jax.enable_x64(double)


def as_numpy(leaf: Any, double: bool, name: str) -> np.ndarray:
    """Return `leaf` as a NumPy array that JAX does not convert; if `double`, float32 becomes float64.

    The result may share its memory with `leaf`; see `fedpd.base.arrays.owned`.
    """
    array = as_array(leaf, name, "Give one array of numbers per agent in a list")
    if double and array.dtype == np.float32:
        return seal(array.astype(np.float64))
    if array.dtype in (np.int64, np.uint64) and not double:
        info = np.iinfo(np.int32)
        if array.size and (array.min() < info.min or array.max() > info.max):
            raise FedpdError(
                f"{name} holds integers from {array.min()} to {array.max()}: with float32 data they must fit 32 bits. "
                "Give the floating-point data as float64, or number the integers from 0."
            )
        return seal(array.astype(np.int32))
    return array
