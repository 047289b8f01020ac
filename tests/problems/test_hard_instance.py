"""The hard instance of Claim 2.1: Lemma B.1's properties as they hold, and where the printed ones do not."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, theory
from fedpd.base.precision import scope
from fedpd.experiments.experiment import build_problem
from fedpd.problems import hard_instance
from fedpd.problems.hard_instance import initial_gap, phi, psi, theta
from tests.problems import local_values

PROPERTY = settings(derandomize=True, max_examples=100, deadline=None)
FEW = settings(PROPERTY, max_examples=6)  # where every example compiles or dispatches anew
PSI_1 = 1 - math.exp(-1)
LARGE = 1e6  # the infimum is approached at infinity
positive = st.floats(1e-6, 1e6)
real = st.floats(-1e6, 1e6)
entry = st.floats(-4, 4) | st.sampled_from([0.0, 1e-3, -1e-3, 30.0, -30.0, LARGE, -LARGE])
sizes = st.sampled_from([(2, 4), (3, 6), (6, 6)])  # N, T


@st.composite
def points(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """N, and a point of R^{T+1}."""
    agents, rounds = draw(sizes)
    return agents, np.array(draw(st.lists(entry, min_size=rounds + 1, max_size=rounds + 1)))


# The formulas in NumPy, with 0-based entries and agents: g_i has the links from x[m] to x[m+1] with m mod N = i.
def np_psi(w: Any) -> Any:
    return -np.expm1(-np.square(np.clip(w, 0, 1e100)))


def np_slope(w: Any) -> Any:
    """Psi'."""
    w = np.clip(w, 0, 1e100)
    return 2 * w * np.exp(-np.square(w))


def np_phi(w: Any) -> Any:
    return 4 * np.arctan(w) + 2 * np.pi


def np_values(x: np.ndarray, agents: int) -> np.ndarray:
    """g_i(x), (N,)."""
    values = np.full(agents, -PSI_1 * np_phi(x[0]))
    for m in range(len(x) - 1):
        values[m % agents] += np_psi(-x[m]) * np_phi(-x[m + 1]) - np_psi(x[m]) * np_phi(x[m + 1])
    return values


def np_gradients(x: np.ndarray, agents: int, sign: float = -1.0) -> np.ndarray:
    """grad g_i(x), (N, T+1); `sign` is that of the second Psi Phi' term, which the paper prints both ways."""
    gradients = np.zeros((agents, len(x)))
    gradients[:, 0] -= PSI_1 * 4 / (1 + x[0] ** 2)
    for m in range(len(x) - 1):
        steep = 4 / (1 + x[m + 1] ** 2)
        gradients[m % agents, m + 1] += -np_psi(-x[m]) * steep + sign * np_psi(x[m]) * steep
        gradients[m % agents, m] -= np_slope(-x[m]) * np_phi(-x[m + 1]) + np_slope(x[m]) * np_phi(x[m + 1])
    return gradients


@functools.cache
def hessians(agents: int, rounds: int) -> Callable[[np.ndarray], np.ndarray]:
    """x -> the Hessians of all g_i, (N, T+1, T+1)."""
    links = hard_instance(agents, rounds).data["links"][:, 0]
    with scope(True):
        compiled = jax.jit(jax.vmap(jax.hessian(lambda x, mask: mask @ theta(x)), in_axes=(None, 0)))

    def at(x: np.ndarray) -> np.ndarray:
        with scope(True):
            return np.asarray(compiled(x, links))

    return at


def scalar(function: Callable[[Any], Any], w: float) -> float:
    with scope(True):
        return float(function(jnp.asarray(w)))


def test_the_functions_are_the_paper_s() -> None:
    w = np.array([-1e300, -2.0, -1e-9, 0.0, 1e-9, 0.5, 1.0, 3.0, 39.0, 41.0, 1e300])
    with scope(True):
        np.testing.assert_allclose(psi(w), np_psi(w), rtol=1e-15, atol=1e-17)
        np.testing.assert_allclose(phi(w), np_phi(w), rtol=1e-15)
        slopes = jax.vmap(jax.grad(psi))(w)
        np.testing.assert_allclose(slopes, np_slope(w), rtol=1e-14, atol=1e-15)
        assert theta(np.array([0.0, 0.0, 0.0])).tolist() == [-2 * math.pi * PSI_1, 0, 0]


@FEW
@given(w=st.floats(-1e6, 0))
def test_property_1_psi_vanishes_with_its_slope_up_to_0(w: float) -> None:
    assert scalar(psi, w) == 0
    assert scalar(jax.grad(psi), w) == 0


