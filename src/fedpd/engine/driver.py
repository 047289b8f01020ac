"""Run a plan in chunks of rounds and collect its measurements, for one variant or several at once."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.progress import Event, Listener, Row
from fedpd.base.value import constant
from fedpd.core import Array, Method, State, Tree
from fedpd.core.agents import SHARED, sharded
from fedpd.engine import disk
from fedpd.engine.attendance import PartialRun, begin_partial
from fedpd.engine.columns import EPSILON, EPSILON_EXAMPLES
from fedpd.engine.divergence import explain
from fedpd.engine.measurements import Measurements, add_rounds, first_measurements, rows_since, variant
from fedpd.engine.metrics import Metrics, not_measured
from fedpd.engine.plan import (
    EACH_INPUTS,
    EACH_STATE,
    IN_SWEEP,
    HostPlace,
    Plan,
    StartedRun,
    begin,
    compiled_begin,
    on_host,
    prepare,
)
from fedpd.engine.rounds import INPUTS, ROWS, STATE, Inputs, Program, Rows, Template, chunk
from fedpd.engine.states import (
    agents_of,
    bytes_of_messages,
    model_of,
    restored_state,
    shapes_of_agents,
    without_padding,
)
from fedpd.engine.targets import target_values

log = logging.getLogger(__name__)

LONGEST_CHUNK = 256  # rounds; their rows stay on the device until the chunk ends
CHUNK_SECONDS = 0.2  # the duration to aim at, which is the refresh interval of the progress bar


class Kind(NamedTuple):
    """The key that selects a compiled chunk of rounds, together with the shapes of its arrays. It is hashable.

    Attributes:
        template: The method on the problem's functions, without its numbers.
        length: The longest chunk.
        many: Whether there are several variants at once.
        sweep: Whether each variant has numbers of its own.
    """

    template: Template
    length: int
    many: bool
    sweep: bool


def _rounds(kind: Kind, inputs: Inputs, state: State, *numbers: Array) -> tuple[State, Rows]:
    """Run a chunk of rounds; `numbers` are the last four arguments of `chunk`."""

    def rounds(inputs: Inputs, *rest: Any) -> tuple[State, Rows]:
        return chunk(kind.template.program(inputs.method, inputs.frozen), kind.length, not kind.many, inputs, *rest)

    run = sharded(rounds, kind.template.layout, (INPUTS, STATE, *[SHARED] * len(numbers)), (STATE, ROWS))
    if kind.many:
        each = IN_SWEEP if kind.sweep else EACH_INPUTS
        run = jax.vmap(run, in_axes=(each, EACH_STATE, *[None] * len(numbers)), out_axes=(EACH_STATE, 0))
    return run(inputs, state, *numbers)


_compiled = partial(jax.jit, _rounds, static_argnums=0, donate_argnums=2)
_on_accelerators = _compiled()
# On a CPU, each core already has agents of its own. If XLA also splits small loops over the cores, they wait for each
# other. Measured on 2 cores with batch 1, Q = 600, D = 100: without this pass, a round is 1.4 times as fast for N = 100
# on two devices, and 3 times as fast for N = 10 on one device.
_on_cores = _compiled(compiler_options={"xla_disable_hlo_passes": "cpu-parallel-task-assigner"})


def _advance() -> Any:
    return _on_cores if jax.default_backend() == "cpu" else _on_accelerators


def _arguments(plan: Plan, template: Template, inputs: Inputs, state: State, number: int) -> tuple[Any, ...]:
    """Return the arguments of `_advance` for this number of rounds."""
    kind = Kind(template, LONGEST_CHUNK, plan.many, plan.variants is not None)
    numbers = np.int32(number), np.int32(plan.every), np.int32(plan.rounds)
    return kind, inputs, state, *numbers, target_values(plan.targets, template.columns, plan.problem.double)


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
        first = compiled_begin.lower(template, False, begun).compile()
        shape = _sharded_shape if plan.layout.mesh is not None else _shape
        state = jax.tree.map(shape, first.out_info[0], first.output_shardings[0])
        _advance().lower(*_arguments(plan, template, inputs, state, 0)).compile()
    except Exception:
        log.debug("%s is not compiled ahead.", plan.algorithm.description, exc_info=True)


def _sharded_shape(like: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding)


def _shape(like: Any, _: Any) -> jax.ShapeDtypeStruct:  # without a sharding, as for all arrays on one device
    return jax.ShapeDtypeStruct(like.shape, like.dtype)


def begin_traced(plan: Plan) -> StartedRun:
    """Return a run at its start, with the method's numbers as arguments of the program if it can be traced so."""
    start = begin if plan.participation is None or plan.debug else begin_partial
    if plan.debug or (plan.store is not None and plan.participation is None):
        return start(plan)
    try:
        begun = start(plan)
        if begun.place is None:  # JAX keeps the trace for the first chunk
            _advance().eval_shape(*_arguments(plan, begun.template, begun.inputs, begun.state, 0))
    except Exception:  # a method may raise anything if it branches on its numbers or checks their type
        if plan.variants is not None:
            raise
        begun = start(plan._replace(algorithm=constant(plan.algorithm)))
    return begun


