"""The lemmas behind Theorem 3, under every draw of samples: as corrected they hold, as printed some do not."""

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import Algorithm, Problem, algorithms, oracles, problems
from fedpd.base.precision import scope
from fedpd.core.agents import Functions, arrays, local_objective
from tests.theory.rounds_played import Path, below, gradients, lagrangians, square, values

ROUNDS, STEPS = 3, 2  # T and Q; with two samples an agent and B = 1, there are 2^(QT) = 64 sequences of draws
DRAWS = np.array(list(product([0, 1], repeat=ROUNDS * STEPS))).reshape(-1, ROUNDS, STEPS, 1)


def samples_of(weights: list[list[float]], centres: list[list[float]], start: float = 1.0) -> Problem:
    """F(x; (w, a)) = w (x - a)^2/2 in one dimension: the samples' smoothness is max |w|, and f_i's |mean w|."""
    data = {"w": np.array(weights), "a": np.array(centres)}
    return problems.from_losses(lambda x, rows: rows["w"] * (x[0] - rows["a"]) ** 2 / 2, data, np.array([start]))


NOISY = samples_of([[1.0, -0.5], [0.2, 0.9]], [[1.0, 2.0], [-1.0, 0.5]])
SAMPLE_L = np.sqrt((1 + 0.25) / 2)  # E_xi |h(x) - h(y)|^2 <= L^2 |x - y|^2 for both agents


class Inner(NamedTuple):
    """Oracle II step by step, under all draws: x^{r,q}, q = 0, ..., Q, and g^{r,q} as used for step q < Q."""

    x: np.ndarray  # (draws, T, Q+1, N, d)
    g: np.ndarray  # (draws, T, Q, N, d)
    path: Path


def solve_step_by_step(problem: Problem, eta: float, gamma: float, refresh: int) -> Inner:
    """Q steps are replayed as 1 step, 2 steps, ... from the same state with the same draws."""

    def at(draws: np.ndarray, iterations: int) -> Algorithm:
        def drawn(key: Any, r: Any, agent: Any, size: Any, shape: Any) -> Any:
            return jnp.asarray(draws)[r, : shape[0]]

        oracle = oracles.vr(gamma=gamma, iterations=iterations, refresh=refresh, batch=1, draw=drawn)
        return algorithms.fedpd(eta=eta, oracle=oracle)

    functions, shard = Functions(problem.losses, problem.penalty), arrays(problem)

    def run(draws: Any) -> Any:
        def one_round(agents: Any, r: Any) -> Any:
            def local(q: int) -> Any:
                def one(one: Any, agent: Any) -> Any:
                    exchange = at(draws, q).exchanges()[0]
                    return exchange.local(local_objective(functions, one), agent, r, jax.random.key(0))[0]

                return jax.vmap(one)(shard, agents)

            inner = [local(q) for q in range(1, STEPS + 1)]
            full = jax.vmap(lambda one, x: local_objective(functions, one).gradient(x))(shard, agents.x)
            g = jnp.where(r % refresh == 0, full.tree, agents.memory.g.tree)
            after = inner[-1]
            mean = jnp.broadcast_to(after.x0.tree.mean(0), after.x0.tree.shape)
            x = jnp.stack([agents.x.tree, *(agent.x.tree for agent in inner)])
            g = jnp.stack([g, *(agent.memory.g.tree for agent in inner[:-1])])
            after = after._replace(x0=Vector(mean))
            return after, (x, g, after, inner[-1].x0.tree)

        start = Vector(jnp.asarray(problem.start))
        first = jax.vmap(lambda one: at(draws, 1).init(local_objective(functions, one), start))(shard)
        return first, jax.lax.scan(one_round, first, jnp.arange(ROUNDS))[1]

    with scope(True):
        first, (x, g, later, plus) = jax.jit(jax.vmap(run))(DRAWS)

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(first, name).tree[:, None], getattr(later, name).tree], 1)

    return Inner(np.asarray(x), np.asarray(g), Path(column("x"), column("x0"), column("dual"), np.asarray(plus)))


@pytest.fixture(scope="module", params=[(0.9, 13.0, 2), (0.5, 3.0, 3), (0.9, 1.0, 1)], ids=str)
def noisy(request: pytest.FixtureRequest) -> tuple[float, float, int, Inner]:
    share, ratio, refresh = request.param
    eta = share / (3 * (STEPS + np.sqrt(STEPS * refresh)) * SAMPLE_L)
    return eta, ratio * eta, refresh, solve_step_by_step(NOISY, eta, ratio * eta, refresh)


def test_variance_of_the_estimates(noisy: tuple[float, float, int, Inner]) -> None:
    """Lemma 11, with the samples' L: E||g^{r,q} - grad f_i||^2 <= (L^2/B) (squared steps since the full gradient)."""
    _, _, refresh, inner = noisy
    errors = square(inner.g - gradients(NOISY, inner.x[:, :, :-1])).mean(0)  # (T, Q, N)
    steps = square(np.diff(inner.x, axis=2)).mean(0)
    assert errors.max() > 1e-4 or refresh == 1
    for r in range(ROUNDS):
        since = steps[r - r % refresh : r + 1].reshape(-1, 2)
        for q in range(STEPS):
            assert below(errors[r, q], SAMPLE_L**2 * since[: (r % refresh) * STEPS + q].sum(0))


