"""FedAdam, FedYogi and FedAdagrad: rounds by hand, the server's optimiser without its bias correction, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import optax
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate, transforms

# Gradients x - 1 and 2x + 3, from x^0 = 0.5.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))
PROBLEM = problems.random_quadratic(agents=5, dimension=3, seed=2)
GD = oracles.gd(step=0.2, iterations=3)
PRESENT = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1], [1, 1, 0, 1, 0]], bool)

Moment = Callable[[Any, Any], Any]
MOMENTS: dict[str, Moment] = {
    "fedadam": lambda v, square: 0.95 * v + 0.05 * square,
    "fedyogi": lambda v, square: v - 0.05 * square * np.sign(v - square),
    "fedadagrad": lambda v, square: v + square,
}


def method(name: str, **settings: Any) -> Any:
    beta2 = {} if name == "fedadagrad" else {"beta2": 0.95}
    return getattr(algorithms, name)(oracle=GD, step=0.3, beta1=0.7, tau=0.02, **beta2, **settings)


def by_numpy(moment: Moment, present: np.ndarray, initial: float) -> np.ndarray:
    hessian, linear = (np.asarray(PROBLEM.data[name])[:, 0] for name in ("hessian", "linear"))
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, initial)
    for here in present:
        ends = []
        for i in np.flatnonzero(here):
            end = x
            for _ in range(3):
                end = end - 0.2 * (hessian[i] @ end - linear[i])
            ends.append(end)
        delta = np.mean(ends, axis=0) - x
        m = 0.7 * m + 0.3 * delta
        v = moment(v, delta**2)
        x = x + 0.3 * m / (np.sqrt(v) + 0.02)
    return x


def test_a_round_by_hand() -> None:
    settings: dict[str, Any] = {"oracle": oracles.gd(step=0.125, iterations=2), "step": 0.25, "tau": 0.5}
    delta = (0.6171875 - 0.375) / 2 - 0.5  # of FedAvg's two models, as in its own test
    expected = 0.5 + 0.25 * 0.1 * delta / (np.sqrt(0.999 * 0.5**2 + 0.001 * delta**2) + 0.5)
    run = simulate(algorithms.fedadam(**settings), HAND, rounds=1)
    assert run.model[0] == pytest.approx(expected, rel=1e-14)
    assert run.history["bytes_up"].tolist() == run.history["bytes_down"].tolist() == [0, 16]  # one model each way
    expected = 0.5 + 0.25 * delta / (np.sqrt(0.5**2 + delta**2) + 0.5)
    assert simulate(algorithms.fedadagrad(**settings), HAND, rounds=1).model[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("present", [np.ones((5, 5), bool), PRESENT], ids=["everyone", "some"])
@pytest.mark.parametrize("initial", [None, 0.0, 0.3])
@pytest.mark.parametrize("name", MOMENTS)
def test_five_rounds_are_those_of_a_numpy_program(name: str, initial: float | None, present: np.ndarray) -> None:
    run = simulate(method(name, initial=initial), PROBLEM, rounds=5, participation=present)
    expected = by_numpy(MOMENTS[name], present, 0.02**2 if initial is None else initial)
    np.testing.assert_allclose(run.model, expected, rtol=1e-12)


def test_fedadam_is_adam_of_optax_with_its_bias_correction_undone() -> None:
    """Adam divides m by 1 - b1^t and v by 1 - b2^t; without a tau, a step of (1 - b1^t)/sqrt(1 - b2^t) undoes both."""
    step = optax.inject_hyperparams(optax.adam, static_args=("b1", "b2", "eps"))(
        learning_rate=lambda t: 0.05 * (1 - 0.9 ** (t + 1)) / (1 - 0.99 ** (t + 1)) ** 0.5,
        b1=0.9,
        b2=0.99,
        eps=1e-30,
    )
    stepped = transforms.wrap(algorithms.fedavg(oracle=GD), mean=transforms.server_optimizer(step))
    plain = algorithms.fedadam(oracle=GD, step=0.05, beta2=0.99, tau=1e-30, initial=0.0)
    runs = [simulate(one, PROBLEM, rounds=6) for one in (stepped, plain)]
    np.testing.assert_allclose(runs[1].history["loss"], runs[0].history["loss"], rtol=1e-10)
    adam = transforms.server_optimizer(optax.adam(0.05, b2=0.99))
    corrected = transforms.wrap(algorithms.fedavg(oracle=GD), mean=adam)
    assert abs(simulate(corrected, PROBLEM, rounds=6).model - runs[1].model).max() > 0.01, "the correction matters"


def test_the_first_step_of_fedadam_is_longer_than_its_step() -> None:
    """Without bias correction a coordinate moves by (1 - beta1)/sqrt(1 - beta2) steps in the first round."""
    run = simulate(algorithms.fedadam(oracle=GD), PROBLEM, rounds=1)
    np.testing.assert_allclose(np.abs(run.model), 0.01 * 0.1 / np.sqrt(0.001), rtol=1e-5)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"oracle": 0.1}, "oracle = 0.1: must be a local solver"),
        ({"step": 0}, r"step = 0: must be positive and finite\. Start with 0.01"),
        ({"beta1": 1.0}, "beta1 = 1.0: must be below 1"),
        ({"beta2": -0.1}, "beta2 = -0.1: must be finite and at least 0"),
        ({"tau": "small"}, "tau = 'small': must be a number"),
        ({"initial": float("nan")}, "initial = nan: must be a number, not NaN"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], words: str) -> None:
    for factory in (algorithms.fedadam, algorithms.fedyogi):
        with pytest.raises(FedpdError, match=words):
            factory(**{"oracle": GD} | setting)