@FEW
@given(w=positive, v=real)
def test_property_2_bounds_of_values_slopes_and_curvatures(w: float, v: float) -> None:
    rounding = 1 + 1e-14
    assert 0 <= scalar(psi, w) <= 1  # below 1, but for rounding
    assert 0 <= scalar(jax.grad(psi), w) <= math.sqrt(2 / math.e) * rounding
    assert -4 * math.exp(-1.5) * rounding <= scalar(jax.grad(jax.grad(psi)), w) <= 2
    assert 0 < scalar(phi, v) < 4 * math.pi
    assert 0 < scalar(jax.grad(phi), v) <= 4
    assert abs(scalar(jax.grad(jax.grad(phi)), v)) <= 1.5 * math.sqrt(3) * rounding


def test_property_2_s_bounds_are_reached() -> None:
    assert scalar(jax.grad(psi), math.sqrt(0.5)) == pytest.approx(math.sqrt(2 / math.e), rel=1e-14)
    assert scalar(jax.grad(jax.grad(psi)), math.sqrt(1.5)) == pytest.approx(-4 * math.exp(-1.5), rel=1e-14)
    assert scalar(jax.grad(jax.grad(psi)), 1e-9) == pytest.approx(2, rel=1e-14)
    assert scalar(jax.grad(phi), 0.0) == 4
    assert scalar(jax.grad(jax.grad(phi)), -1 / math.sqrt(3)) == pytest.approx(1.5 * math.sqrt(3), rel=1e-14)


@PROPERTY
@given(w=st.floats(1, 1e6), v=st.floats(-1, 1, exclude_min=True, exclude_max=True))
def test_property_3_a_coordinate_that_has_grown_pushes_the_next(w: float, v: float) -> None:
    assert np_psi(w) * 4 / (1 + v**2) >= 2 * PSI_1 > 1.26  # the paper says > 1


@FEW
@given(point=points())
def test_the_agents_functions_are_the_construction_s(point: tuple[int, np.ndarray]) -> None:
    agents, y = point
    problem = hard_instance(agents, len(y) - 1, epsilon=0.04, smoothness=3.0)
    height, width = math.pi * agents**2 * 0.04 / 6, 2 * math.pi * agents * 0.2 / 3
    values, gradients = local_values(problem, width * y)
    y = width * y / width  # the same rounding
    np.testing.assert_allclose(values, height * np_values(y, agents), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gradients, height / width * np_gradients(y, agents), rtol=1e-10, atol=1e-14)


def test_the_sign_of_the_lemma_on_steps_is_a_misprint() -> None:
    """Lemma 4's proof has + before Psi(x[j-1]) Phi'(x[j]); the derivative that it cites has -, as autodiff says."""
    x = np.array([1.0, 0.0, 0.0])
    with scope(True):
        automatic = np.asarray(jax.grad(lambda x: theta(x)[0] + theta(x)[1])(x))  # g_1
    np.testing.assert_allclose(automatic, np_gradients(x, 2)[0], rtol=1e-14)
    assert automatic[1] == pytest.approx(-4 * PSI_1)
    assert np_gradients(x, 2, sign=1.0)[0, 1] == pytest.approx(4 * PSI_1)


@PROPERTY
@given(point=points())
def test_the_average_has_1_over_n_before_the_links(point: tuple[int, np.ndarray]) -> None:
    agents, x = point
    with scope(True):
        terms = np.asarray(theta(x))
    mean = np_values(x, agents).mean()
    assert mean == pytest.approx(terms[0] + terms[1:].sum() / agents, rel=1e-12)


def test_the_printed_average_is_another_function() -> None:
    x = np.ones(5)
    with scope(True):
        printed = float(theta(x).sum())
    assert np_values(x, 2).mean() > printed + 1


@PROPERTY
@given(point=points())
def test_property_4_the_values_are_above_the_infimum(point: tuple[int, np.ndarray]) -> None:
    agents, x = point
    gap = 2 * math.pi * PSI_1 + 4 * math.pi * (len(x) - 1) / agents
    drop = -2 * math.pi * PSI_1 - np_values(x, agents)  # g_i(0) - g_i(x)
    assert (drop <= gap * (1 + 1e-15)).all()
    assert drop.mean() <= gap * (1 + 1e-15)


