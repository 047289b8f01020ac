"""Random bits from numbers: a hash that depends on nothing but its argument, on every machine."""

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, the increment of splitmix64


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return 64 bits that all depend on all bits of a number (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
