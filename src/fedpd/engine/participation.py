"""Partial participation and stragglers: which agents are present in a round, and which part of their steps they do.

An absent agent neither computes nor sends. When it returns, it receives the newest broadcast (by the method's `missed`
if it has one, else by `receive`). The simulator counts the bytes of a broadcast for the agents that are present. The
server averages over the agents that sent, and knows their share of all agents. If no agent is present, the round
changes nothing.

Who is present follows from the rule, the seed and the round alone. A cohort is K of N agents. Its draw costs O(K),
whatever N is. The K agents of round r are the images of 0, ..., K-1 under a random permutation of 0, ..., N-1. The
permutation is never written out: a Feistel network permutes the numbers below a power of 4 that is at least N, and a
number that lands at N or above goes through it again until it lands below ("cycle walking"). Everybody who knows the
seed draws the same agents: the simulator, the server of a federation, a reader.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, choice, count, positive, refuse
from fedpd.core import Array, Key
from fedpd.core.sampling import GOLDEN, mixed

PRESENCE, EFFORT = 2, 3  # the first fold into a run's key, for these draws


class Participation(NamedTuple):
    """A rule for who is present."""

    kind: str  # "cohort", "size", "probability" or "schedule"
    # K, the number of agents per round; K and (N,) sums of sizes; (N,) probabilities; or (rounds, N) who is present
    numbers: Any


def participation_rule(participation: Any, agents: int, rounds: int) -> Participation | None:
    """Return `participation` as a rule; None if all agents are always present."""
    remedy = "Give a share in (0, 1], one probability per agent, or an array (rounds, N) of who is present"
    if not isinstance(participation, list | tuple) and np.ndim(participation) == 0:
        positive("participation", participation, remedy)
        if participation > 1:
            refuse("participation", participation, "must be at most 1", remedy)
        number = max(1, round(float(participation) * agents))
        return None if number == agents else Participation("cohort", np.int32(number))
    numbers = as_array(participation, "participation", remedy)
    if numbers.shape == (agents,) and numbers.dtype != bool:
        if not ((numbers > 0) & (numbers <= 1)).all():
            refuse("participation", numbers.tolist(), "probabilities must lie in (0, 1]", remedy)
        return None if (numbers == 1).all() else Participation("probability", numbers.astype(np.float32))
    if numbers.shape != (rounds, agents) or not np.isin(numbers, (0, 1)).all():
        rule = f"must have the shape ({agents},), or ({rounds}, {agents}) with entries 0 and 1"
        refuse("participation", f"array of shape {numbers.shape}", rule, remedy)
    return None if numbers.all() else Participation("schedule", numbers.astype(bool))


def straggler_rule(stragglers: Any) -> np.float32 | None:
    """Return the probability that an agent is a straggler in a round; None if there are no stragglers."""
    remedy = "Give the probability that an agent does only some of its local steps in a round, e.g. 0.5"
    if at_least("stragglers", stragglers, 0, remedy) > 1:
        refuse("stragglers", stragglers, "must be at most 1", remedy)
    return np.float32(stragglers) if stragglers else None


def effort(probability: Array, key: Key, r: Array, agents: int) -> Array:
    """Return the fraction of the local steps that each agent does in round r, (N,): 1, or uniform in (0, 1]."""
    key = jax.random.fold_in(jax.random.fold_in(key, EFFORT), r)
    chance, how_much = jax.random.uniform(key, (2, agents), jnp.float32)
    return jnp.where(chance < probability, 1 - how_much, 1)


def effort_of(probability: Array, key: Key, r: Array, agent: Array) -> Array:
    """Return the fraction of the local steps that one agent does in round r, if some agents are absent.

    The cost does not depend on the number of agents, as it does for `effort`.
    """
    for word in (EFFORT, r, agent):
        key = jax.random.fold_in(key, word)
    chance, how_much = jax.random.uniform(key, (2,), jnp.float32)
    return jnp.where(chance < probability, 1 - how_much, 1)


FEISTEL_ROUNDS = 12  # with 6 rounds, some pairs of 6 agents are visibly more likely than others; with 12, none
FEW = 8  # draws per agent of a cohort by size, before the rest is drawn from the remaining agents directly
MARGIN = 6  # standard deviations; a round has more agents than this with probability 1e-9
SAMPLE = 2**63  # the round of the draw of the agents over which a run measures; no round has this number
Sampling = Literal["uniform", "size"]


def attendance_rule(
    cohort: int | None, sampling: Sampling, participation: Any, sizes: np.ndarray, rounds: int
) -> Participation | None:
    """Return the rule for who is present, of agents with these |D_i|; None if all agents are always present."""
    choice("sampling", sampling, get_args(Sampling))
    agents = len(sizes)
    if cohort is None:
        if sampling != "uniform":
            refuse("sampling", sampling, "needs a cohort", "Give cohort, the number of agents per round, e.g. 10")
        return participation_rule(participation, agents, rounds)
    if np.ndim(participation) > 0 or participation != 1:
        refuse("cohort", cohort, "must not be given together with participation", "Give one of them")
    if check_cohort(cohort, agents) == agents:
        return None
    if sampling == "uniform":
        return Participation("cohort", np.int32(cohort))
    return Participation("size", (np.int32(cohort), np.cumsum(sizes, dtype=np.int64)))


def sample_agents(number: int | None, agents: int, seed: int) -> np.ndarray | None:
    """Return the agents over which a run measures, in ascending order; None: all agents."""
    remedy = f"Give a number from 1 to {agents}, or leave it out to measure over all agents"
    if number is None:
        return None
    if count("metrics_agents", number, remedy) > agents:
        refuse("metrics_agents", number, f"must be at most {agents}, the number of agents", remedy)
    return draw(seed, [SAMPLE], agents, number)[0]


def participants(rule: Participation, seed: int, rounds: Sequence[int] | np.ndarray, agents: int) -> np.ndarray:
    """Return the agents that are present in each of some rounds.

    Args:
        rounds: The numbers of the rounds; the first round of a run is 0.

    Returns:
        (rounds, C) numbers of agents, in ascending order; N where a round has fewer than C agents.
    """
    rounds = np.asarray(rounds)
    if rule.kind == "cohort":
        return draw(seed, rounds, agents, int(rule.numbers))
    if rule.kind == "size":
        number, ends = rule.numbers
        return np.stack([draw_by_size(seed, int(r), ends, int(number)) for r in rounds])
    if rule.kind == "schedule":
        return _padded([np.flatnonzero(rule.numbers[r]) for r in rounds], agents)
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), PRESENCE)
    return _padded([np.flatnonzero(np.asarray(_coins(key, int(r), rule.numbers))) for r in rounds], agents)


def _padded(rows: list[np.ndarray], agents: int) -> np.ndarray:
    found = np.full((len(rows), max(len(row) for row in rows)), agents)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found


@jax.jit
def _coins(key: Array, r: Array, probabilities: Array) -> Array:
    return jax.random.uniform(jax.random.fold_in(key, r), probabilities.shape, jnp.float32) < probabilities


def most_present(rule: Participation, agents: int, block: int) -> int:
    """Return how many of a device's `block` agents are present in one round at most.

    With probabilities, and with a cohort on several devices, this number is exceeded about once in 1e9 rounds.
    """
    if rule.kind == "schedule":
        starts = range(0, agents, block)
        return max(1, *(int(rule.numbers[:, i : i + block].sum(axis=1).max()) for i in starts))
    if rule.kind == "probability":
        chances = np.asarray(rule.numbers, np.float64)
        parts = [chances[i : i + block] for i in range(0, agents, block)]
        return max(_likely(part.sum(), (part * (1 - part)).sum(), len(part)) for part in parts)
    number = int(rule.numbers if rule.kind == "cohort" else rule.numbers[0])
    if block >= agents:
        return number
    if rule.kind == "cohort":
        share = block / agents
        return _likely(number * share, number * share * (1 - share), min(number, block))
    return min(number, block)


def _likely(mean: float, variance: float, most: int) -> int:
    return max(1, min(most, int(np.ceil(mean + MARGIN * np.sqrt(variance) + 1))))


def draw(seed: int, rounds: Sequence[int] | np.ndarray, agents: int, cohort: int) -> np.ndarray:
    """Return the agents that take part in each of some rounds, in ascending order.

    Args:
        rounds: The numbers of the rounds; the first round of a run is 0.
        cohort: K, the number of agents per round.

    Returns:
        (len(rounds), K) numbers of agents. In a round, all are different, and every agent is as likely as another.

    Raises:
        FedpdError: The cohort is not a whole number from 1 to N.

    Examples:
        >>> from fedpd.engine.participation import draw
        >>> draw(seed=0, rounds=[0, 1], agents=1_000_000, cohort=3).shape
        (2, 3)
    """
    check_cohort(cohort, agents)
    numbers = np.broadcast_to(np.arange(cohort, dtype=np.uint64), (len(rounds), cohort))
    keys = _keys(seed, np.asarray(rounds, np.uint64))
    half = np.uint64(max(1, -(-(agents - 1).bit_length() // 2)))  # bits of each half of a number
    found = _permuted(numbers, keys[:, None], half)
    while (outside := found >= agents).any():
        found[outside] = _permuted(found[outside], np.broadcast_to(keys[:, None], found.shape)[outside], half)
    return np.sort(found.astype(np.int64), axis=1)


def draw_by_size(seed: int, r: int, ends: np.ndarray, cohort: int) -> np.ndarray:
    """Return K different agents, drawn one after another with probabilities proportional to their numbers of samples.

    Args:
        ends: (N,) sums of the |D_j| of the agents j <= i.

    Returns:
        (K,) numbers of agents in ascending order.

    Examples:
        >>> import numpy as np
        >>> from fedpd.engine.participation import draw_by_size
        >>> draw_by_size(seed=0, r=0, ends=np.cumsum([1, 1, 10**9]), cohort=3).tolist()
        [0, 1, 2]
    """
    key = _keys(seed, np.array([r]))[0]
    drawn = np.searchsorted(ends, _below(int(ends[-1]), key, np.arange(FEW * cohort + 16)), "right")
    _, first = np.unique(drawn, return_index=True)
    chosen = drawn[np.sort(first)[:cohort]]
    if len(chosen) < cohort:  # a few agents have most samples: compare exponential times of the others, which is O(N)
        sizes = np.diff(ends, prepend=0).astype(float)
        sizes[chosen] = 0
        uniform = _below(2**53, ~key, np.arange(len(ends))) + 0.5
        with np.errstate(divide="ignore"):
            times = -np.log(uniform * 2.0**-53) / sizes
        chosen = np.concatenate([chosen, np.argsort(times)[: cohort - len(chosen)]])
    return np.sort(chosen)


def _keys(seed: int, rounds: np.ndarray) -> np.ndarray:
    """Return 64 bits for each round."""
    with np.errstate(over="ignore"):
        return mixed(np.uint64(int(seed) % 2**64) + np.uint64(GOLDEN) * (rounds.astype(np.uint64) + np.uint64(1)))


def _below(bound: int, key: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """Return a random number below `bound` for each number."""
    with np.errstate(over="ignore"):
        bits = mixed(mixed(numbers.astype(np.uint64) * np.uint64(GOLDEN) + key))
    return ((bits >> np.uint64(11)) * (bound * 2.0**-53)).astype(np.int64)


def check_cohort(cohort: int, agents: int) -> int:
    """Return the cohort, and refuse one that is not a whole number from 1 to N."""
    remedy = f"Give the number of agents per round, from 1 to {agents}"
    if count("cohort", cohort, remedy) > agents:
        refuse("cohort", cohort, f"must be at most {agents}, the number of agents", remedy)
    return cohort


def _permuted(numbers: np.ndarray, keys: np.ndarray, half: np.uint64) -> np.ndarray:
    """Return the images of numbers of 2 `half` bits under the permutation of each key."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        for i in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (mixed(right + keys + np.uint64(i) * np.uint64(GOLDEN)) & mask)
    return (left << half) | right
