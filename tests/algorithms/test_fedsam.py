"""FedSAM: a NumPy program, mini-batches, blocks of samples, the count of gradients, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate

from .plain import EVERYONE, GD, SOME, agents, assert_model, descend

ROWS = [{"a": np.random.default_rng(i).standard_normal((5 + i, 3)), "b": np.arange(5.0 + i)} for i in range(3)]
SAMPLES = problems.from_losses(lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2 / 2, ROWS, np.ones(3), check=False)


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    x = np.zeros(3)
    for here in present:
        x = np.mean([descend(i, x, rho=0.3) for i in agents(here)], axis=0)
    assert_model(algorithms.fedsam(rho=0.3, oracle=GD), present, x)


def test_both_gradients_are_on_the_same_samples() -> None:
    def draw(key: Any, r: Any, agent: Any, size: Any, shape: Any) -> Any:
        return np.array([[0, 2], [3, 1]])

    ends = []
    for rows in ROWS:
        y = np.ones(3)
        for batch in ([0, 2], [3, 1]):
            a, b = rows["a"][batch], rows["b"][batch]
            g = a.T @ (a @ y - b) / 2
            above = y + 0.4 * g / (np.linalg.norm(g) + 1e-7)
            y = y - 0.1 * a.T @ (a @ above - b) / 2
        ends.append(y)
    run = simulate(algorithms.fedsam(rho=0.4, oracle=oracles.sgd(0.1, 2, 2, draw=draw)), SAMPLES, rounds=1)
    np.testing.assert_allclose(run.model, np.mean(ends, axis=0), rtol=1e-12)
    assert run.history["samples"][-1] == 2 * 3 * 2 * 2  # twice those of FedAvg
    assert run.history["local_updates"][-1] == 2


def test_blocks_of_samples_change_nothing() -> None:
    method = algorithms.fedsam(rho=0.4, oracle=GD)
    whole, blocks = (simulate(method, one, rounds=3).model for one in (SAMPLES, replace(SAMPLES, block=2)))
    np.testing.assert_allclose(blocks, whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"rho": -0.1}, "rho = -0.1: must be finite and at least 0"),
        ({"rho": "x"}, "rho = 'x': must be a number"),
        ({"oracle": oracles.lbfgs()}, "must be a solver in JAX with plain gradients"),
        ({"oracle": oracles.dp_sgd(0.1, 2, clip=1.0, noise_multiplier=1.0)}, "plain gradients"),
        ({"oracle": 1}, "oracle = 1: must be a local solver"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        algorithms.fedsam(**{"oracle": GD} | setting)  # type: ignore[arg-type]
