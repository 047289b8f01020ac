"""Multi-label targets, the next token of a text, segmentation, and metrics of a classification, by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate

GD = oracles.gd(step=0.1, iterations=2)


def linear(model: Any, x: Any) -> Any:
    return x @ model


def first_row(problem: Any) -> dict[str, float]:
    history = simulate(algorithms.fedavg(oracle=GD), problem, rounds=1).history
    return {name: float(column[0]) for name, column in history.items()}


def test_multilabel_by_hand() -> None:
    x = np.eye(3)
    y = np.array([[1.0, 0.0], [1.0, np.nan], [0.0, 0.0]])
    start = np.array([[2.0, -1.0], [-0.5, 1.0], [-3.0, 0.25]])
    problem = problems.multilabel(
        linear, data.from_arrays({"a": {"x": x, "y": y}}, {"a": {"x": x, "y": y}}, classes=False), start
    )
    found = first_row(problem)

    def entropy(score: float, label: float) -> float:
        return float(np.log1p(np.exp(-score if label else score)))

    losses = [(entropy(2, 1) + entropy(-1, 0)) / 2, entropy(-0.5, 1), (entropy(-3, 0) + entropy(0.25, 0)) / 2]
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert found["test_accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["exact_match"] == pytest.approx(1 / 3)


def test_multilabel_refuses_other_targets() -> None:
    ones = np.ones((2, 2), int)
    for y, message in (
        (2 * ones, "target = 2: must be 0, 1 or NaN"),
        (ones[:, 0], r"shape of a target = \(\): must be \(K,\)"),
    ):
        with pytest.raises(FedpdError, match=message):
            problems.multilabel(linear, data.from_arrays({"a": {"x": ones, "y": y}}, classes=False), np.ones((2, 2)))
    found = data.from_arrays({"a": {"x": ones, "y": ones}}, classes=False)
    with pytest.raises(FedpdError, match=r"shape of the scores = \(3,\): must be \(2,\), one score per label"):
        problems.multilabel(linear, found, np.ones((2, 3)))


def bigram(model: Any, x: Any) -> Any:
    return jnp.asarray(model)[x]


def texts(y: list[list[int]]) -> Any:
    one = {"x": [[0, 1, 2], [2, 0, 0]], "y": y}
    return data.from_arrays({"a": one}, {"a": one}, classes=False)


def test_next_token_by_hand() -> None:
    """Perplexity is over tokens: the padded position of the second text counts nowhere."""
    table = np.array([[0.0, 1.0, 2.0], [1.5, 0.0, -1.0], [0.5, 0.25, 3.0]])
    problem = problems.next_token(bigram, texts([[1, 2, 0], [0, 1, -1]]), table, padding=-1)
    found = first_row(problem)
    entropy = np.log(np.exp(table).sum(axis=1))[:, None] - table
    first, second = [entropy[0, 1], entropy[1, 2], entropy[2, 0]], [entropy[2, 0], entropy[0, 1]]
    assert found["loss"] == pytest.approx((np.mean(first) + np.mean(second)) / 2, rel=1e-12)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(first + second)), rel=1e-12)
    assert found["test_accuracy"] == 0.0  # the largest scores are those of tokens 2, 0 and 2


def test_next_token_refuses_what_does_not_fit() -> None:
    table = np.zeros((3, 3))
    for y, message in (
        ([[1, 2, 3], [0, 1, 0]], "token = 3: must be at least 0 and below the number of scores, 3"),
        ([[1, 2, 0], [0, 1, -1]], "token = -1: must be at least 0"),
        ([[1, 2], [0, 1]], r"shape of a target = \(2,\): must be the shape of x, \(3,\)"),
    ):
        with pytest.raises(FedpdError, match=message):
            problems.next_token(bigram, texts(y), table)
    with pytest.raises(FedpdError, match=r"shape of the scores = \(3,\): must be \(3, K\)"):
        problems.next_token(lambda model, x: bigram(model, x)[:, 0], texts([[1, 2, 0], [0, 1, 0]]), table)


def test_segmentation_with_an_own_correct() -> None:
    """Outputs (B, 2, 2, K) and class numbers (B, 2, 2): accuracy is the share of right pixels."""
    images = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]])
    classes = np.array([[[0, 1], [1, 1]], [[1, 1], [1, 1]]])
    one = {"x": images, "y": classes}

    def scores(model: Any, x: Any) -> Any:
        return jnp.stack([1 - x, x], axis=-1) * model

    def loss(outputs: Any, targets: Any) -> Any:
        own = jnp.take_along_axis(jnp.log(jnp.exp(outputs).sum(-1))[..., None] - outputs, targets[..., None], -1)
        return own[..., 0].mean(axis=(1, 2))

    def correct(outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(-1) == targets).mean(axis=(1, 2))

    found = data.from_arrays({"a": one}, {"a": one}, classes=False)
    problem = problems.supervised(scores, found, np.array(2.0), loss=loss, correct=correct)
    assert first_row(problem)["test_accuracy"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    with pytest.raises(FedpdError, match=r"shape of metric 'correct' for 3 samples = \(3, 2, 2\)"):
        problems.supervised(scores, found, np.array(2.0), loss=loss, correct=lambda o, t: o.argmax(-1) == t)


def test_metrics_of_a_classification() -> None:
    one = {"x": np.eye(3), "y": [0, 1, 2]}
    start = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])

    def top_two(scores: Any, labels: Any) -> Any:
        return jnp.any(jnp.argsort(-scores, axis=1)[:, :2] == labels[:, None], axis=1)

    problem = problems.classification(
        linear,
        data.from_arrays({"a": one}, {"a": one}),
        start,
        metrics={"top_2": problems.Metric(top_two, better="more")},
    )
    found = first_row(problem)
    assert found["test_accuracy"] == pytest.approx(1 / 3)
    assert found["top_2"] == pytest.approx(2 / 3)
