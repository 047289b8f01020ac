"""FedADMM-InSa (Song, Wang, Zuazua, 2025): ADMM whose agents choose their own accuracy and penalty.

    x_i      minimises L_i(w) = f_i(w) - <lambda_i, w> + (beta_i/2) ||w - z||^2 by gradient steps from z, until
             ||grad L_i(x_i)|| <= sigma_i ||grad L_i(z)||,   sigma_i = 0.999 sqrt(2)/(sqrt(2) + sqrt(beta_i/c))
    lambda_i = lambda_i - beta_i (x_i - z)
    beta_i   = beta_i tau   if ||x_i - z|| > ratio beta_i ||x_i - x_i before||
             = beta_i/tau   if beta_i ||x_i - x_i before|| > ratio ||x_i - z||
    z        = (z_new + delta z)/(1 + delta),   z_new = sum_i (beta_i x_i - lambda_i) / sum_i beta_i

beta_i here is the paper's penalty, 1/eta in FedPD. c is the strong convexity of the f_i. Gradient steps have the size
1/(smoothness + beta_i), at most Q = `iterations` of them. Agents send beta_i x_i - lambda_i and beta_i, one model and a
number (CTA but for the number), the server sends z. It needs all agents. Its rules compared with those of FedPD with
memory: the penalty moves by a factor of 2 where two residuals differ by more than a factor of 5 instead of
continuously, each agent has its own, and changes are not summable; the accuracy follows from beta_i/c instead of from
what the errors do to the server's step.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedpd.base.checks import at_least, count, positive
from fedpd.core import Array, Gradient, Key, LocalObjective, Method, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import ITERATIONS


class Agent(NamedTuple):
    z: Vector  # the server's model
    x: Vector  # x_i
    dual: Vector  # lambda_i
    beta: Array


class FedADMMInSa(Method):
    """FedADMM-InSa: each agent has an accuracy and a penalty of its own."""

    beta: float
    smoothness: float
    convexity: float
    iterations: int
    ratio: float
    tau: float
    delta: float
    needs_everyone = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, jnp.asarray(self.beta, float))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        z, before, dual, own = agent
        phi = Subproblem(f, -1.0 * dual - own * z, own)
        sigma = 0.999 * jnp.sqrt(2.0) / (jnp.sqrt(2.0) + jnp.sqrt(own / self.convexity))
        steps, first = f.steps(self.iterations), phi.gradient(z)
        enough = sigma**2 * (first @ first)

        def onward(carry: tuple[Array, Vector, Vector]) -> Array:
            q, _, gradient = carry
            return (q < steps) & (gradient @ gradient > enough)

        def descend(carry: tuple[Array, Vector, Vector]) -> tuple[Array, Vector, Vector]:
            q, x, gradient = carry
            x = x - gradient / (self.smoothness + own)
            return q + 1, x, phi.gradient(x)

        q, x, _ = lax.while_loop(onward, descend, (jnp.int32(0), z, first))
        moved, apart = x - before, x - z
        primal, between = own * jnp.sqrt(moved @ moved), jnp.sqrt(apart @ apart)
        grown = jnp.where(self.ratio * between < primal, own / self.tau, own)
        grown = jnp.where(self.ratio * primal < between, own * self.tau, grown)
        return Agent(z, x, dual - own * apart, grown), Work.of(q, q + 1, f.size)

    def send(self, agent: Agent) -> tuple[Gradient, Array]:
        return Gradient(agent.beta * agent.x - agent.dual), agent.beta

    def aggregate(self, server: Vector, mean: tuple[Vector, Array], share: Any) -> tuple[Vector, Vector]:
        total, weight = mean
        z = (total / weight + self.delta * server) / (1 + self.delta)
        return z, z

    def receive(self, agent: Agent, z: Vector) -> Agent:
        return agent._replace(z=z)

    def model(self, agent: Agent) -> Vector:
        return agent.z


@makes(FedADMMInSa)
def fedadmm_insa(
    *,
    beta: float,
    smoothness: float,
    convexity: float,
    iterations: int = 100,
    ratio: float = 5.0,
    tau: float = 2.0,
    delta: float = 0.2,
) -> Method:
    """Return FedADMM-InSa with first penalties `beta` and at most Q = `iterations` local steps."""
    positive("beta", beta, "beta = L is a good start, L the smoothness of the f_i")
    positive("smoothness", smoothness, "Give L of the f_i; theory.smoothness(problem) finds it")
    positive("convexity", convexity, "Give c of the f_i, e.g. the weight of an l2 penalty")
    count("iterations", iterations, ITERATIONS, bits=31)
    at_least("ratio", ratio, 1, "By how much residuals may differ before a penalty changes; 5 is usual")
    at_least("tau", tau, 1, "The factor by which a penalty changes; 2 is usual, 1 keeps penalties")
    at_least("delta", delta, 0, "The weight of the server's last model; 0 forgets it")
    return FedADMMInSa(
        beta=beta, smoothness=smoothness, convexity=convexity, iterations=iterations, ratio=ratio, tau=tau, delta=delta
    )


CARD = Card.single(
    title="FedADMM-InSa",
    summary="ADMM with adaptive penalties and inexact solves",
    family="primal-dual",
    authors="Yongcun Song, Ziqi Wang, Enrique Zuazua",
    paper="FedADMM-InSa: An inexact and self-adaptive ADMM for federated learning",
    venue="Neural Networks 181, 106772 (January 2025); arXiv:2402.13989",
    year=2025,
    rule=lambda L, agents, scale: fedadmm_insa(beta=L / scale, smoothness=L, convexity=0.01 * L),
    guarantee=Guarantee("SC, with fixed penalties: converges"),
    only_models=False,
    parameters={
        "beta": "β, the first penalty of every agent",
        "convexity": "c, the strong convexity of the f_i",
        "iterations": "Q, the most local steps of a round",
        "ratio": "by how much two residuals may differ before a penalty changes",
        "tau": "τ, the factor by which a penalty changes",
        "delta": "δ, the weight of the server's last model",
    },
)
