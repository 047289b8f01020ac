"""What a comparison says. An item is a list of checks, and its verdict follows from them alone:

    every check agrees                           reproduced
    some only after a correction, none differs   reproduced with a correction
    some differ                                  not reproduced
    nothing was checked                          not run

A check agrees if what is printed holds. It is corrected if what is printed does not hold, and a stated correction (a
unit, a constant, a setting that the text leaves out) does. Both come from measured numbers, and are
written down nowhere.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

FACTOR = 3.0  # within which a measured curve counts as the published one


class Outcome(StrEnum):
    AGREES = "agrees"
    CORRECTED = "corrected"
    DIFFERS = "differs"


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    CORRECTED = "reproduced with a correction"
    NOT = "not reproduced"
    SKIPPED = "not run"


class Check(NamedTuple):
    what: str
    published: str
    measured: str
    outcome: Outcome
    why: str = ""  # why they differ, or what the correction is


def judge(checks: Iterable[Check]) -> Verdict:
    """An item's verdict."""
    outcomes = {check.outcome for check in checks}
    if not outcomes:
        return Verdict.SKIPPED
    if Outcome.DIFFERS in outcomes:
        return Verdict.NOT
    return Verdict.CORRECTED if Outcome.CORRECTED in outcomes else Verdict.REPRODUCED


def outcome(printed: bool, corrected: bool = False) -> Outcome:
    """Of a check whose printed form holds, or only its corrected one, or neither."""
    if printed:
        return Outcome.AGREES
    return Outcome.CORRECTED if corrected else Outcome.DIFFERS


def ratio(measured: float, published: float) -> float:
    """How many times the larger of two numbers is the smaller; infinite where one is not positive or not finite."""
    if not (measured > 0 and published > 0 and math.isfinite(measured) and math.isfinite(published)):
        return math.inf
    return max(measured / published, published / measured)


def worst_ratio(measured: Sequence[float], published: Sequence[float]) -> float:
    """The largest `ratio` of two rows of numbers."""
    return max(ratio(one, other) for one, other in zip(measured, published, strict=True))


def numbers(values: Iterable[float], form: str = ".1e") -> str:
    """A row of numbers in words; "none" for those that a run never reached."""
    return ", ".join(f"{value:{form}}" if math.isfinite(value) else "none" for value in values)
