"""FedPD-M: its small decisions by hand, what it reduces to, and how many communications it takes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import Algorithm, FedpdError, Oracle, Problem, algorithms, data, oracles, problems, simulate
from fedpd.algorithms._memory import FedPDM, descend, no_descent, notice_stall
from fedpd.algorithms._memory_parts import Rules, balanced, mixing_weights, server_step
from fedpd.base.precision import scope
from fedpd.suite.problems import make

AUTO = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=20)
EXACT = oracles.lbfgs(1e-14, 200)
PLAIN = Rules(longest=1.0, bend=0.0)  # s = eta, and nothing but the optimality conditions counts


def with_rules(eta: Any, oracle: Oracle, memory: int, rules: Rules) -> Algorithm:
    return FedPDM(eta=eta, oracle=oracle, memory=memory, start="local", rules=rules)


def own_quadratics(condition: float, agents: int = 20, size: int = 30) -> Problem:
    """Each agent has its own eigenvectors, and eigenvalues from 1/condition to 1."""
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(agents)]
    eigenvalues = np.logspace(-np.log10(condition), 0, size)
    hessians = np.array([(basis * eigenvalues) @ basis.T for basis in bases])
    return problems.quadratic(hessians, rng.standard_normal((agents, size)))


def communications(algorithm: Algorithm, problem: Problem, rounds: int, share: float = 1e-10) -> int:
    """Communications to a share of the start's stationarity."""
    history = simulate(algorithm, problem, rounds=rounds, progress=False).history
    (reached,) = np.nonzero(history["stationarity"] <= share * history["stationarity"][0])
    assert len(reached), f"it ends at {history['stationarity'][-1]:.1e}"
    return int(history["communications"][reached[0]])


# --- decisions by hand ----------------------------------------------------------------------------------------------


def test_weights_by_hand() -> None:
    with scope(True):
        everywhere = jnp.ones(2, bool)
        np.testing.assert_allclose(
            mixing_weights(jnp.diag(jnp.array([1.0, 3.0])), everywhere), [0.75, 0.25], rtol=1e-12
        )
        # min (c - 2(1 - c))^2 + ... : rows 1 and -2 cancel at c = 2/3
        rows = jnp.array([1.0, -2.0])
        np.testing.assert_allclose(mixing_weights(jnp.outer(rows, rows), everywhere), [2 / 3, 1 / 3], rtol=1e-10)
        same = mixing_weights(jnp.ones((2, 2)), everywhere)  # which one does not matter
        np.testing.assert_allclose(same, [0.5, 0.5])
        only = mixing_weights(jnp.diag(jnp.array([0.0, 0.0, 7.0])), jnp.array([False, False, True]))
        assert only.tolist() == [0, 0, 1]
        nothing = mixing_weights(jnp.zeros((3, 3)), jnp.array([True, True, False]))
        np.testing.assert_allclose(nothing, [0.5, 0.5, 0])


@pytest.mark.parametrize(
    ("before", "between", "after", "step"),
    [
        (4, 2, 1, 2),  # m^ = 2, m = 1: the step 1*2 changed it by 1
        (1, 0, 0, 1),  # m = 0: just right
        (1, -9, 81, 0.5),  # a change of 10 asks for 0.1; at least eta
        (1, 2, 4, 2),  # m grew along m^: twice the last one
        (1, 1 - 1e-12, 1, 500),  # hardly any change: at most 1e3 eta
    ],
)
def test_server_step_by_hand(before: float, between: float, after: float, step: float) -> None:
    with scope(True):
        one, eta, *products = (jnp.asarray(x, float) for x in (1, 0.5, before, between, after))
        assert float(server_step(one, eta, products[0], products[1], products[2], 1e3)) == step


def test_eta_by_hand() -> None:
    with scope(True):
        zero, one, three, four = (jnp.asarray(x, float) for x in (0, 1, 3, 4))
        rules = Rules(aim=0.25, change=2.0)
        assert float(balanced(three, four, one, one, rules)) == pytest.approx(3 * np.sqrt(0.5))
        assert float(balanced(three, four, zero, one, rules)) == 6
        assert float(balanced(three, zero, one, one, rules)) == 1.5
        late = jnp.asarray(1e6, float)  # changes are summable
        assert float(balanced(three, four, zero, late, rules)) == pytest.approx(3 * (1 + 100 / (1 + 1e6) ** 1.1))


def test_a_stall_is_noticed_only_where_a_function_is_not_convex() -> None:
    """The residual's square must fall to a quarter within the patience, here 2 rounds."""
    with scope(True):
        convex, not_convex = jnp.bool_(True), jnp.bool_(False)
        for is_convex, answers in ((not_convex, [0, 0, 0, 1, 0]), (convex, [0, 0, 0, 0, 0])):
            state, begun = no_descent(Vector(jnp.zeros(1)), 2), []
            for square in (8.0, 3.0, 2.1, 2.0, 0.1):  # 2.0 is not below 8/4
                state, begins = notice_stall(state, jnp.asarray(square), is_convex, 2.0)
                begun.append(int(begins))
            assert begun == answers
            assert bool(state.on) == any(answers)


