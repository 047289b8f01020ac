"""Random problems, methods and modes against NumPy. make fuzz runs FUZZ times as many, different ones every time.

On a difference, the message has the seed, the case in words, the column, both numbers and the command to repeat it.
"""

import secrets

import pytest

from tests.fuzz.endings import SCALE

from .compare import check
from .draw import GROUP, MODES
from .pairs import PAIRS

CASES = 4  # of each method in make test, which share a compiled program
QUICK_MODES = [mode for mode in dict.fromkeys(MODES) if mode != "debug"]  # without compilation, a case takes seconds


@pytest.mark.skipif(SCALE > 1, reason="make fuzz draws other cases")
@pytest.mark.parametrize("method", PAIRS)
def test_a_method_in_some_mode_agrees_with_numpy(method: str) -> None:
    number = list(PAIRS).index(method)
    for seed in range(number * GROUP, number * GROUP + CASES):
        assert (found := check(seed, method, QUICK_MODES[number % len(QUICK_MODES)])) is None, found


@pytest.mark.skipif(SCALE == 1, reason="make fuzz runs it")
@pytest.mark.parametrize("part", range(len(PAIRS)))
def test_random_cases_agree_with_numpy(part: int) -> None:
    for _ in range(max(1, SCALE * CASES // GROUP)):
        first = GROUP * secrets.randbelow(2**27)
        for seed in range(first, first + GROUP):
            assert (found := check(seed)) is None, found
