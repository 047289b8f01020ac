"""Curvature: the smoothness L of Assumption 1, the condition number of the mean Hessian, and how much Hessians differ.

L = max_i L_i is exact, an upper bound that the problem knows, or an estimate. `constants.smoothness` returns the same L
as a plain number.

FedPD with a fixed eta, as every method that takes gradient steps, needs more communications the larger the condition
number of the mean Hessian H is. Methods that solve local problems gain the most where max_i ||H_i - H|| is small beside
||H||. Small models: H_i is computed whole, so the eigenvalues are exact up to rounding. Large models: Lanczos' method
on Hessian-vector products of f finds the largest and the smallest eigenvalue from inside, and the agent whose products
differ the most from those of H is compared with H by power iteration. All these numbers are lower bounds.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from tree_math import Vector

from fedpd.base.checks import at_least, brief, choice, count, refuse
from fedpd.base.precision import scope
from fedpd.base.typed import explained
from fedpd.core import Array, Problem, Tree
from fedpd.core.agents import AXIS, Functions, Layout, Shard, arrays, each_agent, local_objective, map_agents, one_agent
from fedpd.problems.logistic import SaturatingPenalty, gram_eigenvalue, is_penalized_logistic
from fedpd.problems.quadratic import is_quadratic
from fedpd.theory.points import Places, Progress, check_finite, places

TOLERANCE = 1e-6  # power iteration has converged when the estimate grows by less than this, relatively
LEAST = 8  # smallest number of iterations: a start almost orthogonal to the eigenvector grows slowly at first
TOGETHER = 16  # number of samples whose Hessians are multiplied at once

Part = Callable[..., tuple[Array, Array]]  # (functions, shard, x, iterations, tolerance) -> (values, iterations taken)


class Smoothness(NamedTuple):
    """The smoothness of the f_i, of f and of the samples, and how it was found; estimates include the safety factor.

    Attributes:
        value: L of all f_i, the largest of per_agent.
        per_agent: (N,) L_i of f_i.
        average: L of f = mean_i f_i; None: not computed.
        per_sample: The largest L of all w_i |D_i| F(.; xi), by default of all F(.; xi); None: not computed.
        exact: Whether these are the suprema over all x.
        points: The number of points at which Hessians were taken; 0 if exact.
        iterations: The largest number of iterations of a power iteration; 0 if exact.
        safety: The safety factor; 1 if exact.
        how: A sentence that says how the numbers were found.
        bound: Whether they are upper bounds for all x that the problem knows, and may be larger than the suprema.
    """

    value: float
    per_agent: np.ndarray
    average: float | None
    per_sample: float | None
    exact: bool
    points: int
    iterations: int
    safety: float
    how: str
    bound: bool = False

    @property
    def kind(self) -> str:
        """How L is known, in a few words: exact, an upper bound, or an estimate with its safety factor."""
        if self.exact or self.bound:
            return "exact" if self.exact else "an upper bound"
        return f"an estimate with a safety factor {self.safety:g}; the true L may be larger"

    def __repr__(self) -> str:
        return brief(self)


@explained
def smoothness_constants(problem: Problem, **settings: Any) -> Smoothness:
    """Return L = max_i L_i of Assumption 1, and how it was found.

    It is `exact_smoothness` if there is a closed form for the problem, else the upper bound that the problem knows, and
    else `estimate_smoothness`, or an earlier estimate for the same problem if that was larger, e.g. because `advise`
    measured where its trials went: an estimate is a lower bound before its safety factor. The true L may be larger.
    `theory.smoothness` returns the same L.

    Args:
        problem: The problem.
        settings: The settings of `estimate_smoothness`.
    """
    known = list(inspect.signature(estimate_smoothness).parameters)[1:]
    for name in settings:
        choice("setting", name, known)  # also if there is a closed form, which needs no setting
    return exact_smoothness(problem) or _bound(problem) or _largest_estimate(problem, settings)


def _largest_estimate(problem: Problem, settings: dict[str, Any]) -> Smoothness:
    """Return an estimate of L, or the largest one so far if that is larger."""
    found = estimate_smoothness(problem, **settings)
    known = _ESTIMATES[problem]
    if known.value <= found.value:
        return found
    # The known one may have been found without these two, which the caller asked for.
    return known._replace(average=known.average or found.average, per_sample=known.per_sample or found.per_sample)


def _bound(problem: Problem) -> Smoothness | None:
    """Return the upper bound of L that a problem knows, else None."""
    L = problem.answer.smoothness
    if L is None:
        return None
    each = np.full(problem.agents, L)
    return Smoothness(L, each, L, None, False, 0, 0, 1.0, "an upper bound for all x, which the problem knows", True)


_ESTIMATES: WeakKeyDictionary[Problem, Smoothness] = WeakKeyDictionary()


def known_smoothness(problem: Problem) -> Smoothness | None:
    """Return what is known of L without any work: the problem's own, or the largest estimate so far; None: nothing."""
    return _bound(problem) or _ESTIMATES.get(problem)