def test_a_descent_by_hand() -> None:
    """f = 2 x^2: the first point is accepted, a rise shortens the step, and one secant pair gives Newton's step."""
    with scope(True):
        search, step, near = no_descent(Vector(jnp.ones(1)), 3).search, jnp.asarray(1.0), jnp.asarray(0.0)
        points = []
        for x, apart in ((1.0, near), (-3.0, near), (0.5, near), (0.0, near + 1)):
            at, dual = Vector(jnp.array([x])), Vector(jnp.array([-4 * x]))
            search, accepted = descend(search, at, jnp.asarray(2 * x**2), dual, apart, step)
            points.append((float(search.trial.point.tree[0]), bool(accepted)))
    assert points[:3] == [(-3, True), (0, False), (0, True)]  # 1 - 4; the lowest point of the parabola; 0.5 - 0.5
    assert points[3] == (pytest.approx(0.45), False)  # agents were not near: a tenth of the step


# --- reductions -----------------------------------------------------------------------------------------------------


def test_without_its_rules_it_is_algorithm_2() -> None:
    """Nothing mixed, s = eta, duals that begin at 0: Algorithm 2, one round later."""
    problem, oracle = problems.random_quadratic(agents=4, dimension=3), oracles.gd(step=0.2, iterations=3)
    paper = simulate(algorithms.fedpd(eta=0.5, oracle=oracle), problem, rounds=12)
    for memory in (0, 3):
        rules = Rules(longest=1.0, mixes=0.0, informed=0.0)
        ours = simulate(with_rules(0.5, oracle, memory, rules), problem, rounds=13)
        np.testing.assert_allclose(
            ours.history["stationarity"][1:], paper.history["stationarity"], rtol=1e-9, atol=1e-28
        )
        np.testing.assert_allclose(ours.model, paper.model, atol=1e-13)


def test_a_fixed_eta_without_memory_is_the_papers_method() -> None:
    settings: dict[str, Any] = {"eta": 0.5, "oracle": oracles.gd(step=0.2, iterations=3)}
    problem = problems.random_quadratic(agents=4, dimension=3)
    one, other = (simulate(algorithms.fedpd(**settings | more), problem, rounds=5) for more in ({}, {"memory": 0}))
    assert np.array_equal(one.model, other.model)
    assert one.agents._fields == ("x", "x0", "dual", "memory")


def test_on_quadratics_it_is_gmres() -> None:
    """With exact solves and all rows, mixing attains the least residual in the affine hull of the plain iterates.

    The plain iterates u_k span the Krylov space of the fixed-point map, so this is the residual of GMRES.
    """
    problem, eta = own_quadratics(20, agents=3, size=4), 0.7
    ours, paper = (with_rules(eta, EXACT, 9, PLAIN._replace(mixes=mixes)) for mixes in (1.0, 0.0))

    def residual_rows(rounds: int, algorithm: Algorithm) -> tuple[np.ndarray, np.ndarray]:
        agents = simulate(algorithm, problem, rounds=rounds, progress=False).agents
        return residual(agents.x.tree, agents.dual.tree), np.array(
            [residual(agents.xs.tree[:, k], agents.duals.tree[:, k]) for k in range(rounds)]
        )

    def residual(x: np.ndarray, dual: np.ndarray) -> np.ndarray:
        return np.concatenate([((x - x.mean(0)) / eta / np.sqrt(len(x))).ravel(), dual.mean(0)])

    for rounds in (2, 4, 6):
        mixed, _ = residual_rows(rounds, ours)
        _, plain = residual_rows(rounds, paper)
        steps = (plain[:-1] - plain[-1]).T
        weights, *_ = np.linalg.lstsq(steps, -plain[-1], rcond=None)
        least = np.linalg.norm(plain[-1] + steps @ weights)
        assert np.linalg.norm(mixed) == pytest.approx(least, rel=1e-3)
        assert np.linalg.norm(mixed) < 0.9 * np.linalg.norm(plain[-1])


# --- communications -------------------------------------------------------------------------------------------------


def test_quadratics_with_nothing_given() -> None:
    """As many communications as the NumPy prototype took, 8, 11 and 14, or fewer; Algorithm 2 takes hundreds."""
    for condition, most in ((10, 8), (100, 11), (1e4, 14)):
        assert communications(AUTO, own_quadratics(condition), 16) <= most


@pytest.mark.slow
def test_eta_finds_itself_without_memory() -> None:
    algorithm = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs())
    assert communications(algorithm, own_quadratics(100), 40) <= 20


def test_a_memory_with_gradient_descent_saves_communications() -> None:
    problem, oracle = own_quadratics(100), oracles.gd(step=0.5, iterations=20)
    plain, mixed = (algorithms.fedpd(eta=1.0, oracle=oracle, memory=memory) for memory in (0, 10))
    assert communications(mixed, problem, 40) < communications(plain, problem, 200) / 3


