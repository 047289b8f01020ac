"""Shared blocks: who holds what, and that they lower FedAvg's floor."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, problems, simulate


def _losses(x: Any, rows: Any) -> Any:
    return (rows @ x - 1) ** 2


def test_agents_hold_their_own_data_and_the_next_ones() -> None:
    data = [np.full((n, 2), float(i)) for i, n in enumerate((1, 2, 3))]
    shared = problems.share_blocks(problems.from_losses(_losses, data, np.zeros(2)), 1)
    assert shared.sizes.tolist() == [3, 5, 4]
    assert shared.data[2, :4, 0].tolist() == [2, 2, 2, 0]


def test_sharing_lowers_the_floor() -> None:
    problem = problems.random_quadratic(6, 3, seed=4)
    floors = [
        simulate(
            algorithms.ri_sgd(step=0.3, iterations=4, batch=None), problems.share_blocks(problem, copies), rounds=200
        )
        for copies in (0, 2, 5)
    ]
    none, some, all_ = (run.history["stationarity"][-1] for run in floors)
    assert none > some > 1e-9 > all_


def test_no_more_than_everything_can_be_shared() -> None:
    with pytest.raises(FedpdError, match="copies = 6: must be below 6, the number of agents"):
        problems.share_blocks(problems.random_quadratic(6, 3), 6)


def test_weights_would_be_lost() -> None:
    problem = problems.from_losses(_losses, np.ones((2, 3, 2)), np.zeros(2), weights=[1.0, 2.0])
    with pytest.raises(FedpdError, match="has weights, and f_i would lose them"):
        problems.share_blocks(problem, 1)
