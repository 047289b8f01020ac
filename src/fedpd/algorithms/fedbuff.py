"""FedBuff (Nguyen et al., 2022): buffered asynchronous aggregation of the changes of local models.

    y_i     = oracle(f_i) from x_i, the server's model that the agent received last
    Delta_i = (y_i - x_i) / (1 + tau_i)^staleness
    x       = x + server_step mean_S Delta_i

S are the K agents that returned, K is the option `buffer` of `simulate`, and tau_i counts the server's steps since
agent i received its model. Agents send Delta_i, the server sends x. If all agents are present in every round it is
FedAvg with a server step size, so heterogeneous data leave an error floor, and fast agents count more than slow ones.
Differences from the paper: all agents always work, while the paper samples a new client whenever one returns; an agent
that has returned begins again at the server's next step; and the local solver is any oracle. The paper's weight is
staleness = 0.5, and its Algorithm 1 has no weight (0, the default). Differences from the program FLSim: its server adds
the sum of the K changes by default, not their mean; its example has server momentum 0.9 (and server step 0.7); and its
weight is divided by that of an average staleness, by default 1, so that it is (2/(1 + tau))^staleness.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.base.checks import at_least, positive
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee

FRESH = -1  # the agent was absent and has received the newest model


class Agent(NamedTuple):
    x: Vector  # the server's model
    change: Vector  # Delta_i
    version: Array  # the server step after which it received x
    memory: Any  # the oracle's memory between rounds


class FedBuff(Method):
    """FedBuff; an agent's weight follows from the age of its model."""

    oracle: Oracle
    server_step: float
    staleness: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.int32(0), self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        tau = jnp.where(agent.version == FRESH, 0, r - agent.version)
        weight = (1.0 + tau) ** -self.staleness
        return Agent(agent.x, weight * (y - agent.x), jnp.int32(r + 1), memory), work

    def send(self, agent: Agent) -> Vector:
        return agent.change

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = server + self.server_step * mean
        return x, x

    def missed(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x, version=jnp.int32(FRESH))

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=self.oracle.init(f, agent.x))

    def asynchronous(self) -> Method:
        return self


@makes(FedBuff)
def fedbuff(*, oracle: Oracle, server_step: float = 1.0, staleness: float = 0.0) -> Method:
    """Return FedBuff, with a local oracle that works on f_i itself.

    Examples:
        >>> from fedpd import algorithms, clock, oracles, problems, simulate
        >>> network = clock.network(
        ...     up="3 Mbit/s", down="10 Mbit/s", compute=clock.log_normal("20 ms", 1.0)
        ... )
        >>> algorithm = algorithms.fedbuff(oracle=oracles.gd(step=0.1, iterations=4))
        >>> problem = problems.random_quadratic(agents=8, dimension=3)
        >>> run = simulate(algorithm, problem, rounds=9, clock=network, buffer=2)
        >>> run.history["bytes_up"].tolist()[:3]
        [0, 48, 96]
    """
    check_oracle(oracle)
    positive("server_step", server_step, "1 adds the mean change to the model")
    at_least("staleness", staleness, 0, "0.5 is the weight of the paper, 0 is none")
    return FedBuff(oracle=oracle, server_step=server_step, staleness=staleness)


CARD = Card.single(
    title="FedBuff",
    summary="local steps, then the mean change of K agents",
    family="averaging",
    authors=("John Nguyen, Kshitiz Malik, Hongyuan Zhan, Ashkan Yousefpour, Michael Rabbat, Mani Malek, Dzmitry Huba"),
    paper="Federated Learning with Buffered Asynchronous Aggregation",
    venue="Proceedings of the 25th International Conference on Artificial Intelligence and Statistics "
    "(AISTATS 2022); arXiv:2106.06639",
    year=2022,
    rule=lambda L, agents, scale: fedbuff(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, BG, bounded delays"),
    parameters={
        "server_step": "the server's step size",
        "staleness": "the exponent of the weight (1 + τ)^-staleness of a message that is τ server steps old",
    },
)