@explained
def exact_smoothness(problem: Problem) -> Smoothness | None:
    """Return the suprema over all x for `problems.quadratic` and `problems.penalized_logistic`, else None.

    For quadratics it is the largest |eigenvalue| of H_i, of mean_i H_i, and of each sample's H. For logistic regression
    it is the largest eigenvalue of A_i^T A_i/(4 n_i), of its mean over i, and of a a^T/4, each plus 2 alpha beta for
    the penalty. The supremum is reached at x = 0, where every sigmoid has its largest slope 1/4 and the penalty its
    largest curvature.

    Args:
        problem: The problem.
    """
    if is_quadratic(problem) and problem.offsets is None and problem.load is None:
        return _exact_quadratic(problem)
    if is_penalized_logistic(problem) and problem.load is None:
        return _exact_logistic(problem)
    return None


def _exact_quadratic(problem: Problem) -> Smoothness:
    """Return the largest |eigenvalues| of the Hessians, which are constant."""
    hessians = problem.scale[:, None, None, None] * problem.data["hessian"].astype(np.float64)  # (N, n, d, d)
    valid = np.arange(hessians.shape[1]) < problem.sizes[:, None]
    each = np.einsum("ns,nsij->nij", valid / problem.sizes[:, None], hessians)

    def largest(matrices: np.ndarray) -> np.ndarray:
        return np.abs(np.linalg.eigvalsh(matrices)).max(-1)

    # Quadratics usually have one sample per agent, and then f_i is its sample.
    of_agents = largest(each)
    of_samples = of_agents if hessians.shape[1] == 1 else largest(hessians)
    how = "exact, for all x: the largest |eigenvalue| of the Hessians, which are constant"
    return _exact(of_agents, float(largest(each.mean(0))), float(of_samples.max()), how)


def _exact_logistic(problem: Problem) -> Smoothness:
    """Return the curvature of logistic regression at x = 0, where it is largest."""
    own = problem.penalty
    penalty = problem.scale * (2 * own.alpha * own.beta if isinstance(own, SaturatingPenalty) else 0)  # (N,)
    rows = signed_features(problem)
    weights = problem.scale / (4 * problem.sizes)
    of_agents = np.array([w * gram_eigenvalue(a) for w, a in zip(weights, rows, strict=True)])
    stacked = np.concatenate([np.sqrt(w) * a for w, a in zip(weights, rows, strict=True)])
    of_f = gram_eigenvalue(stacked) / problem.agents
    of_samples = problem.scale / 4 * np.array([np.sum(a * a, axis=1).max() for a in rows])
    how = "exact, for all x: the largest eigenvalue of A_i^T A_i/(4 n_i) plus 2 alpha beta, reached at x = 0"
    return _exact(of_agents + penalty, of_f + penalty.mean(), float((of_samples + penalty).max()), how)


def _exact(of_agents: np.ndarray, of_f: float, of_samples: float, how: str) -> Smoothness:
    """Return exact constants as a `Smoothness`."""
    return Smoothness(float(of_agents.max()), of_agents, of_f, of_samples, True, 0, 0, 1.0, how)


def signed_features(problem: Problem) -> list[np.ndarray]:
    """Return the rows b a of each agent of a `problems.penalized_logistic`: N arrays (n_i, D) of float64."""
    rows = problem.rows_of(np.arange(problem.agents))[0].astype(np.float64)
    return np.split(rows, np.cumsum(problem.sizes)[:-1])


