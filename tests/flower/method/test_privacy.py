"""Private messages in a federation: the simulation's method, noise that the seed does not give away, and no more."""

from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, simulate, transforms
from tests.flower.federations import AGENTS, FEDPD, assert_same, run, whole


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
