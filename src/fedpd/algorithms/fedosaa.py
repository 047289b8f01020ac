"""FedOSAA (Feng, Laiu, Strohmer, 2025): corrected local steps, then one Anderson step from where they began.

    base="svrg"       g = mean grad f_i(x) in a first exchange;   h_i(w) = grad f_i(w) - grad f_i(x) + g
    base="scaffold"   c and c_i of the last round, no exchange;   h_i(w) = grad f_i(w) - c_i + c,  c_i+ = grad f_i(x)

    w_0 = x;  Q times  w_{q+1} = w_q - step h_i(w_q)
    S = (w_{q+1} - w_q),  Y = (h_i(w_{q+1}) - h_i(w_q)),  q = 0..Q-1
    x_i = w_0 - step (h_0 - Y a) - S a,   a = argmin ||h_0 - Y a||,  h_0 = h_i(w_0)
    x   = mean x_i   (base="scaffold": and c = mean c_i+)

The Anderson step approximates the Newton step -H_i^-1 h_0 in the span of the local steps (GMRES). Q + 1 gradients per
agent and round. Agents send a model and a gradient, two models each way in a round, in two exchanges with "svrg" and in
one with "scaffold" (not CTA). It needs all agents: the correction must belong to those who use it. Differences from the
paper: full gradients only; a column of Y of which less than `cut` is new is left out of the least-squares problem.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedpd.algorithms._rules import Q
from fedpd.base.checks import choice, count, positive
from fedpd.core import Array, Exchange, Gradient, Key, LocalObjective, Method, Model, Vector, Work, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import ITERATIONS, STEP


class Agent(NamedTuple):
    x: Vector
    own: Vector  # grad f_i(x), or c_i
    mean: Vector  # their mean over the agents
    local: Vector  # x_i
    new: Vector  # c_i+, for "scaffold"


class AndersonSteps(Method):
    """The part of FedOSAA that both bases share."""

    step: float
    iterations: int
    base: Literal["svrg", "scaffold"]
    cut: float
    needs_everyone = True
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, 0 * x, x, 0 * x)

    def descend(self, f: LocalObjective, agent: Agent, at_x: Vector) -> Agent:
        """Return an agent with x_i and c_i+, which is at_x = grad f_i(x)."""
        correction = agent.mean - agent.own

        def onward(carry: tuple[Vector, Vector], _: None) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
            w, h = carry
            new = w - self.step * h
            h_new = f.gradient(new) + correction
            return (new, h_new), (new - w, h_new - h)

        first = at_x + correction
        _, (steps, changes) = lax.scan(onward, (agent.x, first), length=self.iterations)
        return agent._replace(local=agent.x - self._anderson(first, steps, changes), new=at_x)

    def _anderson(self, h: Vector, steps: Vector, changes: Vector) -> Vector:
        """Return step (h - Y a) + S a with the best a."""
        flat, unravel = ravel_pytree(h)
        matrix = jax.vmap(lambda row: ravel_pytree(row)[0])
        s, y = matrix(steps), matrix(changes)
        u, v = orthonormal(y, s, self.cut)
        along = u @ flat
        return unravel(self.step * (flat - along @ u) + along @ v)


class FedOSAASvrg(AndersonSteps):
    """FedOSAA whose correction comes from a first exchange of gradients."""

    def exchanges(self) -> tuple[Exchange, ...]:
        first = Exchange(
            self.differentiate,
            lambda agent: Gradient(agent.own),
            lambda server, mean, share: (server, mean),
            lambda agent, g: agent._replace(mean=g),
        )
        return (first, *super().exchanges())

    def differentiate(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return agent._replace(own=f.gradient(agent.x)), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return self.descend(f, agent, agent.own), Work.of(self.iterations, self.iterations, f.size)

    def send(self, agent: Agent) -> Model:
        return Model(agent.local)


class FedOSAAScaffold(AndersonSteps):
    """FedOSAA whose correction comes from the last round."""

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return self.descend(f, agent, f.gradient(agent.x)), Work.of(self.iterations, self.iterations + 1, f.size)

    def send(self, agent: Agent) -> tuple[Model, Gradient]:
        return Model(agent.local), Gradient(agent.new)

    def aggregate(
        self, server: Vector, mean: tuple[Vector, Vector], share: Any
    ) -> tuple[Vector, tuple[Vector, Vector]]:
        return mean[0], mean

    def receive(self, agent: Agent, mean: tuple[Vector, Vector]) -> Agent:
        return agent._replace(x=mean[0], mean=mean[1], own=agent.new)


@makes(FedOSAASvrg, FedOSAAScaffold)
def fedosaa(*, step: float, iterations: int, base: Literal["svrg", "scaffold"] = "svrg", cut: float = 1e-8) -> Method:
    """Return FedOSAA with Q = `iterations` local steps before each Anderson step."""
    positive("step", step, STEP)
    count("iterations", iterations, ITERATIONS, bits=31)
    choice("base", base, ("svrg", "scaffold"))
    positive("cut", cut, "The share of a change of the gradient that must be new, e.g. 1e-8")
    made = FedOSAASvrg if base == "svrg" else FedOSAAScaffold
    return made(step=step, iterations=iterations, base=base, cut=cut)


def orthonormal(y: Array, s: Array, cut: float) -> tuple[Array, Array]:
    """Return orthonormal combinations of the rows of y, and the same combinations of the rows of s.

    A row of which less than `cut` is new is left out: its place holds zeros. This is Gram-Schmidt, twice for accuracy,
    and not LAPACK: where agents are sharded over the cores of a CPU, a batch of LAPACK calls waits for threads that
    wait for it.

    Args:
        y: (Q, d).
        s: (Q, d).
        cut: The share of a row's length.
    """
    info = jnp.finfo(y.dtype)
    least = jnp.maximum(cut, 10 * info.eps)

    def add(q: Array, basis: tuple[Array, Array]) -> tuple[Array, Array]:
        u, v = basis
        new, combined = y[q], s[q]
        for _ in range(2):
            along = u @ new
            new, combined = new - along @ u, combined - along @ v
        length = jnp.linalg.norm(new)
        scale = jnp.where(length > least * jnp.linalg.norm(y[q]), 1 / jnp.maximum(length, info.tiny), 0)
        return u.at[q].set(scale * new), v.at[q].set(scale * combined)

    return lax.fori_loop(0, len(y), add, (jnp.zeros_like(y), jnp.zeros_like(s)))


CARD = Card(
    title="FedOSAA",
    summary="one Anderson step on corrected local steps",
    family="Newton-type",
    reference=Reference(
        authors="Xue Feng, M. Paul Laiu, Thomas Strohmer",
        title="FedOSAA: Improving Federated Learning with One-Step Anderson Acceleration",
        venue="Conference on Parsimony and Learning (CPAL 2025), PMLR 280, 985-1006; arXiv:2503.10961",
        year=2025,
    ),
    variants=(
        Variant(
            "FedOSAA-SVRG",
            lambda L, agents, scale: fedosaa(step=scale / L, iterations=Q),
            Guarantee("SC, near the minimum: linear", "log(1/e)"),
            only_models=False,
        ),
        Variant(
            "FedOSAA-SCAFFOLD",
            lambda L, agents, scale: fedosaa(step=scale / L, iterations=Q, base="scaffold"),
            Guarantee("SC, near the minimum: linear", "log(1/e)"),
            only_models=False,
            summary="the same on SCAFFOLD's steps",
        ),
    ),
    parameters={
        "base": '`"svrg"` or `"scaffold"`, where the correction comes from',
        "cut": "the share of a change of the gradient that must be new, or the change is left out",
    },
)
