"""FedPD: rounds by hand, the shared random draw, invariants of Algorithm 2, costs, refusals."""

import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as draw_array

from fedpd import (
    Algorithm,
    FedpdError,
    Problem,
    TheoryWarning,
    algorithms,
    clock,
    oracles,
    problems,
    simulate,
    sweep,
)
from fedpd.algorithms.fedpd import FedPD
from fedpd.core import Iterate

# --- by hand --------------------------------------------------------------------------------------------------------

# f_1 = x^2/2 - x and f_2 = x^2 + 3x, of gradients x - 1 and 2x + 3, from x^0 = 0.
HAND = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]))
ONE_STEP = oracles.gd(step=0.125, iterations=1)


def by_hand(algorithm: Algorithm, rounds: int) -> dict[str, list[float]]:
    """The two agents' x_i, x_{0,i} and lambda_i. All numbers here are exact in binary, so they are compared exactly."""
    agents = simulate(algorithm, HAND, rounds=rounds).agents
    return {name: getattr(agents, name).tree.ravel().tolist() for name in ("x", "x0", "dual")}


def test_two_rounds_by_hand() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=ONE_STEP)
    # x_i = 0 - 0.125 grad f_i(0)                   0.125    -0.375
    # lambda_i = 0 + (x_i - 0)/0.5                  0.25     -0.75
    # x_{0,i}^+ = x_i + 0.5 lambda_i                0.25     -0.75    of mean -0.25
    assert by_hand(algorithm, 1) == {"x": [0.125, -0.375], "x0": [-0.25] * 2, "dual": [0.25, -0.75]}
    # grad L_i = grad f_i + lambda_i + (x_i - x_0)/0.5
    #          = -0.875 + 0.25 + 0.75               0.125
    #          = 2.25 - 0.75 - 0.25                          1.25
    # x_i - 0.125 grad L_i                          0.109375 -0.53125
    # lambda_i + (x_i + 0.25)/0.5                   0.96875  -1.3125
    # x_i + 0.5 lambda_i                            0.59375  -1.1875  of mean -0.296875
    wanted = {"x": [0.109375, -0.53125], "x0": [-0.296875] * 2, "dual": [0.96875, -1.3125]}
    assert by_hand(algorithm, 2) == wanted


def test_two_rounds_of_the_matlab_rule_by_hand() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=ONE_STEP, x0_rule="matlab")
    # x_{0,i}^+ = x_{0,i} + 0.5 lambda_i            0.125    -0.375   of mean -0.125: half the paper's
    assert by_hand(algorithm, 1) == {"x": [0.125, -0.375], "x0": [-0.125] * 2, "dual": [0.25, -0.75]}
    # grad L_i at x_0 = -0.125                      -0.125   1.0
    # x_i                                           0.140625 -0.5
    # lambda_i + (x_i + 0.125)/0.5                  0.78125  -1.5
    # -0.125 + 0.5 lambda_i                         0.265625 -0.875   of mean -0.3046875
    assert by_hand(algorithm, 2) == {"x": [0.140625, -0.5], "x0": [-0.3046875] * 2, "dual": [0.78125, -1.5]}


def test_after_a_skipped_round_agents_go_on_from_their_own_copy() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=ONE_STEP, p=lambda r: jnp.where(r == 0, 1.0, 0.0))
    assert by_hand(algorithm, 1) == {"x": [0.125, -0.375], "x0": [0.25, -0.75], "dual": [0.25, -0.75]}
    # grad L_i at x_{0,i} = 0.25, -0.75             -0.875   2.25
    # x_i                                           0.234375 -0.65625
    # lambda_i + (x_i - x_{0,i})/0.5                0.21875  -0.5625
    # x_i + 0.5 lambda_i                            0.34375  -0.9375  of mean -0.296875
    wanted = {"x": [0.234375, -0.65625], "x0": [-0.296875] * 2, "dual": [0.21875, -0.5625]}
    assert by_hand(algorithm, 2) == wanted
    run = simulate(algorithm, HAND, rounds=2)
    assert run.model.tolist() == [-0.296875]
    assert run.history["consensus"].tolist() == [0.0, 1.0, 0.0]
    assert run.history["communicated"].tolist() == [False, False, True]
    assert run.history["communications"].tolist() == [0, 0, 1]


# --- the shared coin ------------------------------------------------------------------------------------------------

UNLIKE = problems.random_quadratic(agents=4, dimension=3, seed=2)


SKIPPING = algorithms.fedpd(eta=0.3, oracle=oracles.gd(0.2, 2), p=0.25)


def test_all_agents_skip_or_none() -> None:
    history = simulate(SKIPPING, UNLIKE, rounds=1000, seed=3).history
    communicated, gap = history["communicated"][1:], history["consensus"][1:]
    assert (gap[communicated] == 0).all()
    assert (gap[~communicated] > 0).all()
    assert abs(np.mean(~communicated) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 1000)


