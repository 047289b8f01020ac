"""A run's configuration: the value, the rule, the remedy; and what private messages need and keep to themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, simulate, transforms
from fedpd.flower import Settings, read_settings
from tests.flower.federations import AGENTS, FEDPD, assert_same, run, whole

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


def private(noise: float | None, **more: Any) -> Algorithm:
    return transforms.wrap(FEDPD, up=transforms.gaussian(0.5, noise, agents=AGENTS, **more))


QUIET, LOUD = private(1e-9), private(2.0)


def test_without_noise_the_model_is_the_simulations() -> None:
    found = run(QUIET, 3)
    assert_same(found.model, simulate(QUIET, whole(), rounds=3).model, rtol=1e-6)


def test_noise_does_not_follow_from_the_seed_and_nothing_else_is_told() -> None:
    first, second = (run(LOUD, 1, seed=7) for _ in range(2))
    assert not np.isin(first.model["w"], second.model["w"]).any()
    count = transforms.Accountant(2.0, 1e-5, AGENTS)
    assert first.history["epsilon"].tolist() == [0, count.epsilon(1)]
    assert first.history["samples"].tolist() == first.history["local_updates"].tolist() == [0, 0]
    assert np.isnan(first.history["loss"]).all()


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (LOUD, {"on_timeout": "partial"}, 'is complete only if all 3 clients of a round reply. Use "fail"'),
        (LOUD, {"evaluate_every": 1}, "noise does not cover evaluations. Set evaluate-every = 0"),
        (LOUD, {"cohort": 2}, "agents = 3: must be 2, the clients that send in a round"),
        (LOUD, {"clip": 1.0}, "clip their messages themselves. Leave clip out"),
        (private(None, epsilon=4), {}, "needs noise_multiplier and agents"),
    ],
)
def test_settings_that_would_break_the_guarantee_are_refused(algorithm: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        run(algorithm, 1, **settings)
