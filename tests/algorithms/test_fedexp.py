"""FedExP: a NumPy program, its step by hand, the samples' weights."""

import numpy as np
import pytest

from fedpd import algorithms, oracles, problems, simulate

from .plain import EVERYONE, GD, SOME, agents, assert_model, descend


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray, epsilon: float) -> None:
    x, steps = np.zeros(3), []
    for here in present:
        changes = np.array([descend(i, x) - x for i in agents(here)])
        mean = changes.mean(axis=0)
        steps.append(max(1.0, (changes**2).sum() / len(changes) / (2 * (mean @ mean + epsilon))))
        x = x + steps[-1] * mean
    assert 1.0 in steps
    assert max(steps) > 1 or epsilon == 0.5 or present is SOME
    assert_model(algorithms.fedexp(oracle=GD, epsilon=epsilon), present, x)


def test_a_round_by_hand() -> None:
    """Gradients x - 1 and 2x + 3 at 0, one step of 0.5: changes 0.5 and -1.5."""
    problem = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]))
    run = simulate(algorithms.fedexp(oracle=oracles.gd(0.5, 1), epsilon=0.05), problem, rounds=1)
    squares, mean = (0.25 + 2.25) / 2, -0.5
    assert run.model[0] == pytest.approx(mean * squares / (2 * (0.25 + 0.05)), rel=1e-14)
    assert run.history["bytes_up"][-1] == 2 * (8 + 8)  # a model and a number
    assert run.history["bytes_down"][-1] == 2 * 8
