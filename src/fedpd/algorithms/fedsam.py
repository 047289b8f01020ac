"""FedSAM (Qu et al., 2022): FedAvg whose local steps are sharpness-aware (SAM).

    y_i = x;  Q times   g   = h_i(y_i; xi)
                        y_i = y_i - step h_i(y_i + rho g/||g||; xi)
    x   = mean_S y_i

Both gradients of a step are on the same samples, so a step costs two. Agents look for flat regions of their own f_i.
Agents send y_i, the server sends x: one model each way (CTA). rho = 0 is FedAvg, except that it computes each gradient
twice. Like FedAvg, it stops at an error floor on heterogeneous data.

Differences from the paper: the server's step size is 1; the weights of the mean are equal. As in FL-Simulator, a public
program, 1e-7 is added to ||g||. That program also clips gradients and adds weight decay. With dropout both gradients
use the same random numbers, while PyTorch draws new ones.
"""

from fedpd.algorithms._averaging import Agent, LocalAveraging
from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms._sharpness import check_sharpness, sharpened, twice
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee


class FedSAM(LocalAveraging):
    """FedAvg with sharpness-aware gradients."""

    rho: float
    oracle: Oracle

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        return Subproblem(sharpened(f, self.rho))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent, twice(work)


@makes(FedSAM)
def fedsam(*, rho: float = 0.05, oracle: Oracle) -> Method:
    """Return FedSAM, with a local oracle of fedpd that works on f_i itself."""
    check_sharpness(rho, oracle)
    return FedSAM(rho=rho, oracle=oracle)


CARD = Card.single(
    title="FedSAM",
    summary="sharpness-aware local steps, then averaging",
    family="averaging",
    authors="Zhe Qu, Xingyu Li, Rui Duan, Yao Liu, Bo Tang, Zhuo Lu",
    paper="Generalized Federated Learning via Sharpness Aware Minimization",
    venue="Proceedings of the 39th International Conference on Machine Learning (ICML 2022), PMLR 162; "
    "arXiv:2206.02618",
    year=2022,
    rule=lambda L, agents, scale: fedsam(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, bounded variance and differences"),
    parameters={"rho": "ρ ≥ 0, the length of the step uphill; 0 is FedAvg with twice its gradients"},
    search={"rho": 0.05},
)
