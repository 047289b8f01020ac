"""Read and replace the state of a run, wherever its agents are: on devices, in files, or in the rows of agents seen."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fedpd.core import State, Tree
from fedpd.core.agents import AGENTS, SHARED, one_agent, with_padding_agents
from fedpd.engine import disk
from fedpd.engine.attendance import PartialRun
from fedpd.engine.costs import Costs, message_costs
from fedpd.engine.debug import costs_without_compilation
from fedpd.engine.measurements import variant
from fedpd.engine.metrics import mean_copy
from fedpd.engine.plan import HostPlace, Plan, on_host, put_on_devices
from fedpd.engine.rounds import Inputs, Program

Place = HostPlace | PartialRun | None  # None: the agents are in memory, on devices


def agents_of(plan: Plan, place: Place, state: State) -> Any:
    """Return the state of the agents without padding: leaves (N, ...), (variants, N, ...) if there are several.

    If agents may be absent, return the `AgentsSeen` of each variant.
    """
    if isinstance(place, PartialRun):
        return place.agents(state)
    return jax.tree.map(lambda leaf: without_padding(plan, on_host(leaf)), state.agents)


def model_of(plan: Plan, place: Place, state: State, i: int) -> Tree:
    """Return the model of variant i."""
    if isinstance(place, PartialRun):
        return place.model(state, i)
    return mean_copy(plan.algorithm, variant(agents_of(plan, place, state), i, plan.many), plan.problem.agents)


def shapes_of_agents(plan: Plan, place: Place, state: State, seen: Sequence[int]) -> Any:
    """Return the shapes of `agents_of`; `seen`: how many agents each variant has seen, if agents may be absent."""
    if isinstance(place, PartialRun):
        return place.like(seen, state)
    return jax.eval_shape(lambda agents: jax.tree.map(lambda leaf: without_padding(plan, leaf), agents), state.agents)


def without_padding(plan: Plan, leaf: Any) -> Any:
    """Return an array of all agents without the padding agents."""
    return leaf[(slice(None),) * plan.many + (slice(plan.problem.agents),)]


def restored_state(plan: Plan, place: Place, agents: Any, server: Any, done: int) -> State:
    """Return the state after `done` rounds, from what `agents_of` returned then, and the state of the server."""
    layout = plan.layout
    if isinstance(place, PartialRun):
        agents = place.fill(agents)
    elif isinstance(place, disk.OnDisk):
        agents = place.store.fill(agents)
    elif place is None:
        axes = [None, *AGENTS] if plan.many else AGENTS
        agents = put_on_devices(layout, with_padding_agents(agents, layout, int(plan.many)), PartitionSpec(*axes))
    return State(agents, put_on_devices(layout, server, SHARED), jnp.int32(done))


def bytes_of_messages(plan: Plan, place: Place, program: Program, inputs: Inputs, state: State) -> Costs:
    """Return the bytes of the method's messages."""
    functions = program.functions
    if plan.debug:
        one, agent = one_agent(inputs.shard, 0), variant(state.agents, 0, True)
        return costs_without_compilation(plan.algorithm, functions, one, agent, state.server)
    server = jax.eval_shape(lambda tree: variant(tree, 0, plan.many), state.server)
    if isinstance(place, PartialRun):
        return message_costs(plan.algorithm, functions, place.one.one, place.one.agent, server)
    agents = jax.eval_shape(lambda tree: variant(tree, 0, plan.many), state.agents)
    one = jax.eval_shape(lambda shard: one_agent(shard, 0), inputs.shard)
    agent = jax.eval_shape(lambda tree: variant(tree, 0, True), agents)
    return message_costs(plan.algorithm, functions, one, agent, server)
