"""What counts as a solved problem."""

import numpy as np
import pytest

from fedpd.suite.problems import known_answers, make
from fedpd.suite.race import TARGET, Vectors, is_low, spent_until_target


@pytest.mark.slow
def test_a_saddle_point_is_no_solution() -> None:
    """A network whose weights all went to 0 has no gradient, and a large f."""
    problem = make("network-wine")
    first, least = 1.1, known_answers()["network-wine"].value
    half = (first + least) / 2
    history = {
        "round": np.arange(4),
        "communicated": np.array([False, True, True, True]),
        "communications": np.arange(4),
        "bytes_up": 8 * np.arange(4),
        "bytes_down": 8 * np.arange(4),
        "samples": problem.samples * np.arange(4),
        "loss": np.array([first, 1.0986, half, half + 1e-9]),
        "stationarity": np.array([4.0, 0.0, 4 * TARGET, 0.0]),
    }
    assert is_low(history, problem).tolist() == [False, False, True, False]
    assert spent_until_target(history, 4.0, Vectors(1 / 8, 1 / 8), problem).communications == 2
