"""Verdicts follow from checks by the stated rules, and from nothing else."""

import math

import pytest

from fedpd.reproduce.session import Check, Outcome, Verdict, judge, numbers, outcome, ratio, worst_ratio


def check(result: Outcome) -> Check:
    return Check("what", "1", "2", result)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], Verdict.SKIPPED),
        ([Outcome.AGREES], Verdict.REPRODUCED),
        ([Outcome.AGREES, Outcome.CORRECTED], Verdict.CORRECTED),
        ([Outcome.CORRECTED], Verdict.WRONG),
        ([Outcome.AGREES, Outcome.CORRECTED, Outcome.DIFFERS], Verdict.NOT),
        ([Outcome.DIFFERS], Verdict.NOT),
    ],
)
def test_the_worst_check_decides(outcomes: list[Outcome], verdict: Verdict) -> None:
    assert judge(map(check, outcomes)) is verdict
    assert judge(map(check, reversed(outcomes))) is verdict


def test_what_was_not_published_is_not_reproduced() -> None:
    assert judge([check(Outcome.AGREES)], "expected") is Verdict.EXPECTED
    assert judge([check(Outcome.DIFFERS)], "expected") is Verdict.NOT


def test_what_is_printed_comes_before_its_correction() -> None:
    assert outcome(True) is outcome(True, True) is Outcome.AGREES
    assert outcome(False, True) is Outcome.CORRECTED
    assert outcome(False) is Outcome.DIFFERS


def test_ratios_are_symmetric_and_nothing_finite_is_near_what_is_not() -> None:
    assert ratio(2.0, 6.0) == ratio(6.0, 2.0) == 3
    for broken in (math.nan, math.inf, 0.0, -1.0):
        assert ratio(broken, 1.0) == ratio(1.0, broken) == math.inf
    assert worst_ratio([1.0, 2.0], [1.0, 1.0]) == 2
    assert worst_ratio([1.0, math.nan], [1.0, 1.0]) == math.inf
    with pytest.raises(ValueError, match="longer"):
        worst_ratio([1.0], [1.0, 2.0])


def test_numbers_in_words() -> None:
    assert numbers([1e-3, math.nan]) == "1.0e-03, none"
