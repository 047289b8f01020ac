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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import at_most, count, positive, refuse, skip_probability
from fedpd.core import Array, Key, LocalObjective, Method, Packed, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import STEP, check_stochastic, sgd


class Agent(NamedTuple):
    """An agent: x_i, c_i, its number, and how many communications there were."""

    x: Vector
    c: Vector
    number: Array
    communications: Array


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the agents, and how a message is made of them."""

    agents: int  # N
    copies: int  # s

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
class CoordinateDecoder:
    """Returns C_i(x) from the numbers that travelled."""

    coordinates: Coordinates  # whose coordinates they are
    structure: Any  # the structure of the model
    shapes: tuple[tuple[int, ...], ...]  # the shapes of its leaves

    def __call__(self, arrays: dict[str, Array], /) -> Vector:
        sizes = [math.prod(shape) for shape in self.shapes]
        values = arrays["values"]
        places = self.coordinates.places(arrays["column"], sum(sizes))
        whole = jnp.zeros(sum(sizes), values.dtype).at[places].set(values, mode="drop")
        parts = jnp.split(whole, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return Vector(jax.tree.unflatten(self.structure, leaves))


class Tamuna(Method):
    """ProxSkip whose agents send some coordinates."""

    step: float
    p: float
    agents: int
    copies: int
    eta: float | None
    batch: int | None
    needs_everyone = True

    @property
    def coordinates(self) -> Coordinates:
        return Coordinates(self.agents, self.copies)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x, jnp.asarray(f.agent, jnp.int32), jnp.int32(0))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, _, work = sgd(self.step, 1, self.batch).solve(Subproblem(f, -agent.c), agent.x, None, r, key)
        return agent._replace(x=x), work

    def send(self, agent: Agent) -> Packed:
        leaves, structure = jax.tree.flatten(agent.x.tree)
        values, column = jnp.concatenate([leaf.reshape(-1) for leaf in leaves]), self.coordinates.column(agent)
        own = jnp.take(values, self.coordinates.places(column, len(values)), mode="fill", fill_value=0)
        decoder = CoordinateDecoder(self.coordinates, structure, tuple(map(jnp.shape, leaves)))
        return Packed({"values": own, "column": column}, decoder)

    def aggregate(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = self.agents / self.copies * mean
        return x, x

    def receive(self, agent: Agent, x: Vector) -> Agent:
        message = self.send(agent._replace(x=x - agent.x))
        change = message.decoder(message.arrays)
        rate = _largest_eta(self.p, self.agents, self.copies) if self.eta is None else self.eta
        return Agent(x, agent.c + rate / self.step * change, agent.number, agent.communications + 1)

    def skip_probability(self, r: Any) -> Any:
        return None if isinstance(self.p, float) and self.p == 0 else self.p

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        if self.agents != agents:
            rule = f"must be {agents}, the number of agents, of which each sends its own coordinates"
            refuse("agents", self.agents, rule, f"Give tamuna(agents={agents}, ...)")


@makes(Tamuna)
def tamuna(
    *, step: float, p: float, agents: int, copies: int, eta: float | None = None, batch: int | None = None
) -> Method:
    """Return TAMUNA with a constant step, skip probability p, and s = `copies` agents for each coordinate."""
    positive("step", step, STEP)
    count("agents", agents, "Give the number of agents of the problem", least=2, bits=31)
    remedy = f"Give how many agents send each coordinate, from 2 to {agents}"
    at_most("copies", count("copies", copies, remedy, least=2, bits=31), agents, remedy)
    if callable(p):
        refuse("p", p, "must be a number", "The control variates' step eta/step needs one")
    skip_probability(p)
    if eta is not None:
        at_most("eta", positive("eta", eta, ""), _largest_eta(p, agents, copies), "Leave it out for the largest")
    check_stochastic(1, batch)
    return Tamuna(step=step, p=p, agents=agents, copies=copies, eta=eta, batch=batch)


def _largest_eta(p: float, agents: int, copies: int) -> float:
    return (1 - p) * agents * (copies - 1) / (copies * (agents - 1))


CARD = Card.single(
    title="TAMUNA",
    summary="ProxSkip whose agents send some coordinates",
    family="corrected gradients",
    authors="Laurent Condat, Ivan Agarský, Grigory Malinovsky, Peter Richtárik",
    paper="TAMUNA: Doubly Accelerated Distributed Optimization with Local Training, Compression, and Partial "
    "Participation",
    venue="arXiv:2302.09832",
    year=2023,
    rule=lambda L, agents, scale: tamuna(
        step=scale / L, p=0.8, agents=max(agents, 2), copies=max(2, math.ceil(max(agents, 2) / 2))
    ),
    guarantee=Guarantee("SC, condition k", "sqrt(k) log(1/e)", "k log(1/e)", "M k log(1/e)"),
    label="TAMUNA p=0.8",
    parameters={
        "p": "the probability of skipping a communication, a number in [0, 1)",
        "agents": "N, the number of agents of the problem",
        "copies": "s, how many agents send each coordinate, from 2 to N",
        "eta": "the step of the control variates times `step`; `None`: the largest, (1-p) N(s-1)/(s(N-1))",
    },
)
