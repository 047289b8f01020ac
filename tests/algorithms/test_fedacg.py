"""FedACG: a NumPy program after the authors' own, and which model a run delivers."""

import numpy as np
import pytest

from fedpd import algorithms, simulate

from .plain import EVERYONE, GD, PROBLEM, SOME, agents, assert_model, descend


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    x, m = np.zeros(3), np.zeros(3)
    for here in present:
        sent = x + 0.6 * m
        ends = [descend(i, sent, -0.4 * sent, 0.4) for i in agents(here)]
        m = 0.6 * m + np.mean(ends, axis=0) - sent
        x = np.mean(ends, axis=0)
    assert_model(algorithms.fedacg(oracle=GD, momentum=0.6, rho=0.4), present, x)


def test_agents_have_the_point_ahead() -> None:
    run = simulate(algorithms.fedacg(oracle=GD, momentum=0.6), PROBLEM, rounds=1)
    np.testing.assert_allclose(run.agents.x.tree[0], 1.6 * run.model, rtol=1e-13)  # x = m after a round from 0
    row = simulate(algorithms.fedavg(oracle=GD.changed({"iterations": 1})), PROBLEM, rounds=1, start=run.model).history
    assert run.history["loss"][-1] == pytest.approx(row["loss"][0], rel=1e-13), "the rows are about x"
