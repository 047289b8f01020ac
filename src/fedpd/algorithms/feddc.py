"""FedDC (Gao et al., 2022): a drift variable h_i at each agent, as in FedDyn, and control variates, as in SCAFFOLD.

    y_i  = argmin f_i(y) + <c - c_i, y> + (alpha/2) ||y - (x - h_i)||^2       (by the oracle, from x, in Q steps)
    h_i  = h_i + (y_i - x)
    c_i+ = c_i - c + (x - y_i) / (Q step)
    c    = c + (|S|/N) mean_S (c_i+ - c_i),        h = h + (|S|/N) mean_S (y_i - x)
    x    = mean_S y_i + h

h is the mean of all agents' h_i. Agents send y_i - x and c_i+ - c_i, the server sends x and c: two models each way.
Absent agents keep h_i and c_i. A fixed point has y_i = x and mean h_i = 0, so that grad f(x) = 0: there is no error
floor. c_i is a gradient estimate, so it is not CTA.

These are the equations of the authors' program for agents with equally many samples. The program divides alpha and c by
n_i N/M for others, and clips gradients. If step sizes follow a schedule, Q step is the sum of an agent's step sizes;
the program divides by its first step size in all rounds. The paper itself was not compared.
"""

from typing import Any, NamedTuple

from fedpd.algorithms._rules import Q
from fedpd.algorithms.fednova import check_steps, total_step
from fedpd.base.checks import positive
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import gd


class Agent(NamedTuple):
    x: Vector  # the server's model
    c: Vector  # the server's control variate
    y: Vector  # the local model
    own: Vector  # c_i
    new: Vector  # c_i+
    drift: Vector  # h_i
    memory: Any  # the oracle's memory between rounds


class Server(NamedTuple):
    x: Vector
    c: Vector
    drift: Vector  # h


class Broadcast(NamedTuple):
    x: Vector
    c: Vector


class FedDC(Method):
    """FedDyn's drift and SCAFFOLD's control variates."""

    alpha: float
    oracle: Oracle
    plain_steps = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        nothing = 0 * x
        return Agent(x, nothing, x, nothing, nothing, nothing, self.oracle.init(f, x))

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        linear = agent.c - agent.own - self.alpha * (agent.x - agent.drift)
        y, memory, work = self.oracle.solve(Subproblem(f, linear, self.alpha), agent.x, agent.memory, r, key)
        new = agent.own - agent.c + (agent.x - y) / total_step(self.oracle, r, work)
        return agent._replace(y=y, new=new, memory=memory), work

    def send(self, agent: Agent) -> tuple[Change, Change]:
        return Change(agent.y - agent.x), Change(agent.new - agent.own)

    def aggregate(self, server: Server, mean: tuple[Vector, Vector], share: Any) -> tuple[Server, Broadcast]:
        change, control = mean
        drift = server.drift + share * change
        server = Server(server.x + change + drift, server.c + share * control, drift)
        return server, Broadcast(server.x, server.c)

    def receive(self, agent: Agent, broadcast: Broadcast) -> Agent:
        drift = agent.drift + (agent.y - agent.x)
        return agent._replace(x=broadcast.x, c=broadcast.c, own=agent.new, drift=drift)

    def missed(self, agent: Agent, broadcast: Broadcast) -> Agent:
        return agent._replace(x=broadcast.x, c=broadcast.c)

    def with_message(self, agent: Agent, message: tuple[Vector, Vector]) -> Agent:
        change, control = message
        return agent._replace(y=agent.x + change, new=agent.own + control)


@makes(FedDC)
def feddc(*, alpha: float, oracle: Oracle) -> Method:
    """Return FedDC, with a local oracle that has a step size."""
    check_steps(oracle)
    positive("alpha", alpha, "alpha = L is a good start, where L is the smoothness of the f_i, as for FedDyn")
    return FedDC(alpha=alpha, oracle=oracle)


CARD = Card.single(
    title="FedDC",
    summary="FedDyn's drift and SCAFFOLD's control variates",
    family="primal-dual",
    authors="Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu",
    paper="FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
    venue="IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR 2022); arXiv:2203.11751",
    year=2022,
    rule=lambda L, agents, scale: feddc(alpha=L / scale, oracle=gd(step=1 / (8 * Q * (L + L / scale)), iterations=Q)),
    guarantee=Guarantee("NC, not compared with the paper"),
    only_models=False,
    parameters={
        "alpha": "α, the weight of the penalty on the drift; FedDyn's α",
        "oracle": "the local solver, `oracles.gd` or `oracles.sgd`",
    },
)
