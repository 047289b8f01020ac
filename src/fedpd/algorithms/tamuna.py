"""TAMUNA (Condat, Agarský, Malinovsky, Richtárik, 2023) with all agents: ProxSkip whose agents send some coordinates.

    xh_i = x_i - step (h_i(x_i) - c_i)
    with probability 1 - p:   x   = (1/s) sum_i C_i(xh_i),   x_i = x,
                              c_i = c_i + (eta/step) C_i(x - xh_i)
    with probability p:       x_i = xh_i

p is the probability of SKIPPING, as everywhere in fedpd; the paper's p is 1 - p. C_i keeps the coordinates of agent i
and sets the others to 0. Each coordinate belongs to s of the N agents (`copies`): in a table with s ones per row, one
after another and starting again at the first column, agent i has the column pi(i), where the permutation pi is drawn
anew for each communication. So an agent sends ceil(s d / N) of d numbers, and receives d. All draw the same pi, from
the number of the communication; the column travels beside the numbers. With s = N this is ProxSkip.

The paper lets C of N agents take part; here all do (C = N). Its range for eta is (0, (1-p) N(s-1)/(s(N-1))].
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_most, count, positive, refuse, skip_probability
from fedpd.core import (
    Algorithm,
    Array,
    Away,
    Exchange,
    Key,
    LocalObjective,
    Packed,
    Subproblem,
    Timing,
    Work,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, sgd


class Agent(NamedTuple):
    """An agent: x_i, c_i, its number, and how many communications there were."""

    x: Vector
    c: Vector
    number: Array
    communications: Array


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the agents, and how a message is made of them.

    Attributes:
        agents: N.
        copies: s.
    """

    agents: int
    copies: int

    def column(self, agent: Agent) -> Array:
        """Return pi(i) of the next communication."""
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), agent.communications)
        return jax.random.permutation(key, self.agents)[agent.number].astype(jnp.uint32)

    def mask(self, column: Array, size: int) -> Array:
        """Return which of `size` coordinates belong to a column."""
        start = (self.copies * jnp.arange(size, dtype=jnp.int32)) % self.agents
        return (column.astype(jnp.int32) - start) % self.agents < self.copies

    def places(self, column: Array, size: int) -> Array:
        """Return the coordinates of a column; a column with one less ends with `size`, which is none."""
        most = -(-self.copies * size // self.agents)
        return jnp.nonzero(self.mask(column, size), size=most, fill_value=size)[0]


@dataclass(frozen=True)
class Decoder:
    """Returns C_i(x) from the numbers that travelled.

    Attributes:
        coordinates: Whose coordinates they are.
        structure: The structure of the model.
        shapes: The shapes of its leaves.
    """

    coordinates: Coordinates
    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, arrays: dict[str, Array], /) -> Vector:
        sizes = [math.prod(shape) for shape in self.shapes]
        values = arrays["values"]
        places = self.coordinates.places(arrays["column"], sum(sizes))
        whole = jnp.zeros(sum(sizes), values.dtype).at[places].set(values, mode="drop")
        parts = jnp.split(whole, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return Vector(jax.tree.unflatten(self.structure, leaves))


@specified
def tamuna(
    *, step: float, p: float, agents: int, copies: int, eta: float | None = None, batch: int | None = None
) -> Algorithm:
    """Return TAMUNA with a constant step, skip probability p, and s = `copies` agents for each coordinate.

    Args:
        step: The step size.
        p: The probability of skipping a communication.
        agents: N, which must be the number of agents of the problem.
        copies: s, from 2 to N: how many agents send each coordinate.
        eta: The step of the control variates times `step`; None: the largest that the paper allows.
        batch: Samples per step; None: all of the agent's.
    """
    positive("step", step, STEP)
    count("agents", agents, "Give the number of agents of the problem", least=2, bits=31)
    remedy = f"Give how many agents send each coordinate, from 2 to {agents}"
    at_most("copies", count("copies", copies, remedy, least=2, bits=31), agents, remedy)
    if callable(p):
        refuse("p", p, "must be a number", "The control variates' step eta/step needs one")
    skip, communicate = skip_probability(p), 1 - p
    largest = communicate * agents * (copies - 1) / (copies * (agents - 1))
    rate = largest if eta is None else at_most("eta", positive("eta", eta, ""), largest, "Leave it out for the largest")
    oracle, coordinates = sgd(step, 1, batch), Coordinates(agents, copies)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.asarray(f.agent, jnp.int32), jnp.int32(0))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, _, work = oracle.solve(Subproblem(f, -agent.c), agent.x, None, r, key)
        return agent._replace(x=x), work

    def send(agent: Agent) -> Packed:
        leaves, structure = jax.tree.flatten(agent.x.tree)
        values, column = jnp.concatenate([leaf.reshape(-1) for leaf in leaves]), coordinates.column(agent)
        own = jnp.take(values, coordinates.places(column, len(values)), mode="fill", fill_value=0)
        return Packed({"values": own, "column": column}, Decoder(coordinates, structure, tuple(map(jnp.shape, leaves))))

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = agents / copies * mean
        return x, x

    def receive(agent: Agent, x: Vector) -> Agent:
        message = send(agent._replace(x=x - agent.x))
        change = message.decoder(message.arrays)
        return Agent(x, agent.c + rate / step * change, agent.number, agent.communications + 1)

    return Algorithm(
        "tamuna",
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
        away=Away(everyone=True),
        timing=Timing(skip=skip),
    )


CARD = Card(
    title="TAMUNA",
    summary="ProxSkip whose agents send some coordinates",
    family="corrected gradients",
    reference=Reference(
        authors="Laurent Condat, Ivan Agarský, Grigory Malinovsky, Peter Richtárik",
        title="TAMUNA: Doubly Accelerated Distributed Optimization with Local Training, Compression, and Partial "
        "Participation",
        venue="arXiv:2302.09832",
        year=2023,
        checked=(
            "An author's page (grigory-malinovsky.github.io) and the README of Flower's baseline (adap/flower, "
            "baselines/tamuna) confirm the authors, the arXiv number and an earlier title that says Federated Learning."
        ),
    ),
    variants=(
        Variant(
            "TAMUNA p=0.8",
            lambda L, agents, scale: tamuna(
                step=scale / L, p=0.8, agents=max(agents, 2), copies=max(2, math.ceil(max(agents, 2) / 2))
            ),
            Guarantee("SC, condition k", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
        ),
    ),
    parameters={
        "p": "the probability of skipping a communication, a number in [0, 1)",
        "agents": "N, the number of agents of the problem",
        "copies": "s, how many agents send each coordinate, from 2 to N",
        "eta": "the step of the control variates, at most (1-p) N(s-1)/(s(N-1))",
    },
    theory_checked=(
        "The abstract confirms linear convergence to the exact solution for strongly convex f. The complexities are "
        "those of ProxSkip, for s proportional to N; the gain from few copies is not stated here."
    ),
    equations_checked=(
        "The masks, the range of eta and the update of the control variates agree with Flower's baseline "
        "(adap/flower, baselines/tamuna); not compared with the paper itself."
    ),
)
