"""RI-SGD, redundancy-infused SGD (Haddadpour et al., 2019): local SGD on agents that share blocks of data.

It is FedAvg with local SGD on agents that also hold copies of other agents' blocks: `problems.share_blocks(problem,
copies)` gives agent i the data of agents i, i+1, ..., i+copies (cyclically). Agents that share more differ less, which
lowers FedAvg's error floor. Agents and server send one model each way in every round (CTA). Before that, agents send
their blocks to each other once, so this method does not keep data private. Difference from the paper: a block is the
whole data of an agent.
"""

from fedpd.algorithms._averaging import local_averaging
from fedpd.algorithms._rules import Q
from fedpd.core import Algorithm, Subproblem, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import sgd


@specified
def ri_sgd(*, step: float, iterations: int, batch: int | None = 1) -> Algorithm:
    """Return local SGD with Q = `iterations` steps on `batch` samples; the redundancy is in the problem's data."""
    return local_averaging(sgd(step, iterations, batch), lambda f, x: Subproblem(f))


CARD = Card(
    title="RI-SGD",
    summary="FedAvg on agents that share blocks of data",
    family="averaging",
    reference=Reference(
        authors="Farzin Haddadpour, Mohammad Mahdi Kamani, Mehrdad Mahdavi, Viveck Cadambe",
        title="Trading Redundancy for Communication: Speeding up Distributed SGD for Non-convex Optimization",
        venue=("Proceedings of the 36th International Conference on Machine Learning (ICML 2019), PMLR 97, 2545-2554"),
        year=2019,
        checked=(
            "The conference's page (icml.cc/virtual/2019/poster/4289), the proceedings page "
            "(proceedings.mlr.press/v97/haddadpour19a.html) and the BibTeX entry in the authors' repository "
            "mmkamani7/RI-SGD confirm the authors, the title, the venue, the pages and the year."
        ),
    ),
    variants=(
        Variant(
            "RI-SGD",
            lambda L, agents, scale: ri_sgd(step=scale / (4 * L * Q), iterations=Q),
            Guarantee("NC, shared data; not confirmed", "1/e", "1/e^2", "1/e^2"),
        ),
    ),
    parameters={},
    theory_checked=(
        "The abstract confirms non-convex functions and fewer communications through redundant data; the "
        "orders 1/e, 1/e^2 and 1/e^2 are not in the FedPD paper's Table 1 and were not confirmed by public "
        "material at hand."
    ),
    equations_checked="Not compared with the paper.",
)
