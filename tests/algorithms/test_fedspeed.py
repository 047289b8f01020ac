"""FedSpeed: a NumPy program after the authors' own, with drift variables of all agents at the server."""

import numpy as np
import pytest

from fedpd import algorithms

from .plain import EVERYONE, GD, SOME, agents, assert_model, descend


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    """The program keeps h_i = sum of (y_i - x) of all agents, where the method keeps g_i = -alpha h_i."""
    x, h = np.zeros(3), np.zeros((4, 3))
    for here in present:
        some = agents(here)
        ends = [descend(i, x, 0.5 * (h[i] - x), 0.5, rho=0.2) for i in some]
        for i, end in zip(some, ends, strict=True):
            h[i] += end - x
        x = np.mean(ends, axis=0) + h.mean(axis=0)
    assert_model(algorithms.fedspeed(alpha=0.5, rho=0.2, oracle=GD), present, x)
