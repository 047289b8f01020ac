"""Batch normalisation: batches are normalised by their own statistics, an agent is judged by its own, nothing else."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_math import Vector

from fedpd import FedpdError, Problem, algorithms, data, networks, oracles, problems, simulate, sweep
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, Shard, arrays, local_objective
from tests.algorithms.test_conformance import ROWS
from tests.problems.test_classification import images

EPSILON = 1e-5
FIRST = {row.make().description.split("(")[0]: row for row in reversed(ROWS.values())}  # a row for each method


class CNN(nn.Module):
    """A small convolutional network with batch normalisation, as flax users write it."""

    classes: int = 3
    momentum: float = 0.99

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = networks.Conv(4, 3)(x[..., None])
        x = nn.BatchNorm(use_running_average=not train, momentum=self.momentum)(x)
        return nn.Dense(self.classes)(networks.max_pool(nn.relu(x)).reshape(len(x), -1))


def scores(model: Any, statistics: Any, x: Any) -> Any:
    mean, variance = statistics
    return (x - mean) / jnp.sqrt(variance + EPSILON) @ model["w"] + model["b"]


def measure(model: Any, x: Any) -> Any:
    return jnp.mean(x, axis=0), jnp.var(x, axis=0)


def normalised(model: Any, x: Any) -> Any:
    """A linear model of normalised features, as a plain function."""
    return scores(model, measure(model, x), x)


RULE = problems.Normalisation(measure, scores)


def start(features: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"w": rng.standard_normal((features, 2)), "b": np.array([0.5, 0.0])}


def shifted(sizes: tuple[int, ...], features: int = 2, seed: int = 0) -> data.Federated:
    """The label is which feature is larger, once an agent's own shift is taken off."""
    rng = np.random.default_rng(seed)

    def samples(n: int, i: int) -> dict[str, np.ndarray]:
        x = rng.standard_normal((n, features))
        return {"x": (1 + i) * x + 5 * i * np.arange(features), "y": (x[:, 0] < x[:, 1]).astype(int)}

    train = {i: samples(n, i) for i, n in enumerate(sizes)}
    return data.from_arrays(train, {i: samples(20, i) for i in range(len(sizes))}, classes=2)


def local(problem: Problem, model: Any) -> tuple[np.ndarray, Any]:
    """f_i, (N,), and grad f_i, leaves (N, ...)."""
    functions = Functions.of(problem)

    def one(shard: Shard) -> Any:
        return local_objective(functions, shard).value_and_gradient(Vector(model))

    with scope(problem.double):
        values, gradients = jax.jit(lambda shard: jax.lax.map(one, shard))(arrays(problem))
    return np.asarray(values), jax.tree.map(np.asarray, gradients.tree)


def cross_entropies(model: Any, x: np.ndarray, y: np.ndarray, mean: Any, variance: Any) -> np.ndarray:
    z = (x - mean) / np.sqrt(variance + EPSILON) @ model["w"] + model["b"]
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def batches(n: int, block: int = 64) -> list[np.ndarray]:
    """The samples of each batch that f_i is made of."""
    return [np.arange(first, first + block) % n for first in range(0, n, block)]


def test_f_is_made_of_batches_each_normalised_by_itself() -> None:
    federated = shifted((1, 40, 64, 150))
    problem, model = problems.classification(normalised, federated, start(), normalisation=RULE), start()
    values, _ = local(problem, model)
    for value, samples in zip(values, federated.train, strict=True):
        x, y = samples["x"], samples["y"]
        losses = [cross_entropies(model, x[b], y[b], x[b].mean(0), x[b].var(0)) for b in batches(len(y))]
        assert value == pytest.approx(np.concatenate(losses)[: len(y)].mean(), rel=1e-12)


