"""pFedMe (Dinh et al., 2020): averaging on the Moreau envelopes of the f_i, whose proximal points are personal models.

    w = x^r;  R times  theta_i = argmin f_i(t) + (rho/2) ||t - w||^2     (by the oracle, from the last theta_i)
                       w = w - step rho (w - theta_i)
    x^{r+1} = (1 - server_step) x^r + server_step mean_S w_i

R is `iterations`. rho (w - theta_i) is the gradient of the Moreau envelope F_i(w) = min_t f_i(t) + (rho/2)||t - w||^2.
So pFedMe minimises the mean of the F_i, not f: on heterogeneous data the stationarity of f stops at a floor. theta_i is
an agent's personal model, which never leaves it; `run.personal` evaluates it. S are the agents that are present; absent
agents keep their theta_i. Agents send w_i, the server sends x^{r+1} (CTA). Difference from the paper: a stochastic
oracle draws new samples for every step, while the paper's solves the problem of one mini-batch. Differences from the
authors' program: it starts the first solve of a round at x^r, this one at the agent's own theta_i; and in it all agents
train in every round, and only the selected ones are averaged, by their numbers of samples.
"""

from typing import Any, ClassVar, NamedTuple

import jax
from jax import lax

from fedpd.algorithms._rules import solver
from fedpd.algorithms.ditto import BesidePersonalModels
from fedpd.base.checks import count, positive
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Vector, Work, check_oracle, makes, proximal
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, w_i after the local steps
    personal: Vector  # theta_i
    memory: Any


class PFedMe(BesidePersonalModels):
    """Averaging on Moreau envelopes."""

    rho: float
    step: float
    iterations: int
    oracle: Oracle
    server_step: float
    counts: ClassVar = ("iterations",)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        def descend(q: Any, carry: Any) -> Any:
            w, theta, memory, work = carry
            phi = proximal(f, w, self.rho)
            theta, memory, more = self.oracle.solve(phi, theta, memory, r, jax.random.fold_in(key, q))
            return w - self.step * self.rho * (w - theta), theta, memory, work.plus(more)

        start = (agent.x, agent.personal, agent.memory, Work.of(0, 0, f.size))
        w, theta, memory, work = lax.fori_loop(0, self.iterations, descend, start)
        return Agent(w, theta, memory), work

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = server + self.server_step * (mean - server)
        return x, x


@makes(PFedMe)
def pfedme(*, rho: float, step: float, iterations: int, oracle: Oracle, server_step: float = 1.0) -> Method:
    """Return pFedMe with envelope weight rho, R = `iterations` steps of size `step`, and a local oracle."""
    check_oracle(oracle)
    positive("rho", rho, "a rho above the smoothness L of the f_i makes each theta_i unique")
    positive("step", step, "1/rho moves w to the personal model; smaller steps are safer")
    count("iterations", iterations, "Give R, the steps on the envelope per round, e.g. 5", bits=31)
    positive("server_step", server_step, "1 is the mean of the agents' w")
    return PFedMe(rho=rho, step=step, iterations=iterations, oracle=oracle, server_step=server_step)


CARD = Card.single(
    title="pFedMe",
    summary="averaging on Moreau envelopes, with personal models",
    family="averaging",
    authors="Canh T. Dinh, Nguyen H. Tran, Tuan Dung Nguyen",
    paper="Personalized Federated Learning with Moreau Envelopes",
    venue="Advances in Neural Information Processing Systems 33 (NeurIPS 2020), 21394-21405; arXiv:2006.08848",
    year=2020,
    rule=lambda L, agents, scale: pfedme(rho=2 * L, step=scale / (8 * L), iterations=2, oracle=solver(L, 2 * L)),
    guarantee=Guarantee("NC or SC, bounded dissimilarity; for the mean of the envelopes", "-"),
    parameters={
        "rho": "ρ > 0, the weight of the proximal term of the personal models (the paper's λ)",
        "step": "η, the step size on the envelope; 1/ρ moves w to the personal model",
        "iterations": "R, the number of steps on the envelope per round",
        "server_step": "β, the server's step size; 1 gives the mean of the agents' w",
    },
)
