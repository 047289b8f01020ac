"""What counts as a solved problem."""

import math

import numpy as np

from fedpd.suite.spending import relative_stationarity


def test_a_model_with_a_larger_f_than_the_start_is_no_solution() -> None:
    """A network whose weights all went to 0 has no gradient, and is worse than where it started."""
    history = {
        "round": np.arange(3),
        "communicated": np.array([False, True, True]),
        "loss": np.array([1.0, 1.1, 0.5]),
        "stationarity": np.array([4.0, 0.0, 1.0]),
    }
    assert relative_stationarity(history, 4.0).tolist() == [1.0, math.inf, 0.25]


def test_a_model_that_nobody_holds_is_no_solution() -> None:
    history = {
        "round": np.arange(2),
        "communicated": np.array([False, False]),
        "loss": np.array([1.0, 0.5]),
        "stationarity": np.array([4.0, 1.0]),
    }
    assert relative_stationarity(history, 4.0).tolist() == [1.0, math.inf]
