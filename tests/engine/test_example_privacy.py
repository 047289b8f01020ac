"""Example-level differential privacy: DP-SGD by hand, its epsilon, and methods that read samples elsewhere."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, Oracle, algorithms, oracles, problems, simulate, transforms

SAMPLES = [{"a": np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]])}, {"a": np.array([[0.0, 2.0]])}]


def losses(x: Any, batch: Any) -> Any:
    return -batch["a"] @ x  # the gradient of a sample is -a


PROBLEM = problems.from_losses(losses, SAMPLES, np.zeros(2), penalty=lambda x: jnp.sum(x))


def dp(noise: float, **more: Any) -> Oracle:
    return oracles.dp_sgd(0.5, 2, clip=1.0, noise_multiplier=noise, **more)


def test_gradients_of_samples_are_clipped_one_by_one() -> None:
    run = simulate(algorithms.fedavg(oracle=dp(1e-9)), PROBLEM, rounds=1)
    first = np.array([0.6 + 0.3 + 0.6, 0.8 + 0.4 + 0.8]) / 3 - 1  # two of three samples are clipped
    second = np.array([0.0, 1.0]) - 1
    np.testing.assert_allclose(run.model, (first + second) / 2, rtol=1e-7, atol=1e-9)
    assert run.history["samples"][-1] == 2 * 4


def test_noise_and_sampling_have_the_variance_that_they_should_have() -> None:
    one = problems.from_losses(losses, [{"a": np.zeros((4, 2))}], np.zeros(2))
    oracle = oracles.dp_sgd(1.0, 1, clip=2.0, noise_multiplier=3.0, share=0.5)
    runs = simulate(algorithms.fedavg(oracle=oracle), one, rounds=1, seed=range(300)).runs
    models = np.stack([run.model for run in runs])
    assert abs(models.std() / (2.0 * 3.0 / (0.5 * 4)) - 1) < 0.1  # 600 draws: three standard deviations are 8.7 %


def test_epsilon_is_that_of_dp_accounting() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    counted = RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    counted.compose(event, 60 * 100)  # the example of DP-SGD's tutorial: 60 epochs, a hundredth per step
    found = transforms.ExampleAccountant(1.1, 1e-5, 0.01, 100).epsilon(60)
    assert found == pytest.approx(counted.get_epsilon(1e-5))
    whole = transforms.ExampleAccountant(2.0, 1e-5, 1.0, 2)
    assert whole.epsilon(2) == transforms.Accountant(1.0, 1e-5, 1).epsilon(1)


def test_history_counts_both_kinds_of_epsilon() -> None:
    method = algorithms.fedpd(eta=0.5, oracle=dp(4.0))
    both = transforms.wrap(method, up=transforms.gaussian(1.0, 3.0))
    history = simulate(both, PROBLEM, rounds=2).history
    examples, clients = transforms.ExampleAccountant(4.0, 1e-5, 1.0, 2), transforms.Accountant(3.0, 1e-5, 2)
    assert history["epsilon_examples"].tolist() == [examples.epsilon(r) for r in range(3)]
    assert history["epsilon"].tolist() == [clients.epsilon(r) for r in range(3)]


def test_methods_that_read_samples_elsewhere_are_refused() -> None:
    with pytest.raises(FedpdError, match="covers the steps of the oracle only"):
        simulate(algorithms.feddane(mu=1.0, oracle=dp(1.0)), PROBLEM, rounds=1)


def test_a_share_above_1_is_refused() -> None:
    with pytest.raises(FedpdError, match="share = 2"):
        dp(1.0, share=2.0)
