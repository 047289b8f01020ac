"""The seeds of the differential tests: the same ones in make test, new ones in make fuzz."""

import secrets

import numpy as np

from tests.fuzz.endings import SCALE


def seeds(number: int) -> list[int]:
    """Return this many seeds; with FUZZ=k, k times as many that nobody has tried."""
    return list(range(number)) if SCALE == 1 else [secrets.randbelow(2**31) for _ in range(number * SCALE)]


def same(seed: int, what: str, found: object, wanted: object, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Fail with the seed, the name of the number and both values if they differ."""
    a, b = np.asarray(found, float), np.asarray(wanted, float)
    close = a.shape == b.shape and np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    assert close, f"seed {seed}: {what} is {a} and {b} in NumPy"