@explained
def estimate_smoothness(
    problem: Problem,
    *,
    points: Iterable[Tree] | None = None,
    radius: float = 1.0,
    samples: int = 4,
    seed: int = 0,
    iterations: int = 50,
    tolerance: float = TOLERANCE,
    safety: float = 1.1,
    average: bool = True,
    per_sample: bool = False,
    progress: Progress | None = None,
) -> Smoothness:
    """Return the largest |eigenvalue| of the Hessians at some points, times `safety`.

    L is a supremum over all x, and power iteration approaches an eigenvalue from below. So the numbers before the
    safety factor are lower bounds of L (up to rounding). Random models at which a Hessian is not finite do not count,
    because a loss need not be defined there.

    Args:
        problem: The problem.
        points: Models, for example from a run; None: the start.
        radius: The largest distance of random models from the points.
        samples: The number of random models to add to the points.
        seed: The seed of the random models.
        iterations: The largest number of power iterations.
        tolerance: Power iteration stops when the estimate grows by less than this, relatively.
        safety: The factor, at least 1.
        average: Whether to estimate the L of f too, which costs as much as that of all f_i.
        per_sample: Whether to estimate the L of every sample too. It needs as many gradients again, and is slower
            because it computes few at a time.
        progress: Called with (done, total) after each point and each of these parts of the work.
    """
    count("iterations", iterations, "Give the number of power iterations, e.g. 50")
    at_least("tolerance", tolerance, 0, "Give a relative growth, e.g. 1e-6")
    at_least("safety", safety, 1, "1 returns the lower bound itself, 1.1 adds a tenth")
    if per_sample and problem.depends_on_batch:
        rule = "there is no L of one sample, because its loss depends on its batch"
        refuse("per_sample", per_sample, rule, "Leave it out")
    where = places(problem, points, radius, samples, seed)
    parts = [agent_curvature, *[_of_f] * average, *[_of_samples] * per_sample]
    found, most, left_out = _over_points(problem, where, parts, (iterations, tolerance), progress)
    each = safety * found[agent_curvature]
    of_f, of_samples = (safety * float(np.max(found[part])) if part in found else None for part in (_of_f, _of_samples))
    words = f"{where.words}, without {left_out} where a Hessian is not finite" if left_out else where.words
    how, number = _sentence(problem, words, most, safety), len(where.models) - left_out
    estimate = Smoothness(float(each.max()), each, of_f, of_samples, False, number, most, safety, how)
    _ESTIMATES[problem] = max(_ESTIMATES.get(problem, estimate), estimate, key=lambda one: one.value)
    return estimate


def _over_points(
    problem: Problem, where: Places, parts: Sequence[Part], limits: tuple[int, float], progress: Progress | None
) -> tuple[dict[Part, np.ndarray], int, int]:
    """Return the largest values of each part, the most iterations, and the number of models that were left out."""
    functions, models, most, left_out = Functions.of(problem), where.models, 0, 0
    found: dict[Part, list[np.ndarray]] = {part: [] for part in parts}
    with scope(problem.double):
        shard = jax.device_put(arrays(problem))
        for i, model in enumerate(models):
            x = Vector(jax.device_put(model))
            for k, part in enumerate(parts):
                values, used = jax.device_get(part(functions, shard, x, *limits))
                if i >= where.given and not np.isfinite(values).all():
                    left_out += 1
                    break
                check_finite(values, "a Hessian", i)
                found[part].append(np.asarray(values, np.float64))
                most = max(most, int(used.max()))
                if progress is not None:
                    progress(i * len(parts) + k + 1, len(models) * len(parts))
    return {part: np.max(values, axis=0) for part, values in found.items()}, most, left_out


def _sentence(problem: Problem, where: str, iterations: int, safety: float) -> str:
    """Return a sentence that says how an estimate was found."""
    what = f"largest |eigenvalue| of the Hessians of the {problem.agents} f_i {where}"
    what = f"{what}, by up to {iterations} power iterations"
    if safety == 1:
        return f"{what}: a lower bound"
    return f"{what}, times a safety factor {safety:g}: a lower bound before the factor"


