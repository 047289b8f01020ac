"""LoCoDL (Condat, Maranjyan, Richtárik, 2024): local steps, rare communication and unbiased compression.

It minimises mean f_i = mean (f_i - g) + g, with g(x) = (strength/2) ||x||^2. All agents have the same y and v.

    xh_i = x_i - step (h_i(x_i) - strength x_i - u_i),     yh = y - step (strength y - v)
    with probability 1 - p:   d_i = C_i(xh_i - yh),        d = (1/2) mean_j d_j
                              x_i = (1 - rho) xh_i + rho (yh + d),   y = yh + rho d
                              u_i = u_i + k (d - d_i),     v = v + k d,     k = (1 - p) rho/(step (1 + 2 omega))
    with probability p:       x_i = xh_i,                  y = yh

p is the probability of SKIPPING, as everywhere in fedpd; the paper's p is 1 - p. C_i is the compressor of
`transforms.wrap(..., up=...)`; without it, agents send the difference as it is. C_i must be unbiased, with a variance
of at most omega ||v||^2. rho is the paper's rho and chi: at most 1/(1 + omega_av), where omega_av = omega/N if agents
draw independently, as they do here. mean u_i + v = 0 in every round. The model of a run is y. Agents send a difference
of models, the server sends d. It needs all agents in every communication.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpd.base.checks import at_least, at_most, positive, refuse, skip_probability
from fedpd.core import Array, Key, LocalObjective, Method, Subproblem, Unbiased, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import STEP, check_stochastic, sgd


class Agent(NamedTuple):
    x: Vector  # x_i
    y: Vector  # y, the same at all agents
    u: Vector  # u_i
    v: Vector  # v, the same at all agents
    difference: Vector  # d_i, what the agent sends


class LoCoDL(Method):
    """LoCoDL; the agents' compressor comes from `transforms.wrap`."""

    step: float
    p: float
    omega: float
    rho: float | None
    strength: float
    batch: int | None
    needs_everyone = True
    only_at_agents = True

    @property
    def share(self) -> float:
        """The share of the way to the mean."""
        return 1 / (1 + self.omega) if self.rho is None else self.rho

    @property
    def rate(self) -> float:
        """k step: the step of the control variates times `step`."""
        return (1 - self.p) * self.share / (1 + 2 * self.omega)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, 0 * x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi = Subproblem(f, -agent.u, -self.strength)
        x, _, work = sgd(self.step, 1, self.batch).solve(phi, agent.x, None, r, key)
        y = agent.y - self.step * (self.strength * agent.y - agent.v)
        return agent._replace(x=x, y=y, difference=x - y), work

    def send(self, agent: Agent) -> Unbiased:
        return Unbiased(agent.difference)

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return server, 0.5 * mean

    def receive(self, agent: Agent, d: Vector) -> Agent:
        return Agent(
            x=(1 - self.share) * agent.x + self.share * (agent.y + d),
            y=agent.y + self.share * d,
            u=agent.u + self.rate / self.step * (d - agent.difference),
            v=agent.v + self.rate / self.step * d,
            difference=agent.difference,
        )

    def with_message(self, agent: Agent, difference: Vector) -> Agent:
        return agent._replace(difference=difference)

    def model(self, agent: Agent) -> Vector:
        return agent.y

    def skip_probability(self, r: Any) -> Any:
        return None if isinstance(self.p, float) and self.p == 0 else self.p

    @property
    def largest_variance(self) -> float:
        return self.omega

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        most = 1 / (1 + self.omega / agents)
        if self.rho is not None and self.rho > most * (1 + 1e-9):
            rule = f"must be at most 1/(1 + omega/N) = {most:.6g}, with omega = {self.omega:g} and N = {agents}"
            refuse("rho", self.rho, rule, "Leave rho out")


@makes(LoCoDL)
def locodl(
    *,
    step: float,
    p: float,
    omega: float = 0.0,
    rho: float | None = None,
    strength: float = 0.0,
    batch: int | None = None,
) -> Method:
    """Return LoCoDL with a constant step and skip probability p."""
    positive("step", step, STEP)
    at_least("omega", omega, 0, "Give the variance of the compressor, 0 without compression")
    at_least("strength", strength, 0, "Give at most the strong convexity of the f_i, or 0")
    remedy = "Give at most 1/(1 + omega/N), or leave it out"
    if rho is not None:
        at_most("rho", positive("rho", rho, remedy), 1, remedy)
    if callable(p):
        refuse("p", p, "must be a number", "The step of the control variates needs one")
    skip_probability(p)
    check_stochastic(1, batch)
    return LoCoDL(step=step, p=p, omega=omega, rho=rho, strength=strength, batch=batch)


CARD = Card.single(
    title="LoCoDL",
    summary="corrected local steps, rare compressed messages",
    family="corrected gradients",
    authors="Laurent Condat, Artavazd Maranjyan, Peter Richtárik",
    paper="LoCoDL: Communication-Efficient Distributed Learning with Local Training and Compression",
    venue="International Conference on Learning Representations (ICLR 2025); arXiv:2403.04348",
    year=2025,
    rule=lambda L, agents, scale: locodl(step=scale / L, p=0.8),
    guarantee=Guarantee("SC, condition k", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
    label="LoCoDL p=0.8",
    parameters={
        "p": "the probability of skipping a communication, a number in [0, 1)",
        "omega": "ω, the variance of the compressor: d/k - 1 for `random_k` with k of d entries",
        "rho": "ρ, the share of the way to the mean, at most 1/(1 + ω/N); `None`: 1/(1 + ω)",
        "strength": "the part of the strong convexity of the f_i that y takes over; at most all of it",
    },
)
