"""The functions that an agent minimises: its own f_i, and the subproblem that a method builds from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.core.message import merged
from fedpd.core.vectors import AnyArray, Array, Key, Losses, Penalty, RandomLosses, Tree


class Noise(NamedTuple):
    """The random layers of a model (dropout) in training."""

    losses: RandomLosses  # (model, batch, key) -> (B,), the losses with the random numbers of a key
    key: Key  # the key of this agent in this round, or in one step of it


class WeightedBatch(NamedTuple):
    """A batch of a fixed shape, of which some rows may not count."""

    rows: Tree  # the samples, leaves (B, ...)
    weights: Array  # (B,) 1 divided by the number of rows that count, or 0 for a row that does not


class LocalObjective(NamedTuple):
    """The f_i of one agent: f_i(x) = scale * (mean of losses over the agent's samples + penalty(x)).

    Attributes:
        losses: (model, batch) -> (B,) losses F(x; xi).
        penalty: (model) -> scalar, the part of F that does not depend on a sample.
        data: The agent's samples, leaves (n, ...); with an `offset`, the samples of many agents, leaves (M, ...). Use
            `rows` to read samples in both cases.
        size: |D_i|.
        scale: w_i |D_i|; None: 1.
        mask: (n,) 1/|D_i| on samples and 0 on padding; None: nothing is padded.
        agent: i.
        effort: The fraction of its local steps that a straggler does, in (0, 1]; None: all of them.
        block: The number of samples that a full gradient takes at a time; None: all of them.
        flat: The samples of all agents, leaves (M, ...), and the row where this agent's begin; None: `data` only.
        offset: The row of `data` where the agent's samples begin; None: `data` holds this agent's samples only.
        noise: The random layers in training; None: the losses are those of `losses`, which is a fixed function.
        joint: Whether there is one loss per agent (`AgentLoss`). Then `losses` takes (samples, mask) and returns a
            scalar, and a block holds all samples of the agent.
    """

    losses: Losses
    penalty: Penalty | None
    data: Tree
    size: Array
    scale: Array | None
    mask: Array | None
    agent: Array
    effort: Array | None = None
    block: int | None = None
    flat: tuple[Tree, Array] | None = None
    offset: Array | None = None
    noise: Noise | None = None
    joint: bool = False

    @staticmethod
    def without_samples(x: Vector) -> "LocalObjective":
        """Return an f_i = 0 of models like x, to find the shapes of states and messages."""
        dtype = jax.tree.leaves(x)[0].dtype
        return LocalObjective(lambda model, rows: jnp.zeros(1, dtype), None, {}, jnp.int32(1), None, None, jnp.int32(0))

    def at_step(self, q: Any) -> "LocalObjective":
        """Return f_i with the random numbers of the local step q; f_i itself if nothing is random."""
        if self.noise is None:
            return self
        return self._replace(noise=self.noise._replace(key=jax.random.fold_in(self.noise.key, 1 + q)))

    def _losses(self, x: Vector, batch: Tree, block: Any = 0) -> Array:
        """Return the losses of a batch; `block` is its number among the blocks, or samples, of a full gradient.

        All gradients and values go through this function, so that all methods and oracles see the same F.
        """
        if self.noise is None:
            return self.losses(x.tree, batch)
        return self.noise.losses(x.tree, batch, jax.random.fold_in(self.noise.key, block))

    def steps(self, iterations: Any) -> Any:
        """Return the number of local steps of this agent: Q, or fewer (but at least one) for a straggler."""
        if self.effort is None:
            return iterations
        return jnp.maximum(1, jnp.ceil(self.effort * iterations)).astype(jnp.int32)

    def _mean(self, x: Vector, batch: Tree, mask: Array | None) -> Array:
        """Return the weighted mean of the losses of a batch, plus the penalty, times the scale."""
        if self.joint:  # a mean over samples has no meaning here: the loss gets the mask of those that count
            inside = jnp.ones(len(jax.tree.leaves(batch)[0])) if mask is None else mask > 0
            mean = self._of_samples(x, batch, inside)
        else:
            losses = self._losses(x, batch)
            mean = jnp.mean(losses) if mask is None else jnp.sum(losses * mask)
        if self.penalty is not None:
            mean = mean + self.penalty(x.tree)
        return mean if self.scale is None else self.scale * mean

    def value(self, x: Vector) -> Array:
        """Return f_i(x), over all samples of the agent."""
        return self._mean(x, self.data, self.mask) if self.block is None else self.value_and_gradient(x)[0]

    def gradient(self, x: Vector) -> Vector:
        """Return grad f_i(x), over all samples of the agent."""
        return jax.grad(self._mean)(x, self.data, self.mask) if self.block is None else self.value_and_gradient(x)[1]

    def value_and_gradient(self, x: Vector) -> tuple[Array, Vector]:
        """Return f_i(x) and grad f_i(x), over all samples of the agent."""
        if self.block is None:
            return jax.value_and_grad(self._mean)(x, self.data, self.mask)
        value, gradient = in_blocks(jax.value_and_grad(self._sum), x, self.data, self.size, self.block, self.offset)
        if not self.joint:
            size = self.size.astype(value.dtype)
            value, gradient = value / size, gradient / size
        penalty = self.penalty
        if penalty is not None:
            more, slope = jax.value_and_grad(lambda x: penalty(x.tree))(x)
            value, gradient = value + more, gradient + slope
        return (value, gradient) if self.scale is None else (self.scale * value, self.scale * gradient)

    def _sum(self, x: Vector, rows: Tree, inside: Array, block: Any) -> Array:
        """Return the sum of the losses of the rows that are `inside`, or their one loss."""
        return self._of_samples(x, rows, inside) if self.joint else jnp.sum(self._losses(x, rows, block) * inside)

    def _of_samples(self, x: Vector, rows: Tree, inside: Array) -> Array:
        """Return the one loss of the rows that are `inside`."""
        mask = inside.astype(jnp.result_type(*jax.tree.leaves(x)))
        return self.losses(x.tree, (rows, mask))

    def stochastic_gradient(self, x: Vector, batch: Tree, weights: Array | None = None) -> Vector:
        """Return h_i(x; xi), the stochastic gradient: a mean over a batch of samples, with `WeightedBatch.weights`."""
        return jax.grad(self._mean)(x, batch, weights)

    def stochastic_value_and_gradient(self, x: Vector, batch: Tree) -> tuple[Array, Vector]:
        """Return the mean of F over a batch of samples, and h_i(x; xi), its gradient."""
        return jax.value_and_grad(self._mean)(x, batch, None)

    def sample_gradients(self, x: Vector, indices: Array) -> Vector:
        """Return the gradients of F of single samples, without the penalty and the scale, leaves (B, ...).

        Each sample is a batch of its own. So a sample's loss must not depend on its batch. Random layers draw from the
        sample's index.

        Args:
            indices: (B,) the numbers of the samples.
        """

        def of_one(row: Tree, index: Array) -> Vector:
            alone = jax.tree.map(lambda leaf: leaf[None], row)
            return jax.grad(lambda x: self._losses(x, alone, index)[0])(x)

        return jax.vmap(of_one)(self.rows(indices), indices)

    def rows(self, indices: Array) -> Tree:
        """Return the samples with these indices, leaves (*indices.shape, ...); `indices` may have any shape."""
        data, first = (self.data, self.offset) if self.flat is None else self.flat
        return take_rows(data, indices, first)


def take_rows(data: Tree, indices: Array, offset: AnyArray | None) -> Tree:
    """Return the samples of an agent with these indices; `offset` is the agent's first row in `data` (None: 0)."""
    rows = indices if offset is None else offset + indices
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), data)