def test_printed_variance_fails_with_the_smoothness_of_f() -> None:
    """Lemma 11 cites Assumption 1, of the f_i: here f_i is ten times smoother than its samples."""
    problem = samples_of([[1.1, -0.9]], [[0.0, 1.0]])
    inner = solve_step_by_step(problem, 0.2, 2.0, refresh=3)
    errors = square(inner.g - gradients(problem, inner.x[:, :, :-1])).mean(0)
    steps = square(np.diff(inner.x, axis=2)).mean(0)
    assert errors[0, 1, 0] > 0.1**2 * steps[0, 0, 0]
    assert errors[0, 1, 0] <= (1.1**2 + 0.9**2) / 2 * steps[0, 0, 0]


def descent(eta: float, gamma: float, inner: Inner, L: float, sign: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Lemma 10, with Q in place of its Q^2 and a sign for its last term: (left, right side), (draws, T, N)."""
    path, steps = inner.path, square(np.diff(inner.x, axis=2))  # (draws, T, Q, N)
    errors = square(inner.g - gradients(NOISY, inner.x[:, :, :-1]))
    last, error = steps[:, :, -1], errors[:, :, -1]
    before, error_before = (np.concatenate([0 * part[:, :1], part[:, :-1]], 1) for part in (last, error))
    base, q = 1 / (2 * eta) + 1 / gamma - L, STEPS
    move = np.diff(path.x0, axis=1)
    slope = path.dual[:, 1:] + (path.x - path.x0)[:, 1:] / eta
    right = (
        -square(move) / (2 * eta)
        - (base - 3 * eta / gamma**2) * last
        - (base - 9 * q * L**2 * eta) * steps[:, :, :-1].sum(2)
        + (9 * q * L**2 * eta + 3 * eta / gamma**2) * before
        + errors[:, :, :-1].sum(2) / (2 * L)
        + (1 / (2 * L) + 9 * eta) * error
        + 9 * eta * error_before
        + sign * np.sum(slope * move, -1)
    )
    return np.diff(lagrangians(NOISY, eta, path.x, path.x0, path.dual), axis=1), right


def test_descent_under_oracle_2(noisy: tuple[float, float, int, Inner]) -> None:
    """From round 1 on, and with -<lambda + (x - x_0)/eta, .>."""
    eta, gamma, _, inner = noisy
    left, right = descent(eta, gamma, inner, SAMPLE_L)
    assert below(left[:, 1:], right[:, 1:])
    left, right = descent(eta, gamma, inner, SAMPLE_L, sign=1)  # as printed in the proof of Lemma 10
    assert not below(left[:, 1:], right[:, 1:])


def test_printed_descent_under_oracle_2_fails_in_the_first_round() -> None:
    """There is no round before it, and lambda^0 = 0 is not what the lemma takes it for."""
    eta = 0.05
    inner = solve_step_by_step(NOISY, eta, 13 * eta, refresh=2)
    left, right = descent(eta, 13 * eta, inner, SAMPLE_L)
    assert below(left[:, 1:], right[:, 1:])
    assert (left[:, 0] > right[:, 0] + 1e-3).any()


def test_steps_of_the_duals_under_oracle_2(noisy: tuple[float, float, int, Inner]) -> None:
    """Instead of the bounds of the duals' steps in the proof of Lemma 10, in root mean square, including round 0."""
    _, gamma, _, inner = noisy
    k = SAMPLE_L * (np.sqrt(STEPS) + 1) + 2 / gamma
    steps = np.sqrt(square(np.diff(inner.x, axis=2)).mean((0, 3)).sum())
    start = np.sqrt(square(gradients(NOISY, inner.path.x[:, 0])).mean())
    assert np.sqrt(square(np.diff(inner.path.dual, axis=1)).mean((0, 2)).sum()) <= k * steps + start


def test_objective_is_below_the_lagrangian_under_oracle_2(noisy: tuple[float, float, int, Inner]) -> None:
    """Lemma 12, corrected: eta/(2 (1 - L eta)) in place of 1/(4L), on every path and in expectation."""
    eta, gamma, refresh, inner = noisy
    path, a = inner.path, SAMPLE_L * eta
    objective = values(NOISY, path.x0).mean(-1)[:, 1:]
    lagrangian = lagrangians(NOISY, eta, path.x, path.x0, path.dual).mean(-1)[:, 1:]
    residuals = square(gradients(NOISY, path.x) + path.dual)[:, 1:]
    assert below(objective, lagrangian + eta / (2 * (1 - a)) * residuals.mean(-1))
    steps = square(np.diff(inner.x, axis=2)).mean(0)  # (T, Q, N)
    for r in range(ROUNDS):
        since = steps[r - r % refresh : r + 1].sum((0, 1))
        assert below(residuals[:, r].mean(0), ((SAMPLE_L + 1 / gamma) ** 2 + SAMPLE_L**2) * since)
