"""Judge comparisons. An item is a list of checks, and only they determine its verdict:

    every check agrees                           reproduced; as expected, if nothing was published
    some only after a correction, none differs   reproduced with a correction
    every one only after a correction            wrong as printed, holds as corrected
    some differ                                  not reproduced
    nothing was checked                          not run

A check agrees if the printed statement holds. It is corrected if the printed statement does not hold, but a stated
correction of it (a unit, a constant, a setting that the text leaves out) does. Both come from measured numbers; no
verdict is stored in the code.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

FACTOR = 3.0  # a measured curve within this factor counts as the published one


class Outcome(StrEnum):
    """The outcome of a check."""

    AGREES = "agrees"
    CORRECTED = "corrected"
    DIFFERS = "differs"


class Verdict(StrEnum):
    """Whether an item was reproduced."""

    REPRODUCED = "reproduced"
    EXPECTED = "as expected"
    CORRECTED = "reproduced with a correction"
    WRONG = "wrong as printed, holds as corrected"
    NOT = "not reproduced"
    SKIPPED = "not run"


class Check(NamedTuple):
    """One comparison of a published with a measured value."""

    what: str  # what is compared
    published: str  # the published value, in words
    measured: str  # the measured value, in words
    outcome: Outcome  # whether they agree
    why: str = ""  # why they differ, or what the correction is


def judge(checks: Iterable[Check], against: str = "published") -> Verdict:
    """Return the verdict that follows from an item's checks; `against` is "expected" if nothing was published."""
    outcomes = {check.outcome for check in checks}
    if not outcomes:
        return Verdict.SKIPPED
    if Outcome.DIFFERS in outcomes:
        return Verdict.NOT
    if outcomes == {Outcome.CORRECTED}:
        return Verdict.WRONG
    if Outcome.CORRECTED in outcomes:
        return Verdict.CORRECTED
    return Verdict.REPRODUCED if against == "published" else Verdict.EXPECTED


def outcome(printed: bool, corrected: bool = False) -> Outcome:
    """Return the outcome of a check: whether its printed form holds, or only its corrected form, or neither."""
    if printed:
        return Outcome.AGREES
    return Outcome.CORRECTED if corrected else Outcome.DIFFERS


def ratio(measured: float, published: float) -> float:
    """Return the larger of two numbers divided by the smaller; infinite if one is not positive or not finite."""
    if not (measured > 0 and published > 0 and math.isfinite(measured) and math.isfinite(published)):
        return math.inf
    return max(measured / published, published / measured)


def worst_ratio(measured: Sequence[float], published: Sequence[float]) -> float:
    """Return the largest `ratio` of two rows of numbers."""
    return max(ratio(one, other) for one, other in zip(measured, published, strict=True))


def numbers(values: Iterable[float], form: str = ".1e") -> str:
    """Return numbers as text, with "none" for values that a run never reached."""
    return ", ".join(f"{value:{form}}" if math.isfinite(value) else "none" for value in values)
