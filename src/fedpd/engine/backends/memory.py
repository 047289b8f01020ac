"""The interface of all backends, and the one that has all agents on the devices of this machine.

A driver runs chunks of rounds and never asks where the agents live. With all agents on the devices, JAX compiles whole
chunks of rounds.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedpd.core import State, Tree, Vector
from fedpd.core.agents import AGENTS, SHARED, local_objective, one_agent, sharded, with_padding_agents
from fedpd.engine.backends.compiled import ChunkKey, compiled_by_size, compiled_chunk
from fedpd.engine.loop import (
    INPUTS,
    LONGEST_CHUNK,
    STATE,
    Inputs,
    Program,
    Round,
    Rows,
    Template,
    init_agents,
    measure_copies,
)
from fedpd.engine.measure.costs import Costs, costs_of, exchanged_messages
from fedpd.engine.measure.history import target_values, variant
from fedpd.engine.measure.metrics import Metrics, delivered, mean_copy, not_measured
from fedpd.engine.plan import EACH_METHOD, EACH_STATE, Plan, on_host, prepare, put_on_devices, strongly_typed

Progress = Callable[[float], None]  # receives the fraction of a round that is done


class Backend(ABC):
    """A run at some round. It is made at the start of the run."""

    plan: Plan
    program: Program  # the method on the problem's functions
    template: Template  # the program to compile. It takes the method as an argument
    inputs: Inputs  # the arrays that do not change
    state: State  # the state after the last chunk
    # the measured values at the start; in a sweep with an axis of variants, whose proximal steps may differ
    metrics: Metrics
    paced: ClassVar[bool] = True  # whether a chunk is as long as the progress bar needs; otherwise it is one round
    # whether agents may be absent, so that `agents` returns the agents seen by each variant
    absence: ClassVar[bool] = False

    @abstractmethod
    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, np.ndarray | None]:
        """Run at most `number` rounds after `done`.

        Returns:
            The rows of the rounds, and the agents of each round, (variants, rounds, columns); None: all agents.
        """

    def model(self, i: int) -> Tree:
        """Return the current model of variant i."""
        kept = delivered(self.plan.algorithm, variant(self.state.server, i, self.plan.many))
        return self.mean_of_copies(i) if kept is None else kept

    def copies(self, i: int) -> Tree:
        """Return the agents' copies of the model of variant i, leaves (N, ...)."""
        raise NotImplementedError

    @abstractmethod
    def mean_of_copies(self, i: int) -> Tree:
        """Return the mean of the copies of the model that the agents of variant i have."""

    @abstractmethod
    def agents(self) -> Any:
        """Return the state of the agents without padding: leaves (N, ...), (variants, N, ...) if there are several.

        If agents may be absent, return the `AgentsSeen` of each variant.
        """

    @abstractmethod
    def like(self, seen: Sequence[int]) -> Any:
        """Return the shapes of `agents`; `seen`: how many agents each variant has seen, if agents may be absent."""

    @abstractmethod
    def restore(self, agents: Any, server: Any, done: int) -> None:
        """Replace the state by one that was saved after `done` rounds: what `agents` returned then, and the server."""

    @abstractmethod
    def costs(self) -> Costs:
        """Return the bytes of the method's messages."""

    def release(self) -> Any:
        """Return `agents()`, and free what the run needed to go on. The run cannot continue then."""
        return self.agents()


log = logging.getLogger(__name__)


class MemoryBackend(Backend):
    """A run whose agents are all on the devices."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.program, self.template, self.inputs = prepare(plan)
        begun = self.inputs._replace(start=Vector(plan.problem.start))
        state, self.metrics = compiled_begin(plan.problem)(self.template, plan.variants is not None, begun)
        if plan.many and plan.variants is None:
            repeat = partial(jax.tree.map, lambda leaf: jnp.stack([leaf] * len(plan.seeds)))
            state = State(repeat(state.agents), repeat(state.server), state.round)
        self.state = state
        # An error in the method shows now, and JAX keeps the trace for the first chunk.
        compiled_chunk(plan.problem).eval_shape(*_arguments(plan, self.template, self.inputs, state, 0))

    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, None]:
        arguments = _arguments(self.plan, self.template, self.inputs, self.state, number)
        self.state, rows = compiled_chunk(self.plan.problem)(*arguments)
        return rows, None

    def agents(self) -> Any:
        return jax.tree.map(lambda leaf: without_padding(self.plan, on_host(leaf)), self.state.agents)

    def mean_of_copies(self, i: int) -> Tree:
        own = variant(self.agents(), i, self.plan.many)
        return mean_copy(self.plan.algorithm, own, self.plan.problem.agents)

    def copies(self, i: int) -> Tree:
        own = variant(self.agents(), i, self.plan.many)
        return jax.tree.map(np.asarray, jax.vmap(self.plan.algorithm.model)(own)).tree

    def release(self) -> Any:
        leaves, structure = jax.tree.flatten(self.state.agents)
        self.state = self.state._replace(agents=None)
        for i in range(len(leaves)):  # each array on the device is freed once it is on the host
            leaves[i] = without_padding(self.plan, on_host(leaves[i]))
        return jax.tree.unflatten(structure, leaves)

    def like(self, seen: Sequence[int]) -> Any:
        return jax.eval_shape(partial(jax.tree.map, partial(without_padding, self.plan)), self.state.agents)

    def restore(self, agents: Any, server: Any, done: int) -> None:
        self.state = State(self._put(agents), put_on_devices(self.plan.layout, server, SHARED), jnp.int32(done))

    def _put(self, agents: Any) -> Any:
        """Return the agents' states, which `agents` returned, where this backend keeps them."""
        plan = self.plan
        axes = [None, *AGENTS] if plan.many else AGENTS
        filled = with_padding_agents(agents, plan.layout, int(plan.many))
        return put_on_devices(plan.layout, filled, PartitionSpec(*axes))

    def costs(self) -> Costs:
        plan = self.plan
        return costs_of(
            _messages.eval_shape(self.template, plan.many, plan.variants is not None, self.inputs, self.state)
        )


