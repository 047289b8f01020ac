"""Convex problems of the suite: ridge, Huber, Poisson, logistic and softmax regression on tables split among agents."""

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.core import Answer, Array, Problem, Tree
from fedpd.problems import from_losses
from fedpd.problems.gram import gram_eigenvalue
from fedpd.suite.splits import Rows
from fedpd.suite.tables import Table


def _agents(table: Table, rows: Rows) -> list[Tree]:
    return [{"x": table.x[own], "y": table.y[own]} for own in rows]


def largest_curvature(table: Table, rows: Rows, second: float, l2: float) -> Answer:
    """Return L of losses that depend on a sample by x^T a only, with a second derivative in [-second, second].

    Args:
        table: Features.
        rows: The rows of each agent.
        second: The largest second derivative of the loss in x^T a.
        l2: The weight of the penalty.
    """
    return Answer(smoothness=second * max(gram_eigenvalue(table.x[own]) / len(own) for own in rows) + l2)


def ridge(table: Table, rows: Rows, l2: float) -> Problem:
    """Return least squares (x^T a - y)^2/2 plus (l2/2) ||x||^2.

    Args:
        table: Features and targets.
        rows: The rows of each agent.
        l2: The weight of the penalty.
    """

    def losses(x: Array, batch: Tree) -> Array:
        return (batch["x"] @ x - batch["y"]) ** 2 / 2

    start, answer = np.zeros(table.x.shape[1]), largest_curvature(table, rows, 1.0, l2)
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * (x @ x), answer=answer)


def huber(table: Table, rows: Rows, width: float, l2: float) -> Problem:
    """Return Huber regression: squares for residuals up to `width`, linear beyond.

    Args:
        table: Features and targets.
        rows: The rows of each agent.
        width: Where the loss becomes linear.
        l2: The weight of ||x||^2/2.
    """

    def losses(x: Array, batch: Tree) -> Array:
        residual = jnp.abs(batch["x"] @ x - batch["y"])
        return jnp.where(residual <= width, residual**2 / 2, width * (residual - width / 2))

    start, answer = np.zeros(table.x.shape[1]), largest_curvature(table, rows, 1.0, l2)
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * (x @ x), answer=answer)


def poisson(table: Table, rows: Rows, l2: float) -> Problem:
    """Return Poisson regression exp(x^T a) - y x^T a: its smoothness is not bounded.

    Args:
        table: Features and counts.
        rows: The rows of each agent.
        l2: The weight of ||x||^2/2.
    """

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        return jnp.exp(scores) - batch["y"] * scores

    start = np.zeros(table.x.shape[1])
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * (x @ x))


def logistic(table: Table, rows: Rows, l2: float) -> Problem:
    """Return logistic regression with labels 0 and 1.

    Args:
        table: Features and labels.
        rows: The rows of each agent.
        l2: The weight of ||x||^2/2.
    """

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        return jnp.logaddexp(scores, 0) - batch["y"] * scores

    start, answer = np.zeros(table.x.shape[1]), largest_curvature(table, rows, 0.25, l2)
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * (x @ x), answer=answer)


def softmax(table: Table, rows: Rows, l2: float) -> Problem:
    """Return softmax regression with labels 0 to K - 1; the model is a matrix (D, K).

    Args:
        table: Features and labels.
        rows: The rows of each agent.
        l2: The weight of ||x||^2/2.
    """

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        own = jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own

    answer = largest_curvature(table, rows, 0.5, l2)
    start = np.zeros((table.x.shape[1], int(table.y.max()) + 1))
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * jnp.sum(x * x), answer=answer)
