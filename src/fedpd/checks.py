"""Checks of arguments, for use in your own methods and oracles; `fedpd.base.checks` defines them."""

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
