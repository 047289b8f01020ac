"""p_r and step(r, q) by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, schedules
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
