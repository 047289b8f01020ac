"""RI-SGD, redundancy-infused SGD (Haddadpour et al., 2019): local SGD on agents that share blocks of data.

It is FedAvg with local SGD on agents that also hold copies of other agents' blocks: `problems.share_blocks(problem,
copies)` gives agent i the data of agents i, i+1, ..., i+copies (cyclically). Agents that share more differ less, which
lowers FedAvg's error floor. Agents and server send one model each way in every round (CTA). Before that, agents send
their blocks to each other once, so this method does not keep data private. Difference from the paper: a block is the
whole data of an agent.
"""

from fedpd.algorithms._rules import Q
from fedpd.algorithms.fedavg import LocalAveraging
from fedpd.core import Method, Oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step
from fedpd.oracles import check_stochastic, sgd


class RISGD(LocalAveraging):
    """FedAvg with local SGD."""

    step: float | Step
    iterations: int | None
    batch: int | None
    epochs: int | None

    @property
    def oracle(self) -> Oracle:
        return sgd(self.step, self.iterations, self.batch, epochs=self.epochs)


@makes(RISGD)
def ri_sgd(
    *, step: float | Step, iterations: int | None = None, batch: int | None = 1, epochs: int | None = None
) -> Method:
    """Return local SGD with Q = `iterations` steps on `batch` samples, or `epochs`; the redundancy is in the data."""
    check_step(step)
    check_stochastic(iterations, batch, epochs=epochs)
    return RISGD(step=step, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="RI-SGD",
    summary="FedAvg on agents that share blocks of data",
    family="averaging",
    authors="Farzin Haddadpour, Mohammad Mahdi Kamani, Mehrdad Mahdavi, Viveck Cadambe",
    paper="Trading Redundancy for Communication: Speeding up Distributed SGD for Non-convex Optimization",
    venue=("Proceedings of the 36th International Conference on Machine Learning (ICML 2019), PMLR 97, 2545-2554"),
    year=2019,
    rule=lambda L, agents, scale: ri_sgd(step=scale / (4 * L * Q), iterations=Q),
    guarantee=Guarantee("NC, shared data; not confirmed", "1/e", "1/e^2", "1/e^2"),
)
