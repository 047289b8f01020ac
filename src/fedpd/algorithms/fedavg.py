"""FedAvg, Algorithm 1 of the paper: local SGD (Option 1) or local GD (Option 2), then averaging.

    x_i^{r,0} = x^r,   x_i^{r,q+1} = x_i^{r,q} - eta^{r,q} grad f_i(x_i^{r,q})  (or h_i(x_i^{r,q}; xi)),   q = 0..Q-1
    x^{r+1}   = (1/N) sum_i x_i^{r,Q}

The oracle sets the option: `oracles.sgd` or `oracles.gd`, with a constant step or a function of (r, q). With a constant
step and Q > 1, FedAvg does not converge to a stationary point on heterogeneous data, and may diverge (Claim 2.2). The
mean is plain. McMahan et al. weigh the models by the agents' numbers of samples n_i, as the program of FedProx's
authors does: `transforms.wrap(..., mean=transforms.weighted("samples"))`. A problem with weights="samples" scales the
local losses instead, so that large agents take larger steps.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import fedavg_steps
from fedpd.base.value import attribute
from fedpd.core import Array, Key, LocalObjective, Method, Model, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, x_i^{r,Q} after the local steps
    memory: Any  # the oracle's memory between rounds


class LocalAveraging(Method):
    """FedAvg and its relatives: x_i = oracle(subproblem(f_i, x^r)) from x^r, x^{r+1} = (1/N) sum_i x_i."""

    oracle = attribute(None)  # of type Oracle; a field, or made of other fields
    repeats = True

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        """Return what an agent minimises that received x."""
        return Subproblem(f)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = self.oracle.solve(self.subproblem(f, agent.x), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def with_message(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))


class FedAvg(LocalAveraging):
    """Algorithm 1 of the paper."""

    oracle: Oracle


@makes(FedAvg)
def fedavg(*, oracle: Oracle) -> Method:
    """Return FedAvg, with a local oracle that works on f_i itself.

    Examples:
        >>> from fedpd import algorithms, oracles
        >>> algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8, batch=4)).description
        'fedavg(oracle=sgd(step=0.1, iterations=8, batch=4))'
    """
    check_oracle(oracle)
    return FedAvg(oracle=oracle)


CARD = Card.single(
    title="FedAvg",
    summary="local steps, then averaging",
    family="averaging",
    authors="H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas",
    paper="Communication-Efficient Learning of Deep Networks from Decentralized Data",
    venue="Proceedings of the 20th International Conference on Artificial Intelligence and Statistics "
    "(AISTATS 2017), PMLR 54, 1273-1282; arXiv:1602.05629",
    year=2017,
    rule=lambda L, agents, scale: fedavg(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("SC, BG", "1/e", "1/e", "1/e"),
    label="FedAvg-SGD",
)
