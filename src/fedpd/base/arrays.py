"""The gate for arrays: every function that takes an array of a user reads it with `as_array`.

NumPy alone would drop the mask of a masked array, read a text as an array, and share its memory with the caller. fedpd
computes with plain arrays of bool, integers, float32 and float64. It refuses what cannot become one of them.

An array that a problem or a data set keeps is read-only, and nobody else can write to its memory (`owned`). `seal`
marks the arrays that fedpd made itself, so that `owned` does not copy them.
"""

import mmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, refuse

REMEDY = "Give an array of real numbers"
TEXTS = "OTU"  # the kinds of types of labels that are not numbers
MASKED = "must not be masked: fedpd has no missing values"


def as_array(value: Any, name: str, remedy: str = REMEDY) -> np.ndarray:
    """Return an array of a user as a plain NumPy array of bool, integers, float32 or float64.

    Floating-point numbers of fewer than 32 bits (float16, bfloat16, float8) become float32, and those of more than 64
    bits float64. Tensors lose their gradient. The result may share its memory with the argument; see `owned`.

    Args:
        value: An array of any library, a number, or lists of numbers.
        name: The name of the argument, for the message.
        remedy: What to give instead.

    Raises:
        FedpdError: An entry is masked, rows differ in length, or entries are not real numbers.

    Examples:
        >>> import numpy as np
        >>> from fedpd.base.arrays import as_array
        >>> as_array(np.ones(2, np.float16), "x").dtype
        dtype('float32')
        >>> as_array(np.ma.masked_equal([1, 2], 2), "x")
        Traceback (most recent call last):
        fedpd.base.errors.FedpdError: x must not be masked: fedpd has no missing values. Fill or drop masked entries.
    """
    found = read(value)
    if isinstance(found, str):
        remedy = "Fill or drop masked entries" if found is MASKED else remedy
        if not hasattr(value, "dtype"):
            refuse(name, value, found, remedy)
        raise FedpdError(f"{name} {found}. {remedy}.")  # an array may be large, and the rule names its type
    array = _converted(found)
    fresh = array is not found or isinstance(value, list | tuple | int | float)
    return seal(array) if fresh else array


def as_labels(value: Any, name: str, remedy: str = "Give one label per sample") -> np.ndarray:
    """Return labels as an array: numbers as `as_array` returns them, or texts, or objects such as None."""
    found = read(value, TEXTS)
    if isinstance(found, np.ndarray) and found.dtype.kind in TEXTS:
        return found
    return as_array(value, name, remedy)


def read(value: Any, others: str = "") -> np.ndarray | str:
    """Return a value as NumPy reads it; or the rule that it breaks, which begins with "must".

    Args:
        value: An array of any library, a number, or lists of numbers.
        others: The kinds of NumPy types that may be there besides numbers.
    """
    if has_mask(value):
        return MASKED
    try:
        array = np.asarray(_without_gradient(value))
    except (jax.errors.JAXTypeError, MemoryError):  # a caller that traces the function handles JAX's errors
        raise
    except Exception:  # rows of different lengths, or an array that its library cannot convert
        return "must be an array of numbers, in rows of equal length"
    if is_number(array.dtype) or array.dtype.kind in others:
        return array
    kind = type(value).__name__ if array.ndim == 0 else "text" if array.dtype.kind in "SU" else array.dtype
    return f"must be an array of real numbers, not of {kind}"


def has_mask(value: Any) -> bool:
    """Return whether an entry of a masked array, or of one in a list, is masked."""
    if isinstance(value, list | tuple):
        return any(map(has_mask, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def is_number(dtype: Any) -> bool:
    """Return whether fedpd can compute with numbers of this type: bool, integers or floating-point numbers."""
    if dtype == np.bool_ or np.dtype(dtype).kind in "mM":  # NumPy takes a time difference for an integer
        return bool(dtype == np.bool_)
    return jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


def _without_gradient(value: Any) -> Any:
    """Return a tensor that NumPy can read; anything else stays."""
    if isinstance(value, list | tuple):
        return [_without_gradient(entry) for entry in value]
    if not callable(getattr(value, "detach", None)):
        return value
    tensor = value.detach().cpu()
    known = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))  # types that NumPy does not have
    return tensor.float() if known else tensor


def _converted(array: np.ndarray) -> np.ndarray:
    """Return numbers in a type that fedpd computes with, and in the byte order of this machine."""
    dtype = array.dtype
    if jnp.issubdtype(dtype, np.floating):
        dtype = np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    elif dtype.kind not in "bui":  # integers of 2 or 4 bits
        dtype = np.dtype(np.int32)
    return array.astype(dtype.newbyteorder("="), copy=False)


def seal(array: np.ndarray) -> np.ndarray:
    """Return an array that fedpd has made, and nobody else has, as read-only."""
    array.flags.writeable = False
    return array


def owned(array: np.ndarray) -> np.ndarray:
    """Return an array that nobody can change: itself if it is sealed or immutable, otherwise a read-only copy."""
    return array if is_immutable(array) else seal(array.copy())


def copied(value: Any) -> Any:
    """Return an argument that may be an array, a tensor or lists of numbers, in memory of its own; others stay."""
    if type(value) is list:
        return [copied(entry) for entry in value]
    if has_mask(value) or not (isinstance(value, np.ndarray) or callable(getattr(value, "detach", None))):
        return value
    found = read(value, TEXTS)
    return owned(found) if isinstance(found, np.ndarray) else value


def is_immutable(array: Any) -> bool:
    """Return whether an array and all that it is a view of are read-only.

    Arrays of JAX and Arrow are, and files that are mapped for reading: they stay on disk.
    """
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj if array.readonly else array
    arrow = type(array).__module__.startswith("pyarrow")
    return arrow or array is None or isinstance(array, bytes | mmap.mmap | jax.Array)


def check_finite(array: np.ndarray, name: str, remedy: str = "Give finite numbers") -> np.ndarray:
    """Return the array, and refuse NaN and infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise FedpdError(f"{name}{list(place) if place else ''} = {array[place]}: must be finite. {remedy}.")
    return array
