"""FedNova (Wang et al., 2020): the mean of the local changes, each divided by the agent's number of local steps.

    y_i   = oracle(f_i), from x, in tau_i steps
    d_i   = (y_i - x) / tau_i
    x     = x + (mean_S tau_i) mean_S d_i

If agents do different numbers of steps, as stragglers and agents with epochs of different sizes do, FedAvg converges to
the minimum of another function, in which an agent counts tau_i times. FedNova divides by tau_i first. If all tau_i are
equal, it is FedAvg. Agents send d_i and the number tau_i, the server sends x. With several local steps, heterogeneous
data leave an error floor, as in FedAvg.

This is the form for plain local steps, gd or sgd, of the same size for all agents. The authors' program divides by
another number if the local solver has momentum, which is refused here, or a proximal term. As there, the factor in
front is the mean of the tau_i. There is no momentum at the server. The mean is plain; `transforms.weighted` weighs both
means by the agents' numbers of samples, as the program does.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.base.checks import is_traced, refuse
from fedpd.base.value import attribute
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import sum_of_steps


class Agent(NamedTuple):
    x: Vector  # the server's model
    change: Vector
    number: Array
    memory: Any  # the oracle's memory between rounds


class LocalChanges(Method):
    """FedNova and FedExP: y_i = oracle(f_i) from x; agents send `report(y_i - x)`, which subclasses have."""

    oracle = attribute(None)  # of type Oracle

    def report(self, change: Vector, work: Work) -> tuple[Vector, Array]:
        """Return what an agent sends: a vector and a number."""
        self.needs("report(self, change, work)")

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.zeros((), float), self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(agent.x, *self.report(y - agent.x, work), memory), work

    def send(self, agent: Agent) -> tuple[Change, Array]:
        return Change(agent.change), agent.number

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))


def check_steps(oracle: Oracle) -> None:
    """Refuse an oracle whose steps have no size that is known in advance, or whose steps contain earlier gradients."""
    check_oracle(oracle)
    momentum = getattr(oracle, "momentum", 0.0)
    if is_traced(momentum) or momentum:
        rule = (
            "must not have momentum, because the change of a local model is then not the sum of steps times gradients"
        )
        refuse("oracle", oracle.description, rule, "Leave momentum out")
    if not hasattr(oracle, "step"):
        rule = "must be a solver with a step size, because the method divides by the local steps"
        refuse("oracle", oracle.description, rule, "Give e.g. oracles.sgd(step=0.1, iterations=8)")


def total_step(oracle: Any, r: Array, work: Work) -> Array:
    """Return the sum of the sizes of the local steps that an agent took in round r; Q times a constant step."""
    return sum_of_steps(oracle.step, r, work.updates)


class FedNova(LocalChanges):
    """Normalised averaging; an agent's number is tau_i."""

    oracle: Oracle
    plain_steps = True

    def report(self, change: Vector, work: Work) -> tuple[Vector, Array]:
        tau = work.updates.astype(float)
        return change / tau, tau

    def aggregate(self, server: Vector, mean: tuple[Vector, Array], share: Any) -> tuple[Vector, Vector]:
        d, tau = mean
        x = server + tau * d
        return x, x


@makes(FedNova)
def fednova(*, oracle: Oracle) -> Method:
    """Return FedNova, with a local oracle that works on f_i itself by plain steps, `oracles.gd` or `oracles.sgd`."""
    check_steps(oracle)
    return FedNova(oracle=oracle)


CARD = Card.single(
    title="FedNova",
    summary="local changes divided by the number of local steps, then averaging",
    family="averaging",
    authors="Jianyu Wang, Qinghua Liu, Hao Liang, Gauri Joshi, H. Vincent Poor",
    paper="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    venue="Advances in Neural Information Processing Systems 33 (NeurIPS 2020); arXiv:2007.07481",
    year=2020,
    rule=lambda L, agents, scale: fednova(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, bounded variance and differences"),
)