def power_iteration(
    multiply: Callable[[Vector], Vector], start: Vector, iterations: Any, tolerance: Any = TOLERANCE
) -> tuple[Array, Array]:
    """Return the largest |eigenvalue| of a symmetric H, given v -> H v, and the number of iterations.

    v = Hv/||Hv||, and ||Hv|| is the estimate. It never exceeds the largest |eigenvalue| and never falls from one
    iteration to the next (by Cauchy-Schwarz). It converges also if lambda and -lambda are both eigenvalues, where the
    Rayleigh quotient v^T H v may be anything in between.
    """

    def unfinished(state: tuple[Vector, Array, Array, Array]) -> Array:
        _, _, growing, k = state
        return growing & (k < iterations)

    def step(state: tuple[Vector, Array, Array, Array]) -> tuple[Vector, Array, Array, Array]:
        v, largest, _, k = state
        product = multiply(v)
        norm = jnp.sqrt(product @ product)
        growing = (norm > (1 + tolerance) * largest) | ((k + 1 < LEAST) & (norm > 0))
        return product / jnp.where(norm > 0, norm, 1), jnp.maximum(largest, norm), growing, k + 1

    square = start @ start
    state = (start / jnp.sqrt(square), jnp.zeros_like(square), jnp.array(True), jnp.array(0))
    _, largest, _, k = lax.while_loop(unfinished, step, state)
    return largest, k


def direction(x: Vector) -> Vector:
    """Return the start of power iterations, a random vector that is the same for all models of the same shape."""
    leaves, structure = jax.tree.flatten(x)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


@partial(jax.jit, static_argnames="functions")
def agent_curvature(
    functions: Functions, shard: Shard, x: Vector, iterations: Any, tolerance: Any
) -> tuple[Array, Array]:
    """Return (N,) largest |eigenvalues| of the Hessians of the f_i at x, and the numbers of iterations.

    It takes one agent after another, and linearises its gradient once for all iterations.
    """
    v = direction(x)

    def agent(one: Shard) -> tuple[Array, Array]:
        multiply = jax.linearize(local_objective(functions, one).gradient, x)[1]
        return power_iteration(multiply, v, iterations, tolerance)

    return map_agents(agent, shard)


@partial(jax.jit, static_argnames="functions")
def _of_f(functions: Functions, shard: Shard, x: Vector, iterations: Any, tolerance: Any) -> tuple[Array, Array]:
    """Return the largest |eigenvalue| of the Hessian of f = mean_i f_i at x, and the number of iterations.

    It does not linearise the gradients, because that would keep the intermediate results of all agents in memory.
    """
    return power_iteration(partial(mean_product, functions, shard, x), direction(x), iterations, tolerance)


def mean_product(functions: Functions, shard: Shard, x: Vector, v: Vector) -> Vector:
    """Return H v for the mean Hessian H = mean_i H_i at x."""
    layout = Layout(len(shard.agent), parallel=False, mesh=None)

    def agent(one: Shard) -> tuple[Vector, None]:
        return jax.jvp(local_objective(functions, one).gradient, (x,), (v,))[1], None

    return each_agent(agent, shard, layout)[0] / layout.agents