def test_an_agent_is_judged_by_its_own_statistics() -> None:
    """By hand; one agent's statistics would be of no use to another."""
    federated, model = shifted((70, 30, 90)), {"w": 3 * np.eye(2), "b": np.zeros(2)}
    problem = problems.classification(normalised, federated, model, normalisation=RULE)
    means, variances = problems.local_statistics(problem, model)
    losses, right = [], []
    for i, (train, test) in enumerate(zip(federated.train, federated.test, strict=True)):
        held = [train["x"][b] for b in batches(len(train["y"]))]
        np.testing.assert_allclose(means[i], np.mean([x.mean(0) for x in held], axis=0), rtol=1e-12)
        np.testing.assert_allclose(variances[i], np.mean([x.var(0) for x in held], axis=0), rtol=1e-12)
        losses.append(cross_entropies(model, test["x"], test["y"], means[i], variances[i]))
        right.append(np.mean(losses[-1] < np.log(2)))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(1e-30, 1)), problem, rounds=1)
    assert run.history["test_loss"][0] == pytest.approx(np.concatenate(losses).mean(), rel=1e-12)
    assert run.history["test_accuracy_agents"][0] == pytest.approx(np.mean(right))
    assert run.history["test_accuracy"][0] > 0.9
    wrong = cross_entropies(model, federated.test[2]["x"], federated.test[2]["y"], means[0], variances[0])
    assert np.mean(wrong < np.log(2)) < 0.7


@pytest.mark.slow
@given(st.lists(st.integers(1, 150), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=6, deadline=None)
def test_padding_changes_no_number(sizes: list[int], place: int) -> None:
    """An agent's f_i, gradient and statistics are the same alone and among agents of any size."""
    place %= len(sizes)
    federated, model = shifted(tuple(sizes)), start()
    whole, alone = (
        problems.classification(normalised, part, model, normalisation=RULE)
        for part in (federated, data.take(federated, [place]))
    )
    found = [(*local(problem, model), problems.local_statistics(problem, model)) for problem in (whole, alone)]
    among, itself = (jax.tree.map(lambda leaf, i=i: leaf[i], one) for one, i in zip(found, (place, 0), strict=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), among, itself)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
def test_flaxs_statistics_are_the_batchs_whatever_the_momentum(momentum: float) -> None:
    federated = images()
    problem = problems.network(CNN(momentum=momentum), federated)
    found = problems.local_statistics(problem, problem.start)["BatchNorm_0"]
    convolution = networks.Conv(4, 3)
    for i, samples in enumerate(federated.train):
        rows = batches(len(samples["y"]))[0]
        x = samples["x"][rows, ..., None].astype(np.float32) / 255
        inside = np.asarray(convolution.apply({"params": problem.start["Conv_0"]}, x))
        np.testing.assert_allclose(found["mean"][i], inside.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["var"][i], inside.var((0, 1, 2)), rtol=1e-3, atol=1e-6)


def test_a_network_with_batch_normalisation_learns_parameters_only() -> None:
    problem = problems.network(CNN(), images())
    oracle = oracles.sgd(0.1, iterations=6, batch=4)
    run = simulate(algorithms.fedpd(eta=5.0, oracle=oracle, start="server"), problem, rounds=8, metrics_every=4)
    assert run.history["test_accuracy"][-1] > 0.9
    assert run.history["loss"][-1] < run.history["loss"][0] / 2
    assert set(run.model) == {"Conv_0", "BatchNorm_0", "Dense_0"}
    assert set(run.model["BatchNorm_0"]) == {"scale", "bias"}
    duals = jax.tree.map(lambda leaf: leaf.shape[1:], run.agents.dual.tree)
    assert duals == jax.tree.map(np.shape, problem.start)
    statistics = problems.local_statistics(problem, run.model)
    samples = images().test[1]
    x = samples["x"].astype(np.float32) / 255
    own = jax.tree.map(lambda leaf: leaf[1], statistics)
    guesses = CNN().apply({"params": run.model, "batch_stats": own}, x, train=False)
    assert np.mean(np.argmax(np.asarray(guesses), axis=1) == samples["y"]) > 0.8


QUICK = ("fedavg", "fedpd", "scaffold", "f_svrg", "pr_spider")  # one of each kind; all of them: make test-slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in algorithms.__all__]
)
def test_every_method_runs(name: str) -> None:
    """On full gradients, as on features that were normalised before. The first step of Newton-CG takes four rounds."""
    algorithm, federated = FIRST[name].make(), shifted((4, 8, 32))  # divisors of a batch, so that it repeats all alike
    problem = problems.classification(normalised, federated, start(), normalisation=RULE)
    history = simulate(algorithm, problem, rounds=5).history
    if algorithm.samples_per_step is not None:
        assert history["loss"][-1] < history["loss"][0]
        return
    before = data.from_arrays(dict(enumerate(map(normalised_before, federated.train))), classes=2)
    plain = problems.classification(lambda model, x: x @ model["w"] + model["b"], before, start())
    expected = simulate(algorithm, plain, rounds=5).history
    assert history["loss"][-1] != history["loss"][0]
    for column in ("loss", "stationarity"):
        np.testing.assert_allclose(history[column], expected[column], rtol=1e-7)


