"""FedSpeed (Sun et al., 2023): FedDyn whose local steps are sharpness-aware.

    x_i  = argmin f_i(x) - <g_i, x> + (alpha/2) ||x - x_0||^2        (by the oracle, from x_0), in whose steps
                h_i(x + rho h_i(x; xi)/||h_i(x; xi)||; xi) stands for h_i(x; xi)
    g_i  = g_i - alpha (x_i - x_0)
    h    = h - alpha (|S|/N) mean_S (x_i - x_0)
    x_0  = mean_S x_i - h / alpha

g_i is the paper's prox-correction term, and alpha its 1/lambda. rho = 0 is FedDyn, except that it computes each
gradient twice. Agents send x_i, the server sends x_0 (CTA). With rho > 0 the fixed point is where the mean of the
gradients at the points uphill vanishes, which is near a stationary point of f and not at one.

These are the equations of the authors' program FL-Simulator, in which h is a mean over all agents. The paper's abstract
says that FedSpeed merges both gradients; here, as in the program, a step is along the second one alone. As in the
program, the step uphill has length rho, and 1e-7 is added to the norm. The program also clips gradients and adds weight
decay. With dropout both gradients use the same random numbers, while PyTorch draws new ones.
"""

from typing import Literal

from fedpd.algorithms._rules import Q
from fedpd.algorithms.feddyn import Agent, FedDyn
from fedpd.algorithms.fedsam import check_sharpness, sharpened, twice
from fedpd.base.checks import positive
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import sgd


class FedSpeed(FedDyn):
    """FedDyn with sharpness-aware gradients."""

    rho: float
    start: Literal["local", "server"] = "server"

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent, work = super().local(sharpened(f, self.rho), agent, r, key)
        return agent, twice(work)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return super().rebuild(sharpened(f, self.rho), agent)


@makes(FedSpeed)
def fedspeed(*, alpha: float, rho: float = 0.1, oracle: Oracle) -> Method:
    """Return FedSpeed with regulariser weight alpha and a local oracle of fedpd."""
    check_sharpness(rho, oracle)
    positive("alpha", alpha, "alpha = L is a good start, where L is the smoothness of the f_i; FedPD's eta is 1/alpha")
    return FedSpeed(alpha=alpha, rho=rho, oracle=oracle)


CARD = Card.single(
    title="FedSpeed",
    summary="FedDyn with sharpness-aware local steps",
    family="primal-dual",
    authors="Yan Sun, Li Shen, Tiansheng Huang, Liang Ding, Dacheng Tao",
    paper="FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy",
    venue="11th International Conference on Learning Representations (ICLR 2023); arXiv:2302.10429",
    year=2023,
    rule=lambda L, agents, scale: fedspeed(alpha=L / scale, oracle=sgd(step=1 / (L + L / scale), iterations=Q)),
    guarantee=Guarantee("NC, bounded variance and differences"),
    parameters={
        "alpha": "α, the weight of the regulariser; 1/λ of the paper and 1/η of FedPD",
        "rho": "ρ ≥ 0, the length of the step uphill; 0 is FedDyn with twice its gradients",
    },
    search={"rho": 0.1},
)
