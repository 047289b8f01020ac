"""FedAvg, Algorithm 1 of the paper: local SGD (Option 1) or local GD (Option 2), then averaging.

    x_i^{r,0} = x^r,   x_i^{r,q+1} = x_i^{r,q} - eta^{r,q} grad f_i(x_i^{r,q})  (or h_i(x_i^{r,q}; xi)),   q = 0..Q-1
    x^{r+1}   = (1/N) sum_i x_i^{r,Q}

The option is the oracle: `oracles.sgd` or `oracles.gd`, with a constant step or a function of (r, q). With a constant
step and Q > 1 it does not converge to a stationary point on heterogeneous data, and may diverge (Claim 2.2).
"""

from fedpd.algorithms.averaging import local_averaging
from fedpd.core import Algorithm, Oracle, Subproblem, describe


def fedavg(*, oracle: Oracle) -> Algorithm:
    """FedAvg with a local oracle on f_i itself.

    >>> from fedpd import oracles
    >>> fedavg(oracle=oracles.sgd(step=0.1, iterations=8, batch=4)).description
    'fedavg(oracle=sgd(step=0.1, iterations=8, batch=4))'
    """
    return local_averaging(describe("fedavg", oracle=oracle), oracle, lambda f, x: Subproblem(f))
