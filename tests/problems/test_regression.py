"""Regression: losses and metrics by hand, missing targets, modules, and the sentences for wrong shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, report, simulate, tune
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, arrays, local_objective, one_agent
from fedpd.data import Federated

GD = oracles.gd(step=0.1, iterations=2)
START = np.array([[0.5, -1.0], [0.25, 2.0], [-0.75, 1.0]])


def agent(seed: int, size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((size, 3)), "y": rng.standard_normal((size, 2))}


def samples(missing: bool = True) -> Federated:
    """Two agents of 5 and 3 samples; with missing targets, some components are NaN, and one sample has none."""
    train, test = {"a": agent(0, 5), "b": agent(1, 3)}, {"a": agent(2, 2), "b": agent(3, 4)}
    if missing:
        train["a"]["y"][1, 0] = train["b"]["y"][2, 1] = test["b"]["y"][0, 1] = np.nan
        train["a"]["y"][3] = test["b"]["y"][2] = np.nan
    return data.from_arrays(train, test, classes=False)


def as_ragged(samples: Any) -> Any:
    """Return the samples of the agents as rows and sizes."""
    rows = {key: np.concatenate([own[key] for own in samples]) for key in ("x", "y")}
    return data.ragged(rows, sizes=[len(own["y"]) for own in samples])


def linear(model: Any, x: Any) -> Any:
    return x @ model


def by_hand(part: Any, model: np.ndarray) -> np.ndarray:
    """Return the loss of each sample: half the mean of the squared errors of its known components."""
    losses = []
    for x, y in zip(part["x"], part["y"], strict=True):
        errors = [(x @ model - y)[k] for k in range(2) if not np.isnan(y[k])]
        losses.append(sum(e**2 / 2 for e in errors) / max(1, len(errors)))
    return np.array(losses)


@pytest.mark.parametrize("missing", [False, True])
def test_the_objective_is_that_of_numpy(missing: bool) -> None:
    found = samples(missing)
    problem = problems.regression(linear, found, START)
    with scope(problem.double):
        shard = arrays(problem)
        for i, part in enumerate(found.train):
            f = local_objective(Functions.of(problem), one_agent(shard, i))
            value, gradient = f.value_and_gradient(jax.tree.map(jnp.asarray, problems_vector(START)))
            assert value == pytest.approx(by_hand(part, START).mean(), rel=1e-12)
            numeric = [
                (by_hand(part, START + h).mean() - by_hand(part, START - h).mean()) / 2e-5
                for h in (1e-5 * e.reshape(3, 2) for e in np.eye(6))
            ]
            np.testing.assert_allclose(np.asarray(gradient.tree).ravel(), numeric, rtol=1e-7, atol=1e-9)


def problems_vector(model: np.ndarray) -> Any:
    from tree_math import Vector

    return Vector(model)


def test_metrics_merge_over_the_agents() -> None:
    """Means are over all known components of all agents, not means of the agents' means."""
    found = samples()
    own = {"farthest": lambda outputs, targets: jnp.max(jnp.abs(outputs - targets), axis=1)}
    problem = problems.regression(linear, found, START, metrics=own)
    run = simulate(algorithms.fedavg(oracle=GD), problem, rounds=1)
    errors = np.concatenate([part["x"] @ START - part["y"] for part in found.test])
    known = errors[~np.isnan(errors)]
    losses = np.concatenate([by_hand(part, START) for part in found.test])
    first = {name: column[0] for name, column in run.history.items()}
    assert first["mae"] == pytest.approx(np.abs(known).mean(), rel=1e-12)
    assert first["rmse"] == pytest.approx(np.sqrt((known**2).mean()), rel=1e-12)
    assert first["test_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    assert first["farthest"] == pytest.approx(np.nanmean(np.abs(errors).max(axis=1)), rel=1e-12)
    assert "test_accuracy" not in first


@pytest.mark.slow
def test_metrics_reach_tables_figures_pages_and_targets() -> None:
    problem = problems.regression(linear, samples(), START)
    run = simulate(algorithms.fedavg(oracle=GD), problem, rounds=3)
    table = report.comparison_table({"FedAvg": run})
    assert [column.header for column in table.columns][:5] == ["method", "stationarity", "mae", "rmse", "comm."]
    assert run.plot("rmse").axes[0].get_ylabel() == "rmse"
    ended = simulate(algorithms.fedavg(oracle=GD), problem, rounds=3, until={"mae": float(run.history["mae"][1])})
    assert ended.history["round"][-1] == 1
    assert set(simulate(algorithms.fedavg(oracle=GD), problem, rounds=1, record=["heterogeneity"]).history).isdisjoint(
        {"mae", "test_loss"}
    )
    tuned = tune(problem, methods=["FedAvg-SGD"], rounds=2, criterion="mae", target=10.0, scales=[1.0], L=1.0)
    assert tuned[0].criterion == "mae"


@pytest.mark.slow
def test_metrics_are_the_same_in_all_layouts_and_for_ragged_data() -> None:
    found, algorithm = samples(), algorithms.fedavg(oracle=GD)
    plain = simulate(algorithm, problems.regression(linear, found, START), rounds=2)
    rows = [as_ragged(part) for part in (found.train, found.test)]
    flat = problems.regression(linear, data.from_rows(*rows, names=list(found.names), classes=False), START)
    runs = [simulate(algorithm, problems.regression(linear, found, START), rounds=2, execution="sequential")]
    runs += [simulate(algorithm, flat, rounds=2), simulate(algorithm, flat, rounds=2, participation=1.0)]
    for run in runs:
        for name in ("mae", "rmse", "test_loss", "loss"):
            np.testing.assert_allclose(run.history[name], plain.history[name], rtol=1e-12, err_msg=name)


@pytest.mark.slow
def test_single_numbers_and_a_module() -> None:
    nn = pytest.importorskip("flax.linen")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3)).astype(np.float32)
    one = {"x": x, "y": x @ [1.0, -2.0, 0.5] + 3}
    found = data.from_arrays({"a": one, "b": one}, {"a": one}, classes=False)
    problem = problems.regression(nn.Dense(1), found)  # an output (B, 1) for targets (B,)
    assert not problem.double  # targets take the precision of the features
    run = simulate(algorithms.fedpd(eta=1.0, oracle=oracles.gd(0.3, 10)), problem, rounds=20)
    assert run.history["rmse"][-1] < 1e-3
    np.testing.assert_allclose(run.model["bias"], 3, rtol=1e-3)


