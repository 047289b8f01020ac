r"""Count epsilon of client-level differential privacy, with Google's dp-accounting.

Two federations are neighbours if one agent of the first sends zeros in the second (REPLACE_SPECIAL). A round releases a
sum to which one agent adds at most C, with noise z C: the Gaussian mechanism with noise multiplier z. T rounds together
are the Gaussian mechanism with z/sqrt(T), whose epsilon is exact (Balle and Wang, 2018).

If K of N agents are drawn without replacement in every round, and nobody knows whom, epsilon is smaller. The bound is
that of Wang, Balle and Kasiviswanathan (2019) in Renyi differential privacy. It is proved for neighbours in which one
agent is replaced, which changes the sum by up to 2 C, so it takes z/2. It needs agents that keep nothing between
rounds: the state of an agent depends on the rounds in which it took part, while the theorem assumes that the draws of
the rounds are independent of all else.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import extra

LARGEST_NOISE = 1e6  # of a search
LEAST_NOISE = 1e-3  # of a search; one round with it has an epsilon of about 500,000


class Accountant(NamedTuple):
    """Counts the epsilon of a run.

    Attributes:
        noise_multiplier: z of a whole round.
        delta: delta.
        agents: N.
        cohort: K, if K of N agents are drawn in every round and keep nothing between rounds; else None.
    """

    noise_multiplier: float
    delta: float
    agents: int
    cohort: int | None = None

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after this many rounds with a communication.

        Examples:
            >>> from fedpd import transforms
            >>> round(transforms.Accountant(noise_multiplier=1.0, delta=1e-5, agents=100).epsilon(1), 4)
            4.3772
        """
        if rounds == 0:
            return 0.0
        with extra("privacy", "transforms.gaussian"):
            from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
        whole = float(get_epsilon_gaussian(self.noise_multiplier / rounds**0.5, self.delta))
        if self.cohort is None:
            return whole
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        orders, rdp = _amplified(self.noise_multiplier, self.agents, self.cohort)
        return min(whole, float(compute_epsilon(orders, rounds * rdp, self.delta)[0]))

    def epsilons(self, rounds: np.ndarray) -> np.ndarray:
        """Return epsilon after each of these numbers of rounds."""
        known = {int(number): self.epsilon(int(number)) for number in np.unique(rounds)}
        return np.array([known[int(number)] for number in rounds], np.float64)


@lru_cache(maxsize=64)
def _amplified(noise_multiplier: float, agents: int, cohort: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders, and the Renyi differential privacy of one round of K of N agents."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    inner = dp_accounting.GaussianDpEvent(noise_multiplier / 2)
    counted = RdpAccountant(neighboring_relation=replace)
    counted.compose(dp_accounting.SampledWithoutReplacementDpEvent(agents, cohort, inner))
    return np.asarray(counted.orders), counted.rdp


class ExampleAccountant(NamedTuple):
    """Counts the epsilon of one sample of an agent whose oracle is DP-SGD.

    Two data sets are neighbours if the gradient of one sample of the first is 0 in the second. A step is the Gaussian
    mechanism on a Poisson sample, counted in Renyi differential privacy. Every round counts, also one in which the
    agent was absent or sent nothing.

    Attributes:
        noise_multiplier: z of a step.
        delta: delta.
        share: The probability with which a sample takes part in a step.
        steps: Q, the steps per round.
    """

    noise_multiplier: float
    delta: float
    share: float
    steps: int

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after this many rounds."""
        if rounds == 0:
            return 0.0
        if self.share == 1:
            return Accountant(self.noise_multiplier, self.delta, 1).epsilon(rounds * self.steps)
        with extra("privacy", "oracles.dp_sgd"):
            from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
        orders, rdp = _sampled(self.noise_multiplier, self.share)
        return float(compute_epsilon(orders, rounds * self.steps * rdp, self.delta)[0])

    def epsilons(self, rounds: np.ndarray) -> np.ndarray:
        """Return epsilon after each of these numbers of rounds."""
        return np.array([self.epsilon(int(number)) for number in rounds], np.float64)


@lru_cache(maxsize=64)
def _sampled(noise_multiplier: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the orders, and the Renyi differential privacy of one step on a Poisson sample."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    counted, log = RdpAccountant(), logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of every order that does not count
    try:
        counted.compose(dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise_multiplier)))
    finally:
        log.setLevel(level)
    return np.asarray(counted.orders), counted.rdp


@lru_cache(maxsize=64)
def noise_for_examples(epsilon: float, rounds: int, delta: float, share: float, steps: int) -> float:
    """Return the smallest noise multiplier of a step of DP-SGD with which a run spends at most epsilon, to 4 digits."""
    return _least_noise(lambda noise: ExampleAccountant(noise, delta, share, steps).epsilon(rounds), epsilon, rounds)


@lru_cache(maxsize=64)
def noise_for(epsilon: float, rounds: int, delta: float, agents: int, cohort: int | None) -> float:
    """Return the smallest noise multiplier of a round with which a run spends at most epsilon, to 4 digits.

    Raises:
        FedpdError: There is none, or epsilon is so large that it protects nothing.
    """
    return _least_noise(lambda noise: Accountant(noise, delta, agents, cohort).epsilon(rounds), epsilon, rounds)


def _least_noise(epsilon_of: Callable[[float], float], epsilon: float, rounds: int) -> float:
    """Return the smallest noise multiplier whose epsilon is at most this one, to 4 digits."""
    if epsilon_of(LEAST_NOISE) <= epsilon:
        refuse("epsilon", epsilon, "is so large that it protects nobody", "Give a smaller epsilon, e.g. 4")
    low, high = LEAST_NOISE, 1.0
    while epsilon_of(high) > epsilon:
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            refuse("epsilon", epsilon, f"no noise is enough for {rounds} rounds", "Give a larger epsilon")
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if epsilon_of(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high
