"""Local solvers: their steps by hand, when they stop, what they count, what they carry, what they refuse.

All on F(x; (w, a)) = w (x - a)^2/2 with d = 1, whose numbers below are exact in binary, and so compared exactly.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tree_math import Vector

from fedpd import FedpdError, Oracle, algorithms, oracles, problems, simulate
from fedpd.base.precision import scope
from fedpd.core import LocalObjective, Subproblem, augmented_lagrangian
from fedpd.core.objective import Noise
from fedpd.core.sampling import Draw


def losses(x: Any, sample: Any) -> Any:
    return sample["w"] * (x[0] - sample["a"]) ** 2 / 2


# Agent 0: h = x - 1, 3x + 3;     grad f_0 = 2x + 1.
# Agent 1: h = x, x - 3, 4x;      grad f_1 = 2x - 1.
SAMPLES = [
    {"w": np.array([1.0, 3.0]), "a": np.array([1.0, -1.0])},
    {"w": np.array([1.0, 1.0, 4.0]), "a": np.array([0.0, 3.0, 0.0])},
]
PROBLEM = problems.from_losses(losses, SAMPLES, np.array([1.0]))
PADDED = {name: np.append(column, 1000.0) for name, column in SAMPLES[0].items()}
AGENTS = [  # samples, size, scale, weights of the samples where some are padding, index
    (PADDED, np.int32(2), None, np.array([0.5, 0.5, 0.0]), np.int32(0)),
    (SAMPLES[1], np.int32(3), None, None, np.int32(1)),
]


class Solved(NamedTuple):
    x: float
    memory: Any
    updates: int
    samples: int


def solve(oracle: Oracle, x: float = 1.0, *, agent: int = 0, r: int = 0, memory: Any = "fresh") -> Solved:
    """The oracle on L_i with x_0 = 1, lambda = 0.5, eta = 0.5, of gradient grad f_i + 2x - 1.5; for i = 0, 4x - 0.5."""
    with scope(True):
        f = LocalObjective(losses, None, *map(partial(jax.tree.map, jnp.asarray), AGENTS[agent]))
        lagrangian = augmented_lagrangian(f, Vector(jnp.array([1.0])), Vector(jnp.array([0.5])), 0.5)
        start = Vector(jnp.array([x]))
        memory = oracle.init(f, start) if isinstance(memory, str) else memory
        end, memory, work = oracle.solve(lagrangian, start, memory, jnp.int32(r), jax.random.key(0))
        return Solved(float(end.tree[0]), memory, int(work.updates), int(work.samples))


def draw_these(*indices: int) -> Draw:
    return lambda key, r, agent, size, shape: jnp.array(indices).reshape(shape)


def first_sample(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
    return jnp.zeros(shape, int)


# --- steps by hand --------------------------------------------------------------------------------------------------


def test_gd_by_hand() -> None:
    # 1 - 0.125 * 3.5 = 0.5625,   0.5625 - 0.125 * 1.75 = 0.34375
    assert solve(oracles.gd(step=0.125, iterations=2)).x == 0.34375


def test_sgd_by_hand() -> None:
    # sample 1: 1 - 0.125 (6 + 0.5) = 0.1875,   sample 0: 0.1875 - 0.125 (-0.8125 + 0.375 - 1.5) = 0.4296875
    assert solve(oracles.sgd(step=0.125, iterations=2, draw=draw_these(1, 0))).x == 0.4296875


def test_sgd_averages_over_its_batch() -> None:
    # agent 1, samples 1 and 2: h = (-2 + 4)/2 at x = 1, so 1 - 0.125 (1 + 0.5)
    assert solve(oracles.sgd(0.125, 1, batch=2, draw=draw_these(1, 2)), agent=1).x == 0.8125
    # a sample drawn twice counts twice
    assert solve(oracles.sgd(0.125, 1, batch=2, draw=draw_these(2, 2)), agent=1).x == 1 - 0.125 * 4.5


def test_sgd_on_all_samples_is_gd() -> None:
    for agent in (0, 1):  # agent 0 has padding
        gd, sgd = oracles.gd(0.125, 3), oracles.sgd(0.125, 3, batch=None)
        assert solve(sgd, agent=agent) == solve(gd, agent=agent)


def test_vr_by_hand() -> None:
    oracle = oracles.vr(gamma=0.5, iterations=2, refresh=2, draw=draw_these(1, 0))
    # eta = gamma = 0.5: x+ = (x + x_0)/2 - (g + lambda)/4 = x/2 - g/4 + 0.375;   g+ = g + w_j (x+ - x)
    # r = 0: g = grad f_0(1) = 3;        x = 0.125,  g = 3 + 3 (0.125 - 1) = 0.375
    #                                    x = 0.34375,  g = 0.375 + (0.34375 - 0.125) = 0.59375
    first = solve(oracle)
    assert first.x == 0.34375
    assert first.memory.g.tree.tolist() == [0.59375]
    # r = 1: g is carried over, though grad f_0(0.34375) = 1.6875
    #                                    x = 0.3984375,  g = 0.59375 + 3 * 0.0546875 = 0.7578125
    #                                    x = 0.384765625,  g = 0.7578125 - 0.013671875 = 0.744140625
    second = solve(oracle, first.x, r=1, memory=first.memory)
    assert second.x == 0.384765625
    assert second.memory.g.tree.tolist() == [0.744140625]
    # r = 2: g is taken afresh at x_i^r; what was carried does not matter
    third = solve(oracle, second.x, r=2, memory=second.memory)
    assert third.x == solve(oracle, second.x, r=0).x
    assert third.x != solve(oracle, second.x, r=1, memory=second.memory).x


def test_vr_with_infinite_gamma_steps_to_the_minimiser_of_the_linear_model() -> None:
    # x+ = x_0 - eta (g + lambda) = 1 - 0.5 (3 + 0.5);   the next g, on all samples, is grad f_0(-0.75) = -0.5
    first = solve(oracles.vr(gamma=np.inf, iterations=1, refresh=1, batch=None))
    assert first.x == -0.75
    assert first.memory.g.tree.tolist() == [-0.5]
    assert solve(oracles.vr(gamma=np.inf, iterations=2, refresh=1, batch=None)).x == 1.0


def test_vr_carries_its_estimate_through_a_run() -> None:
    """Rounds 0..3 with refresh = 2: like two runs of two rounds' worth, by the recursion in plain Python."""
    eta, gamma = 0.5, 0.25
    oracle = oracles.vr(gamma, iterations=1, refresh=2, draw=first_sample)
    run = simulate(algorithms.fedpd(eta=eta, oracle=oracle), PROBLEM, rounds=4)
    x, dual, x0, g = np.ones(2), np.zeros(2), np.ones(2), np.zeros(2)
    for r in range(4):
        if r % 2 == 0:
            g = 2 * x + [1, -1]
        new = (eta * x + gamma * x0 - eta * gamma * (g + dual)) / (eta + gamma)
        g, x = g + (new - x), new  # sample 0 has w = 1 at both agents
        dual = dual + (x - x0) / eta
        x0 = np.full(2, np.mean(x + eta * dual))
    np.testing.assert_allclose(run.agents.x.tree.ravel(), x, rtol=1e-13)
    np.testing.assert_allclose(run.agents.memory.g.tree.ravel(), g, rtol=1e-13)


