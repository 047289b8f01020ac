"""The central test set: samples of nobody, on which the server measures the model that it delivers."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, Run, algorithms, data, oracles, problems, simulate, sweep
from fedpd.experiments.experiment import parse
from fedpd.problems import Normalisation

METHOD = algorithms.fedavg(oracle=oracles.gd(step=0.3, iterations=2))
TESTS = 150  # more than two blocks of rows


def drawn(number: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 3)).astype(np.float32)
    return {"x": x, "y": np.array(["cat", "dog"])[(x[:, 0] + rng.normal(size=number) > 0).astype(int)]}


def brier(scores: Any, targets: Any) -> Any:
    return (jax.nn.softmax(scores)[:, 1] - targets) ** 2


def linear(model: Any, x: Any) -> Any:
    return x @ model


DATA = data.from_arrays({str(i): drawn(8 + i, i) for i in range(4)})
START = np.zeros((3, 2), np.float32)
PROBLEM = problems.classification(linear, DATA, START, metrics={"brier": brier}, check=False)
TEST = drawn(TESTS, 99)


def by_hand(model: np.ndarray) -> dict[str, float]:
    """The accuracy, the loss and the Brier score of a linear model, in NumPy."""
    scores, y = TEST["x"].astype(float) @ model, (TEST["y"] == "dog").astype(int)
    total = np.exp(scores).sum(axis=1)
    return {
        "central_accuracy": (scores.argmax(axis=1) == y).mean(),
        "central_loss": (np.log(total) - scores[np.arange(TESTS), y]).mean(),
        "central_brier": ((np.exp(scores[:, 1]) / total - y) ** 2).mean(),
    }


def check(run: Run) -> None:
    for name, value in by_hand(run.model).items():
        np.testing.assert_allclose(run.history[name][-1], value, rtol=1e-5)
    np.testing.assert_allclose(run.history["central_loss"][0], np.log(2), rtol=1e-6)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"cohort": 2},
    {"participation": 0.6},
    {"average": True},
    {"execution": "debug"},
    {"execution": "parallel"},
    {"devices": 2},
    {"metrics_agents": 2},
    {"metrics_every": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_run_measures_the_delivered_model_on_the_central_test_set(options: dict[str, Any]) -> None:
    check(simulate(METHOD, PROBLEM, rounds=4, test=TEST, **options))


def test_agents_in_files_and_lazy_samples(tmp_path: Path) -> None:
    check(simulate(METHOD, PROBLEM, rounds=2, test=TEST, store=tmp_path))
    lazy = data.lazy(lambda i: {"x": DATA.train[i]["x"], "y": DATA.train[i]["y"]}, DATA.sizes)
    held = problems.classification(linear, data.Federated(DATA.names, lazy, lazy, *_rest()), START)
    run = simulate(METHOD, held, rounds=2, test=TEST, cohort=2)
    np.testing.assert_allclose(run.history["central_loss"][-1], by_hand(run.model)["central_loss"], rtol=1e-5)
    assert run.history["central_accuracy"][-1] == np.float32(by_hand(run.model)["central_accuracy"])


def _rest() -> tuple[Any, ...]:
    return DATA.classes, DATA.label_names, DATA.name


def test_seeds_sweeps_and_targets() -> None:
    for run in simulate(METHOD, PROBLEM, rounds=3, seed=[0, 1], cohort=2, test=TEST).runs:
        check(run)
    for (run,) in sweep(METHOD, PROBLEM, {"oracle.step": [0.1, 0.5]}, rounds=3, test=TEST).runs:
        check(run)
    run = simulate(METHOD, PROBLEM, rounds=50, test=TEST, until={"central_loss": 0.66})
    loss = run.history["central_loss"]
    assert len(loss) < 50
    assert loss[-1] <= 0.66 < loss[-2]


def test_the_central_test_set_changes_nothing_else() -> None:
    tested = simulate(METHOD, PROBLEM, rounds=3, test=TEST)
    plain = simulate(METHOD, problems.classification(linear, DATA, START), rounds=3)
    np.testing.assert_array_equal(tested.model, plain.model)
    for name in plain.history:
        np.testing.assert_array_equal(tested.history[name], plain.history[name])


def test_a_second_run_with_another_test_set_of_the_same_size_traces_nothing() -> None:
    calls: list[int] = []

    def counted(model: Any, x: Any) -> Any:
        calls.append(1)
        return x @ model

    problem = problems.classification(counted, DATA, START)
    first = simulate(METHOD, problem, rounds=2, test=TEST)
    before = len(calls)
    second = simulate(METHOD, problem, rounds=2, test=drawn(TESTS, 7))
    third = simulate(METHOD, problem, rounds=2, test=drawn(TESTS, 8))
    assert len(calls) - before <= 2  # each call evaluates the start's loss shape once
    losses = [run.history["central_loss"][-1] for run in (first, second, third)]
    assert len(set(losses)) == 3


def test_batch_statistics_are_the_mean_of_the_agents() -> None:
    def scores(model: Any, statistics: Any, x: Any) -> Any:
        mean, variance = statistics
        return (x - mean) / jnp.sqrt(variance + 1e-5) @ model

    def measured(model: Any, x: Any) -> Any:
        return jnp.mean(x, axis=0), jnp.var(x, axis=0)

    rule = Normalisation(measured, scores)
    start = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    problem = problems.classification(
        lambda model, x: scores(model, measured(model, x), x), DATA, start, normalisation=rule
    )
    for cohort in (None, 2):
        run = simulate(METHOD, problem, rounds=2, test=TEST, cohort=cohort)
        mean, variance = (leaf.mean(axis=0) for leaf in problems.local_statistics(problem, run.model))
        right = ((TEST["x"] - mean) / np.sqrt(variance + 1e-5) @ run.model).argmax(axis=1) == (TEST["y"] == "dog")
        assert run.history["central_accuracy"][-1] == np.float32(right.mean())


def test_problems_without_classes() -> None:
    rows = [{"a": np.eye(4, 2), "b": np.arange(4.0)} for _ in range(3)]
    problem = problems.from_losses(lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2, rows, np.zeros(2))
    test = {"a": np.ones((5, 2)), "b": np.arange(5.0)}
    run = simulate(METHOD, problem, rounds=2, test=test)
    np.testing.assert_allclose(run.history["central_loss"][-1], np.mean((run.model.sum() - np.arange(5.0)) ** 2))
    assert "central_accuracy" not in run.history
    total = problems.from_agent_loss(
        lambda x, rows, mask: jnp.sum(mask * (rows["a"] @ x - rows["b"]) ** 2), rows, np.zeros(2)
    )
    run = simulate(METHOD, total, rounds=2, test=test)
    np.testing.assert_allclose(run.history["central_loss"][-1], np.sum((run.model.sum() - np.arange(5.0)) ** 2))


def test_regression_and_logistic_regression() -> None:
    one = {"x": np.eye(4, 2), "y": np.array([0.0, 1.0, np.nan, 2.0])}
    both = data.from_arrays({"a": one, "b": one}, classes=False)
    problem = problems.regression(lambda x, a: a @ x, both, np.ones(2))
    run = simulate(METHOD, problem, rounds=1, test={"x": np.eye(2), "y": np.array([3.0, np.nan])})
    assert run.history["central_loss"][0] == 1.0  # (1/2 (1 - 3)^2 + nothing) / 2 samples
    features, labels = data.strongly_noniid(agents=3, samples=10, dimension=100)
    logistic = problems.penalized_logistic(features, labels)
    run = simulate(METHOD, logistic, rounds=2, test={"x": features[1], "y": labels[1]})
    assert run.history["central_accuracy"][-1] == np.mean(labels[1] * (features[1] @ run.model) > 0)


def test_a_run_resumes_with_the_same_test_set_only(tmp_path: Path) -> None:
    whole = simulate(METHOD, PROBLEM, rounds=4, test=TEST)
    simulate(METHOD, PROBLEM, rounds=2, test=TEST, checkpoints=tmp_path / "a")
    resumed = simulate(METHOD, PROBLEM, rounds=4, test=TEST, checkpoints=tmp_path / "a")
    np.testing.assert_array_equal(whole.history["central_loss"], resumed.history["central_loss"])
    with pytest.raises(FedpdError, match=r"test\.samples"):
        simulate(METHOD, PROBLEM, rounds=4, test=drawn(TESTS, 5), checkpoints=tmp_path / "a")
    with pytest.raises(FedpdError, match=r"test\.samples"):
        simulate(METHOD, PROBLEM, rounds=6, test=drawn(TESTS, 5), start=whole)
    whole.save(tmp_path / "b")
    np.testing.assert_array_equal(
        fedpd.load(tmp_path / "b").history["central_accuracy"], whole.history["central_accuracy"]
    )


def test_an_experiment_file_names_an_npz_file(tmp_path: Path) -> None:
    features, labels = data.strongly_noniid(agents=3, samples=10, dimension=4)
    np.savez(tmp_path / "test.npz", x=features[0], y=labels[0])
    text = f"""
    [problem]
    name = "penalized_logistic"
    agents = 3
    samples = 10
    dimension = 4
    [run]
    rounds = 1
    test = '{tmp_path / "test.npz"}'
    [[algorithm]]
    name = "fedavg"
    oracle = {{ name = "gd", step = 0.1, iterations = 2 }}
    """
    plan = parse(text)
    run = simulate(plan.methods[0].algorithm, plan.problem, rounds=1, test=plan.settings.test)
    assert run.history["central_accuracy"][-1] == np.mean(labels[0] * (features[0] @ run.model) > 0)
    with pytest.raises(FedpdError, match=r"\[run\] 'other\.npz' cannot be read"):
        parse(text.replace(str(tmp_path / "test.npz"), "other.npz"))
    with pytest.raises(FedpdError, match=r"\[run\] test = 5: must be a text"):
        parse(text.replace(f"'{tmp_path / 'test.npz'}'", "5"))


WRONG: list[tuple[Any, str]] = [
    (
        {"x": TEST["x"], "y": np.full(TESTS, "cow")},
        r"label in test\['y'\] = 'cow': is no class of the problem: cat, dog",
    ),
    ({"x": TEST["x"], "y": np.full(TESTS, 2)}, r"= 2: is no class of the problem: 0, 1"),
    ({"x": TEST["x"][:, :2], "y": TEST["y"]}, r"test\['x'\] = 'float32\[150, 2\]': must have the shape \(m, 3\)"),
    ({"x": TEST["x"].astype(np.uint8), "y": TEST["y"]}, r"must be float32 as the agents' samples are"),
    ({"x": TEST["x"][:9], "y": TEST["y"]}, "must be equal, and at least 1"),
    ({"x": TEST["x"][:0], "y": TEST["y"][:0]}, "must be equal, and at least 1"),
    ({"x": np.full((2, 3), np.nan), "y": TEST["y"][:2]}, r"test\['x'\]\[0, 0\] = nan: must be finite"),
    ({"features": TEST["x"], "y": TEST["y"]}, r'must be a dict with "x" and "y"'),
    (TEST["x"], r'must be a dict with "x" and "y"'),
    ("nowhere.npz", "cannot be read as an .npz file"),
]


@pytest.mark.parametrize(("test", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_test_set_is_refused(test: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        simulate(METHOD, PROBLEM, rounds=1, test=test)


def test_other_wrong_calls() -> None:
    with pytest.raises(FedpdError, match=r"metrics = \['brier'\]: are measured on test samples, and there are none"):
        simulate(METHOD, PROBLEM, rounds=1)
    features, labels = data.strongly_noniid(agents=3, samples=10, dimension=100)
    logistic = problems.penalized_logistic(features, labels)
    narrow = {"x": features[0][:, :99], "y": labels[0]}  # 99 and 100 columns are padded to 104
    with pytest.raises(FedpdError, match=r"must have the shape \(m, 100\)"):
        simulate(METHOD, logistic, rounds=1, test=narrow)
    named = problems.classification(linear, DATA, START, metrics={"accuracy": brier})
    with pytest.raises(FedpdError, match=r"central_accuracy.*is recorded twice"):
        simulate(METHOD, named, rounds=1, test=TEST)


@pytest.mark.slow
def test_frozen_parameters_and_batch_statistics_of_lazy_samples() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.Dense(4, name="first")(x)
            return nn.Dense(2, name="last")(nn.BatchNorm(use_running_average=not train)(x))

    lazy = data.lazy(lambda i: {"x": DATA.train[i]["x"], "y": DATA.train[i]["y"]}, DATA.sizes)
    federated = data.Federated(DATA.names, lazy, lazy, *_rest())
    built = [
        problems.network(Net(), one, trainable=lambda path: "first" not in path, metrics={"f1": problems.f1()})
        for one in (federated, data.Federated(DATA.names, DATA.train, DATA.train, *_rest()))
    ]
    first, second = (simulate(METHOD, problem, rounds=2, cohort=2, test=TEST) for problem in built)
    for name in ("central_loss", "central_accuracy", "central_f1", "f1"):
        np.testing.assert_allclose(first.history[name], second.history[name], rtol=1e-5)
    assert first.by_agent == {}
    counts = second.per_agent("test_accuracy") * DATA.sizes
    np.testing.assert_allclose(counts.sum() / DATA.sizes.sum(), second.history["test_accuracy"][-1], rtol=1e-6)
