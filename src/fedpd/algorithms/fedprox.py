"""FedProx (Li et al., 2020): local steps on f_i(x) + (rho/2)||x - x^r||^2 from x^r, then averaging.

The proximal term keeps the agents near the server's model, but each agent still moves towards the minimiser of its own
f_i. On heterogeneous data FedProx therefore stops at an error floor, as FedAvg does. With `oracles.vr`, use refresh=1:
agents restart at x^r every round, so a gradient estimate from x_i^{r-1,Q} would belong to another point. The mean is
plain; the authors' program weighs the models by the agents' numbers of samples n_i, as `transforms.weighted` does. A
problem with weights="samples" scales the local losses instead.
"""

from fedpd.algorithms._rules import solver
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.base.checks import at_least
from fedpd.core import LocalObjective, Method, Oracle, Subproblem, Vector, check_oracle, makes, proximal
from fedpd.core.card import Card, Guarantee


class FedProx(LocalAveraging):
    """FedAvg with a proximal term."""

    rho: float
    oracle: Oracle

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        return proximal(f, x, self.rho)


@makes(FedProx)
def fedprox(*, rho: float, oracle: Oracle) -> Method:
    """Return FedProx with proximal weight rho >= 0 (0 is FedAvg)."""
    at_least("rho", rho, 0, "rho is the weight of (rho/2)||x - x^r||^2; 0 is FedAvg")
    check_oracle(oracle)
    return FedProx(rho=rho, oracle=oracle)


CARD = Card.single(
    title="FedProx",
    summary="FedAvg with a proximal term in the local loss",
    family="averaging",
    authors="Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith",
    paper="Federated Optimization in Heterogeneous Networks",
    venue=("Proceedings of Machine Learning and Systems 2 (MLSys 2020), 429-450; arXiv:1812.06127 (December 2018)"),
    year=2020,
    rule=lambda L, agents, scale: fedprox(rho=L / scale, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, iid (sum of ||grad f_i||^2 at most B^2 ||grad f||^2)", "1/e", "1/e^2", "1/e^2"),
    parameters={"rho": "ρ ≥ 0, the weight of the proximal term; 0 is FedAvg"},
)
