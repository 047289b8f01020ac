"""FedPD-N: its reduction to Algorithm 2, rounds in NumPy, the trials by hand, and first steps that are far off."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate, transforms
from fedpd.algorithms.fedpd_n import FIRST, TRIALS, acceptable
from fedpd.core import LocalObjective

RNG = np.random.default_rng(0)
SQUARES = {"a": RNG.standard_normal((6, 8, 3)), "b": RNG.standard_normal((6, 8))}


def squares(rows: Any) -> Any:
    return problems.from_losses(lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2 / 2, rows, np.zeros(3))


MANY, ONE = squares(SQUARES), squares({name: leaf[:, :1] for name, leaf in SQUARES.items()})


@pytest.mark.parametrize("cohort", [None, 2])
def test_it_is_algorithm_2_from_the_servers_model(cohort: int | None) -> None:
    plain = algorithms.fedpd(eta=0.4, oracle=oracles.sgd(step=0.1, iterations=4, batch=2), start="server")
    settings: dict[str, Any] = {"step": 0.1, "adapt": False, "rho": 1.0, "beta": 0.0, "penalty": 1.0}
    same = algorithms.fedpd_n(iterations=4, batch=2, cohort=cohort or 6, **settings)
    one, other = (simulate(method, MANY, rounds=12, cohort=cohort) for method in (plain, same))
    np.testing.assert_allclose(other.server.y.tree, one.model, rtol=1e-12)
    assert np.array_equal(other.history["samples"], one.history["samples"])


def test_rounds_in_numpy() -> None:
    """Agents with one sample draw nothing, so NumPy makes the same steps."""
    gamma, steps, rho, beta, penalty, agents = 0.1, 3, 0.2, 0.5, 0.3, 6
    a, b = ONE.data["a"][:, 0], ONE.data["b"][:, 0]
    eta, y, w, m, mean_dual, duals = gamma * steps, np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3), np.zeros((6, 3))
    for r in range(1, 6):
        x = np.tile(y, (agents, 1))
        for _ in range(steps):
            gradients = a * (np.einsum("ij,ij->i", a, x) - b)[:, None]
            x = x - gamma * (gradients + duals + penalty / eta * (x - y))
        duals = duals + rho / eta * (x - y)
        mean_dual = mean_dual + rho / eta * (x.mean(0) - y)
        u = x.mean(0) + eta * mean_dual - y
        m = beta * m + u
        y = y + u + beta * m
        w = w + 5 / (r + 5) * (y - w)
    settings: dict[str, Any] = {"rho": rho, "beta": beta, "penalty": penalty, "step": gamma, "adapt": False}
    run = simulate(algorithms.fedpd_n(iterations=steps, batch=1, cohort=agents, **settings), ONE, rounds=5)
    np.testing.assert_allclose(run.server.y.tree, y, rtol=1e-12)
    np.testing.assert_allclose(run.model, w, rtol=1e-12)  # the mean is delivered


@pytest.mark.parametrize(("cohort", "beta"), [(1, 0.0), (2, 1 / 3), (5, 2 / 3), (9, 0.8), (100, 0.8)])
def test_the_momentum_follows_the_cohort(cohort: int, beta: float) -> None:
    method = algorithms.fedpd_n(iterations=1, batch=1, cohort=cohort, step=1.0, adapt=False, rho=0.0)
    server, y = method.server(Vector(jnp.zeros(1))), [0.0]
    numbers = method.init(LocalObjective.without_samples(server.y), server.y).numbers
    for _ in range(2):  # the agents are at 1 and at 2
        server, _ = method.aggregate(server, (server.y * 0 + len(y), numbers), 1.0)
        y.append(float(server.y.tree[0]))
    assert y[1] == pytest.approx(1 + beta)
    assert y[2] == pytest.approx(y[1] + (2 - y[1]) + beta * (beta * 1 + 2 - y[1]))


@pytest.mark.parametrize(
    ("cohort", "loss", "beta"),
    [(1, 3.0, 0.0), (1, 2.0, 0.0), (1, 0.5, 0.75), (1, 0.1, 0.8), (3, 1.5, 0.5), (9, 2.0, 0.8)],
)
def test_the_momentum_of_a_small_cohort_grows_as_the_loss_comes_down(cohort: int, loss: float, beta: float) -> None:
    method = algorithms.fedpd_n(iterations=1, batch=1, cohort=cohort, step=1.0, rho=0.0)
    server = method.server(Vector(jnp.zeros(1)))
    numbers = method.init(LocalObjective.without_samples(server.y), server.y).numbers._replace(first=jnp.asarray(loss))
    server = server._replace(
        momentum=Vector(jnp.ones(1)),
        round=jnp.int32(5),
        orders=server.orders._replace(level=jnp.asarray(2.0)),
        watch=server.watch._replace(loss=jnp.asarray(loss), best=jnp.asarray(4.0)),
    )
    server, _ = method.aggregate(server, (server.y, numbers), 1.0)  # no agent moves
    assert float(server.momentum.tree[0]) == pytest.approx(beta)


def test_a_layer_delivers_the_mean_too() -> None:
    method = algorithms.fedpd_n(iterations=2, batch=1, cohort=6, step=0.1, adapt=False)
    small = transforms.wrap(method, up=transforms.top_k(1.0))
    run, plain = (simulate(one, MANY, rounds=4) for one in (small, method))
    np.testing.assert_allclose(run.model, run.server.inner.mean.tree)
    np.testing.assert_allclose(run.model, plain.model, rtol=1e-6)


# --- trials ---------------------------------------------------------------------------------------------------------


def test_acceptable_steps_by_hand() -> None:
    ladder = jnp.array([0.0, 0.125, 0.5, 1.0, 2.0, 8.0])
    low, high = acceptable(ladder, jnp.array([2.0, 1.5, 1.0, 1.0, 1.0, 4.0]), jnp.float32(2.0), 0.05)
    # 80 % of the decrease is H = 1.2, but 1.05 min H = 1.05 is less: nine tenths of the way from 1/8 to 1/2 in logs.
    assert float(low) == pytest.approx(0.125 * 4**0.9, rel=1e-5)
    # min H + 5 % of the decrease is 1.05: a sixtieth of the way from 2 to 8.
    assert float(high) == pytest.approx(2 * 4 ** (0.05 / 3), rel=1e-5)
    low, high = acceptable(ladder, jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), jnp.float32(1.0), 0.05)
    assert float(low) == pytest.approx(0.125 / 8, rel=1e-5)  # every step is worse than none: an eighth of the smallest
    assert float(high) == pytest.approx(0.125 / 8, rel=1e-5)


def test_rounds_of_trials_cost_eight_times_the_local_work() -> None:
    run = simulate(algorithms.fedpd_n(iterations=4, batch=2, cohort=6), MANY, rounds=20)
    work = np.diff(run.history["samples"]) / (6 * 4 * 2)
    assert work.tolist() == [8 if r in TRIALS else 1 for r in range(20)]
    assert TRIALS[:6] == (0, 1, 4, 16, 64, 256)


def test_until_gamma_is_known_agents_move_with_a_step_of_their_own() -> None:
    """An agent goes up the ladder, and takes each step that decreases H by a quarter more than the one before."""
    steps, moved = 4, []
    for a, b in zip(ONE.data["a"][:, 0], ONE.data["b"][:, 0], strict=True):
        taken, least = np.zeros(3), b * b / 2
        for gamma in FIRST:
            x, losses = np.zeros(3), []
            for _ in range(steps):
                losses.append((a @ x - b) ** 2 / 2)
                x = x - gamma * a * (a @ x - b)
            later = np.mean(losses[steps // 2 :])
            if b * b / 2 - later > 1.25 * (b * b / 2 - least):
                taken, least = x, later
        moved.append(taken)
    run = simulate(algorithms.fedpd_n(iterations=steps, batch=1, cohort=6), ONE, rounds=1)
    np.testing.assert_allclose(run.server.y.tree, (1 + 5 / 7) * np.mean(moved, axis=0), rtol=1e-12)  # 1 + beta
    assert not run.server.dual.tree.any()


def test_gamma_is_known_after_the_trials_of_five_agents() -> None:
    for cohort, rounds in ((1, 5), (2, 3), (6, 1)):
        method = algorithms.fedpd_n(iterations=4, batch=2, cohort=cohort)
        steps = [
            float(simulate(method, MANY, rounds=r, cohort=cohort).server.orders.step) for r in (rounds - 1 or 1, rounds)
        ]
        assert (steps[0] == 0) == (rounds > 1)
        assert steps[1] > 0


def test_rounds_without_trials_do_not_count_until_gamma_is_known() -> None:
    method = algorithms.fedpd_n(iterations=4, batch=2, cohort=3)  # two rounds of trials
    present = np.zeros((17, 6), int)
    present[[0, 3, 16], :3] = 1  # rounds 1 and 4, of trials, are empty, and round 3 has none
    late = simulate(method, MANY, rounds=17, participation=present).server
    assert int(late.round) == 2
    assert float(late.orders.step) > 0.01
    np.testing.assert_allclose(simulate(method, MANY, rounds=16, participation=present[:16]).server.y.tree, 0)


def test_a_message_is_one_model_and_twelve_numbers() -> None:
    run = simulate(algorithms.fedpd_n(iterations=4, batch=2, cohort=6), MANY, rounds=1)
    assert run.history["bytes_up"][-1] == 6 * 8 * (3 + 12)
    assert run.history["bytes_down"][-1] == 6 * (8 * (3 + 2) + 4)


@pytest.fixture(scope="module")
def classes() -> Any:
    """Twelve agents with two of four classes each, which a small network tells apart."""
    rng = np.random.default_rng(1)
    centres = 2 * rng.standard_normal((4, 6))
    rows = {}
    for i in range(12):
        y = rng.choice([i % 4, (i + 1) % 4], 40)
        rows[str(i)] = {"x": (centres[y] + rng.standard_normal((40, 6))).astype(np.float32), "y": y}
    start = {"a": 0.4 * rng.standard_normal((6, 16)), "b": 0.3 * rng.standard_normal((16, 4))}
    start = {name: leaf.astype(np.float32) for name, leaf in start.items()}

    def network(model: Any, x: Any) -> Any:
        return jnp.maximum(x @ model["a"], 0) @ model["b"]

    return problems.classification(network, data.from_arrays(rows, classes=4), start)


def ends(problem: Any, **settings: Any) -> float:
    method = algorithms.fedpd_n(iterations=6, batch=10, cohort=4, **settings)
    return float(simulate(method, problem, rounds=60, cohort=4, metrics_every=60).history["loss"][-1])


def test_a_first_step_far_off_is_corrected(classes: Any) -> None:
    begin = float(simulate(algorithms.fedpd_n(iterations=6, batch=10, cohort=4), classes, rounds=1).history["loss"][0])
    found = ends(classes)
    assert found < 0.25 * begin
    for factor in (16, 256, 1 / 16):
        assert ends(classes, step=0.2 * factor) < found + 0.1 * begin


def test_a_step_that_is_too_large_everywhere_returns_to_the_best_model() -> None:
    """Without trials in between, rounds 32 to 63, only the losses can tell: gamma is halved until the run is stable."""
    run = simulate(algorithms.fedpd_n(iterations=4, batch=2, cohort=6, step=1e3), MANY, rounds=40)
    assert run.diverged is None
    assert run.history["loss"][-1] <= 1.05 * run.history["loss"][0]
    assert float(run.server.orders.step) < 2


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [1, 3, 12])
def test_every_cohort_trains(classes: Any, cohort: int) -> None:
    run = simulate(algorithms.fedpd_n(iterations=6, batch=10, cohort=cohort), classes, rounds=60, cohort=cohort)
    assert run.history["loss"][-1] < 0.5 * run.history["loss"][0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"adapt": False}, "needs a step"),
        ({"rho": 1.5}, "must be at most 1"),
        ({"beta": 1.0}, "must be below 1"),
        ({"penalty": -1.0}, "must be finite and at least 0"),
        ({"step": 0.0}, "must be positive"),
        ({"iterations": 0}, "must be an integer of at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        algorithms.fedpd_n(**{"iterations": 4, "batch": 2, "cohort": 6} | settings)


def test_a_cohort_of_more_agents_than_there_are_is_refused() -> None:
    with pytest.raises(FedpdError, match="cohort = 7: must be at most 6, the number of agents"):
        simulate(algorithms.fedpd_n(iterations=4, batch=2, cohort=7), MANY, rounds=1)


def test_a_run_with_fewer_agents_than_its_momentum_is_for_is_noticed() -> None:
    method = algorithms.fedpd_n(iterations=2, batch=4, cohort=3)
    with pytest.warns(UserWarning, match=r"as few as 2 agents.*Give fedpd_n\(cohort=2\), or a beta"):
        simulate(method, MANY, rounds=1, cohort=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(method, MANY, rounds=1, cohort=3)