def _measured_starts(plan: Plan, program: Program, metrics: Metrics) -> list[Measurements]:
    """Return row 0 of each variant, whose columns are in the order of the program's."""
    spent = {} if plan.privacy is None else {EPSILON.name: 0.0}
    spent |= {} if plan.examples is None else {EPSILON_EXAMPLES.name: 0.0}

    def of_variant(i: int) -> Measurements:
        own = variant(metrics, i, plan.variants is not None)
        ordered = {column.name: own[column.name] for column in program.columns}
        return first_measurements(plan.problem.agents, ordered | spent)

    return [of_variant(i) for i in range(len(plan.seeds))]


class Driver:
    """A run in progress, with its state, its measurements and its times."""

    def __init__(self, plan: Plan, methods: Sequence[Method] | None = None) -> None:
        """Begin a run; `methods` are the methods of the variants, in a sweep."""
        self.began, self.plan = time.perf_counter(), plan
        self.methods = [plan.algorithm] * len(plan.seeds) if methods is None else methods
        self.place, self.program, self.template, self.inputs, self.state, metrics = begin_traced(plan)
        costs = bytes_of_messages(plan, self.place, self.program, self.inputs, self.state)
        self.costs = costs._replace(privacy=plan.privacy, examples=plan.examples)
        self.measurements = _measured_starts(plan, self.program, jax.device_get(metrics))
        self.done, self.seconds = 0, 0.0
        self.clock = [(0, 0.0)]  # (rounds, seconds) when each chunk was done

    def run(
        self, listen: Listener, save: Callable[[], None] | None = None, save_every: int = 1, row_by_row: bool = False
    ) -> None:
        """Run the remaining rounds chunk by chunk, until the listener returns True.

        Args:
            listen: Receives an event after every chunk.
            save: Writes a checkpoint; None: the run writes none.
            save_every: Rounds between two checkpoints.
            row_by_row: Whether to end a chunk at every measured row, so that `Event.models` are those of its rows.
        """
        rounds, before, step, stop = self.plan.rounds, self.seconds, 1, False
        while self.done < rounds and not stop and not self.ended:
            until = rounds if save is None else min(rounds, _next_multiple(self.done, save_every))
            last = min(until, _next_multiple(self.done, self.plan.every)) if row_by_row else until
            started = time.perf_counter()
            self._run_chunk(min(step, last - self.done), listen)
            compiled = self.place is None or isinstance(self.place, PartialRun)
            step = _pace(step, time.perf_counter() - started) if compiled else 1
            self.seconds = before + time.perf_counter() - self.began
            self.clock.append((self.done, self.seconds))
            stop = listen(self._event_with_rows()) is True
            if save is not None and (self.done == until or self.ended or stop):
                save()

    @property
    def has_absent_agents(self) -> bool:
        """Whether agents may be absent, so that `agents()` has a list with the agents seen by each variant."""
        return isinstance(self.place, PartialRun)

    @property
    def ended(self) -> bool:
        """Whether all variants have diverged."""
        return all(one.diverged is not None for one in self.measurements)

    def _run_chunk(self, number: int, listen: Listener) -> None:
        plan, who = self.plan, None
        if isinstance(self.place, PartialRun):
            state, rows, who = self.place.run(self.state, self.done, number)
        elif self.place is None:
            state, rows = _advance()(*_arguments(plan, self.template, self.inputs, self.state, number))
        else:
            place = self.place
            if isinstance(place, disk.OnDisk):  # a round may take minutes
                place = place._replace(on_progress=lambda part: listen(self._event(self.done + part)))
            state, rows = _round_on_host(place, plan, self.program, self.inputs, self.state)
        rows, explained = jax.tree.map(on_host, rows), partial(explain, plan.algorithm, plan.problem)
        number = int(on_host(state.round)) - self.done  # a chunk may end early
        for i, one in enumerate(self.measurements):
            own = jax.tree.map(lambda leaf: leaf[:number], variant(rows, i, plan.many))
            self.measurements[i] = add_rounds(
                one, own, self.done, plan.every, plan.rounds, self.costs, explained, None if who is None else who[i]
            )
        self.state, self.done = state, int(on_host(state.round))

    def first_event(self) -> Event:
        """Return the event before the first chunk, while the program compiles: the row of the start, if it is new."""
        event = self._event(self.done) if self.done else self._event_with_rows()
        return event._replace(compiling=True)

    def _event(self, done: float) -> Event:
        stationarity = float(np.mean([one.history["stationarity"][-1] for one in self.measurements]))
        return Event(self.plan.algorithm.name, done, self.plan.rounds, stationarity)

    def _event_with_rows(self) -> Event:
        def rows() -> list[Row]:
            return [row for i in range(len(self.measurements)) for row in self._new_rows(i)]

        def models() -> list[Tree]:
            return [self.model(i) for i in range(len(self.measurements)) for _ in self._new_rows(i)]

        return self._event(self.done)._replace(rows=rows, models=models)

    def _new_rows(self, i: int) -> list[Row]:
        """Return the rows of the last chunk of variant i; before the first chunk, the row of the start."""
        since = self.clock[-2][0] if len(self.clock) > 1 else -1
        about = {"algorithm": self.methods[i].description, "seed": int(self.plan.seeds[i])}
        return rows_since(self.measurements[i].history, self.elapsed(i), since, **about)

    def elapsed(self, i: int) -> np.ndarray:
        """Return the seconds at each row of variant i's history, interpolated between the ends of chunks."""
        return np.interp(self.measurements[i].history["round"], *np.array(self.clock).T)

    def model(self, i: int = 0) -> Tree:
        """Return the current model of variant i."""
        return model_of(self.plan, self.place, self.state, i)

    def agents(self) -> Any:
        """Return the state of the agents; see `states.agents_of`."""
        return agents_of(self.plan, self.place, self.state)

    def release(self) -> Any:
        """Return `agents()`, and free each array on the device once it is on the host. The run cannot continue then."""
        if isinstance(self.place, PartialRun):
            return self.agents()
        leaves, structure = jax.tree.flatten(self.state.agents)
        self.state = self.state._replace(agents=None)
        for i in range(len(leaves)):
            leaves[i] = without_padding(self.plan, on_host(leaves[i]))
        return jax.tree.unflatten(structure, leaves)

    def like(self, seen: Sequence[int]) -> Any:
        """Return the shapes of `agents()`; `seen`: how many agents each variant has seen, if agents may be absent."""
        return shapes_of_agents(self.plan, self.place, self.state, seen)

    def set_state(self, agents: Any, server: Any, done: int) -> None:
        """Replace the state by one that was saved after `done` rounds."""
        self.state, self.done = restored_state(self.plan, self.place, agents, server, done), done


def _round_on_host(place: HostPlace, plan: Plan, program: Program, inputs: Inputs, state: State) -> tuple[State, Rows]:
    """Run one round outside of a compiled loop, and return the state and the rows of a chunk of one round."""
    state, happened = place.run_round(program, inputs, state)
    if int(state.round) % plan.every == 0 or int(state.round) == plan.rounds:
        metrics = place.measure(program, inputs, state.agents, not happened.communicated)
    else:
        metrics = not_measured(program.columns)
    return state, jax.tree.map(lambda leaf: np.asarray(leaf)[None], Rows(happened, metrics))


def _next_multiple(done: int, every: int) -> int:
    return (done // every + 1) * every


def _pace(step: int, seconds: float) -> int:
    """Return the number of rounds of the next chunk, after a chunk of `step` rounds took these seconds."""
    if seconds < CHUNK_SECONDS / 2:
        return min(2 * step, LONGEST_CHUNK)
    return max(1, step // 2) if seconds > 2 * CHUNK_SECONDS else step