@pytest.mark.slow
def test_single_precision() -> None:
    features, labels = data.strongly_noniid(10, 50, 5)
    problem = problems.penalized_logistic(features.astype(np.float32), labels.astype(np.float32))
    assert not problem.double
    algorithm = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=10)
    history = simulate(algorithm, problem, rounds=40, progress=False).history
    assert history["stationarity"][8] < 1e-10 < history["stationarity"][0]
    assert history["stationarity"][8:].max() < 1e-10  # rounding does not drive eta away


@pytest.mark.slow
def test_agents_that_agree_and_a_start_that_is_the_answer() -> None:
    """The differences between agents, or the gradient, are 0: nothing divides by them."""
    hessians = np.repeat(np.diag([1.0, 100.0])[None], 3, 0)
    alike, solved = problems.quadratic(hessians, np.ones((3, 2))), problems.quadratic(hessians, np.zeros((3, 2)))
    assert communications(AUTO, alike, 30) <= 10
    assert np.array_equal(simulate(AUTO, solved, rounds=30, progress=False).model, np.zeros(2))


def test_it_descends_where_mixing_stalls() -> None:
    """With a patience of 2 rounds the server takes over: the answer is a minimum, and f never rises by much."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 5))

    def losses(x: Any, part: Any) -> Any:
        return jnp.sum((part @ x[:10].reshape(5, 2) @ x[10:].reshape(2, 5) - part) ** 2, axis=1) / 2 + 0.05 * (x @ x)

    problem = problems.from_losses(losses, np.split(rows[np.argsort(rows[:, 0])], 4), 0.1 * rng.standard_normal(20))
    algorithm = with_rules("auto", oracles.lbfgs(), 10, Rules(patience=2.0))
    run = simulate(algorithm, problem, rounds=120, progress=False)
    assert bool(run.server.own.on)
    assert run.history["stationarity"][-1] < 1e-10 * run.history["stationarity"][0]
    assert run.history["loss"][-1] < 0.9 * run.history["loss"][0]


@pytest.mark.slow
def test_when_the_budget_is_spent_it_is_algorithm_2() -> None:
    """Without a budget only the first step goes beyond it: its length is known when it has been made."""
    problem = own_quadratics(20, agents=3, size=4)
    algorithm = with_rules(0.5, EXACT, 5, Rules(budget=0.0, longest=1.0))
    plain = with_rules(0.5, EXACT, 5, Rules(mixes=0.0, longest=1.0))
    late, never = (simulate(one, problem, rounds=9, progress=False) for one in (algorithm, plain))
    assert float(late.server.spent) > 0 == float(never.server.spent)
    c = late.agents.x.tree - late.agents.xs.tree[:, 8 % 6]  # the newest row alone
    np.testing.assert_allclose(c, 0, atol=1e-12)


# --- what it refuses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"oracle": oracles.sgd(0.1, 5, batch=2)}, "needs full gradients"),
        ({"oracle": oracles.vr(0.1, 5, 5)}, "needs full gradients"),
        ({"eta": 1.0, "oracle": oracles.vr(0.1, 5, 5)}, "needs full gradients"),
        ({"p": 0.5}, "does not go with p = 0.5"),
        ({"p": "auto"}, "does not go with p = 'auto'"),
        ({"drift": "corrected"}, "does not go with drift"),
        ({"x0_rule": "matlab"}, "does not go with x0_rule"),
        ({"absent": "naive"}, "does not go with absent"),
        ({"memory": 2.5}, "must be an integer"),
        ({"eta": "automatic"}, "must be a number"),
    ],
)
def test_what_does_not_go_with_a_memory(more: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"eta": "auto", "oracle": oracles.lbfgs(), "memory": 5}
    with pytest.raises(FedpdError, match=words):
        algorithms.fedpd(**usual | more)


def test_an_agent_that_lost_its_rows_is_refused() -> None:
    """It could go on with another dual, but then the server's mean dual would be wrong for good."""
    assert AUTO.rebuild is not None
    with pytest.raises(FedpdError, match="this agent has lost its own"):
        AUTO.rebuild(None, None)


@pytest.mark.slow
def test_many_seeds_end_on_two_devices() -> None:
    """A batch of LAPACK calls at the server once waited for ever here."""
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=100, samples=10, dimension=5))
    method = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=20)
    found = simulate(method, problem, rounds=2, seed=list(range(40)), devices=2)
    assert len(found.runs) == 40


@pytest.mark.slow
def test_without_mixing_a_steep_agent_does_not_make_it_diverge() -> None:
    problem = make("quadratic-one-steep")
    run = simulate(
        algorithms.fedpd(eta="auto", oracle=oracles.lbfgs()), problem, rounds=150, until={"stationarity": 1e-6}
    )
    assert run.diverged is None
    assert run.history["stationarity"][-1] <= 1e-6