def test_lbfgs_by_hand() -> None:
    # From 1 by -grad/curvature = -3.5/2: at -0.75 L_0 is the same, so the parabola halves the step; grad L_0(0.125) = 0
    oracle = oracles.lbfgs(tolerance=1e-3, iterations=9, pairs=2)
    first = solve(oracle)
    assert (first.x, first.updates, first.samples) == (0.125, 2, 6)
    assert first.memory.steps.tree[:, 0].tolist() == [-0.875, 0]
    assert first.memory.changes.tree[:, 0].tolist() == [-1.75, 0]  # of grad f_0 = 2x + 1
    assert first.memory.products[:, 0].tolist() == [0.875**2, 0.875 * 1.75, 1.75**2]
    assert float(first.memory.value) == first.x**2 + first.x + 1  # f_0
    # The pair tells the curvature, so that the next solve takes a single step.
    second = solve(oracle, -2.0, r=1, memory=first.memory)
    assert (second.x, second.updates) == (0.125, 1)


def test_lbfgs_stops_at_its_tolerance_and_at_its_limit() -> None:
    assert solve(oracles.lbfgs(tolerance=2.0, iterations=9))[:1] == (1.0,)
    assert solve(oracles.lbfgs(tolerance=1e-3, iterations=1))[:1] == (1.0,)  # one trial, which does not lower L_0
    assert solve(oracles.lbfgs(tolerance=1e-3, iterations=9), 0.125).updates == 0  # where the gradient is 0


