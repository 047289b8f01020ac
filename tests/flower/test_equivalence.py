"""A federation on Flower is a simulation: the same model, the same books, for every method."""

import jax
import numpy as np
import pytest

from fedpd import simulate
from fedpd.history import COLUMNS
from tests.algorithms.test_conformance import ROWS
from tests.flower.federations import run, whole

ROUNDS = 9
METHODS = [name for name in ROWS if not name.startswith("coop_sgd")]  # every agent has its own model there


@pytest.mark.parametrize("name", METHODS)
def test_deployment_equals_simulation(name: str) -> None:
    make = ROWS[name].make
    there, here = run(make, ROUNDS, seed=3), simulate(make(), whole(), rounds=ROUNDS, seed=3)
    rows = here.history["communicated"].copy()
    rows[0] = True
    assert rows.sum() > 2
    for column in COLUMNS:
        np.testing.assert_allclose(
            there.history[column], here.history[column][rows], rtol=1e-9, atol=1e-13, err_msg=column
        )
    if rows[-1]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), there.model, here.model)
