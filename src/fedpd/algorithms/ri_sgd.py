"""RI-SGD, redundancy-infused SGD (Haddadpour et al., 2019): local SGD on data of which blocks are shared.

FedAvg with local SGD, on agents that also hold copies of other agents' blocks: `problems.share_blocks(problem, copies)`
gives agent i the data of agents i, i+1, ..., i+copies (cyclically). The more is shared, the more alike the agents, and
the lower FedAvg's floor. Sent: one model each way (CTA) in every round, and once the blocks, which leave their owners:
a data-sharing method, not a private one. Difference from the paper: blocks are whole agents' data.
"""

from fedpd.algorithms.averaging import local_averaging
from fedpd.core import Algorithm, Subproblem, describe
from fedpd.oracles import sgd


def ri_sgd(*, step: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """Local SGD with Q = iterations steps on `batch` samples; the redundancy is in the problem's data."""
    oracle = sgd(step, iterations, batch)
    return local_averaging(describe("ri_sgd", oracle=oracle), oracle, lambda f, x: Subproblem(f))