def test_lbfgs_serves_other_methods_and_gradient_descent_agrees() -> None:
    """Solved to the end, FedPD is the same with either oracle."""
    exact = [oracles.lbfgs(1e-12, 50), oracles.gd(step=0.2, iterations=400)]
    ours, theirs = (simulate(algorithms.fedpd(eta=0.5, oracle=oracle), PROBLEM, rounds=5) for oracle in exact)
    np.testing.assert_allclose(ours.history["stationarity"], theirs.history["stationarity"], rtol=1e-8, atol=1e-24)
    prox = algorithms.fedprox(oracle=oracles.lbfgs(), rho=1.0)
    assert simulate(prox, PROBLEM, rounds=3).history["stationarity"][-1] < 1


def test_optax_sgd_is_gd_and_sgd() -> None:
    assert solve(oracles.optax(optax.sgd(0.125), 3)) == solve(oracles.gd(0.125, 3))
    draw = draw_these(1, 0, 1)
    assert solve(oracles.optax(optax.sgd(0.125), 3, batch=1, draw=draw)) == solve(oracles.sgd(0.125, 3, draw=draw))


def test_optax_starts_afresh_unless_its_state_is_kept() -> None:
    momentum = optax.sgd(0.125, momentum=0.5)
    afresh, kept = oracles.optax(momentum, 1), oracles.optax(momentum, 1, keep_state=True)
    first = solve(kept)
    assert first.x == solve(afresh).x == 0.5625  # 1 - 0.125 * 3.5
    assert solve(kept, first.x, memory=first.memory).x == 0.125  # 0.5625 - 0.125 (1.75 + 0.5 * 3.5)
    assert solve(afresh, first.x, memory=solve(afresh).memory).x == 0.34375  # 0.5625 - 0.125 * 1.75
    assert solve(afresh).memory is None


# --- schedules and draws --------------------------------------------------------------------------------------------

TABLE = np.array([[1.0, 2.0], [0.5, 0.0625]])


def table_step(r: Any, q: Any) -> Any:
    return jnp.asarray(TABLE)[r, q]


@pytest.mark.parametrize(
    "oracle",
    [
        oracles.gd(table_step, 2),
        oracles.gd(table_step, 2, tolerance=1e-30),
        oracles.sgd(table_step, 2, None),
        oracles.sgd(table_step, 2, None, tolerance=1e-30, check=1),
    ],
    ids=lambda oracle: oracle.description,
)
def test_steps_are_functions_of_round_and_iteration(oracle: Oracle) -> None:
    # 1 - 0.5 * 3.5 = -0.75,   -0.75 + 0.0625 * 3.5
    assert solve(oracle, r=1).x == -0.53125


