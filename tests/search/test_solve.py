"""solve: nothing to choose."""

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, data, problems
from fedpd.search import solve as rules


def test_it_stops_at_the_target() -> None:
    problem = problems.penalized_logistic(*data.weakly_noniid(10, 50, 5))
    run = fedpd.solve(problem, target=1e-10)
    stationarity = run.history["stationarity"]
    assert stationarity[-1] <= 1e-10 < stationarity[-2]
    assert run.history["communications"][-1] <= 8
    shown: list[int] = []
    fedpd.solve(problem, target=1e-4, progress=lambda done, total, _: shown.append(done))
    assert shown


@pytest.mark.slow
def test_it_says_where_it_does_not_get_there() -> None:
    with pytest.warns(UserWarning, match="did not reach 1e-10"):
        run = fedpd.solve(problems.random_quadratic(agents=5, dimension=8), max_communications=2)
    assert run.history["communications"][-1] == 2
    with pytest.raises(FedpdError, match=r"target = 0: must be positive and finite\. target is the"):
        fedpd.solve(problems.opposing_quadratics(), target=0)


def test_the_memory_fits_its_room() -> None:
    problem = problems.random_quadratic(agents=5, dimension=8)
    assert rules.chosen_method(problem).description == "fedpd(eta=auto, oracle=lbfgs(pairs=40), memory=30)"
    room = 5 * 8 * 8 * 14 * 2
    assert rules.chosen_method(problem, room).description == "fedpd(eta=auto, oracle=lbfgs(pairs=8), memory=6)"
    assert rules.chosen_method(problem, 1).description == "fedpd(eta=auto, oracle=lbfgs(pairs=1), memory=1)"


@pytest.mark.slow
def test_an_f_without_a_minimum_is_told_and_no_step_is_advised() -> None:
    """f(x) = x: solve has no step size that could be smaller."""
    unbounded = problems.from_losses(lambda x, c: c * x, np.ones((2, 1)), np.float64(0.5))
    with pytest.warns(UserWarning, match=r"f may have no minimum: it may be unbounded below\. Add a penalty") as told:
        run = fedpd.solve(unbounded, max_communications=20)
    assert run.diverged is not None
    assert "step size" not in run.diverged.message
    assert "more communications" not in str(told[0].message)