def test_coins_depend_on_the_seed_and_on_nothing_else() -> None:
    def coins(algorithm: Algorithm, seed: int) -> list[bool]:
        return simulate(algorithm, UNLIKE, rounds=300, seed=seed).history["communicated"][1:].tolist()

    other = algorithms.fedpd(eta=0.2, oracle=oracles.vr(0.3, 3, 5, None), p=0.25, x0_rule="matlab")
    assert coins(other, 0) == coins(SKIPPING, 0)
    assert coins(SKIPPING, 1) != coins(SKIPPING, 0)


# --- invariants -----------------------------------------------------------------------------------------------------


def entries(*shape: int) -> st.SearchStrategy[np.ndarray]:
    return draw_array(np.float64, shape, elements=st.floats(-2, 2))


ETAS = {eta: algorithms.fedpd(eta=eta, oracle=oracles.gd(step=0.2, iterations=3)) for eta in (0.1, 1.5)}


@settings(deadline=None, max_examples=20, derandomize=True)
@given(entries(3, 2, 2), entries(3, 2), entries(2), st.sampled_from(list(ETAS)))
def test_invariants(halves: np.ndarray, linear: np.ndarray, start: np.ndarray, eta: float) -> None:
    """After any round of Algorithm 2 on any quadratics, convex or not."""
    hessians = halves + halves.swapaxes(1, 2)
    problem = problems.quadratic(hessians, linear, start=start)
    old, new = (simulate(ETAS[eta], problem, rounds=rounds).agents for rounds in (2, 3))
    old_x0, old_dual, x, x0, dual = (v.tree for v in (old.x0, old.dual, new.x, new.x0, new.dual))
    tolerance = 1e-12 * (1 + max(np.abs(v).max() for v in (old_x0, old_dual, x, x0, dual)) / eta)

    def gradients(x: np.ndarray) -> np.ndarray:
        return np.einsum("nij,nj->ni", hessians, x) - linear

    # The oracle's steps are on L_i(., x_0^r, lambda_i^r), from x_i^r
    steps = old.x.tree
    for _ in range(3):
        steps = steps - 0.2 * (gradients(steps) + old_dual + (steps - old_x0) / eta)
    np.testing.assert_allclose(x, steps, rtol=0, atol=tolerance)
    # lambda_i^{r+1} = -grad f_i(x_i^{r+1}) + e_i, with e_i = grad_x L_i(x_i^{r+1}, x_0^r, lambda_i^r)
    errors = gradients(x) + old_dual + (x - old_x0) / eta
    np.testing.assert_allclose(dual, errors - gradients(x), rtol=0, atol=tolerance)
    # x_0^{r+1} minimises sum_i L_i(x_i^{r+1}, ., lambda_i^{r+1}), and everyone has it
    np.testing.assert_allclose((dual + (x - x0) / eta).sum(0), 0, rtol=0, atol=tolerance)
    assert (x0 == x0[0]).all()


def test_duals_are_minus_the_gradients_up_to_the_oracle_s_error() -> None:
    run = simulate(algorithms.fedpd(eta=0.25, oracle=oracles.gd(0.2, 500, tolerance=1e-12)), UNLIKE, rounds=30)
    hessians, linear = UNLIKE.data["hessian"][:, 0], UNLIKE.data["linear"][:, 0]
    errors = np.einsum("nij,nj->ni", hessians, run.agents.x.tree) - linear + run.agents.dual.tree
    assert (np.sum(errors**2, axis=1) <= 1e-12).all()  # eq. stopping: ||e_i||^2 <= eps_1
    assert np.abs(run.agents.dual.tree).min() > 1e-3  # which says something: the duals are not small


def test_it_stays_bounded_where_fedavg_diverges() -> None:
    algorithm = algorithms.fedpd(eta=0.25, oracle=oracles.gd(step=0.2, iterations=8))
    run = simulate(algorithm, problems.opposing_quadratics(start=1.0), rounds=500)
    x0, x = run.agents.x0.tree, run.agents.x.tree
    assert np.abs(x0).max() < 3
    np.testing.assert_allclose(x, x0, rtol=0, atol=1e-9)  # consensus: f = 0, so every point is stationary


# --- costs ----------------------------------------------------------------------------------------------------------


def pytree_problem() -> Problem:
    rng = np.random.default_rng(0)
    data = {"a": rng.standard_normal((4, 5, 3)).astype(np.float32), "y": np.ones((4, 5, 2), np.float32)}
    start = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    return problems.from_losses(lambda x, s: jnp.sum((s["a"] @ x["w"] + x["b"] - s["y"]) ** 2, 1), data, start)


SINGLE = problems.quadratic(UNLIKE.data["hessian"][:, 0].astype(np.float32), np.ones((4, 3), np.float32))