@pytest.mark.parametrize("make", [oracles.gd, oracles.sgd], ids=["gd", "sgd"])
def test_schedules_keep_the_precision_of_the_data(make: Callable[..., Oracle]) -> None:
    """In a float64 problem r/3 is not to be a float32, nor sqrt(r)."""
    all_samples = {} if make is oracles.gd else {"batch": None}
    third = make(step=lambda r, q: r / 3, iterations=1, **all_samples)
    root = make(step=lambda r, q: 1 / jnp.sqrt(r + 1), iterations=1, **all_samples)
    assert solve(third, r=1).x == pytest.approx(1 - 3.5 / 3, abs=1e-15)
    assert solve(root, r=1).x == pytest.approx(1 - 3.5 / np.sqrt(2), abs=1e-15)


def test_a_draw_receives_the_round_the_agent_its_size_and_the_shape() -> None:
    def draw(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
        assert shape == (1, 2)
        return jnp.stack([agent, (r + size) % 3]).reshape(shape)

    # agent 1 of size 3 at r = 2: samples 1 and 2, as in the batch by hand
    assert solve(oracles.sgd(0.125, 1, batch=2, draw=draw), agent=1, r=2).x == 0.8125


# --- when they stop -------------------------------------------------------------------------------------------------

# ||grad L_0|| from x = 1 with step 0.125 halves in every step: 3.5, 1.75, 0.875, 0.4375, ...


@pytest.mark.parametrize(
    ("tolerance", "iterations", "start", "updates", "end"),
    [
        (1.0, 50, 1.0, 2, 0.34375),
        (0.875**2, 50, 1.0, 2, 0.34375),  # at the tolerance is small enough
        (0.875**2 - 1e-12, 50, 1.0, 3, 0.234375),
        (1e-30, 3, 1.0, 3, 0.234375),  # the cap
        (1e-30, 3, 0.125, 0, 0.125),  # already there
    ],
)
def test_gd_stops_at_the_first_point_that_is_good_enough(
    tolerance: float, iterations: int, start: float, updates: int, end: float
) -> None:
    solved = solve(oracles.gd(0.125, iterations, tolerance=tolerance), start)
    assert solved == Solved(end, None, updates, (updates + 1) * 2)  # the first look costs a gradient too


@pytest.mark.parametrize(
    ("check", "tolerance", "updates", "looks"),
    [(1, 1.0, 2, 3), (2, 1.0, 2, 2), (3, 1.0, 3, 2), (None, 1.0, 6, 2), (2, 1e-30, 6, 4), (2, 20.0, 0, 1)],
)
def test_stochastic_oracles_stop_where_they_look(check: int | None, tolerance: float, updates: int, looks: int) -> None:
    stop: dict[str, Any] = {"tolerance": tolerance, "check": check}
    end, samples = solve(oracles.gd(0.125, updates)).x if updates else 1.0, (updates + looks) * 2
    assert solve(oracles.sgd(0.125, 6, None, **stop)) == Solved(end, None, updates, samples)
    assert solve(oracles.optax(optax.sgd(0.125), 6, None, **stop)) == Solved(end, None, updates, samples)


def test_vr_stops_where_it_looks() -> None:
    # gamma = 1/6 makes it x+ = x - (g + lambda + 2 (x - 1))/8, and on all samples g is exact: gd with step 0.125
    solved = solve(oracles.vr(1 / 6, 6, refresh=1, batch=None, tolerance=1.0, check=2))
    assert solved.x == pytest.approx(0.34375, rel=1e-14)
    assert (solved.updates, solved.samples) == (2, 2 + 2 * 2 * 2 + 2 * 2)  # refresh, two steps of two, two looks


def test_agents_stop_each_in_their_own_time() -> None:
    oracle = oracles.gd(step=0.125, iterations=100, tolerance=1e-3)
    run = simulate(algorithms.fedpd(eta=0.5, oracle=oracle), PROBLEM, rounds=5)
    x, dual, x0, steps = np.ones(2), np.zeros(2), np.ones(2), []
    for _ in range(5):
        done = [0, 0]
        for i, c in enumerate((1, -1)):
            while (gradient := 2 * x[i] + c + dual[i] + (x[i] - x0[i]) / 0.5) ** 2 > 1e-3:
                x[i] -= 0.125 * gradient
                done[i] += 1
        dual = dual + (x - x0) / 0.5
        x0 = np.full(2, np.mean(x + 0.5 * dual))
        steps.append(done)
    counts = np.array(steps)
    assert (counts[:, 0] != counts[:, 1]).any()
    assert run.updates.tolist() == counts.sum(0).tolist()
    assert run.history["local_updates"].tolist() == [0, *np.cumsum(counts.max(1))]
    assert run.history["samples"].tolist() == [0, *np.cumsum((counts + 1) @ [2, 3])]


# --- what they count ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oracle", "r", "updates", "samples"),
    [
        (oracles.gd(0.01, 4), 0, 4, 3 * 4),
        (oracles.gd(0.01, 4, tolerance=1e-30), 0, 4, 3 * 5),
        (oracles.sgd(0.01, 5, draw=first_sample), 0, 5, 5),
        (oracles.sgd(0.01, 5, 2, draw=first_sample), 0, 5, 2 * 5),
        (oracles.sgd(0.01, 5, None), 0, 5, 3 * 5),
        (oracles.sgd(0.01, 6, 2, tolerance=1e-30, check=3, draw=first_sample), 0, 6, 2 * 6 + 3 * 3),
        (oracles.vr(0.5, 4, 2, 2, draw=first_sample), 0, 4, 3 + 2 * 2 * 4),
        (oracles.vr(0.5, 4, 2, 2, draw=first_sample), 1, 4, 3 + 2 * 2 * 4),
        (oracles.vr(0.5, 4, 2, 2, draw=first_sample), 2, 4, 3 + 2 * 2 * 4),
        (oracles.vr(0.5, 4, 2, None), 1, 4, 3 + 2 * 3 * 4),
        (oracles.vr(0.5, 4, 2, 1, tolerance=1e-30, check=2, draw=first_sample), 0, 4, 3 + 2 * 4 + 3 * 3),
        (oracles.optax(optax.adam(0.01), 3, 2, draw=first_sample), 0, 3, 2 * 3),
        (oracles.optax(optax.adam(0.01), 3), 0, 3, 3 * 3),
    ],
    ids=lambda value: value.description if isinstance(value, Oracle) else None,
)
def test_work_is_counted_exactly(oracle: Oracle, r: int, updates: int, samples: int) -> None:
    """In the first round of agent 1, which has three samples."""
    solved = solve(oracle, agent=1, r=r)
    assert (solved.updates, solved.samples) == (updates, samples)


