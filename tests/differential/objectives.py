"""Six kinds of problems, twice: losses and gradients by hand in NumPy, and the problem that fedpd builds.

A model is a pytree for fedpd and a vector for NumPy, with the leaves in the order of `jax.tree`: names in alphabetical
order. `gradients` returns one gradient per sample, (B, D).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpd import Problem, data, problems

Rows = Mapping[str, np.ndarray]
D, K, H = 3, 3, 2  # numbers of features, classes and hidden units
ALPHA, BETA, L2, QUARTIC = 1.5, 0.2, 0.1, 0.05


class Kind(NamedTuple):
    """One kind of problem.

    Attributes:
        samples: (random numbers, n, shift of the agent) -> n samples.
        shapes: The names and the shapes of the model's leaves; "": the model is one array.
        losses: (x, samples) -> (B,).
        gradients: (x, samples) -> (B, D).
        penalty: x -> the penalty and its gradient.
        build: (data in some layout, start, weights) -> the problem.
        tested: (x, test samples of all agents, training samples) -> columns that are measured on test samples.
        federated: Whether `build` takes `data.Federated`.
    """

    samples: Callable[[np.random.Generator, int, float], dict[str, np.ndarray]]
    shapes: dict[str, tuple[int, ...]]
    losses: Callable[[Any, Rows], np.ndarray]
    gradients: Callable[[Any, Rows], np.ndarray]
    penalty: Callable[[Any], tuple[Any, Any]]
    build: Callable[..., Problem]
    tested: Callable[..., dict[str, float]] | None = None
    federated: bool = False

    @property
    def dimension(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def tree(self, x: np.ndarray) -> Any:
        """Return the model as the user's pytree."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])[:-1]
        parts = zip(self.shapes.items(), np.split(x, ends), strict=True)
        leaves = {name: np.asarray(part).reshape(shape) for (name, shape), part in parts}
        return leaves.get("", leaves)

    def vector(self, tree: Any) -> np.ndarray:
        """Return the user's pytree as a vector."""
        return np.concatenate([np.ravel(tree[name] if name else tree) for name in self.shapes])


def no_penalty(x: Any) -> tuple[Any, Any]:
    return 0 * x[0], 0 * x


def features(rng: np.random.Generator, n: int, shift: float) -> np.ndarray:
    return rng.normal(size=(n, D)) + shift


def column(values: np.ndarray) -> np.ndarray:
    return values[:, None]


# --- least squares, with a function of the user ---------------------------------------------------------------------


def linear_samples(rng: np.random.Generator, n: int, shift: float) -> dict[str, np.ndarray]:
    a = features(rng, n, shift)
    return {"a": a, "y": a @ np.arange(1.0, D + 1) + shift + rng.normal(size=n)}


def squares(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["y"]) ** 2 / 2


LEAST_SQUARES = Kind(
    linear_samples,
    {"": (D,)},
    squares,
    lambda x, rows: column(rows["a"] @ x - rows["y"]) * rows["a"],
    no_penalty,
    lambda held, start, weights: problems.from_losses(squares, held, start, weights=weights),
)


# --- penalised logistic regression ----------------------------------------------------------------------------------


def labelled(rng: np.random.Generator, n: int, shift: float) -> dict[str, np.ndarray]:
    a = features(rng, n, shift)
    return {"a": a, "y": np.where(a @ np.ones(D) + rng.normal(size=n) > 0, 1.0, -1.0)}


def logistic_losses(x: Any, rows: Rows) -> np.ndarray:
    return np.logaddexp(np.zeros_like(x[0]), -rows["y"] * (rows["a"] @ x))


def logistic_gradients(x: Any, rows: Rows) -> np.ndarray:
    weights = (1 - np.tanh(rows["y"] * (rows["a"] @ x) / 2)) / 2  # the sigmoid of -b a.x, without overflow
    return column(-weights * rows["y"]) * rows["a"]


def saturating(x: Any, alpha: float = ALPHA, beta: float = BETA) -> tuple[Any, Any]:
    return beta * np.sum(alpha * x**2 / (1 + alpha * x**2)), 2 * alpha * beta * x / (1 + alpha * x**2) ** 2


