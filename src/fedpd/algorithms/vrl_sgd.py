"""VRL-SGD (Liang et al., 2019): variance reduced local SGD.

    x_i = x;  Q times  x_i = x_i - step (h_i(x_i) - Delta_i)
    x   = (1/N) sum_i x_i
    Delta_i = Delta_i + (x - x_i)/(Q step)        Q step is the sum of the step sizes of a schedule

Delta_i tends to grad f_i - grad f, and the local steps tend to steps on f. Agents and server send one model each way
(CTA). With full participation it equals SCAFFOLD (option 2). Absent agents keep Delta_i. The changes of the present
agents sum to zero, so the sum of all Delta_i stays zero. If only one agent is present at a time, its Delta_i never
changes. The sum stays zero only if all agents have the same Q, so there are no `epochs`, whose Q is the agent's own:
the method would end at a wrong point. Difference from the paper: batch=None uses full gradients.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import Q
from fedpd.core import Array, Key, LocalObjective, Method, Model, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, sum_of_steps
from fedpd.oracles import check_stochastic, same_iterations, sgd


class Agent(NamedTuple):
    x: Vector
    delta: Vector
    length: Array  # Q step, the sum of the step sizes of the last local steps


class VRLSGD(Method):
    """Local steps corrected by Delta_i."""

    step: float | Step
    iterations: int
    batch: int | None

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.ones((), float))  # `local` replaces the length before an agent divides by it

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        oracle = sgd(self.step, self.iterations, self.batch)
        x, _, work = oracle.solve(Subproblem(f, -agent.delta), agent.x, None, r, key)
        return Agent(x, agent.delta, jnp.asarray(sum_of_steps(self.step, r, work.updates), float)), work

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def receive(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x, delta=agent.delta + (x - agent.x) / agent.length)

    def missed(self, agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)


@makes(VRLSGD)
def vrl_sgd(
    *, step: float | Step, iterations: int | None = None, batch: int | None = None, epochs: int | None = None
) -> Method:
    """Return VRL-SGD with Q = `iterations` local steps on `batch` samples (None: all of them)."""
    check_step(step)
    steps = same_iterations(iterations, epochs, "the Delta_i would no longer sum to zero")
    check_stochastic(steps, batch)
    return VRLSGD(step=step, iterations=steps, batch=batch)


CARD = Card.single(
    title="VRL-SGD",
    summary="SCAFFOLD's correction with one model each way",
    family="corrected gradients",
    authors="Xianfeng Liang, Shuheng Shen, Jingchang Liu, Zhen Pan, Enhong Chen, Yifei Cheng",
    paper="Variance Reduced Local SGD with Lower Communication Complexity",
    venue="arXiv:1912.12844",
    year=2019,
    rule=lambda L, agents, scale: vrl_sgd(step=scale / (6 * math.sqrt(2) * L * Q), iterations=Q),
    guarantee=Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    parameters={"epochs": "refused, because the corrections would no longer sum to zero: give `iterations`"},
)
