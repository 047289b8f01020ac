"""FedPD, Algorithm 2 of the paper.

X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu: FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity
to Non-IID Data. min (1/N) sum_i f_i(x_i) s.t. x_i = x_0, by the augmented Lagrangians

    L_i(x_i, x_0, lambda_i) = f_i(x_i) + <lambda_i, x_i - x_0> + ||x_i - x_0||^2 / (2 eta)

    for r = 0, ..., T-1
        for each agent i in parallel (Local Updates)
            x_i^{r+1}      = Oracle_i(L_i(., x_{0,i}^r, lambda_i^r)), started at x_i^r
            lambda_i^{r+1} = lambda_i^r + (x_i^{r+1} - x_{0,i}^r) / eta
            x_{0,i}^{r+}   = x_i^{r+1} + eta lambda_i^{r+1}
        with probability 1 - p (Global Communicate)
            x_{0,i}^{r+1}  = x_0^{r+1} = (1/N) sum_i x_{0,i}^{r+}
        with probability p: x_{0,i}^{r+1} = x_{0,i}^{r+}

One coin a round, shared by all agents. Sent: x_{0,i}^{r+} up, x_0^{r+1} down: one model each way, which keeps to the
computation-then-aggregation protocol. State: three models an agent, plus the oracle's memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.checks import choice, positive, skip_probability
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Oracle, Work, augmented_lagrangian, describe


class Agent(NamedTuple):
    x: Vector  # x_i^r
    x0: Vector  # x_{0,i}^r, this agent's copy of the global model
    dual: Vector  # lambda_i^r
    memory: Any  # what the oracle keeps between rounds (Oracle II: g_i)


def fedpd(*, eta: float, oracle: Oracle, p: float | Callable[[Any], Any] = 0.0, x0_rule: str = "paper") -> Algorithm:
    """FedPD with penalty 1/eta, a local oracle, and probability p (a number in [0, 1) or r -> p_r) of skipping.

    x0_rule="matlab" is the server step of the authors' MATLAB program, x_{0,i}^{r+} = x_{0,i}^r + eta lambda_i^{r+1},
    which equals x_i^{r+1} + eta lambda_i^r: the old dual where the paper has the new one. Both converge; only the
    paper's is Algorithm 2, and it is the default.
    """
    positive("eta", eta, "Theorem 1 asks for eta < (sqrt(5)-1)/(4L), L the smoothness of the f_i")
    choice("x0_rule", x0_rule, ("paper", "matlab"))
    skip = skip_probability(p)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, eta)
        x, memory, work = oracle.solve(lagrangian, agent.x, agent.memory, r, key)
        dual = agent.dual + (x - agent.x0) / eta
        x0 = x + eta * (dual if x0_rule == "paper" else agent.dual)  # x_{0,i}^{r+}
        return Agent(x, x0, dual, memory), work

    def send(agent: Agent) -> Vector:
        return agent.x0

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:  # Global Communicate
        return mean, mean

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    settings = {"eta": eta, "p": p, "oracle": oracle} | ({} if x0_rule == "paper" else {"x0_rule": x0_rule})
    return Algorithm(
        description=describe("fedpd", **settings),
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x0,
        skip=skip,
        batch=oracle.batch,
    )
