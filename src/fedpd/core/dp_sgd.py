"""DP-SGD: local steps with example-level differential privacy, and the random numbers of private runs."""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from tree_math import Vector

from fedpd.base.checks import at_most, below, count, positive, refuse
from fedpd.base.value import makes
from fedpd.core.objective import LocalObjective, Subproblem
from fedpd.core.oracle import ITERATIONS, Oracle, Step, Work, check_step, step_at
from fedpd.core.vectors import Array, Key

BLOCK = 32  # samples whose gradients are in memory at a time


class Draws(NamedTuple):
    """How random numbers are drawn: each function takes a key and the shape of the numbers."""

    normal: Callable[[Key, Any], Array]  # (key, like) -> standard normal numbers of the shape and type of `like`
    uniform: Callable[[Key, Any], Array]  # (key, like) -> uniform numbers in [0, 1) of the shape and type of `like`


FROM_KEY = Draws(
    lambda key, like: jax.random.normal(key, like.shape, like.dtype),
    lambda key, like: jax.random.uniform(key, like.shape, like.dtype),
)
# The operating system's numbers, which nobody can predict or repeat: the noise of a real federation.
FROM_SYSTEM = Draws(lambda key, like: _drawn(_normals, like), lambda key, like: _drawn(_uniforms, like))


class DPSGD(Oracle):
    """Gradient steps with example-level differential privacy; `dp_sgd` describes the fields.

    The accountant of a run asks every oracle for `noise_multiplier`, `share_of` and `delta`.
    """

    step: float | Step
    iterations: int
    clip: float
    noise_multiplier: float | None
    share: float | None
    delta: float
    epsilon: float | None = None
    expected_batch: float | None = None
    needs_samples = True

    @property
    def draws(self) -> Draws:
        """How it draws samples and noise: in a simulation from the seed."""
        return FROM_KEY

    def share_of(self, size: Any) -> Any:
        """Return the probability with which each of `size` samples takes part in a step."""
        if self.expected_batch is None:
            return 1.0 if self.share is None else self.share
        larger = max(size, self.expected_batch) if isinstance(size, int) else jnp.maximum(size, self.expected_batch)
        return self.expected_batch / larger

    def solve(self, phi: Subproblem, x: Vector, memory: None, r: Array, key: Key) -> tuple[Vector, None, Work]:
        if self.noise_multiplier is None:
            rule = "finds its noise from the rounds of a run"
            refuse(
                "oracle", self.description, rule, "Use it in fedpd.simulate or a federation, or give noise_multiplier"
            )
        noise, share = self.noise_multiplier, self.share_of(phi.f.size)

        def descend(q: Array, x: Vector) -> Vector:
            own = jax.random.fold_in(key, q)
            slope = private_gradient(phi.f.at_step(q), x, self.clip, noise, share, own, self.draws)
            return x - step_at(self.step, r, q) * phi.complete(slope, x)

        steps = phi.f.steps(self.iterations)
        return lax.fori_loop(0, steps, descend, x), None, Work.of(steps, steps, phi.f.size)


class SystemDPSGD(DPSGD):
    """DP-SGD that draws samples and noise from the operating system, so that nobody can predict or repeat them."""

    prefix = "system."  # so that no program with it equals one that draws from the seed

    @property
    def draws(self) -> Draws:
        return FROM_SYSTEM


