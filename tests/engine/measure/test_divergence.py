"""What to try after a divergence: a smaller step only if the method has one."""

import pytest

from fedpd import Algorithm, algorithms, oracles, problems
from fedpd.engine.measure.history import explain

GD, LBFGS = oracles.gd(step=0.1, iterations=2), oracles.lbfgs()


@pytest.mark.parametrize(
    ("algorithm", "has_step"),
    [
        (algorithms.fedavg(oracle=GD), True),
        (algorithms.fedpd(eta=0.5, oracle=LBFGS), True),
        (algorithms.fedpd(eta="auto", oracle=LBFGS, memory=20), False),
        (algorithms.feddyn(alpha=1.0, oracle=LBFGS), True),
        (algorithms.gradient_descent(step=1.0), True),
        (algorithms.lbfgs(), False),
        (algorithms.barzilai_borwein(), False),
        (algorithms.newton_cg(), False),
    ],
    ids=lambda one: one.description if isinstance(one, Algorithm) else "",
)
def test_only_a_method_with_a_step_is_told_to_shorten_it(algorithm: Algorithm, has_step: bool) -> None:
    message = explain(algorithm, problems.opposing_quadratics(), 7, 1e30).message
    assert message.startswith(f"{algorithm.description} diverged at round 7 (stationarity 1e+30). ")
    assert ("Try a smaller local step size" in message) == has_step
    assert ("f may have no minimum" in message) != has_step
