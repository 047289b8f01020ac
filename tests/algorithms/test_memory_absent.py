"""FedPD-M where agents are absent: the server's sums, and what it saves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import algorithms, data, oracles, problems, simulate
from fedpd.algorithms._memory_absent import with_missed_rows
from fedpd.base.precision import scope
from tests.algorithms.test_memory import own_quadratics

EXACT = oracles.lbfgs(1e-12, 100)


def test_an_agent_that_returns_copies_its_newest_row() -> None:
    """A ring of 4 places; the newest row of its own is 5, in place 1, and rows up to 7 exist: it missed 6 and 7."""
    algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(0.1, 1), memory=3).partial()
    problem = own_quadratics(2, agents=2, size=1)
    seen = simulate(algorithm, problem, rounds=1, participation=np.array([[True, False]])).agents
    with scope(True):
        rows = Vector(jnp.array([[4.0], [5.0], [2.0], [3.0]]))
        held = {"xs": rows, "duals": -rows, "values": rows.tree[:, 0]}
        absent = _agent(seen.state, 0)._replace(**held, last=jnp.int32(5), number=jnp.int32(8))
        found = with_missed_rows(absent)
        assert found.xs.tree[:, 0].tolist() == [4, 5, 5, 5]
        assert found.duals.tree[:, 0].tolist() == [-4, -5, -5, -5]
        assert found.values.tolist() == [4, 5, 5, 5]
        long_gone = with_missed_rows(absent._replace(number=jnp.int32(100)))
        assert long_gone.xs.tree[:, 0].tolist() == [5, 5, 5, 5]


@pytest.mark.slow
def test_the_servers_sums_are_those_of_all_agents() -> None:
    """Half of the agents are present, so most sums are of agents that the server has not heard of lately."""
    problem, size, rounds = problems.penalized_logistic(*data.strongly_noniid(6, 20, 3)), 4, 13
    algorithm = algorithms.fedpd(eta=1.0, oracle=EXACT, memory=size - 1)
    run = simulate(algorithm, problem, rounds=rounds, participation=0.5, progress=False)
    seen, server = run.agents, run.server
    assert len(seen.agent) == 6
    with scope(True):
        filled = [with_missed_rows(_agent(seen.state, i)._replace(number=server.number)) for i in range(6)]
        xs, duals = (np.array([getattr(one, name).tree for one in filled]) for name in ("xs", "duals"))
        values = np.array([one.values for one in filled])
    apart = xs - xs.mean(0)
    np.testing.assert_allclose(server.rows.xs.tree, xs.mean(0), atol=1e-12)
    np.testing.assert_allclose(server.rows.duals.tree, duals.mean(0), atol=1e-12)
    np.testing.assert_allclose(server.rows.consensus, np.einsum("ikd,ild->kl", apart, apart) / 6, atol=1e-12)

    newest = [(rounds - 1) % size]
    steps, sums = xs - xs[:, newest], duals + duals[:, newest]
    excess = values - values[:, newest] + np.einsum("ikd,ikd->ik", steps, sums) / 2
    lengths = np.sum(steps**2, axis=2)
    nu = np.where(lengths > 0, (10 * excess) ** 2 / np.where(lengths > 0, lengths, 1), 0).mean(0)
    assert nu.max() > 1e-9
    np.testing.assert_allclose(server.own.bent, nu, rtol=1e-4, atol=1e-14)


def _agent(agents: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], agents)


def communications(memory: int, share: float) -> int:
    problem = own_quadratics(100)
    algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.lbfgs(), memory=memory)
    history = simulate(algorithm, problem, rounds=120, participation=share, progress=False).history
    (reached,) = np.nonzero(history["stationarity"] <= 1e-10 * history["stationarity"][0])
    return int(history["communications"][reached[0]])


@pytest.mark.slow
def test_a_memory_saves_communications_with_half_of_the_agents() -> None:
    assert communications(10, 0.5) < 0.8 * communications(0, 0.5)


@pytest.mark.slow
def test_without_mixing_the_servers_step_is_eta() -> None:
    """Longer steps diverged on convex quadratics of which one is 100 times steeper."""
    algorithm = algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(), memory=0)
    server = simulate(algorithm, own_quadratics(100, 4, 3), rounds=6, participation=0.5, progress=False).server
    assert float(server.step) == float(server.eta)
