"""FedDC: a NumPy program after the authors' own, its sums over all agents, refusals."""

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, simulate

from .plain import EVERYONE, GD, PROBLEM, SOME, STEP, Q, agents, assert_model, descend


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    x, drift, own, control = np.zeros(3), np.zeros((4, 3)), np.zeros((4, 3)), np.zeros(3)
    for here in present:
        some, ends, changes = agents(here), [], np.zeros(3)
        for i in some:
            end = descend(i, x, control - own[i] - 0.5 * (x - drift[i]), 0.5)
            new = own[i] - control + (x - end) / (Q * STEP)
            drift[i] += end - x
            changes += new - own[i]
            own[i] = new
            ends.append(end)
        control = control + changes / 4
        x = np.mean(ends, axis=0) + drift.mean(axis=0)
    assert_model(algorithms.feddc(alpha=0.5, oracle=GD), present, x)


def test_the_servers_sums_are_the_means_of_all_agents() -> None:
    agent = simulate(algorithms.feddc(alpha=0.5, oracle=GD), PROBLEM, rounds=6).agents
    np.testing.assert_allclose(np.mean(agent.own.tree, axis=0), agent.c.tree[0], atol=1e-13)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"alpha": 0}, "alpha = 0: must be positive"),
        ({"alpha": None}, "alpha = None: must be a number"),
        ({"oracle": oracles.vr(gamma=0.5, iterations=3, refresh=4)}, "must be a solver with a step size"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        algorithms.feddc(**{"alpha": 1.0, "oracle": GD} | setting)  # type: ignore[arg-type]
