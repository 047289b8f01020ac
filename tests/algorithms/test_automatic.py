"""p="auto" saves communications, and leaves no error floor."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import Problem, algorithms, data, oracles, problems, simulate, theory
from fedpd.algorithms._corrected import FOLDS, LONGEST, PATIENCE, Observed, Planner, ServerOfDuals, plan
from fedpd.base.precision import scope

TARGET = 1e-10


def communications(problem: Problem, relative_eta: float, rounds: int, p: Any, iterations: int = 8) -> int:
    """Return the communications to a stationarity of 1e-10, at eta = relative_eta/L."""
    L = theory.smoothness(problem)
    eta = relative_eta / L
    oracle = oracles.gd(step=1 / (L + 1 / eta), iterations=iterations)
    history = simulate(algorithms.fedpd(eta=eta, oracle=oracle, p=p), problem, rounds=rounds).history
    (reached,) = np.nonzero(history["stationarity"] <= TARGET)
    assert len(reached), f"p={p} ends at {history['stationarity'][-1]:.1e}"
    return int(history["communications"][reached[0]])


@pytest.mark.parametrize("make", [data.strongly_noniid, data.weakly_noniid])
@pytest.mark.parametrize(
    ("relative_eta", "rounds", "share"), [(0.02, 800, 1 / 3), (0.05, 400, 1 / 3), (0.28, 120, 1 / 2), (2.0, 40, 1.1)]
)
def test_fewer_communications_at_any_eta(make: Any, relative_eta: float, rounds: int, share: float) -> None:
    problem = problems.penalized_logistic(*make(20, 100, 10))
    always = communications(problem, relative_eta, rounds, 0.0)
    assert communications(problem, relative_eta, 2 * rounds, "auto") <= share * always


@pytest.mark.parametrize("relative_eta", [0.28, 2.0])
def test_equal_agents_hardly_communicate(relative_eta: float) -> None:
    features, labels = data.strongly_noniid(1, 100, 10)
    problem = problems.penalized_logistic(np.repeat(features, 8, axis=0), np.repeat(labels, 8, axis=0))
    always = communications(problem, relative_eta, 1000, 0.0)
    assert communications(problem, relative_eta, 1500, "auto") <= always / 10


@pytest.mark.parametrize("relative_eta", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("convexity", [0.1, 0.01])
def test_quadratics_that_have_little_in_common(convexity: float, relative_eta: float) -> None:
    problem = problems.random_quadratic(10, 6, convexity=convexity, heterogeneity=1.0, seed=3)
    always = communications(problem, relative_eta, 4000, 0.0)
    assert communications(problem, relative_eta, 8000, "auto") <= 1.1 * always


def test_it_goes_on_below_any_target() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(10, 40, 5))
    L = theory.smoothness(problem)
    algorithm = algorithms.fedpd(eta=0.3 / L, oracle=oracles.gd(step=0.2 / L, iterations=8), p="auto")
    assert simulate(algorithm, problem, rounds=600).history["stationarity"][-1] < 1e-28


def planned(distance: float, moved: float, spread: float, curvature: float, **changes: Any) -> Planner:
    with scope(True):
        zero = jnp.zeros(1)
        planner = Planner(
            ServerOfDuals(Vector(zero), Vector(zero)),
            x=Vector(zero),
            curvature=jnp.float64(0.5),
            trust=jnp.float64(FOLDS),
            stretch=jnp.int32(1),
            due=jnp.int32(3),
            level=jnp.float64(1.0),
            lowest=jnp.float64(1.0),
            stalled=jnp.int32(0),
            shortest=jnp.int32(1),
        )
        observed = Observed(*map(jnp.float64, (distance, moved, spread, curvature)))
        return plan(planner._replace(**changes), observed, eta=0.5)


def test_plan_by_hand() -> None:
    # h = 1: k = log(10 * (2/1) / 4)/log(1.5) = log(5)/log(1.5) = 3.97
    assert int(planned(2.0, 1.0, 4.0, 1.0).stretch) == 4
    assert int(planned(2.0, 1.0, 4.0, 1.0).due) == 7
    # Differences that outweigh what is left: every round.
    assert int(planned(0.1, 1.0, 40.0, 1.0).stretch) == 1
    # Not more than FOLDS e-foldings, 5/log(1.5) = 12.3, unless agents agree far better than they moved.
    assert int(planned(1e9, 1.0, 4.0, 1.0).stretch) == 12
    assert int(planned(1e9, 1.0, 1e-5, 1.0).stretch) == 57  # 2 log(1e5)/log(1.5)
    assert int(planned(1.0, 1.0, 0.0, 1.0).stretch) == LONGEST


def test_trust_follows_what_a_stretch_did() -> None:
    stretch = jnp.int32(4)
    assert float(planned(1.0, 1.0, 2.0, 1.0, stretch=stretch).trust) == FOLDS / 2
    assert float(planned(1.0, 1.0, 0.5, 1.0, stretch=stretch).trust) == FOLDS
    assert float(planned(1.0, 1.0, 0.5, 1.0, stretch=stretch, trust=np.float64(1.0)).trust) == 2
    assert float(planned(1.0, 1.0, 2.0, 1.0).trust) == FOLDS  # a single round says nothing about stretches


def test_curvature_is_forgotten_slowly() -> None:
    assert float(planned(1.0, 1.0, 1.0, 0.1).curvature) == pytest.approx(0.45)
    assert float(planned(1.0, 1.0, 1.0, 0.9).curvature) == pytest.approx(0.9)


def test_stalling_lengthens_the_shortest_stretch() -> None:
    near = {"stalled": np.int32(PATIENCE - 1), "shortest": np.int32(2)}
    assert int(planned(1.0, 1.0, 99.0, 1.0, **near).shortest) == 4
    assert int(planned(1.0, 1.0, 99.0, 1.0, **near).stretch) == 4  # two e-foldings, 2/log(1.5) = 4.9, allow it
    assert int(planned(1.0, 1.0, 99.0, 1.0, **near | {"shortest": np.int32(8)}).stretch) == 5
    assert int(planned(9.0, 1.0, 99.0, 1.0, **near).shortest) == 1  # it did harm
    assert int(planned(0.1, 1.0, 99.0, 1.0, **near).shortest) == 1  # progress halves it
    assert int(planned(1.0, 1.0, 99.0, 1.0, stalled=np.int32(0), shortest=np.int32(2)).shortest) == 2


def test_noise_is_no_reason_to_communicate() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(10, 40, 5, seed=1))
    oracle = oracles.sgd(0.1, iterations=8, batch=10)
    always, auto = (
        simulate(algorithms.fedpd(eta=0.5, oracle=oracle, p=p), problem, rounds=400).history for p in (0.0, "auto")
    )
    assert auto["communications"][-1] < 0.7 * always["communications"][-1]
    assert np.mean(auto["stationarity"][-100:]) < 1.5 * np.mean(always["stationarity"][-100:])


def test_a_broken_run_still_communicates() -> None:
    assert int(planned(float("nan"), 1.0, 1.0, 1.0).stretch) == 1
