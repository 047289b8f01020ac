"""DP-SGD: local steps with example-level differential privacy."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.base.checks import at_most, below, count, positive, refuse
from fedpd.base.value import makes
from fedpd.core.objective import LocalObjective, Subproblem
from fedpd.core.oracle import ITERATIONS, Oracle, Step, Work, check_step, step_at
from fedpd.core.types import Array, Key

BLOCK = 32  # samples whose gradients are in memory at a time


class DPSGD(Oracle):
    """Gradient steps with example-level differential privacy.

    The accountant of a run asks every oracle for `noise_multiplier`, `share` and `delta`.
    """

    step: float | Step
    iterations: int
    clip: float
    noise_multiplier: float
    share: float
    delta: float
    needs_samples = True

    def solve(self, phi: Subproblem, x: Vector, memory: None, r: Array, key: Key) -> tuple[Vector, None, Work]:
        def descend(q: Array, x: Vector) -> Vector:
            own = jax.random.fold_in(key, q)
            slope = private_gradient(phi.f.at_step(q), x, self.clip, self.noise_multiplier, self.share, own)
            return x - step_at(self.step, r, q) * phi.complete(slope, x)

        steps = phi.f.steps(self.iterations)
        return lax.fori_loop(0, steps, descend, x), None, Work.of(steps, steps, phi.f.size)


@makes(DPSGD)
def dp_sgd(
    step: float | Step,
    iterations: int,
    *,
    clip: float,
    noise_multiplier: float,
    share: float = 1.0,
    delta: float = 1e-5,
) -> Oracle:
    """Return DP-SGD (Abadi et al., 2016): gradient steps with example-level differential privacy, for simulations.

    It needs the gradient of each sample, so a sample's loss must not depend on its batch: fedpd refuses models with
    batch normalisation and problems with `block=`.

    Args:
        step: The step size, or a function of the round r and the local step q.
        iterations: Q, the number of local steps per round.
        clip: C, the largest norm of the gradient of a sample.
        noise_multiplier: z: the sum of the clipped gradients gets noise of standard deviation z C.
        share: The probability with which each sample takes part in a step. A step costs the gradients of all samples.
        delta: The delta of the history's column `epsilon_examples`.

    Examples:
        >>> from fedpd.core.dp_sgd import dp_sgd
        >>> dp_sgd(step=0.1, iterations=8, clip=1.0, noise_multiplier=2.0).description
        'dp_sgd(step=0.1, iterations=8, clip=1, noise_multiplier=2)'
    """
    check_step(step)
    count("iterations", iterations, ITERATIONS, bits=31)
    positive("clip", clip, "Give the largest norm of the gradient of a sample, e.g. 1.0")
    positive("noise_multiplier", noise_multiplier, "Give z, the noise of the sum divided by clip, e.g. 1.0")
    at_most("share", positive("share", share, "Give a probability, e.g. 0.1"), 1, "Give a probability, e.g. 0.1")
    below("delta", positive("delta", delta, "Give e.g. 1e-5"), 1, "Give a delta below 1/|D_i|, e.g. 1e-5")
    return DPSGD(
        step=step, iterations=iterations, clip=clip, noise_multiplier=noise_multiplier, share=share, delta=delta
    )


def private_gradient(f: LocalObjective, x: Vector, clip: Any, noise_multiplier: Any, share: Any, key: Key) -> Vector:
    """Return an estimate of grad f_i(x) to which one sample contributes a vector of norm C at most, plus noise.

    Each sample takes part with probability q, independently of the others (Poisson sampling). With S the samples that
    do, and the |D_i| samples known to all, the estimate is

        scale ((sum_S grad F min(1, C/||grad F||) + z C N(0, I)) / (q |D_i|) + grad penalty)

    Args:
        f: f_i.
        x: The model.
        clip: C.
        noise_multiplier: z.
        share: q.
        key: For the samples and the noise.
    """
    if f.joint:
        rule = "clips the gradient of each sample, and the problem has one loss per agent"
        refuse("oracle", "dp_sgd", rule, "Use another oracle, or a problem with one loss per sample")
    drawing, noise = jax.random.split(key)

    def clipped(slope: Vector) -> Vector:
        return slope * (clip / jnp.maximum(jnp.sqrt(slope @ slope), clip))

    def add(block: Array, total: Vector) -> Vector:
        index = block * BLOCK + jnp.arange(BLOCK)
        slopes = jax.vmap(clipped)(f.sample_gradients(x, index % jnp.maximum(f.size, 1)))
        drawn = jax.random.uniform(jax.random.fold_in(drawing, block), (BLOCK,)) < share
        chosen = (index < f.size) & drawn
        return total + jax.tree.map(lambda leaf: jnp.tensordot(chosen.astype(leaf.dtype), leaf, 1), slopes)

    total = lax.fori_loop(0, -(-f.size // BLOCK), add, 0 * x)
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(noise, len(leaves))
    noisy = [
        leaf + clip * noise_multiplier * jax.random.normal(own, leaf.shape, leaf.dtype)
        for own, leaf in zip(keys, leaves, strict=True)
    ]
    mean = jax.tree.unflatten(structure, noisy) / (share * f.size.astype(leaves[0].dtype))
    penalty = f.penalty
    if penalty is not None:
        mean = mean + jax.grad(lambda x: penalty(x.tree))(x)
    return mean if f.scale is None else f.scale * mean