def in_blocks(
    function: Callable[[Vector, Tree, Array, Any], Tree],
    x: Vector,
    data: Tree,
    size: AnyArray,
    block: int,
    offset: AnyArray | None = None,
) -> Tree:
    """Return the sum of function(x, rows, inside, q) over blocks of the first `size` samples.

    The last block continues with the first samples, for which `inside` is False. So a block holds samples of this agent
    only, and no padding. This needs the memory of one block, and no time for padding. Measured on 90 agents with 103 to
    756 samples and a small convolutional network: the gradients of all agents take 5.9 s in blocks, and 11.9 s at once.

    Args:
        function: (x, rows, inside (block,), the block's number q) -> the value to sum.
        data: The agent's samples, leaves (n, ...); with an `offset`, those of many agents, leaves (M, ...).
        size: The number of samples that count.
        offset: The row of `data` where the agent's samples begin; None: 0.
    """

    def rows_of(q: Any) -> tuple[Tree, Array]:
        index = q * block + jnp.arange(block)
        own = index % jnp.maximum(size, 1)
        return take_rows(data, own, offset), index < size

    def add(q: Array, total: Tree) -> Tree:
        return jax.tree.map(jnp.add, total, function(x, *rows_of(q), q))

    shapes = jax.eval_shape(lambda: function(x, *rows_of(0), 0))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-size // block), add, zero)