def logistic(held: Any, start: Any, weights: Any) -> Problem:
    """Take the features and the labels apart, in the same layout."""
    a: Any
    y: Any
    if isinstance(held, list):
        a, y = ([one[name] for one in held] for name in ("a", "y"))
    elif isinstance(held, data.Ragged):
        a, y = (data.ragged(held.rows[name], held.sizes) for name in ("a", "y"))
    else:
        a, y = held["a"], held["y"]
    return problems.penalized_logistic(a, y, ALPHA, BETA, start=start, weights=weights)


LOGISTIC = Kind(labelled, {"": (D,)}, logistic_losses, logistic_gradients, saturating, logistic)


# --- a small network with a penalty, as functions of the user ---------------------------------------------------------


def network_losses(model: Any, rows: Any) -> Any:
    hidden = jnp.tanh(rows["a"] @ model["w"] + model["b"])
    return (hidden @ model["out"] - rows["y"]) ** 2


def quartic(model: Any) -> Any:
    return QUARTIC * sum(jnp.sum(leaf**4) for leaf in model.values())


def forward(x: Any, rows: Rows) -> tuple[Any, np.ndarray, np.ndarray]:
    model = NETWORK.tree(x)
    hidden = np.tanh(rows["a"] @ model["w"] + model["b"])
    return model, hidden, hidden @ model["out"] - rows["y"]


def network_gradients(x: Any, rows: Rows) -> np.ndarray:
    model, hidden, error = forward(x, rows)
    slopes = column(2 * error) * model["out"] * (1 - hidden**2)
    inner = np.einsum("bd,bh->bdh", rows["a"], slopes).reshape(len(error), -1)
    return np.concatenate([slopes, column(2 * error) * hidden, inner], axis=1)


NETWORK = Kind(
    linear_samples,
    {"b": (H,), "out": (H,), "w": (D, H)},
    lambda x, rows: forward(x, rows)[2] ** 2,
    network_gradients,
    lambda x: (QUARTIC * np.sum(x**4), 4 * QUARTIC * x**3),
    lambda held, start, weights: problems.from_losses(network_losses, held, start, penalty=quartic, weights=weights),
)


# --- a pytree with a scalar leaf, and a loss that is not squared ------------------------------------------------------


def robust_losses(model: Any, rows: Any) -> Any:
    error = rows["a"] @ model["slope"] * model["scale"] - rows["y"]
    return jnp.sqrt(1 + error**2) - 1


def ridge(model: Any) -> Any:
    return L2 / 2 * (jnp.sum(model["slope"] ** 2) + (model["scale"] - 1) ** 2)


def robust_errors(x: Any, rows: Rows) -> np.ndarray:
    return rows["a"] @ x[1:] * x[0] - rows["y"]


def robust_gradients(x: Any, rows: Rows) -> np.ndarray:
    error = robust_errors(x, rows)
    factor = column(error / np.sqrt(1 + error**2))
    return factor * np.concatenate([column(rows["a"] @ x[1:]), rows["a"] * x[0]], axis=1)


def ridge_by_hand(x: Any) -> tuple[Any, Any]:
    away = np.concatenate([x[:1] - 1, x[1:]])
    return L2 / 2 * away @ away, L2 * away


ROBUST = Kind(
    linear_samples,
    {"scale": (), "slope": (D,)},
    lambda x, rows: np.sqrt(1 + robust_errors(x, rows) ** 2) - 1,
    robust_gradients,
    ridge_by_hand,
    lambda held, start, weights: problems.from_losses(robust_losses, held, start, penalty=ridge, weights=weights),
)


# --- softmax regression on federated data, with accuracies ------------------------------------------------------------


def classes(rng: np.random.Generator, n: int, shift: float) -> dict[str, np.ndarray]:
    a = features(rng, n, shift)
    return {"x": a, "y": np.argmax(a + rng.normal(size=(n, K)), axis=1).astype(np.int32)}


def scores(x: Any, rows: Rows) -> np.ndarray:
    return rows["x"] @ x[K:].reshape(D, K) + x[:K]


def cross_entropy(x: Any, rows: Rows) -> np.ndarray:
    found = scores(x, rows)
    top = found.max(axis=1)
    sums = np.log(np.exp(found - column(top)).sum(axis=1)) + top
    return sums - found[np.arange(len(found)), rows["y"]]


