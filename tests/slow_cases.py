"""Leave most cases of an exhaustive test to the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[object], cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters of a test. All but those in `quick` are marked slow.

    Raises:
        ValueError: If a quick case is not among the cases, e.g. because it was renamed.
    """
    quick, cases = list(quick), list(cases)
    if missing := [case for case in quick if case not in cases]:
        raise ValueError(f"quick cases {missing}: must be among the cases. Give some of {cases}.")
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if case in quick else pytest.mark.slow)
        for case in cases
    ]
