"""Read the random choices of a run from fedpd, so that the NumPy form repeats them.

They follow from the seed, the round and the agent alone: `docs` and the modules named below say how.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.precision import scope
from fedpd.core.agents import agent_key
from fedpd.core.sampling import uniform
from fedpd.engine.loop import COIN
from fedpd.engine.participation import attendance_rule, effort, effort_of, participants, sample_agents

from .draw import MOST_ROUNDS, Case

MOST_AGENTS = 8


def key_of(seed: int) -> Any:
    return jax.random.key(seed, impl="threefry2x32")


def present(case: Case, seed: int) -> np.ndarray:
    """Return (rounds, N) who takes part."""
    options = case.options
    participation = options.get("participation", 1.0)
    sampling = options.get("sampling", "uniform")
    rule = attendance_rule(options.get("cohort"), sampling, participation, np.array(case.sizes), case.rounds)
    found = np.ones((case.rounds, case.agents), bool)
    if rule is not None:
        for r, here in enumerate(participants(rule, seed, range(case.rounds), case.agents)):
            found[r] = np.isin(np.arange(case.agents), here)
    return found


def skipped(case: Case, seed: int) -> np.ndarray:
    """Return (rounds,) whether a round skips its communication."""
    if "p_of_round" in case.numbers:
        return np.array([float(case.numbers["p_of_round"](r)) > 0.5 for r in range(case.rounds)])
    with scope(case.double):
        return np.asarray(_tosses(key_of(seed)))[: case.rounds] < case.numbers.get("p", 0.0)


@jax.jit
def _tosses(key: Any) -> Any:
    key = jax.random.fold_in(key, COIN)
    return jax.vmap(lambda r: jax.random.uniform(jax.random.fold_in(key, r), dtype=float))(jnp.arange(MOST_ROUNDS))


def measured_agents(case: Case, seed: int) -> list[int]:
    """Return the agents over which a run measures."""
    found = sample_agents(case.options.get("metrics_agents"), case.agents, seed)
    return list(range(case.agents)) if found is None else [int(i) for i in found]


def local_steps(case: Case, seed: int, *, everyone: bool) -> Callable[[int, int, int], int]:
    """Return (r, i, Q) -> how many of its Q local steps agent i does."""
    if "stragglers" not in case.options:
        return lambda r, i, Q: Q
    probability: Any = np.float32(case.options["stragglers"])
    if everyone:
        efforts = [np.asarray(effort(probability, key_of(seed), jnp.int32(r), case.agents)) for r in range(case.rounds)]
        return lambda r, i, Q: max(1, int(np.ceil(efforts[r][i] * np.float32(Q))))
    own = np.asarray(_efforts(probability, key_of(seed)))
    return lambda r, i, Q: max(1, int(np.ceil(own[r, i] * np.float32(Q))))


@jax.jit
def _efforts(probability: Any, key: Any) -> Any:
    of_agent = jax.vmap(partial(effort_of, probability, key), (None, 0))
    return jax.vmap(of_agent, (0, None))(jnp.arange(MOST_ROUNDS), jnp.arange(MOST_AGENTS))


def sample_numbers(case: Case, seed: int) -> Callable[[int, int, int], Any] | None:
    """Return (r, i, exchange) -> (Q, B) the samples of each local step; None: all samples."""
    if case.numbers["batch"] is None:
        return None
    sizes = np.ones(MOST_AGENTS, np.int32)
    sizes[: case.agents] = case.sizes
    drawn = _drawer(case.numbers["Q"], case.numbers["batch"], case.pair.exchange)
    with scope(case.double):
        found = np.asarray(drawn(key_of(seed), sizes))
    return lambda r, i, exchange: found[r, i]


@lru_cache
def _drawer(Q: int, batch: int, exchange: int) -> Callable[..., Any]:
    def of_agent(key: Any, r: Any, i: Any, size: Any) -> Any:
        return uniform(agent_key(key, r, i, exchange), r, i, size, (Q, batch))

    of_all = jax.vmap(of_agent, (None, None, 0, 0))
    of_rounds = jax.vmap(of_all, (None, 0, None, None))
    return jax.jit(lambda key, sizes: of_rounds(key, jnp.arange(MOST_ROUNDS), jnp.arange(MOST_AGENTS), sizes))
