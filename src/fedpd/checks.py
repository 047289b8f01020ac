"""Checks of arguments, for methods and oracles of your own: see `fedpd.base.checks`."""

from fedpd.base.checks import (
    FedpdError,
    TheoryWarning,
    at_least,
    at_most,
    below,
    choice,
    count,
    is_traced,
    nearest,
    positive,
    positive_or_schedule,
    refuse,
    skip_probability,
)

__all__ = [
    "FedpdError",
    "TheoryWarning",
    "at_least",
    "at_most",
    "below",
    "choice",
    "count",
    "is_traced",
    "nearest",
    "positive",
    "positive_or_schedule",
    "refuse",
    "skip_probability",
]
