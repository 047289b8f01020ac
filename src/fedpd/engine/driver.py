"""Run a plan in chunks of rounds and collect its measurements, for one variant or several at once."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from fedpd.base.progress import Event, Listener, Row
from fedpd.base.value import constant
from fedpd.core import Method, Tree
from fedpd.engine.backends.cohort import CohortBackend
from fedpd.engine.backends.debug import DebugBackend
from fedpd.engine.backends.disk import DiskBackend
from fedpd.engine.backends.memory import Backend, MemoryBackend
from fedpd.engine.loop import LONGEST_CHUNK, Program
from fedpd.engine.measure.columns import EPSILON, EPSILON_EXAMPLES
from fedpd.engine.measure.history import Measurements, add_rounds, explain, first_measurements, rows_since, variant
from fedpd.engine.measure.metrics import Metrics
from fedpd.engine.plan import Plan, on_host

CHUNK_SECONDS = 0.2  # the duration to aim at, which is the refresh interval of the progress bar


def begin(plan: Plan) -> Backend:
    """Return the backend of a plan at its start, with the method's numbers as arguments of its programs if possible."""
    if plan.debug:
        return DebugBackend(plan)
    if plan.store is not None and plan.participation is None:
        return DiskBackend(plan)
    start = MemoryBackend if plan.participation is None else CohortBackend
    try:
        return start(plan)
    except Exception:  # a method may raise anything if it branches on its numbers or checks their type
        if plan.variants is not None:
            raise
        return start(plan._replace(algorithm=constant(plan.algorithm)))


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
        self.backend = begin(plan)
        self.costs = self.backend.costs()._replace(privacy=plan.privacy, examples=plan.examples)
        self.measurements = _measured_starts(plan, self.backend.program, jax.device_get(self.backend.metrics))
        self.done, self.seconds = 0, 0.0
        self.clock = [(0, 0.0)]  # (rounds, seconds) when each chunk was done

    def run(
        self, listen: Listener, save: Callable[[], None] | None = None, save_every: int = 1, row_by_row: bool = False
    ) -> None:
        """Run the remaining rounds chunk by chunk, until the listener returns True.

        Args:
            row_by_row: Whether to end a chunk at every measured row, so that `Event.models` are those of its rows.
        """
        rounds, before, step, stop = self.plan.rounds, self.seconds, 1, False
        while self.done < rounds and not stop and not self.ended:
            until = rounds if save is None else min(rounds, _next_multiple(self.done, save_every))
            last = min(until, _next_multiple(self.done, self.plan.every)) if row_by_row else until
            started = time.perf_counter()
            self._run_chunk(min(step, last - self.done), listen)
            step = _pace(step, time.perf_counter() - started) if self.backend.paced else 1
            self.seconds = before + time.perf_counter() - self.began
            self.clock.append((self.done, self.seconds))
            stop = listen(self._event_with_rows()) is True
            if save is not None and (self.done == until or self.ended or stop):
                save()

    @property
    def ended(self) -> bool:
        """Whether all variants have diverged."""
        return all(one.diverged is not None for one in self.measurements)

    def _run_chunk(self, number: int, listen: Listener) -> None:
        plan = self.plan
        rows, participants = self.backend.run(self.done, number, lambda part: listen(self._event(self.done + part)))
        rows, explained = jax.tree.map(on_host, rows), partial(explain, plan.algorithm, plan.problem)
        number = int(on_host(self.backend.state.round)) - self.done  # a chunk may end early
        for i, one in enumerate(self.measurements):
            own = jax.tree.map(lambda leaf: leaf[:number], variant(rows, i, plan.many))
            self.measurements[i] = add_rounds(
                one,
                own,
                self.done,
                plan.every,
                plan.rounds,
                self.costs,
                explained,
                None if participants is None else participants[i],
            )
        self.done += number

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
            return [self.backend.model(i) for i in range(len(self.measurements)) for _ in self._new_rows(i)]

        return self._event(self.done)._replace(rows=rows, models=models)

    def _new_rows(self, i: int) -> list[Row]:
        """Return the rows of the last chunk of variant i; before the first chunk, the row of the start."""
        since = self.clock[-2][0] if len(self.clock) > 1 else -1
        about = {"algorithm": self.methods[i].description, "seed": int(self.plan.seeds[i])}
        return rows_since(self.measurements[i].history, self.elapsed(i), since, **about)

    def elapsed(self, i: int) -> np.ndarray:
        """Return the seconds at each row of variant i's history, interpolated between the ends of chunks."""
        return np.interp(self.measurements[i].history["round"], *np.array(self.clock).T)

    def restore(self, agents: Any, server: Any, done: int) -> None:
        """Replace the state by one that was saved after `done` rounds."""
        self.backend.restore(agents, server, done)
        self.done = done


def _next_multiple(done: int, every: int) -> int:
    return (done // every + 1) * every


def _pace(step: int, seconds: float) -> int:
    """Return the number of rounds of the next chunk, after a chunk of `step` rounds took these seconds."""
    if seconds < CHUNK_SECONDS / 2:
        return min(2 * step, LONGEST_CHUNK)
    return max(1, step // 2) if seconds > 2 * CHUNK_SECONDS else step
