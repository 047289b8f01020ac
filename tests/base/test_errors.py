"""Warnings name the line of the user."""

import warnings
from pathlib import Path

from fedpd import TheoryWarning, algorithms, oracles, problems, simulate


def test_a_warning_names_the_line_outside_of_fedpd() -> None:
    problem = problems.random_quadratic(agents=2, dimension=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")  # of JAX
        simulate(algorithms.fedpd(eta=90.0, oracle=oracles.gd(0.01, 1)), problem, rounds=1, progress=False)
        algorithms.fedpd(eta=90.0, oracle=oracles.gd(0.01, 1), absent="naive")
    assert [Path(one.filename).name for one in caught] == ["test_errors.py"] * 2
    assert caught[0].category is TheoryWarning
