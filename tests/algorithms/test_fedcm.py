"""FedCM: a NumPy program, schedules of steps, the weights of a problem, refusals."""

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, simulate
from fedpd.schedules import inverse_sqrt

from .plain import EVERYONE, GD, PROBLEM, SOME, STEP, Q, agents, assert_model, descend, gradient


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    x, delta = np.zeros(3), np.zeros(3)
    for here in present:
        ends = [descend(i, x, 0.7 * delta, own=0.3) for i in agents(here)]
        mean = np.mean(ends, axis=0) - x
        x, delta = x + 0.8 * mean, -mean / (Q * STEP)
    assert_model(algorithms.fedcm(oracle=GD, alpha=0.3, server_step=0.8), present, x)


def test_steps_that_follow_a_schedule_are_summed_up() -> None:
    x, delta = np.zeros(3), np.zeros(3)
    for r in range(4):
        sizes = [0.2 / np.sqrt(Q * r + q + 1) for q in range(Q)]
        ends = []
        for i in range(4):
            y = x
            for size in sizes:
                y = y - size * (0.1 * gradient(i, y) + 0.9 * delta)
            ends.append(y)
        mean = np.mean(ends, axis=0) - x
        x, delta = x + mean, -mean / sum(sizes)
    oracle = oracles.gd(step=inverse_sqrt(0.2, Q), iterations=Q)
    assert_model(algorithms.fedcm(oracle=oracle), EVERYONE[:4], x)


def test_it_sends_a_model_and_a_number_and_fetches_two_models() -> None:
    history = simulate(algorithms.fedcm(oracle=GD), PROBLEM, rounds=1).history
    assert history["bytes_up"][-1] == 4 * (3 + 1) * 8
    assert history["bytes_down"][-1] == 4 * 2 * 3 * 8


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"alpha": 0}, "alpha = 0: must be positive"),
        ({"alpha": 1.5}, "alpha = 1.5: must be at most 1"),
        ({"server_step": -1}, "server_step = -1: must be positive"),
        ({"oracle": oracles.lbfgs()}, "must be a solver with a step size"),
        ({"oracle": None}, "oracle = None: must be a local solver"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        algorithms.fedcm(**{"oracle": GD} | setting)  # type: ignore[arg-type]