def test_class_numbers_are_numbers() -> None:
    found = data.from_arrays({"a": {"x": np.ones((3, 1)), "y": [2, 4, 9]}})
    problem = problems.regression(lambda model, x: x[:, 0] * model, found, np.zeros(()))
    run = simulate(algorithms.gradient_descent(step=0.5), problem, rounds=60)
    assert run.model == pytest.approx(5.0, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "error", "expected"), [("absolute", 3.0, 3.0), ("huber", 3.0, 2.5), ("huber", 0.5, 0.125)]
)
def test_losses(loss: Any, error: float, expected: float) -> None:
    found = data.from_arrays({"a": {"x": np.ones((1, 1)), "y": [1.0]}}, classes=False)
    problem = problems.regression(lambda model, x: x[:, 0] * model, found, np.array(1.0 + error), loss=loss)
    assert simulate(algorithms.gradient_descent(step=0.1), problem, rounds=1).history["loss"][0] == expected


def refused(message: str, *arguments: Any, **named: Any) -> None:
    with pytest.raises(FedpdError, match=message):
        problems.regression(*arguments, **named)


def test_wrong_shapes_and_losses_get_a_sentence() -> None:
    found, whole = samples(), samples(missing=False)
    refused(r"shape of an output = \(3,\): must be \(2,\), the shape of a target", linear, found, np.zeros((3, 3)))
    mean: Any = {"loss": lambda outputs, targets: jnp.mean((outputs - targets) ** 2)}
    refused("Return one loss per sample, not their mean", linear, whole, START, **mean)
    rows: Any = {"loss": lambda outputs, targets: jnp.sum((outputs - targets) ** 2, axis=1)}
    problems.regression(linear, whole, START, **rows)
    refused("one loss per component, because some targets are missing", linear, found, START, **rows)
    averaged: Any = {"metrics": {"mse": mean["loss"]}}
    refused("shape of metric 'mse' for 3 samples = .*Do not average over samples", linear, whole, START, **averaged)
    refused("must map names to functions", linear, whole, START, metrics={"mse": 3})
    refused(
        "metric 'z' cannot be computed: division by zero. Use", linear, whole, START, metrics={"z": lambda *_: 1 / 0}
    )
    complexes: Any = {"metrics": {"z": lambda outputs, targets: outputs * 1j}}
    refused("metric 'z' cannot be computed: it returns complex numbers", linear, whole, START, **complexes)
    refused("loss = 'square': there is no such choice. Did you mean 'squared'", linear, whole, START, loss="square")
    refused("equinox or haiku, not its class, if no start is given", linear, whole)
    texts = data.from_arrays({"a": {"x": np.ones((2, 1)), "y": ["cat", "dog"]}})
    refused("has classes with names", linear, texts, START)
    with pytest.raises(FedpdError, match="has no classes, because its labels are numbers to predict"):
        problems.classification(linear, whole, START)
    with pytest.raises(FedpdError, match="metrics = 'loss': is the name of a column that every history has"):
        simulate(
            algorithms.fedavg(oracle=GD),
            problems.regression(linear, whole, START, metrics={"loss": lambda outputs, targets: outputs}),
            rounds=1,
        )
    with pytest.raises(FedpdError, match="needs a problem that knows which predictions are correct"):
        simulate(algorithms.fedavg(oracle=GD), problems.regression(linear, whole, START), rounds=1, record=["accuracy"])


