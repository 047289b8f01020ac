"""Table 1: the cost of methods until ||grad f||^2 <= epsilon, up to constants, as functions of epsilon.

The rows are the paper's claims. The rows of other methods come from their own papers and are not checked here. The
table leaves two things out of FedPD's rows (docs/theory/rates.md). C_9 of FedPD-VR grows as (Q + sqrt(Q I/B)) L, so
that with the paper's choice of I and B it needs O(M + Q sqrt(M N)/epsilon) samples. The factor (1-p) of FedPD-GD and
-SGD is proved only for p < rates.max_skip_probability(L, eta).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from fedpd.base.checks import below, count, positive, refuse
from fedpd.base.typed import explained


class Setting(NamedTuple):
    """The quantities that the formulas depend on.

    Attributes:
        epsilon: The target for ||grad f||^2.
        samples: M, the samples of all agents together.
        iterations: Q, the local steps per round.
        p: The probability of skipping a communication.
    """

    epsilon: float
    samples: int = 1
    iterations: int = 1
    p: float = 0.0


class Order(NamedTuple):
    """A formula of Table 1.

    Attributes:
        formula: The formula as text, where e is epsilon.
        at: Its value at a setting.
    """

    formula: str
    at: Callable[[Setting], float]


class Row(NamedTuple):
    """A row of Table 1: the assumptions of a method beyond smoothness, and its cost.

    Attributes:
        method: The name of the method.
        reference: Its authors and year.
        convexity: "SC" strongly convex, "C" convex, "NC" non-convex.
        non_iid: The heterogeneity that it allows: "0" none, "any", "delta" by Assumption 5, or "Assumption 4".
        bounded_gradients: Whether it assumes bounded gradients.
        rounds: RC, the rounds of communication.
        updates: LC, the local updates.
        samples: AS, the sample gradients.
    """

    method: str
    reference: str
    convexity: Literal["SC", "C", "NC"]
    non_iid: Literal["0", "any", "delta", "Assumption 4"]
    bounded_gradients: bool
    rounds: Order
    updates: Order
    samples: Order


class Complexity(NamedTuple):
    """A row of Table 1 at one setting.

    Attributes:
        method: The name of the method.
        rounds: The order of its rounds of communication.
        updates: The order of its local updates.
        samples: The order of its sample gradients.
    """

    method: str
    rounds: float
    updates: float
    samples: float


def _power(exponent: float) -> Order:
    """Return the order 1/epsilon^exponent."""
    formula = "1/e" if exponent == 1 else f"1/e^{exponent:g}"
    return Order(formula, lambda s: s.epsilon**-exponent)


ONE_HALF, ONE, THREE_HALVES, TWO = map(_power, (0.5, 1, 1.5, 2))
Q_STEPS = Order("Q/e", lambda s: s.iterations / s.epsilon)
NOT_SKIPPED = Order("(1-p)/e", lambda s: (1 - s.p) / s.epsilon)
GD_STEPS = Order("log(1/e)/e", lambda s: math.log(1 / s.epsilon) / s.epsilon)
GD_SAMPLES = Order("M log(1/e)/e", lambda s: s.samples * math.log(1 / s.epsilon) / s.epsilon)
ALL_SAMPLES = Order("M/e^2", lambda s: s.samples / s.epsilon**2)
SVRG_SAMPLES = Order("M/e + Q/e", lambda s: (s.samples + s.iterations) / s.epsilon)
VR_SAMPLES = Order("M + sqrt(M)/e", lambda s: s.samples + math.sqrt(s.samples) / s.epsilon)

TABLE = (
    Row("FedAvg SC iid", "Stich 2018", "SC", "0", False, ONE_HALF, ONE, ONE),
    Row("FedAvg SC BG", "Li et al. 2019", "SC", "any", True, ONE, ONE, ONE),
    Row("Coop-SGD", "Wang & Joshi 2018", "NC", "0", False, ONE, TWO, TWO),
    Row("MPR-SGD", "Yu et al. 2019", "NC", "any", True, THREE_HALVES, TWO, TWO),
    Row("Local-GD", "Khaled et al. 2019", "C", "any", False, THREE_HALVES, TWO, ALL_SAMPLES),
    Row("FedProx", "Sahu et al. 2018", "NC", "Assumption 4", False, ONE, TWO, TWO),
    Row("F-SVRG", "Cen et al. 2019", "NC", "any", False, ONE, Q_STEPS, SVRG_SAMPLES),
    Row("VRL-SGD", "Liang et al. 2019", "NC", "any", True, ONE, TWO, TWO),
    Row("FedPD-GD", "FedPD", "NC", "delta", False, NOT_SKIPPED, GD_STEPS, GD_SAMPLES),
    Row("FedPD-SGD", "FedPD", "NC", "delta", False, NOT_SKIPPED, TWO, TWO),
    Row("FedPD-VR", "FedPD", "NC", "any", False, ONE, Q_STEPS, VR_SAMPLES),
)


@explained
def table(epsilon: float, *, samples: int = 1, iterations: int = 1, p: float = 0.0) -> tuple[Complexity, ...]:
    """Return Table 1 at a target epsilon. The values are orders without constants, so compare only their ratios.

    Args:
        epsilon: The target for ||grad f||^2, in (0, 1).
        samples: M, the samples of all agents together.
        iterations: Q, the local steps per round.
        p: The probability of skipping a communication, in [0, 1).
    """
    positive("epsilon", epsilon, "epsilon is the target for ||grad f||^2, e.g. 1e-6")
    below("epsilon", epsilon, 1, "Orders in 1/epsilon are meaningful only for small epsilon")
    count("samples", samples, "samples is M, the number of samples of all agents")
    count("iterations", iterations, "iterations is Q, the number of local steps per round")
    if not 0 <= p < 1:
        refuse("p", p, "must lie in [0, 1)", "p is the probability of skipping a communication")
    setting = Setting(epsilon, samples, iterations, p)
    return tuple(
        Complexity(row.method, row.rounds.at(setting), row.updates.at(setting), row.samples.at(setting))
        for row in TABLE
    )
