"""Structures: which numbers are open, and that things that differ never share one."""

from typing import Any

import jax
import numpy as np
import pytest

from fedpd import algorithms, named, oracles, schedules
from fedpd.base.structure import split
from fedpd.core import Algorithm, specified

GD = oracles.gd(step=0.1, iterations=8)


def structure(made: Any) -> Any:
    found = split(made)
    assert found is not None
    return found[0]


def test_floats_are_open_and_counts_are_not() -> None:
    found = split(algorithms.fedpd(eta=1, oracle=oracles.gd(step=np.float64(0.1), iterations=8), p=0.5))
    assert found is not None
    assert found[1] == {"eta": 1.0, "oracle.step": 0.1, "p": 0.5}
    one = algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.2, iterations=8), p=0.1)
    assert structure(one) == found[0]
    assert hash(structure(one)) == hash(found[0])
    assert structure(algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.2, iterations=9), p=0.1)) != found[0]
    assert structure(algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.2, iterations=8))) != found[0]  # p = 0: no coin


def test_it_makes_the_same_thing_again() -> None:
    step = schedules.inverse_sqrt(0.04, 8)
    algorithm = algorithms.fedavg(oracle=oracles.sgd(step=step, iterations=8, batch=2))
    found = split(algorithm)
    assert found is not None
    assert found[0](**found[1]).spec == algorithm.spec
    assert found[0](**{"oracle.step.initial": 0.5}).spec["oracle"]["step"]["initial"] == 0.5


def test_functions_that_differ_make_structures_that_differ() -> None:
    def with_step(factor: float) -> Algorithm:
        return algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=lambda r, q: factor / (1 + r), iterations=2))

    assert structure(with_step(0.1)) == structure(with_step(0.1))
    assert structure(with_step(0.1)) != structure(with_step(0.2))


def test_two_functions_of_one_name_differ() -> None:
    def with_step(factor: float) -> Algorithm:
        step = named("warm-up", lambda r, q: factor / (1 + r))
        return algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=step, iterations=2))

    assert with_step(0.1).spec == with_step(0.2).spec
    assert structure(with_step(0.1)) != structure(with_step(0.2))


def test_what_is_changed_after_it_was_made_has_no_structure() -> None:
    algorithm = algorithms.fedpd(eta=0.1, oracle=GD)
    assert split(algorithm._replace(server=lambda x: x)) is None
    changed = GD._replace(solve=lambda *rest: GD.solve(*rest))
    assert structure(algorithms.fedpd(eta=0.1, oracle=changed)) != structure(algorithm)


def test_a_factory_of_ones_own_differs_when_what_it_captures_differs() -> None:
    factor = [1.0]

    @specified
    def mine(eta: float) -> Algorithm:
        return algorithms.fedavg(oracle=oracles.gd(step=factor[0] * eta, iterations=2))

    first = structure(mine(eta=0.1))
    assert structure(mine(eta=0.2)) == first
    factor[0] = 2.0
    assert structure(mine(eta=0.1)) != first


@pytest.mark.parametrize("array", [np.asarray, jax.numpy.asarray])
def test_arrays_are_part_of_the_structure(array: Any) -> None:
    mixing = array(np.eye(3))

    def mix(weights: Any) -> Algorithm:
        return algorithms.coop_sgd(oracle=GD, mixing=weights)

    assert structure(mix(mixing)) == structure(mix(mixing))
    assert structure(mix(mixing)) != structure(mix(np.full((3, 3), 1 / 3)))