@pytest.mark.parametrize(("agents", "rounds"), [(2, 8), (3, 3)])
def test_property_4_the_infimum_is_approached_and_f_s_is_its_multiple(agents: int, rounds: int) -> None:
    problem = hard_instance(agents, rounds, epsilon=0.01, smoothness=2.0)
    gap = initial_gap(agents, rounds, epsilon=0.01, smoothness=2.0)
    start, _ = local_values(problem, problem.start)
    far, _ = local_values(problem, np.full(rounds + 1, LARGE))
    np.testing.assert_allclose(start - far, gap, rtol=1e-5)  # every f_i's own, too
    assert (start - far < gap).all()
    assert gap == pytest.approx(math.pi**2 * agents * 0.01 * (PSI_1 * agents + 2 * rounds) / 2, rel=1e-14)
    assert gap <= math.pi**2 * (3 - 1 / math.e) * agents * 0.01 * rounds / 2 * (1 + 1e-14)  # since T >= N


def test_the_printed_property_4_fails_at_one_link_an_agent() -> None:
    x = np.full(5, LARGE)
    drop = np_values(np.zeros(5), 4) - np_values(x, 4)
    assert (drop > 5.26 * math.pi).all()  # 5 pi T/N = 5 pi is printed
    x = np.full(9, LARGE)  # with two links it holds
    assert (np_values(np.zeros(9), 4) - np_values(x, 4) < 5 * math.pi * 2).all()


@PROPERTY
@given(point=points(), tiny=st.floats(1e-6, 1e-1))
def test_property_5_every_g_i_is_8_pi_smooth(point: tuple[int, np.ndarray], tiny: float) -> None:
    agents, x = point
    x = np.where(x == 0, tiny, x)  # at 0 Psi has no second derivative, only those of its two sides
    curvatures = np.linalg.eigvalsh(hessians(agents, len(x) - 1)(x))
    assert np.abs(curvatures).max() <= 8 * math.pi * (1 + 1e-14)


def test_property_5_no_smaller_constant_will_do() -> None:
    for agents, rounds in ((2, 2), (3, 6)):
        x = np.tile([1e-7, 1e7], rounds)[: rounds + 1]  # x[m] -> 0+ and x[m+1] -> infinity, for even m
        largest = np.abs(np.linalg.eigvalsh(hessians(agents, rounds)(x))).max()
        assert 8 * math.pi * (1 - 1e-6) < largest < 8 * math.pi  # 27 pi is printed


def test_f_i_are_l_smooth_and_the_printed_ones_8_l() -> None:
    epsilon, L = 0.01, 2.0
    printed_height, printed_width = 2 * math.pi * epsilon / L, math.pi * math.sqrt(2 * epsilon) / L
    assert printed_height / printed_width**2 * 8 * math.pi == pytest.approx(8 * L, rel=1e-14)
    problem = hard_instance(3, 6, epsilon=epsilon, smoothness=L)
    assert theory.smoothness(problem) == L
    near, far = (np.array([move, 1e7, 0, 0, 0, 0, 0]) * problem.data["width"][0, 0] for move in (1e-9, 1e-4))
    difference = local_values(problem, far)[1] - local_values(problem, near)[1]
    assert np.linalg.norm(difference, axis=1).max() / np.linalg.norm(far - near) == pytest.approx(L, rel=1e-4)


def test_it_can_be_named_in_an_experiment_file() -> None:
    problem = build_problem({"name": "hard_instance", "agents": 3, "rounds": 6, "epsilon": 0.1})
    assert (problem.agents, problem.samples, problem.dimension) == (3, 3, 7)
    assert problem.answer.minimiser is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"agents": 1}, r"agents = 1: must be an integer of at least 2\. A single agent holds the whole chain"),
        ({"rounds": 0}, r"rounds = 0: must be an integer of at least 1\. Give T"),
        ({"rounds": 7}, r"rounds = 7: must be a multiple of agents = 3, .*\. Give e\.g\. 9\."),
        ({"rounds": 2}, r"rounds = 2: must be a multiple of agents = 3, .*\. Give e\.g\. 3\."),
        ({"epsilon": 0.0}, r"epsilon = 0\.0: must be positive and finite\. epsilon is the lower bound"),
        ({"smoothness": -1.0}, r"smoothness = -1\.0: must be positive and finite\. Give L, the smoothness"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], sentence: str) -> None:
    chosen = {"agents": 3, "rounds": 6} | changes
    for function in (hard_instance, initial_gap):
        with pytest.raises(FedpdError, match=sentence):
            function(**chosen)
