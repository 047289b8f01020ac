"""Example-level differential privacy: DP-SGD by hand, its epsilon, and methods that read samples elsewhere."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, Oracle, Problem, algorithms, data, oracles, problems, simulate, theory, transforms
from fedpd.engine.measure.personal import personalize

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
    with pytest.raises(FedpdError, match=r"share = 2\.0: must be at most 1\. Give a probability"):
        dp(1.0, share=2.0)


def with_masks(agents: int = 1) -> Problem:
    """F(x; a) = -m a x with m = 0 or 2, drawn in training, as dropout does; four equal samples per agent."""
    plain = problems.from_losses(losses, [{"a": np.ones((4, 1))}] * agents, np.zeros(1))

    def random(x: Any, batch: Any, key: Any) -> Any:
        return losses(x, batch) * 2 * jax.random.bernoulli(key, 0.5, (len(batch["a"]),))

    return replace(plain, random=random, block=16)


def test_random_layers_draw_for_every_sample_and_step() -> None:
    oracle = oracles.dp_sgd(1.0, 2, clip=10.0, noise_multiplier=1e-9)
    runs = simulate(algorithms.fedavg(oracle=oracle), with_masks(), rounds=1, seed=range(225)).runs
    models = np.array([run.model.item() for run in runs])  # the sum of 2 means of 4 masks
    assert abs(models.mean() - 2) < 3 * 0.71 / 15
    assert abs(models.std() / np.sqrt(2 / 4) - 1) < 0.14  # with the same masks in both steps it would be 1
    np.testing.assert_allclose(models * 2, np.round(models * 2), atol=1e-6)


def test_fine_tuning_has_the_random_layers_too() -> None:
    found = personalize(with_masks(agents=50), np.zeros(1), oracles.gd(1.0, 1)).models
    assert set(np.round(2 * found[:, 0], 6)) == {0.0, 1.0, 2.0, 3.0, 4.0}


def test_the_gradient_of_a_sample_needs_losses_that_do_not_depend_on_the_batch() -> None:
    coupled = problems.from_losses(
        lambda x, batch: losses(x, batch) - jnp.mean(batch["a"]), SAMPLES, np.zeros(2), block=2, check=False
    )
    sentence = r"oracle = 'dp_sgd\(.*needs the gradient of each sample, but a sample's loss depends on its batch"
    with pytest.raises(FedpdError, match=sentence):
        simulate(algorithms.fedavg(oracle=dp(1.0)), coupled, rounds=1)
    with pytest.raises(FedpdError, match=sentence):
        personalize(coupled, np.zeros(2), dp(1.0))
    with pytest.raises(FedpdError, match="batch = 1: must be at least 2"):
        personalize(coupled, np.zeros(2), oracles.sgd(0.1, 2))
    with pytest.raises(FedpdError, match="per_sample = True: there is no L of one sample"):
        theory.estimate_smoothness(coupled, per_sample=True)


def test_the_gradients_of_samples_are_those_of_the_other_oracles() -> None:
    """Without clipping and noise, a step is one of gradient descent, for all ways to hold the samples."""
    rng = np.random.default_rng(0)
    rows = [{"a": rng.standard_normal((n, 2)), "y": rng.standard_normal(n)} for n in (3, 40, 70)]

    def squares(x: Any, batch: Any) -> Any:
        return (batch["a"] @ x - batch["y"]) ** 2

    ragged = data.ragged(jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows), [3, 40, 70])
    for samples in (rows, ragged):
        problem = problems.from_losses(squares, samples, np.zeros(2), weights="samples")
        private = oracles.dp_sgd(0.1, 3, clip=100.0, noise_multiplier=1e-9)
        found, plain = (
            simulate(algorithms.fedavg(oracle=oracle), problem, rounds=2).model
            for oracle in (private, oracles.gd(0.1, 3))
        )
        np.testing.assert_allclose(found, plain, rtol=1e-6)