@pytest.mark.parametrize(
    ("problem", "model_bytes"),
    [(UNLIKE, 3 * 8), (SINGLE, 3 * 4), (pytree_problem(), (6 + 2) * 4)],
    ids=["float64", "float32", "pytree"],
)
def test_bytes_are_what_is_sent(problem: Problem, model_bytes: int) -> None:
    run = simulate(SKIPPING, problem, rounds=20)
    history, communications = run.history, np.cumsum(run.history["communicated"])
    assert 0 < communications[-1] < 20
    assert np.array_equal(history["communications"], communications)
    assert np.array_equal(history["bytes_up"], communications * 4 * model_bytes)
    assert np.array_equal(history["bytes_down"], communications * 4 * model_bytes)
    kept = jax.tree.map(
        lambda leaf, start: (leaf.shape, leaf.dtype) == (start.shape, start.dtype), run.model, problem.start
    )
    assert all(jax.tree.leaves(kept))


# --- refusals: the value, the rule, the remedy ----------------------------------------------------------------------

ETA, P = "Theorem 1 needs eta", "p is the probability of SKIPPING"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eta": -1}, ["eta = -1", "positive", ETA]),
        ({"eta": 0}, ["eta = 0", "positive", ETA]),
        ({"eta": float("nan")}, ["eta = nan", "not NaN", ETA]),
        ({"eta": float("inf")}, ["eta = inf", "finite", ETA]),
        ({"eta": "0.1"}, ["eta = '0.1'", "must be a number, not str", ETA]),
        ({"eta": True}, ["eta = True", "must be a number, not bool", ETA]),
        ({"p": 1}, ["p = 1", "[0, 1)", P]),
        ({"p": -0.1}, ["p = -0.1", "[0, 1)", P]),
        ({"p": float("nan")}, ["p = nan", "not NaN", P]),
        ({"p": "half"}, ["p = 'half'", "number", P]),
        ({"x0_rule": "matlb"}, ["x0_rule = 'matlb'", "no such choice", "Did you mean 'matlab'?"]),
        ({"x0_rule": "new"}, ["x0_rule = 'new'", "no such choice", "Choose from: paper, matlab"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FedpdError, match=".*".join(map(re.escape, words))):
        algorithms.fedpd(**{"eta": 0.1, "oracle": ONE_STEP, **settings})


def test_an_eta_beyond_the_theorem_is_said_and_not_refused() -> None:
    problem = problems.random_quadratic(3, 2, smoothness=2.0)
    bound = (5**0.5 - 1) / 8
    with pytest.warns(TheoryWarning, match=r"eta = 0\.16 is above \(sqrt\(5\)-1\)/\(4L\) = 0\.155"):
        simulate(algorithms.fedpd(eta=0.16, oracle=ONE_STEP), problem, rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(algorithms.fedpd(eta=0.99 * bound, oracle=ONE_STEP), problem, rounds=1)


def test_a_subclass_that_inherits_another_form_is_refused() -> None:
    """With absent agents, FedPD would run in place of the subclass, and nothing would say so."""

    class Slower(FedPD):
        def send(self, agent: Any) -> Any:
            return Iterate(0.5 * agent.x0)

    method = Slower(eta=0.5, oracle=ONE_STEP, p=0.0, start="local")
    whole = simulate(method, HAND, rounds=3)
    assert not np.allclose(whole.model, simulate(algorithms.fedpd(eta=0.5, oracle=ONE_STEP), HAND, rounds=3).model)
    assert sweep(method, HAND, {"eta": [0.5]}, rounds=3).runs[0][0].model == whole.model
    network = clock.network(up="1 MB/s", down="1 MB/s", compute="1 ms")
    for options in ({"cohort": 1}, {"clock": network, "buffer": 1}):
        with pytest.raises(
            FedpdError, match=r"inherits \w+\(\) of FedPD, whose form has nothing of what Slower changes"
        ):
            simulate(method, HAND, rounds=3, **options)


# --- eta with mini-batches ------------------------------------------------------------------------------------------


def test_eta_with_mini_batches_is_five_times_step_times_steps() -> None:
    oracle = oracles.sgd(step=0.1, iterations=8, batch=2)
    assert algorithms.fedpd(eta="auto", oracle=oracle).spec == algorithms.fedpd(eta=4.0, oracle=oracle).spec
    falling = oracles.sgd(step=lambda r, q: 0.2 / (1 + r), iterations=5, batch=1)
    assert algorithms.fedpd(eta="auto", oracle=falling).spec == algorithms.fedpd(eta=5.0, oracle=falling).spec


@pytest.mark.parametrize(
    "more", [{"oracle": oracles.vr(0.1, 5, 5)}, {"oracle": oracles.sgd(0.1, 5, batch=2), "memory": 3}]
)
def test_eta_with_mini_batches_needs_a_step(more: dict[str, Any]) -> None:
    with pytest.raises(FedpdError, match=r"has no such step|needs full gradients"):
        algorithms.fedpd(**{"eta": "auto"} | more)
