"""Classification by any model: losses and accuracies by hand, padding, networks, what is refused."""

from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, arrays, local_objective
from fedpd.engine.measure.columns import RECORDABLE
from fedpd.problems import layers, networks

ACCURACY = tuple(column.name for column in RECORDABLE["accuracy"])

STAND = algorithms.fedavg(oracle=oracles.gd(step=1e-30, iterations=1))  # a run that stays where it is


def linear(model: Any, x: Any) -> Any:
    return x @ model


def toy() -> data.Federated:
    """Three agents; scores are the two features, so that the larger feature is the prediction."""
    train = {
        "a": {"x": np.array([[2.0, 0.0], [0.0, 2.0]]), "y": np.array([0, 0])},
        "b": {"x": np.array([[1.0, 3.0]]), "y": np.array([1])},
        "c": {"x": np.array([[0.0, 1.0], [3.0, 1.0], [5.0, 1.0]]), "y": np.array([1, 0, 1])},
    }
    test = {
        "a": {"x": np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), "y": np.array([0, 0, 1, 0])},
        "c": {"x": np.array([[0.0, 1.0]]), "y": np.array([0])},
    }
    return data.from_arrays(train, test)


def test_accuracies_by_hand() -> None:
    problem = problems.classification(linear, toy(), np.eye(2))
    history = simulate(STAND, problem, rounds=1).history
    # train: a 1 of 2, b 1 of 1, c 2 of 3; test: a 3 of 4, c 0 of 1; b has no tests.
    assert history["train_accuracy"][0] == pytest.approx(4 / 6)
    assert history["test_accuracy"][0] == pytest.approx(3 / 5)
    assert history["test_accuracy_agents"][0] == pytest.approx((3 / 4 + 0) / 2)
    assert history["test_accuracy_worst"][0] == 0
    margins = np.array([1.0, -1.0, 3.0, 4.0, -1.0])
    assert history["test_loss"][0] == pytest.approx(np.mean(np.log1p(np.exp(-margins))))
    assert set(list(history)[-5:]) == set(ACCURACY)


@pytest.mark.parametrize("options", [{"devices": 2}, {"execution": "parallel"}, {"execution": "sequential"}])
def test_accuracies_under_any_layout(options: dict[str, Any]) -> None:
    problem = problems.classification(linear, toy(), np.eye(2))
    plain = simulate(STAND, problem, rounds=1).history
    other = simulate(STAND, problem, rounds=1, **options).history
    for name in ACCURACY:
        np.testing.assert_allclose(other[name], plain[name], atol=1e-12)


def test_any_classes_and_the_penalty() -> None:
    train = {
        "a": {"x": np.array([[1.0, 0.0]]), "y": np.array([-1])},
        "b": {"x": np.array([[0.0, 1.0]]), "y": np.array([1])},
    }
    problem = problems.classification(linear, data.from_arrays(train), 2 * np.eye(2), l2=0.5)
    history = simulate(STAND, problem, rounds=1).history
    assert history["loss"][0] == pytest.approx(np.log1p(np.exp(-2)) + 0.5 / 2 * 8)
    assert "test_accuracy" not in history