def one_column() -> Federated:
    """Ten samples with a target of one number, (n,), in train and test."""
    rng = np.random.default_rng(0)
    own = {"x": rng.standard_normal((10, 3)), "y": rng.standard_normal(10)}
    return data.from_arrays({"a": own}, {"a": own}, classes=False)


def far(outputs: Any, targets: Any) -> Any:
    return jnp.abs(outputs - targets)


def column_loss(outputs: Any, targets: Any) -> Any:
    return (outputs[:, 0] - targets) ** 2


@pytest.mark.parametrize("metric", [far, problems.Metric(far), lambda o, t: far(o, t)[:, None], lambda o, t: o < t])
def test_a_metric_that_compares_all_samples_with_each_other_is_refused(metric: Any) -> None:
    """Outputs (B, 1) minus targets (B,) are (B, B), whose mean is not that of the errors."""
    found = r"metric 'mae' = '\(3, .*3\) for 3 samples and \(6, .*6\) for 6 samples': .*outputs.reshape"
    with pytest.raises(FedpdError, match=found):
        problems.supervised(linear, one_column(), np.zeros((3, 1)), loss=column_loss, metrics={"mae": metric})


def test_metrics_of_parts_of_a_sample_stay() -> None:
    parts: Any = {"all": lambda o, t: o - t[:, None] * jnp.ones((1, 3)), "one": lambda o, t: o[:, 0] - t}
    problem = problems.supervised(linear, one_column(), np.zeros((3, 3)), loss=column_loss, metrics=parts)
    assert [name for name, _ in problem.evaluation.metrics] == ["all", "one"]  # type: ignore[union-attr]


def test_a_loss_or_a_judge_that_compares_all_samples_is_refused() -> None:
    held, start = one_column(), np.zeros((3, 1))
    with pytest.raises(FedpdError, match=r"losses returns float64\[10, 10\]: .*shape \(10,\)"):
        problems.supervised(linear, held, start, loss=far)
    with pytest.raises(FedpdError, match=r"shape of metric 'correct' for 3 samples = \(3, 3\)"):
        problems.supervised(linear, held, start, loss=column_loss, correct=lambda o, t: jnp.abs(o - t) < 1)
    crossed: Any = {"loss": lambda outputs, targets: (outputs[:, None] - targets) ** 2}
    refused(r"shape of the loss = '\(3, 3\) for 3 samples and \(6, 6\) for 6", linear, held, np.zeros(3), **crossed)


def test_losses_whose_number_is_that_of_the_parameters_are_refused() -> None:
    """Three numbers for an agent of three samples are not one number per sample."""
    rows = np.ones((1, 3, 3))
    with pytest.raises(FedpdError, match=r"losses returns float64\[3\]: .*shape \(6,\)\. Return one loss per sample"):
        problems.from_losses(lambda x, batch: jnp.mean(batch, axis=0) * x, rows, np.zeros(3))
