"""Non-convex problems of the suite, each with a start from which there is a way down to a minimum."""

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.core import Array, Problem, Tree
from fedpd.problems import from_losses
from fedpd.suite.regressions import largest_curvature
from fedpd.suite.splits import Rows, at_random
from fedpd.suite.tables import Table


def tanh_loss(table: Table, rows: Rows, l2: float) -> Problem:
    """Return classification by the smooth, bounded loss 1 - tanh(b x^T a), with b = -1 or +1 for the labels 0 and 1.

    Args:
        table: Features and labels.
        rows: The rows of each agent.
        l2: The weight of ||x||^2/2.
    """
    agents = [table.x[own] * (2 * table.y[own, None] - 1) for own in rows]

    def losses(x: Array, signed: Array) -> Array:
        return 1 - jnp.tanh(signed @ x)

    start, steepest = np.zeros(table.x.shape[1]), 4 / (3 * np.sqrt(3))  # the largest |tanh''|
    answer = largest_curvature(table, rows, steepest, l2)
    return from_losses(losses, agents, start, penalty=lambda x: l2 / 2 * (x @ x), answer=answer)


def factorisation(size: int, rank: int, agents: int, l2: float = 0.01) -> Problem:
    """Return the factorisation A = U V^T of a low-rank matrix whose entries are divided among agents at random.

    The loss of an entry is (u_a^T v_b - A_ab)^2/2 plus (l2/2)(||U||^2 + ||V||^2)/size.

    Args:
        size: Rows and columns of A.
        rank: The rank of A, and of the factors.
        agents: N.
        l2: The weight of the penalty.
    """
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, size, rank))
    places = np.array([(a, b) for a in range(size) for b in range(size)])
    values = (left @ right.T)[places[:, 0], places[:, 1]]
    data = [{"place": places[own], "value": values[own]} for own in at_random(size * size, agents)]

    def losses(model: Tree, batch: Tree) -> Array:
        a, b = batch["place"][:, 0], batch["place"][:, 1]
        return (jnp.sum(model["left"][a] * model["right"][b], axis=1) - batch["value"]) ** 2 / 2

    def penalty(model: Tree) -> Array:
        return l2 / (2 * size) * (jnp.sum(model["left"] ** 2) + jnp.sum(model["right"] ** 2))

    start = {"left": left + rng.standard_normal(left.shape), "right": right + rng.standard_normal(right.shape)}
    return from_losses(losses, data, start, penalty=penalty)


def phase_retrieval(dimension: int, samples: int, agents: int) -> Problem:
    """Return phase retrieval ((a^T x)^2 - y)^2/4 from noiseless squares y = (a^T z)^2: f* = 0 at x = z and x = -z.

    Args:
        dimension: d.
        samples: All samples; agents have equal parts, whose vectors a are stretched along one axis of each agent's own.
        agents: N.
    """
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal(dimension) / np.sqrt(dimension)
    vectors = rng.standard_normal((agents, samples // agents, dimension))
    vectors[np.arange(agents), :, np.arange(agents) % dimension] *= 2
    data = {"vector": vectors, "square": (vectors @ hidden) ** 2}

    def losses(x: Array, batch: Tree) -> Array:
        return ((batch["vector"] @ x) ** 2 - batch["square"]) ** 2 / 4

    return from_losses(losses, data, hidden + 0.5 * rng.standard_normal(dimension) / np.sqrt(dimension))


def small_network(table: Table, rows: Rows, width: int, l2: float) -> Problem:
    """Return a network with one hidden layer of tanh units and softmax cross entropy, with full gradients.

    Args:
        table: Features and labels 0 to K - 1.
        rows: The rows of each agent.
        width: Hidden units.
        l2: The weight of ||model||^2/2.
    """
    rng, features, classes = np.random.default_rng(0), table.x.shape[1], int(table.y.max()) + 1
    start = {
        "inner": rng.standard_normal((features, width)) / np.sqrt(features),
        "bias": np.zeros(width),
        "outer": rng.standard_normal((width, classes)) / np.sqrt(width),
    }

    def losses(model: Tree, batch: Tree) -> Array:
        scores = jnp.tanh(batch["x"] @ model["inner"] + model["bias"]) @ model["outer"]
        own = jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own

    def penalty(model: Tree) -> Array:
        return l2 / 2 * sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(model)), jnp.zeros(()))

    data = [{"x": table.x[own], "y": table.y[own]} for own in rows]
    return from_losses(losses, data, start, penalty=penalty)