def without_padding(plan: Plan, leaf: Any) -> Any:
    """Return an array of all agents without the padding agents."""
    return leaf[(slice(None),) * plan.many + (slice(plan.problem.agents),)]


def row_of_one_round(backend: Backend, happened: Round, measure: Callable[[bool], Metrics]) -> Rows:
    """Return the rows of a chunk of one round that ran on the host; `measure` takes whether it was skipped."""
    plan, r = backend.plan, int(backend.state.round)
    metrics = not_measured(backend.program.columns)
    if r % plan.every == 0 or r == plan.rounds:
        metrics = measure(not happened.communicated)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], Rows(happened, metrics))


def _arguments(plan: Plan, template: Template, inputs: Inputs, state: State, number: int) -> tuple[Any, ...]:
    """Return the arguments of the compiled chunk for this number of rounds."""
    kind = ChunkKey(template, LONGEST_CHUNK, plan.many, plan.variants is not None)
    numbers = np.int32(number), np.int32(plan.every), np.int32(plan.rounds)
    return kind, inputs, state, None, *numbers, target_values(plan.targets, template.columns, plan.problem.double)


def _begin(template: Template, sweep: bool, inputs: Inputs) -> tuple[State, Metrics]:
    """Return the state at the start, and the measured values there."""

    def begin(inputs: Inputs) -> tuple[State, Metrics]:
        program = template.program(inputs.method, inputs.frozen)
        assert inputs.start is not None
        agents, server = init_agents(program, inputs.shard, inputs.start), program.algorithm.server(inputs.start)
        metrics = measure_copies(program, inputs, State(agents, server, jnp.int32(0)), False)
        agents, server = strongly_typed((agents, server))
        return State(agents, server, jnp.int32(0)), metrics

    run = sharded(begin, template.layout, (INPUTS,), (STATE, SHARED))
    if sweep:
        run = jax.vmap(run, in_axes=(EACH_METHOD,), out_axes=(EACH_STATE, 0))
    return run(inputs)


@partial(jax.jit, static_argnums=(0, 1, 2))  # JAX keeps the trace for later runs with the same shapes
def _messages(template: Template, many: bool, sweep: bool, inputs: Inputs, state: State) -> list[tuple[Tree, Tree]]:
    """Return the messages of a round of the first agent of the first variant."""
    program = template.program(variant(inputs.method, 0, sweep), inputs.frozen)
    agents, server = variant((state.agents, state.server), 0, many)
    objective = partial(local_objective, program.functions)
    one, agent = one_agent(inputs.shard, 0), variant(agents, 0, True)
    return exchanged_messages(
        program.algorithm, objective, one, agent, server, evaluate=lambda run, *given: run(*given)
    )


# The start runs once. Measured in processor time for a small BERT and a small ResNet (64 and 128 samples, 75,000
# parameters): its compilation takes 5.3 and 6.8 s, and 2.0 and 1.4 s without optimisations. A start at the limit itself
# was not timed.
ONCE = 50_000_000
compiled_begin = compiled_by_size(_begin, small=ONCE, static_argnums=(0, 1))


def compile_ahead(plan: Plan) -> None:
    """Compile the program of a plan without running it, so that its driver need not compile it.

    Call it in a thread while another plan runs. It does nothing if the agents are not in memory, if there are several
    seeds, or if the compilation fails: the run itself then reports the error.
    """
    if plan.store is not None or plan.debug or plan.many or plan.participation is not None:
        return
    try:
        _, template, inputs = prepare(plan)
        begun = inputs._replace(start=Vector(plan.problem.start))
        first = compiled_begin(plan.problem).lower(template, False, begun).compile()
        meshed = plan.layout.mesh is not None  # arrays on one device have no sharding

        def shape(like: Any, sharding: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding if meshed else None)

        state = jax.tree.map(shape, first.out_info[0], first.output_shardings[0])
        compiled_chunk(plan.problem).lower(*_arguments(plan, template, inputs, state, 0)).compile()
    except Exception:
        log.debug("%s is not compiled ahead.", plan.algorithm.description, exc_info=True)
