"""p_r and step(r, q) by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, schedules, simulate, transforms
from fedpd.base.precision import scope


def test_decreasing_skips_fall_linearly_to_nothing() -> None:
    p = schedules.decreasing_skips(4)
    assert [p(r) for r in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert jax.jit(p)(jnp.int32(3)) == 0.25


def test_inverse_sqrt_counts_local_steps_over_rounds() -> None:
    step = schedules.inverse_sqrt(0.04, 300)
    with scope(True):
        assert step(0, 0) == 0.04
        assert step(0, 3) == 0.02
        np.testing.assert_allclose(step(1, 0), 0.04 / 301**0.5, rtol=1e-15)
        np.testing.assert_allclose(jax.jit(step)(jnp.int32(2), jnp.int32(299)), 0.04 / 30, rtol=1e-15)
    assert jax.jit(step)(jnp.int32(2), jnp.int32(299)).dtype == np.float32


def test_every_communicates_at_fixed_times() -> None:
    p = schedules.every(3)
    assert [float(p(r)) for r in range(6)] == [1, 1, 0, 1, 1, 0]
    assert [float(schedules.every(1)(r)) for r in range(2)] == [0, 0]
    with pytest.raises(FedpdError, match="rounds_apart = 0"):
        schedules.every(0)


def test_the_steps_of_the_authors_program() -> None:
    fedpd, fedavg = schedules.program_fedpd_sgd(0.08, 600), schedules.program_fedavg_sgd(0.04, 600)
    with scope(True):
        np.testing.assert_allclose([fedpd(0, 3), fedpd(5, 0)], [0.04, 0.08 / 601**0.5], rtol=1e-15)
        np.testing.assert_allclose(
            [fedavg(0, 3), fedavg(2, 0), fedavg(2, 1)], [0.01, 0.04 / 21, 0.04 / 1202], rtol=1e-15
        )


def test_schedules_name_themselves_in_descriptions() -> None:
    oracle = oracles.gd(step=schedules.inverse_sqrt(0.04, 300), iterations=300)
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracle, p=schedules.decreasing_skips(600))
    assert "inverse_sqrt(initial=0.04, iterations=300)" in oracle.description
    assert "decreasing_skips(rounds=600)" in algorithm.description


@pytest.mark.parametrize("rounds", [0, 2.5, True])
def test_decreasing_skips_need_a_number_of_rounds(rounds: Any) -> None:
    with pytest.raises(FedpdError, match=rf"rounds = {rounds}: must be an integer of at least 1\. Give T"):
        schedules.decreasing_skips(rounds)


def test_inverse_sqrt_needs_a_step_and_a_number_of_steps() -> None:
    with pytest.raises(FedpdError, match=r"initial = 0: must be positive and finite\. Give the first step"):
        schedules.inverse_sqrt(0, 300)
    with pytest.raises(FedpdError, match=r"iterations = 0: must be an integer of at least 1\. Give Q"):
        schedules.inverse_sqrt(0.04, 0)


# --- by round -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.exponential(0.5, 0.5), {0: 0.5, 1: 0.25, 3: 0.0625}),
        (schedules.cosine(0.5, 4), {0: 0.5, 2: 0.25, 4: 0.0, 9: 0.0}),
        (schedules.cosine(0.5, 4, last=0.25), {0: 0.5, 2: 0.375, 4: 0.25, 100: 0.25}),
        (schedules.piecewise(1.0, [2, 5], [0.5, 0.25]), {0: 1.0, 1: 1.0, 2: 0.5, 4: 0.5, 5: 0.125, 99: 0.125}),
        (schedules.warmup(1.0, 4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 50: 1.0}),
        (schedules.warmup(schedules.exponential(1.0, 0.5), 2), {0: 0.5, 1: 0.5, 2: 0.25}),
        (schedules.warmup(lambda r, q: 1.0 + q, 2), {0: 0.5 + 0.5 * 7, 1: 8.0}),
    ],
    ids=lambda value: getattr(value, "description", ""),
)
def test_step_sizes_by_round(schedule: Any, expected: dict[int, float]) -> None:
    with scope(True):
        for r, step in expected.items():
            assert float(jax.jit(lambda one, r: one(r, 7))(schedule, jnp.asarray(r, int))) == pytest.approx(
                step, abs=1e-15
            )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.exponential(0.0, 0.9), r"first = 0\.0: must be positive and finite\. Give the step size of"),
        (lambda: schedules.exponential(0.1, 1.5), r"factor = 1\.5: must be at most 1\. Give the factor per round"),
        (lambda: schedules.cosine(0.1, 0), r"rounds = 0: must be an integer of at least 1"),
        (lambda: schedules.cosine(0.1, 9, last=0.2), r"first = 0\.1: must be finite and at least 0\.2"),
        (lambda: schedules.piecewise(0.1, [5, 2], [0.1, 0.1]), r"milestones = \[5, 2\]: must be rounds in ascending"),
        (lambda: schedules.piecewise(0.1, [5], [0.1, 0.1]), r"factors = \[0\.1, 0\.1\]: must have one factor per mile"),
        (lambda: schedules.piecewise(0.1, [5], [0.0]), r"factors = 0\.0: must be positive"),
        (lambda: schedules.warmup(0.0, 5), r"step = 0\.0: must be positive"),
        (lambda: schedules.warmup(0.1, 0), r"first_rounds = 0: must be an integer of at least 1"),
        (lambda: schedules.exponential("fast", 0.9), r"first = 'fast': must be a number, not str"),  # type: ignore[arg-type]
    ],
)
def test_wrong_schedules_are_refused(make: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        make()


def quadratic() -> Any:
    """f_i(x) = (x - i)^2/2 with one sample, so that a local step from x is x - step (x - i)."""
    return problems.from_losses(lambda x, a: (x - a) ** 2 / 2, [np.array([0.0]), np.array([1.0])], np.array(2.0))


FALLING = schedules.exponential(0.5, 0.5)


@pytest.mark.parametrize(
    "method",
    [
        algorithms.fedavg(oracle=oracles.gd(FALLING, 1)),
        algorithms.fedavg(oracle=oracles.sgd(FALLING, 1)),
        algorithms.fedavg(oracle=oracles.optax(oracles.optimizer("sgd", learning_rate=FALLING), 1)),
        algorithms.fedavg(oracle=oracles.optax(oracles.optimizer("sgd", learning_rate=FALLING), 1, keep_state=True)),
        algorithms.local_gd(step=FALLING, iterations=1),
        algorithms.ri_sgd(step=FALLING, iterations=1),
        algorithms.fedlin(step=FALLING, iterations=1),
        algorithms.f_svrg(step=FALLING, iterations=1),
        algorithms.scaffold(step=FALLING, iterations=1),
        algorithms.vrl_sgd(step=FALLING, iterations=1),
        algorithms.mpr_sgd(step=FALLING, momentum=0.0, iterations=1),
        algorithms.stem(step=FALLING, a=1.0, iterations=1),
        algorithms.pr_spider(step=FALLING, refresh=1, iterations=1),
    ],
    ids=lambda method: method.description[:40],
)
def test_one_local_step_is_a_gradient_step_of_the_rounds_size(method: Any) -> None:
    """With equal Hessians and one local step, all of these are gradient descent on f."""
    x = 2.0
    for step in (0.5, 0.25, 0.125):
        x = x - step * (x - 0.5)
    run = simulate(method, quadratic(), rounds=3)
    assert float(run.model) == pytest.approx(x, abs=1e-14)


def test_an_optimiser_of_optax_gets_the_round_and_the_local_step() -> None:
    table = np.array([[0.5, 0.25], [0.125, 0.0625]])

    class Own(schedules.Value):
        def __call__(self, r: Any, q: Any) -> Any:
            return jnp.asarray(table)[r, q]

    for keep_state in (False, True):
        oracle = oracles.optax(oracles.optimizer("sgd", learning_rate=Own()), 2, keep_state=keep_state)
        run = simulate(algorithms.fedavg(oracle=oracle), quadratic(), rounds=2)
        x = 2.0
        for steps in table:
            x = x - (1 - np.prod(1 - steps)) * (x - 0.5)
        assert float(run.model) == pytest.approx(x, abs=1e-14)


def test_a_servers_optimiser_has_no_local_steps() -> None:
    with pytest.raises(FedpdError, match=r"optimizer = sgd\(learning_rate=exponential\(.*the server's step has none"):
        transforms.server_optimizer(oracles.optimizer("sgd", learning_rate=FALLING))
