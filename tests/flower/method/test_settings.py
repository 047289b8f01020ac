"""A run's configuration: the value, the rule, the remedy."""

from pathlib import Path
from typing import Any

import pytest

from fedpd import FedpdError
from fedpd.flower import Settings, read_settings

GOOD = {"agents": 4, "rounds": 10}


def test_entries_by_their_names_and_the_users_own_left_alone() -> None:
    given = {**GOOD, "on-timeout": "partial", "evaluate-every": 5, "out": "runs/a", "eta": 0.1}
    assert read_settings(given) == Settings(4, 10, on_timeout="partial", evaluate_every=5, out=Path("runs/a"))
    assert read_settings(GOOD).out is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"agents": 0}, "agents = 0: must be an integer of at least 1"),
        ({"rounds": 1.5}, "rounds = 1.5: must be an integer"),
        ({"seed": 2**31}, "seed = 2147483648: must be below"),
        ({"deadline": 0}, "deadline = 0: must be positive"),
        ({"deadline": float("inf")}, "deadline = inf: must be positive and finite"),
        ({"on-timeout": "wait"}, "on-timeout = 'wait': there is no such choice"),
        ({"bind-names": "no"}, "bind-names = 'no': must be true or false"),
        ({"clip": -1}, "clip = -1: must be finite and at least 0"),
    ],
)
def test_what_is_wrong_is_said(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        read_settings({**GOOD, **entry})


def test_what_is_missing_is_said() -> None:
    with pytest.raises(FedpdError, match="agents = None: is not in the run's configuration"):
        read_settings({"rounds": 3})