@pytest.mark.parametrize("first", [0, 1])
def test_vr_pays_for_its_first_gradient_once(first: int) -> None:
    oracle = oracles.vr(0.5, 4, 4, 2, draw=first_sample)
    memory = solve(oracle, agent=1, r=first).memory
    assert solve(oracle, agent=1, r=first + 1, memory=memory).samples == 2 * 2 * 4


# --- what they refuse: the value, the rule, the remedy --------------------------------------------------------------

WORD: Any = "0.1"
ADAM: Any = "adam"
FRACTION: Any = 2.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: oracles.gd(-1.0, 2), ["step = -1.0", "positive", "1/(L + 1/eta)"]),
        (lambda: oracles.gd(float("nan"), 2), ["step = nan", "not NaN", "1/(L + 1/eta)"]),
        (lambda: oracles.gd(WORD, 2), ["step = '0.1'", "number, not str", "1/(L + 1/eta)"]),
        (lambda: oracles.gd(0.1, 0), ["iterations = 0", "at least 1", "number of local steps"]),
        (lambda: oracles.gd(0.1, FRACTION), ["iterations = 2.5", "integer", "number of local steps"]),
        (lambda: oracles.gd(0.1, 2, tolerance=0.0), ["tolerance = 0.0", "positive", "eps_1"]),
        (lambda: oracles.sgd(0.0, 2), ["step = 0.0", "positive", "1/(L + 1/eta)"]),
        (lambda: oracles.sgd(0.1, 2, 0), ["batch = 0", "at least 1", "None for all"]),
        (lambda: oracles.sgd(0.1, 5, tolerance=1.0, check=2), ["check = 2", "divide iterations = 5", "divisor"]),
        (lambda: oracles.vr(0.0, 2, 5), ["gamma = 0.0", "positive", "gamma = eta"]),
        (lambda: oracles.vr(0.1, 2, 0), ["refresh = 0", "at least 1", "two full gradients"]),
        (lambda: oracles.optax(ADAM, 2), ["optimizer = 'adam'", "optax optimiser", "optax.adam(1e-2)"]),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Oracle], words: list[str]) -> None:
    with pytest.raises(FedpdError, match=".*".join(map(re.escape, words))):
        make()


