"""The repr of a record in one line, with long arrays shortened."""

from typing import Any

import numpy as np

FEW = 4  # arrays with at most this many numbers are shown whole


def brief(record: Any) -> str:
    """Return the repr of a named tuple, with the shape and range of each longer array in place of its numbers.

    Args:
        record: A named tuple.

    Examples:
        >>> from typing import NamedTuple
        >>> class Found(NamedTuple):
        ...     value: float
        ...     per_agent: np.ndarray
        >>> print(brief(Found(2.0, np.linspace(1, 2, 500))))
        Found(value=2.0, per_agent=<(500,) from 1 to 2>)
    """
    fields = (f"{name}={_value(value)}" for name, value in zip(record._fields, record, strict=True))
    return f"{type(record).__name__}({', '.join(fields)})"


def _value(value: Any) -> str:
    """Return the repr of one field, or the shape and range of a longer array."""
    if not isinstance(value, np.ndarray) or value.size <= FEW:
        return repr(value)
    return f"<{value.shape} from {value.min():g} to {value.max():g}>"