def images(dtype: Any = np.uint8) -> data.Federated:
    rng = np.random.default_rng(0)

    def samples(n: int) -> dict[str, np.ndarray]:
        y = rng.integers(0, 3, n)
        x = rng.integers(0, 60, (n, 8, 8)) + 180 * (np.arange(8) // 3 == y[:, None])[:, None, :]
        return {"x": x.astype(dtype), "y": y}

    return data.from_arrays({i: samples(12) for i in range(3)}, {i: samples(6) for i in range(3)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [networks.MLP(3, (16,)), networks.SmallCNN(3, (4, 4), 16)], ids=lambda module: type(module).__name__
)
def test_networks_learn(module: Any) -> None:
    problem = problems.network(module, images())
    oracle = oracles.sgd(0.1, iterations=6, batch=4)
    run = simulate(algorithms.fedpd(eta=5.0, oracle=oracle, start="server"), problem, rounds=12, metrics_every=4)
    assert run.history["test_accuracy"][-1] > 0.9
    assert run.history["loss"][-1] < run.history["loss"][0] / 2
    assert set(run.model) == set(problem.start)  # the module's own parameters


@pytest.mark.slow
def test_a_network_on_texts() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 5, (3, 20, 6))
    agents = {i: {"x": x[i], "y": x[i, :, -1]} for i in range(3)}  # the next character is the last one
    problem = problems.network(networks.GRU(5, 4, 16), data.from_arrays(agents, agents, classes=5))
    run = simulate(algorithms.fedavg(oracle=oracles.sgd(0.5, 20, batch=5)), problem, rounds=10, metrics_every=10)
    assert run.history["test_accuracy"][-1] > 0.6


def test_leafs_network_has_its_parameters() -> None:
    module = networks.LeafCNN()
    sizes = {name: np.shape(leaf["kernel"]) for name, leaf in _start(module).items()}
    assert sizes["Conv_0"] == (5, 5, 1, 32)
    assert sizes["Conv_1"] == (5, 5, 32, 64)
    assert sizes["Dense_0"] == (7 * 7 * 64, 2048)
    assert sum(np.size(part) for leaf in _start(module).values() for part in leaf.values()) == 6_603_710


def _start(module: Any) -> dict[str, dict[str, np.ndarray]]:
    return jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 28, 28)))["params"]


def test_what_is_refused() -> None:
    empty = data.from_arrays(
        {"a": {"x": np.ones((1, 2)), "y": np.zeros(1)}}, {"b": {"x": np.ones((1, 2)), "y": np.zeros(1)}}
    )
    with pytest.raises(FedpdError, match="agent 'b' has no training samples"):
        problems.classification(linear, empty, np.eye(2))
    with pytest.raises(FedpdError, match="record = 'accuracy': needs a problem with test samples"):
        simulate(STAND, problems.random_quadratic(2, 2), rounds=1, record=["accuracy"])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("size", "side"), [(5, 7), (3, 4), (2, 6)])
def test_convolutions_are_flaxs(size: int, side: int, padding: Literal["SAME", "VALID"]) -> None:
    """Parameter for parameter, and pooling too."""
    x = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
    ours, theirs = networks.Conv(4, size, padding=padding), nn.Conv(4, (size, size), padding=padding)
    variables = theirs.init(jax.random.key(0), x)
    assert jax.tree.map(np.shape, variables) == jax.tree.map(np.shape, ours.init(jax.random.key(1), x))
    expected, found = (jnp.asarray(module.apply(variables, x)) for module in (theirs, ours))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    pooled = nn.max_pool(expected, (2, 2), strides=(2, 2))
    np.testing.assert_array_equal(networks.max_pool(expected), pooled)
    first = networks.Conv(4, size, first=True, padding=padding).apply(variables, np.moveaxis(x, -1, 0))
    np.testing.assert_allclose(np.moveaxis(np.asarray(first), 0, -1), expected, atol=1e-5)
    np.testing.assert_array_equal(
        networks.max_pool(jnp.moveaxis(expected, -1, 0), first=True), np.moveaxis(pooled, -1, 0)
    )