def test_infinite_gamma_needs_a_quadratic_term() -> None:
    algorithm = algorithms.fedavg(oracle=oracles.vr(gamma=np.inf, iterations=2, refresh=1))
    with pytest.raises(FedpdError, match=r"gamma = inf: needs a method with a quadratic term\. Give a finite gamma"):
        simulate(algorithm, PROBLEM, rounds=1)


# --- momentum, weight decay and clipping ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("clip", [None, 0.7], ids=["", "clip"])
def test_the_steps_are_those_of_torch(settings: dict[str, Any], clip: float | None) -> None:
    """On L_1, with the samples 0, 2, 1, 1 and a step size per step; the buffer starts again in the second round."""
    torch = pytest.importorskip("torch")
    order, lengths = [0, 2, 1, 1], [0.5, 0.25, 0.125, 0.25]
    oracle = oracles.sgd(lambda r, q: jnp.asarray(lengths)[q], 4, draw=draw_these(*order), clip=clip, **settings)
    found = 1.0
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    for r in range(2):
        found = solve(oracle, found, agent=1, r=r).x
        stepper = torch.optim.SGD([x], lr=1.0, **settings)
        for sample, length in zip(order, lengths, strict=True):
            w, a = (float(SAMPLES[1][name][sample]) for name in "wa")
            stepper.zero_grad()
            (w * (x - a) ** 2 / 2 + 0.5 * (x - 1) + (x - 1) ** 2 / (2 * 0.5)).sum().backward()  # L_1 of the sample
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([x], clip)
            stepper.param_groups[0]["lr"] = length
            stepper.step()
        assert found == pytest.approx(x.item(), rel=1e-14)


def test_a_clip_that_is_never_reached_changes_nothing() -> None:
    plain, clipped = oracles.sgd(0.125, 3, None), oracles.sgd(0.125, 3, None, clip=1e9)
    assert solve(clipped).x == pytest.approx(solve(plain).x, rel=1e-14)
    assert (solve(clipped).updates, solve(clipped).samples) == (3, 6)


def test_momentum_stops_where_it_looks() -> None:
    solved = solve(oracles.sgd(0.125, 6, None, momentum=0.5, tolerance=20.0, check=2))
    assert (solved.x, solved.updates, solved.samples) == (1.0, 0, 2)


def test_weight_decay_moves_the_solution_of_fedpd_to_that_of_the_penalised_problem() -> None:
    """A weight decay of 1 is a penalty ||x||^2/2 in every f_i."""
    decayed = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(0.2, 40, None, weight_decay=1.0))
    penalised = problems.from_losses(losses, SAMPLES, np.array([1.0]), penalty=lambda x: x @ x / 2)
    plain = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(0.2, 40, None))
    ours, theirs = simulate(decayed, PROBLEM, rounds=5), simulate(plain, penalised, rounds=5)
    np.testing.assert_allclose(ours.model, theirs.model, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"momentum = 1\.0: must be below 1\. Give the factor on the old buffer"),
        ({"momentum": -0.1}, r"momentum = -0\.1: must be finite and at least 0"),
        ({"nesterov": True}, r"nesterov = True: needs a momentum\. Give e\.g\. momentum=0\.9"),
        ({"weight_decay": -1.0}, r"weight_decay = -1\.0: must be finite and at least 0"),
        ({"clip": 0.0}, r"clip = 0\.0: must be positive and finite\. Give the largest norm"),
    ],
)
def test_wrong_momenta_and_clips_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        oracles.sgd(0.1, 3, **settings)


