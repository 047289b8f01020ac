"""FedProx (Sahu et al., 2018): local steps on f_i(x) + (rho/2)||x - x^r||^2 from x^r, then averaging.

The proximal term holds the agents near the server's model, but f_i's own minimiser still pulls: on heterogeneous data
it stops at a floor, as FedAvg does. With `oracles.vr`, use refresh=1: agents restart at x^r every round, so a gradient
estimate carried over from x_i^{r-1,Q} would belong to another point.
"""

from fedpd.algorithms.averaging import local_averaging
from fedpd.base.checks import at_least
from fedpd.core import Algorithm, Oracle, describe, proximal


def fedprox(*, rho: float, oracle: Oracle) -> Algorithm:
    """FedProx with proximal weight rho >= 0 (0 is FedAvg)."""
    at_least("rho", rho, 0, "rho is the weight of (rho/2)||x - x^r||^2; 0 is FedAvg")
    return local_averaging(describe("fedprox", rho=rho, oracle=oracle), oracle, lambda f, x: proximal(f, x, rho))