def normalised_before(samples: Any) -> dict[str, np.ndarray]:
    x = samples["x"]
    return {"x": (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + EPSILON), "y": samples["y"]}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"devices": 2}, {"execution": "parallel"}, {"execution": "sequential"}])
def test_the_same_under_any_layout(options: dict[str, Any]) -> None:
    problem = problems.classification(normalised, shifted((5, 9, 70)), start(), normalisation=RULE)
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(0.1, 3, batch=2))
    plain = simulate(algorithm, problem, rounds=2).history
    other = simulate(algorithm, problem, rounds=2, **options).history
    for name in plain:
        np.testing.assert_allclose(other[name], plain[name], rtol=1e-10, atol=1e-14)


def test_shared_blocks_keep_the_rule() -> None:
    problem = problems.share_blocks(problems.network(CNN(), images()), 1)
    assert problem.block == 64
    assert problems.local_statistics(problem, problem.start)["BatchNorm_0"]["mean"].shape == (3, 4)
    assert problem.evaluation is not None


class Untold(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x.reshape(len(x), -1)))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x.reshape(len(x), -1)))


class Spectral(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return nn.SpectralNorm(nn.Dense(3))(x.reshape(len(x), -1), update_stats=train)


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        self.variable("calls", "number", lambda: jnp.zeros(()))
        return nn.Dense(3)(x.reshape(len(x), -1))


class Asking(nn.Module):
    @nn.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        return nn.Dense(3)(x.reshape(len(x), -1))


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Untold(), r"module = 'Untold': has batch normalisation, .*must take train.*__call__\(self, x, train\)"),
        (Dropping(), r"Dropping draws random numbers \(dropout\), and nothing turns them off"),
        (Spectral(), r"statistic = 'SpectralNorm_0/Dense_0/kernel/\w+': must belong to nn.BatchNorm"),
        (Counting(), "collection = 'calls': fedpd supports only parameters"),
        (Asking(), "argument of Asking.__call__ = 'deterministic': has no default"),
        (CNN(momentum=1.0), "momentum of BatchNorm_0 = 1.0: must be below 1"),
        (lambda x: x, r"module = '<lambda>': must be a module of PyTorch, flax .*problems.classification"),
    ],
)
def test_what_is_refused(module: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        problems.network(module, images())


def test_a_batch_of_one_is_refused() -> None:
    problem = problems.classification(normalised, shifted((5, 9)), start(), normalisation=RULE)
    sentence = "batch = 1: must be at least 2, because a sample's loss depends on its batch"
    with pytest.raises(FedpdError, match=sentence):
        simulate(algorithms.fedavg(oracle=oracles.sgd(0.1, 3)), problem, rounds=1)
    with pytest.raises(FedpdError, match=sentence):
        sweep(lambda step: algorithms.fedavg(oracle=oracles.sgd(step, 3)), problem, {"step": [0.1]}, rounds=1)


def test_models_without_statistics_have_none() -> None:
    problem = problems.network(networks.MLP(3), images())
    with pytest.raises(FedpdError, match="has no batch statistics"):
        problems.local_statistics(problem, problem.start)