def test_leafs_network_is_flaxs() -> None:
    """With channels first inside, on images of several channels: the same function of the same parameters."""

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for number in (2, 3):
                x = nn.max_pool(nn.relu(nn.Conv(number, (5, 5))(x)), (2, 2), strides=(2, 2))
            x = nn.relu(nn.Dense(6)(x.reshape(len(x), -1)))
            return nn.Dense(4)(x)

    x = np.random.default_rng(0).standard_normal((2, 9, 8, 3)).astype(np.float32)
    variables = Plain().init(jax.random.key(0), x)
    found, expected = (jnp.asarray(net.apply(variables, x)) for net in (networks.LeafCNN(4, (2, 3), 6), Plain()))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "features", "width"),
    [(1, 5, 3), (layers.FEW, 5, 3), (layers.FEW + 1, 5, 3), (2, layers.PARTS, layers.LARGE // layers.PARTS)],
)
def test_dense_layers_are_flaxs(rows: int, features: int, width: int) -> None:
    """Values, gradients and products with the Hessian, with and without outer products and parts."""
    ours, theirs = networks.Dense(width), nn.Dense(width, param_dtype=jnp.float64)
    with scope(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, features)))
        start = theirs.init(jax.random.key(0), x)

        def curved(module: nn.Module, variables: Any) -> Any:
            return jnp.sum(jnp.tanh(jnp.asarray(module.apply(variables, x))) ** 3)

        for take in (curved, jax.grad(curved, 1), lambda m, v: jax.jvp(jax.grad(partial(curved, m)), (v,), (v,))):
            pair = [take(module, start) for module in (ours, theirs)]
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *pair)


def test_dense_layers_begin_as_flaxs() -> None:
    x = jnp.ones((2, 5))
    start = [module.init(jax.random.key(0), x) for module in (networks.Dense(3), nn.Dense(3))]
    jax.tree.map(np.testing.assert_array_equal, *start)


def test_poolings_gradient_is_shared_by_equal_maxima() -> None:
    x = jnp.asarray([[1.0, 1.0, 5.0, 2.0], [1.0, 1.0, 5.0, 3.0]])[None, :, :, None]
    gradient = jax.grad(lambda x: jnp.sum(networks.max_pool(x)))(x)[0, :, :, 0]
    np.testing.assert_array_equal(gradient, [[0.25, 0.25, 0.5, 0], [0.25, 0.25, 0.5, 0]])


@pytest.mark.parametrize("block", [1, 4, 64])
def test_full_gradients_in_blocks_are_those_at_once(block: int) -> None:
    """Of agents of unequal size, with a penalty and weights."""
    sizes = (1, 4, 11)
    rng = np.random.default_rng(2)
    agents = [{"a": rng.standard_normal((n, 3)), "y": rng.standard_normal(n)} for n in sizes]
    problem = problems.from_losses(
        lambda x, batch: jnp.tanh(batch["a"] @ x["w"] - batch["y"]) ** 2,
        agents,
        {"w": np.ones(3)},
        penalty=lambda x: jnp.sum(x["w"] ** 4),
        weights=[1.0, 2.0, 3.0],
    )
    functions, x = Functions.of(problem), Vector(problem.start)
    assert functions.block is None  # it is small
    with scope(True):
        for i in range(3):
            one = jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf)[i], arrays(problem))
            whole, parts = (local_objective(functions._replace(block=b), one) for b in (None, block))
            np.testing.assert_allclose(parts.value(x), whole.value(x), rtol=1e-14)
            np.testing.assert_allclose(parts.gradient(x).tree["w"], whole.gradient(x).tree["w"], rtol=1e-13)
            push = (x,), (x,)
            a, b = (jax.jvp(f.gradient, *push)[1].tree["w"] for f in (parts, whole))  # as power iteration does
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_metrics_need_test_samples() -> None:
    untested = data.from_arrays({"a": {"x": np.eye(2), "y": [0, 1]}})
    problem = problems.classification(linear, untested, np.eye(2), metrics={"first": lambda scores, y: scores[:, 0]})
    with pytest.raises(FedpdError, match=r"metrics = \['first'\]: are measured on test samples, and there are none"):
        simulate(algorithms.gradient_descent(step=0.1), problem, rounds=1)
    with pytest.raises(FedpdError, match=r"shape of metric 'mean' for 3 samples"):
        problems.classification(linear, untested, np.eye(2), metrics={"mean": lambda scores, y: scores.mean()})
