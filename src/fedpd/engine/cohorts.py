"""Draw the agents of a round: K of N, from the seed and the round alone.

A draw costs O(K), whatever N is. The K agents of round r are the images of 0, ..., K-1 under a random permutation of
0, ..., N-1. The permutation is never written out: a Feistel network permutes the numbers below a power
of 4 that is at least N, and a number that lands at N or above goes through it again until it lands below ("cycle
walking"). Everybody who knows the seed draws the same agents: the simulator, the server of a federation, a reader.
"""

from collections.abc import Sequence

import numpy as np

from fedpd.base.checks import count, refuse

FEISTEL_ROUNDS = 12  # with 6 rounds, some pairs of 6 agents are visibly more likely than others; with 12, none
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, the increment of splitmix64


def draw(seed: int, rounds: Sequence[int] | np.ndarray, agents: int, cohort: int) -> np.ndarray:
    """Return the agents that take part in each of some rounds, in ascending order.

    Args:
        seed: The seed of the run.
        rounds: The numbers of the rounds; the first round of a run is 0.
        agents: N.
        cohort: K, the number of agents per round.

    Returns:
        (len(rounds), K) numbers of agents. In a round, all are different, and every agent is as likely as another.

    Raises:
        FedpdError: The cohort is not a whole number from 1 to N.

    Examples:
        >>> draw(seed=0, rounds=[0, 1], agents=1_000_000, cohort=3).shape
        (2, 3)
    """
    check_cohort(cohort, agents)
    numbers = np.broadcast_to(np.arange(cohort, dtype=np.uint64), (len(rounds), cohort))
    keys = _mixed(np.uint64(int(seed) % 2**64) + np.uint64(GOLDEN) * (np.asarray(rounds, np.uint64) + np.uint64(1)))
    half = np.uint64(max(1, -(-(agents - 1).bit_length() // 2)))  # bits of each half of a number
    found = _permuted(numbers, keys[:, None], half)
    while (outside := found >= agents).any():
        found[outside] = _permuted(found[outside], np.broadcast_to(keys[:, None], found.shape)[outside], half)
    return np.sort(found.astype(np.int64), axis=1)


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
            left, right = right, left ^ (_mixed(right + keys + np.uint64(i) * np.uint64(GOLDEN)) & mask)
    return (left << half) | right


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return 64 bits that all depend on all bits of a number (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return numbers ^ (numbers >> np.uint64(31))
