"""L-BFGS: it descends, and it knows what rounding does to f."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd import oracles, problems
from fedpd.base.precision import scope
from fedpd.core import LocalObjective, Subproblem


def test_lbfgs_never_raises_what_it_minimises() -> None:
    """On a function that is not convex, from many starts; it reports the negative curvature that it met."""
    with scope(True):
        wavy = problems.from_losses(
            lambda x, one: jnp.cos(3 * one * x).sum(1) + (x @ x) / 9, [np.ones((1, 2))], np.ones(2)
        )
        f = LocalObjective(wavy.losses, None, jnp.ones((1, 2)), jnp.int32(1), None, None, jnp.int32(0))
        phi = Subproblem(f, Vector(jnp.array([0.3, -0.2])), 0.1)
        oracle, key = oracles.lbfgs(1e-6, 60, 5), jax.random.key(0)

        def ends(x: Any) -> tuple[Any, ...]:
            x = Vector(x)
            end, memory, _ = oracle.solve(phi, x, oracle.init(f, x), jnp.int32(0), key)
            height = [f.value(at) + phi.linear @ at + 0.05 * (at @ at) for at in (x, end)]
            slopes = [jnp.sqrt(phi.gradient(at) @ phi.gradient(at)) for at in (x, end)]
            return *height, *slopes, memory.lowest

        starts = jax.random.normal(key, (50, 2)) * 3
        before, after, steep, flat, lowest = map(np.asarray, jax.jit(jax.vmap(ends))(starts))
    assert (after <= before).all()
    assert (flat <= 1e-6 * steep).all()
    assert (lowest >= -9 + 2 / 9 - 1e-6).all()  # the least eigenvalue of the Hessian
    assert (lowest < 0).any()


def test_lbfgs_solves_far_from_zero() -> None:
    """Terms of size L ||x||^2 = 1e10 cancel in f, so that its values are lost in rounding before its gradients are.

    The line search once took that rounding for a rise, and ended with a gradient that was 300 times too large.
    """
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    hessian = (basis * np.logspace(-6, 0, 10)) @ basis.T
    far = 1e5 * basis[:, 0] + rng.standard_normal(10)  # the minimiser of f, which is flat along this eigenvector
    with scope(True):
        one, number = jnp.int32(1), jnp.int32(0)
        f = LocalObjective(
            lambda x, own: (x @ own @ x / 2 - x @ own @ far)[None], None, jnp.array(hessian), one, None, None, number
        )
        start = Vector(jnp.array(far + 1e-3 * rng.standard_normal(10)))
        phi = Subproblem(f, Vector(jnp.array(-far / 30)), 1 / 30)
        oracle = oracles.lbfgs(1e-4, 100)
        memory = oracle.init(f, start)
        for r in range(3):
            end, memory, work = oracle.solve(phi, start, memory, jnp.int32(r), jax.random.key(0))
        before, after = (float(jnp.sqrt(phi.gradient(at) @ phi.gradient(at))) for at in (start, end))
    assert after <= 1e-4 * before
    assert int(work.updates) < 30