@makes(DPSGD)
def dp_sgd(
    step: float | Step,
    iterations: int,
    *,
    clip: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    share: float | None = None,
    expected_batch: float | None = None,
    delta: float = 1e-5,
) -> Oracle:
    """Return DP-SGD (Abadi et al., 2016): gradient steps with example-level differential privacy.

    Give the noise, or the epsilon that a sample may spend in the whole run. In a simulation, samples and noise come
    from the seed; on Flower, each client draws them from its operating system.

    It needs the gradient of each sample, so a sample's loss must not depend on its batch: fedpd refuses models with
    batch normalisation and problems with `block=`.

    Args:
        step: The step size, or a function of the round r and the local step q.
        iterations: Q, the number of local steps per round.
        clip: C, the largest norm of the gradient of a sample.
        noise_multiplier: z: the sum of the clipped gradients gets noise of standard deviation z C.
        epsilon: The largest epsilon of a run; fedpd finds z from it, the rounds, the steps and the share. A simulation
            has one z, that of the agent with the largest share; on Flower, each client finds its own.
        share: The probability with which each sample takes part in a step; None: 1. A step costs the gradients of all
            samples.
        expected_batch: The expected number of samples in a step, in place of `share`: each agent has the share
            expected_batch / |D_i|, at most 1.
        delta: The delta of the history's column `epsilon_examples`.

    Examples:
        >>> from fedpd.core.dp_sgd import dp_sgd
        >>> dp_sgd(step=0.1, iterations=8, clip=1.0, noise_multiplier=2.0).description
        'dp_sgd(step=0.1, iterations=8, clip=1, noise_multiplier=2)'
    """
    check_step(step)
    count("iterations", iterations, ITERATIONS, bits=31)
    positive("clip", clip, "Give the largest norm of the gradient of a sample, e.g. 1.0")
    check_noise(noise_multiplier, epsilon)
    if share is not None:
        at_most("share", positive("share", share, "Give a probability, e.g. 0.1"), 1, "Give a probability, e.g. 0.1")
    if expected_batch is not None:
        positive("expected_batch", expected_batch, "Give a number of samples, e.g. 32")
        if share is not None:
            refuse("expected_batch", expected_batch, "is given beside share", "Give one of them")
    below("delta", positive("delta", delta, "Give e.g. 1e-5"), 1, "Give a delta below 1/|D_i|, e.g. 1e-5")
    return DPSGD(
        step=step,
        iterations=iterations,
        clip=clip,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        share=share,
        expected_batch=expected_batch,
        delta=delta,
    )


def private_gradient(
    f: LocalObjective, x: Vector, clip: Any, noise_multiplier: Any, share: Any, key: Key, draws: Draws = FROM_KEY
) -> Vector:
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
        draws: How they are drawn.
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
        like = jax.ShapeDtypeStruct((BLOCK,), jnp.result_type(float))
        drawn = draws.uniform(jax.random.fold_in(drawing, block), like) < share
        chosen = (index < f.size) & drawn
        return total + jax.tree.map(lambda leaf: jnp.tensordot(chosen.astype(leaf.dtype), leaf, 1), slopes)

    total = lax.fori_loop(0, -(-f.size // BLOCK), add, 0 * x)
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(noise, len(leaves))
    noisy = [leaf + clip * noise_multiplier * draws.normal(own, leaf) for own, leaf in zip(keys, leaves, strict=True)]
    mean = jax.tree.unflatten(structure, noisy) / (share * f.size.astype(leaves[0].dtype))
    penalty = f.penalty
    if penalty is not None:
        mean = mean + jax.grad(lambda x: penalty(x.tree))(x)
    return mean if f.scale is None else f.scale * mean


def check_noise(noise_multiplier: float | None, epsilon: float | None) -> None:
    """Refuse noise that is given twice, not at all, or that is not positive."""
    if (noise_multiplier is None) == (epsilon is None):
        rule = "must be given, or epsilon, and not both"
        refuse("noise_multiplier", noise_multiplier, rule, "Give e.g. noise_multiplier=1.0, or epsilon=4")
    if noise_multiplier is not None:
        positive("noise_multiplier", noise_multiplier, "Give z, the noise of the sum divided by clip, e.g. 1.0")
    if epsilon is not None:
        positive("epsilon", epsilon, "Give the largest epsilon of the run, e.g. 4")


def _drawn(draw: Callable[[int], np.ndarray], like: Any) -> Array:
    """Return numbers of the shape and type of `like`, inside of a compiled program too."""
    shape, wide = like.shape, np.dtype(np.float64 if like.dtype == np.float64 else np.float32)
    words = (*shape, 2) if wide.itemsize == 8 else shape

    def bits() -> np.ndarray:  # JAX may convert floats in a thread of its own, whose precision is another one
        return draw(math.prod(shape)).astype(wide).view(np.uint32).reshape(words)

    return lax.bitcast_convert_type(io_callback(bits, jax.ShapeDtypeStruct(words, np.uint32)), wide).astype(like.dtype)


def _fractions(number: int) -> np.ndarray:
    """Return multiples of 2^-53 in [0, 1) from the operating system's cryptographic random bits."""
    return (np.frombuffer(os.urandom(8 * number), np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniforms(number: int) -> np.ndarray:
    return np.minimum(_fractions(number), 1 - 2.0**-24)  # float32 would round larger ones to 1


def _normals(number: int) -> np.ndarray:
    """Return normal numbers (Box and Muller)."""
    first, second = _fractions(2 * number).reshape(2, -1)
    return np.sqrt(-2 * np.log(first + 2.0**-54)) * np.cos(2 * np.pi * second)
