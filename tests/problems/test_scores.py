"""Metrics that are no means over samples, against plain NumPy and scikit-learn."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.problems import Metric
from tests.slow_cases import slow_but

METHOD = algorithms.fedavg(oracle=oracles.gd(step=0.3, iterations=2))
NAMES = ("auc", "f1", "balanced_accuracy")


def plain_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    high, low = scores[positive], scores[~positive]
    if not high.size or not low.size:
        return float("nan")
    return float(np.mean((high[:, None] > low) + 0.5 * (high[:, None] == low)))


def plain(name: str, scores: np.ndarray, y: np.ndarray) -> float:
    """A metric of scores (n, K) in plain NumPy, with loops over classes and pairs."""
    classes = range(scores.shape[1])
    if name == "auc" and len(classes) == 2:
        return plain_auc(scores[:, 1] - scores[:, 0], y == 1)
    if name == "auc":
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        found = [plain_auc(shares[:, k], y == k) for k in classes]
        return float(np.mean([one for one in found if not np.isnan(one)] or [np.nan]))
    said = scores.argmax(axis=1)
    if name == "balanced_accuracy":
        return float(np.mean([np.mean(said[y == k] == k) for k in classes if (y == k).any()]))
    parts = [(2 * ((said == k) & (y == k)).sum(), (said == k).sum() + (y == k).sum()) for k in classes]
    return float(np.mean([right / both for right, both in parts if both]))


def plain_c_index(risk: np.ndarray, time: np.ndarray, event: np.ndarray) -> float:
    good = pairs = 0.0
    for i in range(len(risk)):
        for j in range(len(risk)):
            if event[i] and time[i] < time[j]:
                pairs, good = pairs + 1, good + (risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j])
    return good / pairs if pairs else float("nan")


def linear(model: Any, x: Any) -> Any:
    return x @ model


def some(classes: int, ragged: bool = False) -> tuple[data.Federated, dict[str, np.ndarray]]:
    """Agents with 3 to 150 test samples, of which the last has one class only; and a central test set."""
    rng = np.random.default_rng(classes)

    def drawn(number: int, one: bool = False) -> dict[str, np.ndarray]:
        x = np.round(rng.normal(size=(number, 3)), 1)  # so that scores tie
        return {"x": x, "y": np.zeros(number, int) if one else np.arange(number) % classes}

    sizes = (3, 70, 150, 20, 9)
    train = {str(i): drawn(6) for i in range(5)}
    tests = {str(i): drawn(size, one=i == 4) for i, size in enumerate(sizes)}
    made = data.from_arrays(train, tests, classes=classes)
    if ragged:
        rows = [
            data.ragged(data.pool(list(part)), np.array([len(own["y"]) for own in part]))
            for part in (made.train, made.test)
        ]
        made = data.from_rows(*rows, classes=classes)
    return made, drawn(200)


SCORED: list[tuple[int, bool, dict[str, Any]]] = [
    (2, False, {}),
    (2, True, {}),
    (4, False, {}),
    (4, True, {}),
    (4, True, {"cohort": 2}),
    (4, True, {"devices": 2}),
]


@pytest.mark.parametrize(("classes", "ragged", "options"), slow_but([(4, True, {})], SCORED), ids=str)
def test_pooled_per_agent_and_central(classes: int, ragged: bool, options: dict[str, Any]) -> None:
    federated, test = some(classes, ragged)
    start = np.round(np.random.default_rng(1).normal(size=(3, classes)), 1)
    factories = {name: getattr(problems, name) for name in NAMES}
    metrics = {name: make() for name, make in factories.items()}
    metrics |= {f"{name}_agents": make(over="agents") for name, make in factories.items()}
    problem = problems.classification(linear, federated, start, metrics=metrics, check=False)
    run = simulate(METHOD, problem, rounds=2, test=test, **options)
    pooled = data.pool(list(federated.test))
    for name in NAMES:
        own = [plain(name, one["x"] @ run.model, one["y"]) for one in federated.test]
        wanted = plain(name, pooled["x"] @ run.model, pooled["y"]), np.nanmean(own)
        central = plain(name, test["x"] @ run.model, test["y"])
        found = [run.history[column][-1] for column in (name, f"{name}_agents", f"central_{name}")]
        np.testing.assert_allclose(found, np.array([*wanted, central]), rtol=1e-10)
        for column in (name, f"{name}_agents"):
            np.testing.assert_allclose(run.per_agent(column), own, rtol=1e-10)
    assert np.isnan(run.per_agent("auc")[4])  # one class only


def test_one_output_and_the_c_index() -> None:
    rng = np.random.default_rng(0)

    def patients(number: int) -> dict[str, np.ndarray]:
        y = np.stack([np.round(rng.exponential(size=number), 1), rng.integers(0, 2, number)], axis=1)
        return {"x": np.round(rng.normal(size=(number, 2)), 1), "y": y}

    tests = {str(i): patients(size) for i, size in enumerate((4, 30, 90))}
    federated = data.from_arrays({str(i): patients(5) for i in range(3)}, tests, classes=False)
    problem = problems.supervised(
        lambda x, a: a @ x,
        federated,
        np.array([1.0, -0.5]),
        loss=lambda outputs, targets: (outputs - targets[:, 0]) ** 2,
        metrics={"c": problems.c_index(), "c_agents": problems.c_index(over="agents")},
    )
    run = simulate(METHOD, problem, rounds=1, test=patients(40))
    own = [plain_c_index(one["x"] @ run.model, *one["y"].T) for one in tests.values()]
    everyone = data.pool(list(federated.test))
    np.testing.assert_allclose(run.history["c"][-1], plain_c_index(everyone["x"] @ run.model, *everyone["y"].T))
    np.testing.assert_allclose(run.history["c_agents"][-1], np.mean(own))
    np.testing.assert_allclose(run.per_agent("c"), own)
    assert 0 < run.history["central_c"][-1] < 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.booleans()), min_size=12, max_size=12))
def test_auc_of_one_output_with_padding(rows: list[tuple[int, bool, bool]]) -> None:
    scores, positive, inside = (np.array(column) for column in zip(*rows, strict=True))
    metric: Any = problems.auc()
    values = metric.values(scores.astype(np.float32)[:, None], np.where(positive, 1, -1))
    found = float(metric.of_all(values, inside))
    np.testing.assert_allclose(found, plain_auc(scores[inside], positive[inside]), rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 5])
def test_they_are_those_of_scikit_learn(classes: int) -> None:
    sklearn: Any = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    rng = np.random.default_rng(2)
    scores, y = rng.normal(size=(300, classes)), np.arange(300) % classes
    said, shares = scores.argmax(axis=1), np.asarray(jax.nn.softmax(scores))
    wanted = {
        "auc": sklearn.roc_auc_score(y, shares[:, 1] if classes == 2 else shares, multi_class="ovr"),
        "f1": sklearn.f1_score(y, said, average="macro"),
        "balanced_accuracy": sklearn.balanced_accuracy_score(y, said),
    }
    for name, value in wanted.items():
        metric: Any = getattr(problems, name)()
        values = metric.values(scores.astype(np.float32), y)
        found = metric.of_all(values, np.ones(300, bool)) if metric.of_all else metric.of_sum(values.sum(0))
        np.testing.assert_allclose(float(found), value, rtol=1e-5)
    second: Any = problems.f1(positive=1)
    value = sklearn.f1_score(y == 1, said == 1)
    np.testing.assert_allclose(float(second.of_sum(second.values(scores, y).sum(0))), value, rtol=1e-6)


def test_a_metric_of_one_s_own() -> None:
    federated, _ = some(2)
    largest = Metric(lambda scores, y: scores[:, 0], of_all=lambda values, inside: values.max(where=inside, initial=-9))
    problem = problems.classification(linear, federated, np.eye(3, 2), metrics={"largest": largest})
    run = simulate(METHOD, problem, rounds=1)
    np.testing.assert_allclose(
        run.history["largest"][-1], (data.pool(list(federated.test))["x"] @ run.model)[:, 0].max()
    )


def test_wrong_metrics_are_refused() -> None:
    federated, _ = some(2)

    def build(metric: Any) -> Any:
        return problems.classification(linear, federated, np.zeros((3, 2)), metrics={"m": metric})

    with pytest.raises(FedpdError, match="over = 'agent'"):
        problems.auc(over="agent")  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match="positive = 2: must be below 2, the number of classes"):
        build(problems.f1(positive=2))
    with pytest.raises(FedpdError, match="positive = -1"):
        problems.f1(positive=-1)
    with pytest.raises(FedpdError, match="has more than one of of_mean, of_sum and of_all"):
        build(problems.auc()._replace(of_mean="exp"))
    with pytest.raises(FedpdError, match=r"shape of metric 'm' = \(3,\): must be \(\)"):
        build(Metric(lambda scores, y: scores[:, 0], of_all=lambda values, inside: values))
    texts = data.from_arrays({"a": {"x": np.eye(4, 3), "y": np.zeros((4, 3), int)}}, classes=False)
    with pytest.raises(FedpdError, match=r"must be \(B, K\) and \(B,\): one class per sample"):
        problems.next_token(lambda x, a: a[..., None] * x, texts, np.ones(4), metrics={"m": problems.auc()})
