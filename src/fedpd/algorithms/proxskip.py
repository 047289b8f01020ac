"""ProxSkip / Scaffnew (Mishchenko, Malinovsky, Stich, Richtárik, 2022): one local step per round, rare communication.

    xh_i = x_i - step (h_i(x_i) - c_i)
    with probability 1 - p:   x_i = prox_{(step/(1-p)) g}( mean_j (xh_j - step/(1-p) c_j) ),
                              c_i = c_i + (1-p)/step (x_i - xh_i)
    with probability p:       x_i = xh_i

p is the probability of SKIPPING, as everywhere in fedpd; the paper's p is 1 - p. On strongly convex problems with
condition number kappa, 1 - p = 1/sqrt(kappa) gives O(sqrt(kappa) log 1/eps) communications, without an error floor.
Agents and server send one model each way (CTA). control="frozen" keeps c_i = 0: this is local gradient descent with
random communication, which has an error floor.

The paper's analysis needs full participation. With partial participation and without g, agents send xh_i alone: the
c_i of all agents add up to 0, those of the agents that are present do not. With g the c-term stays, and an error floor
with it. Presence is drawn per round, so per local step: an agent may miss any of the steps between two communications.
In a round without it, it takes no step; if the round communicates, it takes the server's x and keeps c_i, otherwise it
keeps both.
"""

from typing import Any, Literal, NamedTuple

from fedpd.base.checks import choice, positive, refuse, skip_probability
from fedpd.core import Array, Iterate, Key, LocalObjective, Method, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import STEP, check_stochastic, sgd
from fedpd.regularizers import Regularizer, proximal_step


class Agent(NamedTuple):
    x: Vector
    c: Vector


class ProxSkip(Method):
    """One local step per round, with control variates."""

    step: float
    p: float
    batch: int | None
    g: Regularizer | None
    control: Literal["learned", "frozen"]

    @property
    def communicate(self) -> float:
        """The probability of a communication."""
        return 1 - self.p

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, _, work = sgd(self.step, 1, self.batch).solve(Subproblem(f, -agent.c), agent.x, None, r, key)
        return agent._replace(x=x), work

    def send(self, agent: Agent) -> Iterate:
        return Iterate(agent.x - self.step / self.communicate * agent.c)

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = proximal_step(self.g, mean, self.step / self.communicate)
        return x, x

    def receive(self, agent: Agent, x: Vector) -> Agent:
        if self.control == "frozen":
            return agent._replace(x=x)
        return Agent(x, agent.c + self.communicate / self.step * (x - agent.x))

    def missed(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    def skip_probability(self, r: Any) -> Any:
        return None if isinstance(self.p, float) and self.p == 0 else self.p

    def partial(self) -> Method:
        if self.g is not None:
            return self
        return ProxSkipWithAbsent(step=self.step, p=self.p, batch=self.batch, g=self.g, control=self.control)


class ProxSkipWithAbsent(ProxSkip):
    """ProxSkip without g for partial participation: the mean of xh_i over those present keeps the sum of all c_i at 0.

    With everyone present, the c-term of ProxSkip is that sum. It stays there, because it undoes the errors that
    compressed messages leave in the c_i.
    """

    def send(self, agent: Agent) -> Iterate:
        return Iterate(agent.x)

    def partial(self) -> Method:
        return self


@makes(ProxSkip, ProxSkipWithAbsent)
def proxskip(
    *,
    step: float,
    p: float,
    batch: int | None = None,
    g: Regularizer | None = None,
    control: Literal["learned", "frozen"] = "learned",
) -> Method:
    """Return ProxSkip with a constant step, skip probability p, and a regulariser g at the server."""
    positive("step", step, STEP)
    choice("control", control, ("learned", "frozen"))
    if callable(p):
        refuse("p", p, "must be a number", "The control variates' step (1-p)/step needs one")
    skip_probability(p)
    check_stochastic(1, batch)
    return ProxSkip(step=step, p=p, batch=batch, g=g, control=control)


CARD = Card.single(
    title="ProxSkip",
    summary="corrected local steps, rare communication",
    family="corrected gradients",
    authors="Konstantin Mishchenko, Grigory Malinovsky, Sebastian Stich, Peter Richtárik",
    paper="ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!",
    venue="Proceedings of the 39th International Conference on Machine Learning (ICML 2022), PMLR 162, "
    "15750-15769; arXiv:2202.09357",
    year=2022,
    rule=lambda L, agents, scale: proxskip(step=scale / L, p=0.8),
    guarantee=Guarantee("SC, condition k, 1-p = 1/sqrt(k)", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
    label="ProxSkip p=0.8",
    parameters={
        "p": "the probability of skipping a communication, a number in [0, 1)",
        "control": '`"learned"`, or `"frozen"`: c_i = 0, which leaves an error floor',
    },
)
