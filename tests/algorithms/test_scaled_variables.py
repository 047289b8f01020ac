"""FedPD-M in scaled variables: the scales by hand, and problems whose variables have units of different size."""

import numpy as np
import pytest

from fedpd import Problem, algorithms, oracles, problems, simulate
from fedpd.algorithms._memory import FedPDM
from fedpd.algorithms._scaled_variables import PROBES, SETS

AUTO = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=20)


def with_units(spread: float) -> Problem:
    """Quadratics of condition 10, whose variables are measured in units that differ by `spread`."""
    rng, size = np.random.default_rng(0), 12
    bases = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(6)]
    hessians = np.array([(basis * np.logspace(-1, 0, size)) @ basis.T for basis in bases])
    units = np.geomspace(1, spread, size)
    return problems.quadratic(hessians * units * units[:, None], rng.standard_normal((6, size)) * units)


@pytest.mark.slow
def test_scales_of_a_diagonal_hessian_are_its_diagonal() -> None:
    problem = problems.quadratic(np.diag([1e-4, 1.0, 50.0])[None], np.ones((1, 3)))
    method = simulate(AUTO, problem, rounds=1, progress=False)
    np.testing.assert_allclose(method.agents.own.tree[0], [1e-4, 1.0, 50.0], rtol=1e-10)
    assert method.agents.spread[0] == pytest.approx(np.log(5e5))
    assert method.history["samples"][-1] == 1 + 10 + SETS * PROBES


@pytest.mark.slow
def test_units_cost_two_communications() -> None:
    """Between the first communication and the second start, models are those of x^0."""
    plain, units = (simulate(AUTO, with_units(spread), rounds=30, progress=False).history for spread in (1, 1e3))
    same = units["stationarity"][:3]
    assert same[0] == same[1] == same[2] > units["stationarity"][3]
    few, more = (int(np.argmax(h["stationarity"] <= 1e-10 * h["stationarity"][0])) for h in (plain, units))
    assert 0 < few <= 10
    assert few < more <= few + 8
    unscaled = FedPDM(eta="auto", oracle=oracles.lbfgs(), memory=20, start="local")
    history = simulate(unscaled, with_units(1e3), rounds=30, progress=False).history
    assert history["stationarity"].min() > 1e-10 * history["stationarity"][0]


@pytest.mark.slow
def test_a_variable_on_which_nothing_depends() -> None:
    problem = problems.quadratic(np.diag([1.0, 1.0, 0.0])[None].repeat(2, 0), np.array([[1.0, 2, 0], [3, 4, 0]]))
    run = simulate(AUTO, problem, rounds=12, progress=False)
    assert run.history["stationarity"][-1] < 1e-20
    assert run.model[2] == 0


def test_a_hessian_of_zeros_is_not_scaled() -> None:
    problem = problems.quadratic(np.zeros((1, 3, 3)), np.zeros((1, 3)))
    own = simulate(AUTO, problem, rounds=2, progress=False).agents
    np.testing.assert_array_equal(own.own.tree, np.ones((1, 3)))
    assert own.spread[0] == 0


@pytest.mark.slow
def test_a_feature_that_one_agent_lacks_is_no_reason_to_scale() -> None:
    """Each agent depends on one variable; their mean on both alike."""
    hessians = np.array([np.diag([1.0, 1e-6]), np.diag([1e-6, 1.0])])
    run = simulate(AUTO, problems.quadratic(hessians, np.ones((2, 2))), rounds=4, progress=False)
    assert (run.agents.spread > np.log(1e5)).all()
    np.testing.assert_array_equal(run.agents.scale.tree, np.ones((2, 2)))
