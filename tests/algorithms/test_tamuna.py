"""TAMUNA: a communication by hand, its reduction to ProxSkip, its bytes and its solution."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, problems, simulate
from fedpd.algorithms.tamuna import Coordinates

PROBLEM = problems.random_quadratic(agents=6, dimension=7, seed=1)


@pytest.mark.parametrize(("agents", "copies", "size"), [(6, 2, 7), (5, 3, 4), (4, 4, 3), (7, 2, 3)])
def test_each_coordinate_belongs_to_so_many_agents(agents: int, copies: int, size: int) -> None:
    coordinates = Coordinates(agents, copies)
    masks = np.stack([coordinates.mask(jnp.uint32(column), size) for column in range(agents)])
    assert masks.sum(axis=0).tolist() == [copies] * size
    assert masks.sum(axis=1).max() == -(-copies * size // agents)


def test_with_all_copies_it_is_proxskip() -> None:
    whole = algorithms.tamuna(step=0.2, p=0.5, agents=6, copies=6)
    run, proxskip = (simulate(one, PROBLEM, rounds=40) for one in (whole, algorithms.proxskip(step=0.2, p=0.5)))
    assert run.history["communications"].tolist() == proxskip.history["communications"].tolist()
    np.testing.assert_allclose(run.model, proxskip.model, rtol=1e-9, atol=1e-12)


def test_an_agent_sends_its_share_and_the_solution_is_exact() -> None:
    run = simulate(algorithms.tamuna(step=0.3, p=0.5, agents=6, copies=2), PROBLEM, rounds=3000, metrics_every=3000)
    assert run.history["stationarity"][-1] < 1e-20
    sent = run.history["bytes_up"][-1] / run.history["communications"][-1] / 6
    assert sent == 3 * 8 + 4  # 3 of 7 numbers, and the column


def test_a_communication_by_hand() -> None:
    algorithm = algorithms.tamuna(step=0.2, p=0.0, agents=6, copies=2, eta=0.3)
    run = simulate(algorithm, PROBLEM, rounds=1)
    start = simulate(algorithms.proxskip(step=0.2, p=0.99999), PROBLEM, rounds=1)  # a step, and no communication
    local = np.asarray(start.agents.x.tree)
    coordinates = Coordinates(6, 2)
    alone: Any = [SimpleNamespace(agent=i) for i in range(6)]
    agents = [algorithm.init(f, run.agents.x) for f in alone]
    masks = np.stack([coordinates.mask(coordinates.column(agent), 7) for agent in agents])
    mean = (masks * local).sum(axis=0) / 2
    np.testing.assert_allclose(run.model, mean, rtol=1e-12)
    np.testing.assert_allclose(run.agents.c.tree, 0.3 / 0.2 * masks * (mean - local), rtol=1e-9, atol=1e-12)


def test_wrong_numbers_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"copies": 1}, "copies = 1"),
        ({"copies": 7}, "copies = 7"),
        ({"eta": 0.9}, "eta = 0.9: must be at most"),
        ({"p": 1.0}, "p = 1.0"),
    ]
    usual: dict[str, Any] = {"step": 0.1, "p": 0.5, "agents": 6, "copies": 2}
    for options, sentence in wrong:
        with pytest.raises(FedpdError, match=sentence):
            algorithms.tamuna(**usual | options)
