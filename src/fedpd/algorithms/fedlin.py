"""FedLin (Mitra et al., 2021): gradient correction by the exact difference at the server's model.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (grad f_i(x_i) - grad f_i(x) + g)
    x   = mean_S x_i                                               second exchange

With constant steps it converges linearly to the true minimiser. It is not CTA, because agents send gradients. With
partial participation g is the mean over the agents that are present, so the fixed point changes with them. Differences
from the paper: no compression, one step size for all agents, and batch=... allows mini-batches, where the paper has
full gradients only.
"""

from fedpd.algorithms._gradients_first import Agent, GradientsFirst
from fedpd.algorithms._rules import Q
from fedpd.core import Array, Key, LocalObjective, Method, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step
from fedpd.oracles import check_stochastic, sgd


class FedLin(GradientsFirst):
    """FedLin: local steps with the exact difference of the gradients at x."""

    step: float | Step
    iterations: int | None
    batch: int | None
    epochs: int | None

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        oracle = sgd(self.step, self.iterations, self.batch, epochs=self.epochs)
        return oracle.solve(Subproblem(f, agent.mean - agent.own), agent.x, None, r, key)


@makes(FedLin)
def fedlin(
    *, step: float | Step, iterations: int | None = None, batch: int | None = None, epochs: int | None = None
) -> Method:
    """Return FedLin with Q = `iterations` local steps on `batch` samples (None: all of them), or with `epochs`."""
    check_step(step)
    check_stochastic(iterations, batch, epochs=epochs)
    return FedLin(step=step, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="FedLin",
    summary="local steps corrected by the mean gradient",
    family="corrected gradients",
    authors="Aritra Mitra, Rayana Jaafar, George J. Pappas, Hamed Hassani",
    paper="Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse Gradients",
    venue=("Advances in Neural Information Processing Systems 34 (NeurIPS 2021), 14606-14619; arXiv:2102.07053"),
    year=2021,
    rule=lambda L, agents, scale: fedlin(step=scale / (6 * L * Q), iterations=Q),
    guarantee=Guarantee("NC (SC: linear)", "1/e", "Q/e", "M Q/e"),
    only_models=False,
)