def softmax_gradients(x: Any, rows: Rows) -> np.ndarray:
    found = scores(x, rows)
    shares = np.exp(found - column(found.max(axis=1)))
    errors = shares / column(shares.sum(axis=1)) - np.eye(K, dtype=found.dtype)[rows["y"]]
    inner = np.einsum("bd,bk->bdk", rows["x"], errors).reshape(len(found), -1)
    return np.concatenate([errors, inner], axis=1)


def right(x: Any, rows: Rows) -> np.ndarray:
    return scores(x, rows).argmax(axis=1) == rows["y"]


def accuracies(x: Any, train: list[Rows], test: list[Rows | None]) -> dict[str, float]:
    """All samples count the same in the accuracies, and all agents with tests count the same in the last two."""
    tested = [rows for rows in test if rows is not None]
    own = sorted(np.mean(right(x, rows)) for rows in tested)
    return {
        "train_accuracy": float(np.mean(np.concatenate([right(x, rows) for rows in train]))),
        "test_accuracy": float(np.mean(np.concatenate([right(x, rows) for rows in tested]))),
        "test_accuracy_agents": float(np.mean(own)),
        "test_accuracy_worst": float(np.mean(own[: max(1, int(np.ceil(0.1 * len(own))))])),
        "test_loss": float(np.mean(np.concatenate([cross_entropy(x, rows) for rows in tested]))),
    }


SOFTMAX = Kind(
    classes,
    {"bias": (K,), "weights": (D, K)},
    cross_entropy,
    softmax_gradients,
    lambda x: (L2 / 2 * x @ x, L2 * x),
    lambda held, start, weights: problems.softmax_regression(held, l2=L2, weights=weights),
    accuracies,
    federated=True,
)


# --- regression on federated data, with missing targets and the usual metrics -----------------------------------------


def two_targets(rng: np.random.Generator, n: int, shift: float) -> dict[str, np.ndarray]:
    a = features(rng, n, shift)
    y = np.stack([a @ np.ones(D), np.sin(a[:, 0])], axis=1) + shift
    y[rng.random(y.shape) < 0.2] = np.nan
    return {"x": a, "y": y}


def outputs(model: Any, a: Any) -> Any:
    return a @ model


def known_errors(x: Any, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the errors (B, 2), 0 where a target is missing; which are known; and how many, at least 1, (B, 1)."""
    known = ~np.isnan(rows["y"])
    errors = np.where(known, rows["x"] @ x.reshape(D, 2) - np.nan_to_num(rows["y"]), 0).astype(x.dtype)
    return errors, known, column(np.maximum(known.sum(axis=1), 1)).astype(x.dtype)


def regression_losses(x: Any, rows: Rows) -> np.ndarray:
    errors, _, number = known_errors(x, rows)
    return (errors**2 / 2 / number).sum(axis=1)


def regression_gradients(x: Any, rows: Rows) -> np.ndarray:
    errors, _, number = known_errors(x, rows)
    return np.einsum("bd,bk->bdk", rows["x"], errors / number).reshape(len(errors), -1)


def errors_on_tests(x: Any, train: list[Rows], test: list[Rows | None]) -> dict[str, float]:
    tested = [rows for rows in test if rows is not None]
    errors, known, _ = (
        np.concatenate(parts) for parts in zip(*(known_errors(x, rows) for rows in tested), strict=True)
    )
    return {
        "test_loss": float(np.mean(np.concatenate([regression_losses(x, rows) for rows in tested]))),
        "mae": float(np.abs(errors).sum() / known.sum()),
        "rmse": float(np.sqrt((errors**2).sum() / known.sum())),
    }


REGRESSION = Kind(
    two_targets,
    {"": (D, 2)},
    regression_losses,
    regression_gradients,
    lambda x: (L2 / 2 * x @ x, L2 * x),
    lambda held, start, weights: problems.regression(outputs, held, start, l2=L2, weights=weights),
    errors_on_tests,
    federated=True,
)

KINDS = {
    "least squares": LEAST_SQUARES,
    "penalised logistic": LOGISTIC,
    "network with a penalty": NETWORK,
    "own pytree and loss": ROBUST,
    "softmax": SOFTMAX,
    "regression with missing targets": REGRESSION,
}