def test_an_automatic_eta_is_for_plain_steps() -> None:
    with pytest.raises(FedpdError, match=r"eta = 'auto': .* sgd\(.*momentum=0\.9\) has no such step"):
        algorithms.fedpd(eta="auto", oracle=oracles.sgd(0.1, 3, momentum=0.9))


def is_a(path: str) -> bool:
    return path == "a"


def test_phases_minimise_over_one_part_after_the_other() -> None:
    """Of f = (a + b - 1)^2 / 2 with lambda = (.5, .25), x_0 = 0, eta = 1: exact steps on a, then on b at the new a."""
    oracle = oracles.phases(first=oracles.gd(0.5, 1), then=oracles.sgd(step=0.5, iterations=1, batch=1), where=is_a)
    with scope(True):
        plain = LocalObjective.without_samples(Vector(jnp.zeros(1)))
        f = plain._replace(losses=lambda x, rows: (x["a"] + x["b"] - rows) ** 2 / 2, data=jnp.ones(1))
        x0 = Vector({"a": jnp.zeros(()), "b": jnp.zeros(())})
        lagrangian = augmented_lagrangian(f, x0, Vector({"a": jnp.array(0.5), "b": jnp.array(0.25)}), 1.0)
        x, _, work = oracle.solve(lagrangian, x0, oracle.init(f, x0), jnp.int32(0), jax.random.key(0))
    assert (float(x.tree["a"]), float(x.tree["b"])) == (0.25, 0.25)  # (1 - .5)/2, then (1 - .25 - .25)/2
    assert (int(work.updates), int(work.samples)) == (2, 2)


def test_phases_of_a_module_with_random_layers_draw_apart() -> None:
    drawn: list[Any] = []

    def noisy(x: Any, rows: Any, key: Any) -> Any:
        drawn.append(jax.random.key_data(key).tolist())
        return x["a"] * x["b"] * rows

    oracle = oracles.phases(first=oracles.gd(0.5, 1), then=oracles.gd(0.5, 1), where=is_a)
    x = Vector({"a": jnp.ones(()), "b": jnp.ones(())})
    f = LocalObjective.without_samples(x)._replace(data=jnp.ones(1), noise=Noise(noisy, jax.random.key(1)))
    with jax.disable_jit():
        oracle.solve(Subproblem(f), x, oracle.init(f, x), jnp.int32(0), jax.random.key(0))
    assert len(drawn) == 2
    assert drawn[0] != drawn[1]


def test_phases_refuse_paths_of_no_parameter_and_oracles_that_compare_rounds() -> None:
    gd = oracles.gd(0.1, 2)
    with pytest.raises(FedpdError, match="cannot be a phase"):
        oracles.phases(first=gd, then=oracles.lbfgs(), where=is_a)
    with pytest.raises(FedpdError, match="cannot be a phase"):
        oracles.phases(first=oracles.own_loop(), then=gd, where=is_a)
    start = {"b": np.ones(()), "c": np.ones(())}
    problem = problems.from_losses(lambda x, rows: x["b"] * x["c"] * rows, [np.ones(2)], start)
    method = algorithms.fedavg(oracle=oracles.phases(first=gd, then=gd, where=is_a))
    with pytest.raises(FedpdError, match=r"False for all paths, so one phase has no parameters\. The paths are b, c"):
        simulate(method, problem, rounds=1)