class Subproblem(NamedTuple):
    """The function that a local oracle minimises: `phi_i(x) = f_i(x) + <linear, x> + (curvature/2) ||x||^2`.

    Methods differ only in these two terms. This form lets a method compute everything that does not depend on x once,
    outside of the oracle's loop.

    Attributes:
        f: The agent's f_i.
        linear: The linear term; None: no linear term.
        curvature: The curvature; None: no quadratic term.
    """

    f: LocalObjective
    linear: Vector | None = None
    curvature: Any = None

    def complete(self, gradient: Vector, x: Vector) -> Vector:
        """Return grad phi_i(x), given grad f_i(x) or an estimate of it."""
        if self.linear is not None:
            gradient = gradient + self.linear
        return gradient if self.curvature is None else gradient + self.curvature * x

    def gradient(self, x: Vector) -> Vector:
        """Return grad phi_i(x)."""
        return self.complete(self.f.gradient(x), x)


def with_fixed(f: LocalObjective, fixed: Vector) -> LocalObjective:
    """Return f_i as a function of the entries that `fixed` does not have."""

    def whole(model: Tree) -> Tree:
        return merged(Vector(model), fixed).tree

    def random(model: Tree, rows: Tree, key: Key) -> Array:
        assert noise is not None
        return noise.losses(whole(model), rows, key)

    losses, penalty, noise = f.losses, f.penalty, f.noise
    return f._replace(
        losses=lambda model, rows: losses(whole(model), rows),
        penalty=None if penalty is None else lambda model: penalty(whole(model)),
        noise=None if noise is None else Noise(random, noise.key),
    )


def augmented_lagrangian(f: LocalObjective, x0: Vector, dual: Vector, eta: Any) -> Subproblem:
    """Return L_i(x) = f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2 / (2 eta), up to a constant.

    Its gradient grad f_i(x) + lambda_i + (x - x_0)/eta is grad f_i(x) + (lambda_i - x_0/eta) + x/eta.

    Args:
        f: The agent's f_i.
        x0: x_0.
        dual: lambda_i.
        eta: 1/eta is the weight of the quadratic term.
    """
    return Subproblem(f, dual - x0 / eta, 1 / eta)


def proximal(f: LocalObjective, centre: Vector, rho: Any) -> Subproblem:
    """Return f_i(x) + (rho/2) ||x - centre||^2, up to a constant.

    Args:
        f: The agent's f_i.
        centre: The point where the quadratic term is 0.
        rho: The weight of the quadratic term.
    """
    return Subproblem(f, -rho * centre, rho)
