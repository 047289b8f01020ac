"""Random problems, methods and modes against NumPy. make fuzz runs thousands, different ones every time.

On a difference, the message has the seed, the case in words, the column, both numbers and the command to repeat it.
"""

import secrets
from typing import Any

import pytest

from tests.fuzz.endings import SCALE
from tests.slow_cases import slow_but

from . import compare
from .compare import check
from .draw import GROUP, MODES
from .expected import Expected, expected
from .pairs import PAIRS

CASES = 2  # of each method in make test, which share a compiled program
QUICK_MODES = [mode for mode in dict.fromkeys(MODES) if mode != "debug"]  # without compilation, a case takes seconds
QUICK = list(PAIRS)[: len(QUICK_MODES)]  # one method in each mode


@pytest.mark.skipif(SCALE > 1, reason="make fuzz draws other cases")
@pytest.mark.parametrize("method", slow_but(QUICK, PAIRS))
def test_a_method_in_some_mode_agrees_with_numpy(method: str) -> None:
    number = list(PAIRS).index(method)
    for seed in range(number * GROUP, number * GROUP + CASES):
        assert (found := check(seed, method, QUICK_MODES[number % len(QUICK_MODES)])) is None, found


@pytest.mark.skipif(SCALE == 1, reason="make fuzz runs it")
@pytest.mark.parametrize("part", range(len(PAIRS)))
def test_random_cases_agree_with_numpy(part: int) -> None:
    for _ in range(max(1, SCALE // 2)):
        first = GROUP * secrets.randbelow(2**27)
        for seed in range(first, first + GROUP):
            assert (found := check(seed)) is None, found


@pytest.mark.parametrize(("column", "wrong"), [("samples", 1), ("bytes_up", 8), ("loss", 1e-9), ("stationarity", 1e-9)])
def test_a_wrong_number_is_found(column: str, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a change in the last row is reported with its seed."""

    def changed(*arguments: Any) -> Expected:
        right = expected(*arguments)
        values = right.history[column].copy()
        values[-1] += wrong if column in ("samples", "bytes_up") else wrong * values[-1]
        return right._replace(history=right.history | {column: values})

    monkeypatch.setattr(compare, "expected", changed)
    found = check(0, "fedpd", "plain")
    assert found is not None
    assert f" {column}[" in found
    assert found.startswith("seed 0, fedpd {")
    assert found.endswith("Repeat it with: python -m tests.differential 0 'fedpd' 'plain'")
