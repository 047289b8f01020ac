"""FedADMM (Gong, Li, Freris, 2022): ADMM with differences, for partial participation and variable local work.

    x_i      = argmin f_i(x) + <lambda_i, x - x_0> + (rho/2) ||x - x_0||^2     (by the oracle, from x_0)
    lambda_i = lambda_i + rho (x_i - x_0)
    Delta_i  = (x_i + lambda_i/rho) now - as last sent
    x_0      = x_0 + server_step mean_S Delta_i

Agents send Delta_i, the server sends x_0 (CTA). server_step = |S|/N (the default, None) keeps x_0 the mean of all
agents' x_i + lambda_i/rho, which converges with partial participation; the paper also tries larger steps. Local work
varies through the oracle's tolerance, or through stragglers. The local solver starts at x_0, as in the authors'
program; start="local" starts it at the agent's own x_i. Difference from the authors' program: theirs sends (x_i - x_0)
+ (new dual - old dual)/rho, the change of x_i from x_0 and not from the last message. This is 2 (x_i - x_0), so their
server goes to x_0 + 2 server_step mean_S (x_i - x_0), which was worse here with all agents present: x_0 - x^0 stays a
multiple of the sum of all duals, so it stops at a minimiser of f + (rho |S|)/(4 N server_step) ||x - x^0||^2, not of f.
"""

from typing import Any, Literal

from fedpd.algorithms._rules import solver
from fedpd.algorithms.admm import Agent, DualAgents
from fedpd.base.checks import choice, positive
from fedpd.core import LocalObjective, Method, Oracle, Subproblem, Vector, augmented_lagrangian, check_oracle, makes
from fedpd.core.card import Card, Guarantee


class FedADMM(DualAgents):
    """FedADMM; its rho is the 1/eta of ADMM."""

    rho: float
    server_step: float | None

    def lagrangian(self, f: LocalObjective, agent: Agent) -> Subproblem:
        return augmented_lagrangian(f, agent.x0, agent.dual, 1 / self.rho)

    def divide(self, v: Vector) -> Vector:
        return self.rho * v

    def multiply(self, v: Vector) -> Vector:
        return v / self.rho

    def aggregate(self, server: Vector, delta: Vector, share: Any) -> tuple[Vector, Vector]:
        x0 = server + (share if self.server_step is None else self.server_step) * delta
        return x0, x0

    def asynchronous(self) -> Method:
        return self


@makes(FedADMM)
def fedadmm(
    *, rho: float, oracle: Oracle, server_step: float | None = None, start: Literal["local", "server"] = "server"
) -> Method:
    """Return FedADMM with penalty rho, a local oracle, and a server step."""
    check_oracle(oracle)
    choice("start", start, ("local", "server"))
    positive("rho", rho, "rho = L is a good start, where L is the smoothness of the f_i")
    if server_step is not None:
        positive("server_step", server_step, "Leave it out for |S|/N")
    return FedADMM(rho=rho, oracle=oracle, server_step=server_step, start=start)


CARD = Card.single(
    title="FedADMM",
    summary="ADMM by differences, for partial participation",
    family="primal-dual",
    authors="Yonghai Gong, Yichuan Li, Nikolaos M. Freris",
    paper="FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity",
    venue="38th IEEE International Conference on Data Engineering (ICDE 2022), 2575-2587; arXiv:2204.03529",
    year=2022,
    rule=lambda L, agents, scale: fedadmm(rho=L / scale, oracle=solver(L, L / scale)),
    guarantee=Guarantee("NC, inexact x_i; rate not confirmed", "1/e"),
    parameters={
        "rho": "ρ, the penalty; 1/η of FedPD",
        "server_step": "the server's step; `None`: the share of agents that are present",
    },
)