@partial(jax.jit, static_argnames="functions")
def _of_samples(functions: Functions, shard: Shard, x: Vector, iterations: Any, tolerance: Any) -> tuple[Array, Array]:
    """Return (N,) the largest |eigenvalue| over each agent's samples at x, and the numbers of iterations.

    Padding repeats samples, which does not change the maximum.
    """
    v = direction(x)

    def agent(one: Shard) -> tuple[Array, Array]:
        f = local_objective(functions, one)

        def sample(row: Tree) -> tuple[Array, Array]:
            batch = jax.tree.map(lambda leaf: leaf[None], row)
            multiply = jax.linearize(lambda x: f.stochastic_gradient(x, batch), x)[1]
            return power_iteration(multiply, v, iterations, tolerance)

        if f.offset is None:
            values, used = lax.map(sample, f.data, batch_size=TOGETHER)
            return jnp.max(values), jnp.max(used)

        def block(q: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            rows = f.rows((q * TOGETHER + jnp.arange(TOGETHER)) % f.size)  # the last block repeats the first samples
            return jax.tree.map(lambda most, new: jnp.maximum(most, jnp.max(new)), found, jax.vmap(sample)(rows))

        shapes = jax.eval_shape(sample, f.rows(jnp.int32(0)))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.fori_loop(0, -(-f.size // TOGETHER), block, nothing)

    return map_agents(agent, shard)


def local_smoothness(functions: Functions, layout: Layout, shard: Shard, x: Vector, iterations: int = 10) -> Array:
    """Return a lower bound of max_i of the largest |eigenvalue| of the Hessian of f_i at x, from few power iterations.

    It works under any layout, so that a run can record the curvature. A padding agent repeats a Hessian, which does not
    change the maximum.
    """
    v = direction(x)

    def agent(one: Shard) -> tuple[tuple[()], Array]:
        multiply = jax.linearize(local_objective(functions, one).gradient, x)[1]
        return (), power_iteration(multiply, v, iterations)[0]

    largest = jnp.max(each_agent(agent, shard, layout)[1])
    return largest if layout.mesh is None else lax.pmax(largest, AXIS)


LARGEST = 500  # dimensions whose Hessians are computed whole
ROOM = 2**24  # and the numbers in all N Hessians
HESSIANS_TOGETHER = 32  # columns of a Hessian that are computed at once
STEPS = 40  # of Lanczos' method, and of the power iteration
ROUNDING = 32  # times the precision, relative to the largest: a smaller eigenvalue counts as 0
PROBES = 8  # directions in which the products of all agents are compared


class Hessians(NamedTuple):
    """The eigenvalues of the mean Hessian H = mean_i H_i, and how much the H_i differ.

    Attributes:
        condition: The largest |eigenvalue| of H over its smallest, at the point where this is largest. Infinite if H
            is singular up to rounding; None if H is not positive definite and only its extreme eigenvalues are known.
        largest: The largest |eigenvalue| of H at that point.
        least: The smallest eigenvalue of H at that point, which is negative if H is not positive semidefinite.
        scaled: The condition number at that point after every parameter is scaled so that the diagonal of H is 1; None
            if it is not known or the diagonal is not positive. Where it is much smaller, features are badly scaled.
        dissimilarity: max_i ||H_i - H||, the largest over all points.
        exact: Whether these are the numbers of H up to rounding. If not, `condition`, `largest` and `dissimilarity` are
            lower bounds and `least` is an upper bound.
        points: The number of points.
        how: A sentence that says how the numbers were found.
    """

    condition: float | None
    largest: float
    least: float
    scaled: float | None
    dissimilarity: float
    exact: bool
    points: int
    how: str


class Spectrum(NamedTuple):
    """The numbers of `Hessians` at one point."""

    condition: float | None
    largest: float
    least: float
    scaled: float | None
    dissimilarity: float


@explained
def hessians(problem: Problem, points: Iterable[Tree] | None = None, *, progress: Progress | None = None) -> Hessians:
    """Return the condition number of the mean Hessian and max_i ||H_i - H|| at the given models.

    Args:
        problem: The problem.
        points: Models, for example from a run; None: the start.
        progress: Called with (done, total) after each point.

    Examples:
        >>> from fedpd import problems, theory
        >>> steep = [[[4.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]]
        >>> found = theory.hessians(problems.quadratic(steep, [[0.0, 0.0], [1.0, 1.0]]))
        >>> round(found.condition, 6), round(found.dissimilarity, 6)
        (3.0, 1.0)
    """
    where = places(problem, points, 1.0, 0, 0)
    whole = problem.dimension <= LARGEST and problem.agents * problem.dimension**2 <= ROOM
    precision = ROUNDING * float(np.finfo(np.float64 if problem.double else np.float32).eps)
    functions, found = Functions.of(problem), []
    with scope(problem.double):
        shard = jax.device_put(arrays(problem))
        for i, model in enumerate(where.models):
            x = Vector(jax.device_put(model))
            found.append((_whole if whole else _products_only)(functions, shard, x, i, precision))
            if progress is not None:
                progress(i + 1, len(where.models))
    worst = max(found, key=lambda at: at.condition or 0.0)
    means = "all eigenvalues" if whole else f"{min(STEPS, problem.dimension)} steps of Lanczos' method: a lower bound"
    return Hessians(
        worst.condition,
        worst.largest,
        worst.least,
        worst.scaled,
        max(at.dissimilarity for at in found),
        whole,
        len(found),
        f"Hessians {where.words}, {means}",
    )


def _whole(functions: Functions, shard: Shard, x: Vector, point: int, precision: float) -> Spectrum:
    """Return the spectrum from all Hessians."""
    each = np.asarray(_each(functions, shard, x), np.float64)
    check_finite(each, "a Hessian", point)
    each = (each + each.swapaxes(1, 2)) / 2
    mean = each.mean(0)
    values = np.linalg.eigvalsh(mean)
    diagonal = np.sqrt(np.maximum(np.diag(mean), 0))
    scaled = np.linalg.eigvalsh(mean / np.outer(diagonal, diagonal)) if diagonal.all() else None
    return Spectrum(
        _condition(values, precision),
        float(np.abs(values).max()),
        float(values[0]),
        None if scaled is None else _condition(scaled, precision),
        float(np.abs(np.linalg.eigvalsh(each - mean)).max()),
    )


def _condition(values: np.ndarray, precision: float) -> float:
    """Return the largest |eigenvalue| over the smallest; infinity if that is not above rounding."""
    largest, smallest = np.abs(values).max(), np.abs(values).min()
    return np.inf if smallest <= precision * largest else float(largest / smallest)


@partial(jax.jit, static_argnames="functions")
def _each(functions: Functions, shard: Shard, x: Vector) -> Array:
    """Return (N, d, d) the Hessians of all f_i at x, one agent after another."""
    flat, back = ravel_pytree(x)

    def agent(one: Shard) -> Array:
        f = local_objective(functions, one)

        def column(v: Array) -> Array:
            return ravel_pytree(jax.jvp(f.gradient, (x,), (back(v),))[1])[0]

        return lax.map(column, jnp.eye(flat.size, dtype=flat.dtype), batch_size=HESSIANS_TOGETHER)

    return map_agents(agent, shard)


def _products_only(functions: Functions, shard: Shard, x: Vector, point: int, precision: float) -> Spectrum:
    """Return bounds of the spectrum from Hessian-vector products."""
    basis, products = _lanczos(functions, shard, x)
    check_finite(products, "a Hessian", point)
    values = np.linalg.eigvalsh(basis @ products.T)
    probes = jnp.asarray(basis[:PROBES], ravel_pytree(x)[0].dtype)
    differences = np.asarray(_differences(functions, shard, x, probes, jnp.asarray(products[:PROBES], probes.dtype)))
    agent = int(differences.argmax())
    apart = _power(functions, shard, x, one_agent(shard, agent), probes[0])
    condition = _condition(values, precision) if values[0] > 0 else None  # inside, Ritz values mean nothing
    apart = max(float(apart), float(differences.max()))
    return Spectrum(condition, float(np.abs(values).max()), float(values[0]), None, apart)


def _lanczos(functions: Functions, shard: Shard, x: Vector) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthonormal basis of a Krylov space of H as rows, and the products of H with them.

    Every new direction is made orthogonal to all earlier ones twice, as rounding undoes Lanczos' short recurrence.
    """
    flat = np.asarray(ravel_pytree(x)[0])
    v = np.random.default_rng(0).standard_normal(flat.size)
    basis: list[np.ndarray] = []
    products: list[np.ndarray] = []
    for _ in range(min(STEPS, flat.size)):
        basis.append(v / np.linalg.norm(v))
        product = _mean_product(functions, shard, x, jnp.asarray(basis[-1], flat.dtype))
        products.append(np.asarray(product, np.float64))
        known, v = np.array(basis), products[-1]
        for _ in range(2):
            v = v - known.T @ (known @ v)
        if not np.linalg.norm(v) > np.finfo(flat.dtype).eps * np.linalg.norm(products[-1]):
            break
    return np.array(basis), np.array(products)


def _product(functions: Functions, shard: Shard, x: Vector, v: Array) -> Array:
    """Return H v."""
    return ravel_pytree(mean_product(functions, shard, x, ravel_pytree(x)[1](v)))[0]


_mean_product = jax.jit(_product, static_argnames="functions")


@partial(jax.jit, static_argnames="functions")
def _differences(functions: Functions, shard: Shard, x: Vector, probes: Array, products: Array) -> Array:
    """Return (N,) the largest ||(H_i - H) v|| over the unit vectors v in the span of the probes."""

    def agent(one: Shard) -> Array:
        rows = lax.map(lambda v: _own_product(functions, one, x, v), probes) - products
        return jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(rows @ rows.T)[-1], 0))

    return map_agents(agent, shard)


def _own_product(functions: Functions, one: Shard, x: Vector, v: Array) -> Array:
    """Return H_i v."""
    gradient = local_objective(functions, one).gradient
    return ravel_pytree(jax.jvp(gradient, (x,), (ravel_pytree(x)[1](v),))[1])[0]


@partial(jax.jit, static_argnames="functions")
def _power(functions: Functions, shard: Shard, x: Vector, one: Shard, start: Array) -> Any:
    """Return a lower bound of ||H_i - H|| by power iteration."""

    def multiply(v: Vector) -> Vector:
        return Vector(_own_product(functions, one, x, v.tree) - _product(functions, shard, x, v.tree))

    return power_iteration(multiply, Vector(start), STEPS, TOLERANCE)[0]
