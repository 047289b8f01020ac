"""The host's side of a run: compiled rounds in chunks, the books, checkpoints, divergence as an answer."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from tree_math import Vector

from fedpd import checkpoint, theory
from fedpd.checks import refuse
from fedpd.core import Algorithm, Array, Key, Problem, State, Tree
from fedpd.costs import Costs, message_costs
from fedpd.history import Totals, extend, start_row
from fedpd.progress import Report
from fedpd.rounds import (
    AGENTS,
    ROWS,
    SHARED,
    STATE,
    Functions,
    Layout,
    Metrics,
    Rows,
    Shard,
    arrays,
    chunk,
    init_agents,
    local_objective,
    measure,
    sharded,
    with_ghosts,
)

LONGEST_CHUNK = 256  # rounds; what they record is kept on the device until the chunk ends
CHUNK_SECONDS = 0.2  # how long a chunk should take: the interval of the progress bar
EXPLOSION = 1e12  # growth of loss or stationarity beyond the larger of 1 and the start's that counts as divergence


class Divergence(NamedTuple):
    """That a run left the finite world: when, and what to try."""

    round: int
    message: str


@partial(jax.jit, static_argnums=(0, 1, 2))
def _begin(
    algorithm: Algorithm, functions: Functions, layout: Layout, shard: Shard, start: Vector
) -> tuple[State, Metrics]:
    def begin(shard: Shard, start: Vector) -> tuple[State, Metrics]:
        agents = init_agents(algorithm, functions, layout, shard, start)
        metrics = measure(algorithm, functions, layout, shard, agents, False)
        return State(agents, algorithm.server(start), jnp.int32(0)), metrics

    return sharded(begin, layout, (AGENTS, SHARED), (STATE, SHARED))(shard, start)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5), donate_argnums=(8,))
def _advance(
    algorithm: Algorithm,
    functions: Functions,
    layout: Layout,
    length: int,
    every: int,
    many: bool,
    shard: Shard,
    key: Key,
    state: State,
    count: Array,
    last: Array,
) -> tuple[State, Rows]:
    rounds = partial(chunk, algorithm, functions, layout, length, every, not many)
    program = sharded(rounds, layout, (AGENTS, SHARED, STATE, SHARED, SHARED), (STATE, ROWS))
    if many:
        each = State(0, 0, None)  # type: ignore[arg-type]
        program = jax.vmap(program, in_axes=(None, 0, each, None, None), out_axes=(each, 0))
    return program(shard, key, state, count, last)


class Engine:
    """Feeds chunks of rounds to the compiled program and keeps the books, for one seed or for several at once."""

    def __init__(
        self,
        algorithm: Algorithm,
        problem: Problem,
        layout: Layout,
        seeds: Sequence[int],
        many: bool,
        rounds: int,
        every: int,
    ) -> None:
        self.algorithm, self.problem, self.layout = algorithm, problem, layout
        self.seeds, self.many, self.rounds, self.every = list(seeds), many, rounds, every
        self.functions = Functions(problem.losses, problem.penalty)
        self.shard = self._place(with_ghosts(arrays(problem), layout), AGENTS)
        keys = [jax.random.key(number, impl="threefry2x32") for number in seeds]
        self.key = jnp.stack(keys) if many else keys[0]
        state, metrics = _begin(algorithm, self.functions, layout, self.shard, Vector(problem.start))
        self.costs = self._message_costs(state)
        first = start_row(float(metrics.loss), float(metrics.stationarity))
        self.histories = [first for _ in seeds]
        self.totals: list[Totals] = [{} for _ in seeds]
        self.updates = np.zeros((len(seeds), problem.agents), np.int64)
        self.diverged: list[Divergence | None] = [None] * len(seeds)
        self.done, self.seconds = 0, 0.0
        if many:
            repeat = partial(jax.tree.map, lambda leaf: jnp.stack([leaf] * len(seeds)))
            state = State(repeat(state.agents), repeat(state.server), state.round)
        self.state = state

    def _message_costs(self, state: State) -> Costs:
        one, agent = jax.tree.map(lambda leaf: leaf[0], (self.shard, state.agents))
        f = local_objective(self.functions, one)
        return message_costs(self.algorithm, f, agent, state.server, self.problem.agents)

    def run(self, folder: Path | None, checkpoint_every: int, report: Report) -> None:
        began = time.perf_counter()
        if folder is not None:
            self._restore(folder)
        before, step = self.seconds, 1
        while self.done < self.rounds and not all(self.diverged):
            until = self.rounds if folder is None else min(self.rounds, _next_multiple(self.done, checkpoint_every))
            started = time.perf_counter()
            self._play(min(step, until - self.done))
            step = _pace(step, time.perf_counter() - started)
            report(self.done, self.rounds, float(np.mean([h["stationarity"][-1] for h in self.histories])))
            self.seconds = before + time.perf_counter() - began
            if folder is not None and (self.done == until or all(self.diverged)):
                self._save(folder)

    def _play(self, number: int) -> None:
        arguments = (self.shard, self.key, self.state, jnp.int32(number), jnp.int32(self.rounds))
        length = min(LONGEST_CHUNK, self.rounds)
        state, rows = _advance(self.algorithm, self.functions, self.layout, length, self.every, self.many, *arguments)
        self.state = state
        rows = jax.tree.map(np.asarray, rows)
        rows = rows._replace(work=jax.tree.map(lambda leaf: leaf[..., : self.problem.agents], rows.work))
        if not self.many:
            rows = jax.tree.map(lambda leaf: leaf[None], rows)
        for i in range(len(self.seeds)):
            if self.diverged[i] is None:
                self._book(i, jax.tree.map(lambda leaf, i=i: leaf[i, :number], rows))
        self.done = int(state.round)

    def _book(self, i: int, rows: Rows) -> None:
        """Enter the rounds of a chunk into the history of seed i, up to where it diverged if it did."""
        rounds = {
            "communicated": rows.communicated,
            "updates": rows.work.updates,
            "samples": rows.work.samples,
            **rows.metrics._asdict(),
        }
        numbers = self.done + 1 + np.arange(len(rows.communicated))
        measured = (numbers % self.every == 0) | (numbers == self.rounds)
        bad = np.flatnonzero(measured & ~self._healthy(i, rows.metrics))
        if len(bad):
            end = bad[0] + 1
            rounds, measured = {name: column[:end] for name, column in rounds.items()}, measured[:end]
            self.diverged[i] = Divergence(int(numbers[bad[0]]), self._advice(numbers[bad[0]], rows.metrics, bad[0]))
        books = (self.histories[i], self.totals[i])
        self.histories[i], self.totals[i] = extend(*books, self.costs, rounds, measured)
        self.updates[i] += rounds["updates"].sum(axis=0, dtype=np.int64)

    def _healthy(self, i: int, metrics: Metrics) -> np.ndarray:
        """Finite, and neither loss nor stationarity beyond EXPLOSION times the start's (or 1)."""
        start = self.histories[i]
        loss, stationarity = (max(1.0, abs(start[name][0])) for name in ("loss", "stationarity"))
        bounded = (np.abs(metrics.loss) < EXPLOSION * loss) & (metrics.stationarity < EXPLOSION * stationarity)
        return bounded & np.isfinite(metrics.consensus)

    def _advice(self, number: int, metrics: Metrics, row: int) -> str:
        """What to try: the step against 1/L."""
        known = self.problem.answer.smoothness
        L, source = (known, "known") if known else (theory.smoothness(self.problem), "estimated at the start")
        bound = f"; with L = {L:.3g} ({source}), below 1/L = {1 / L:.3g}" if L > 0 else ""
        return (
            f"{self.algorithm.description} diverged at round {number} (stationarity {metrics.stationarity[row]:.3g}). "
            f"Try a smaller local step{bound}, and where the method adds a penalty 1/eta (FedProx: rho), below "
            "1/(L + 1/eta)."
        )

    def agents(self) -> Any:
        """The state of the agents, ghosts left out: leaves (N, ...), or (seeds, N, ...) where there are several."""
        axis, number = int(self.many), self.problem.agents
        return jax.tree.map(lambda leaf: np.asarray(leaf)[(slice(None),) * axis + (slice(number),)], self.state.agents)

    def _identity(self) -> dict[str, Any]:
        """What makes two runs the same run, so that one may go on from the other's checkpoint."""
        arrays = (self.problem.data, self.problem.sizes, self.problem.scale, self.problem.start)
        return {
            "algorithm": self.algorithm.description,
            "problem": self.problem.name,
            "data": checkpoint.fingerprint(*arrays),
            "seeds": self.seeds,
            "metrics_every": self.every,
        }

    def _save(self, folder: Path) -> None:
        arrays = checkpoint.flatten("state", (self.agents(), self.state.server)) | {"updates": self.updates}
        for i, history in enumerate(self.histories):
            arrays |= {f"history.{i}.{name}": column for name, column in history.items()}
        diverged = [None if d is None else list(d) for d in self.diverged]
        books = {"round": self.done, "seconds": self.seconds, "totals": self.totals, "diverged": diverged}
        checkpoint.save_round(folder, self.done, arrays, self._identity() | books)

    def _restore(self, folder: Path) -> None:
        found = checkpoint.load_newest(folder, self._identity())
        if found is None:
            return
        arrays, meta = found
        if meta["round"] > self.rounds:
            rule = f"{folder} already holds {meta['round']} rounds, and a run does not go back"
            refuse("rounds", self.rounds, rule, "Ask for more rounds, or choose another folder")
        self._take_up(arrays, meta)

    def _take_up(self, arrays: checkpoint.Arrays, meta: dict[str, Any]) -> None:
        agents, server = checkpoint.unflatten("state", (self.agents(), self.state.server), arrays)
        axes = [None, *AGENTS] if self.many else AGENTS
        self.state = State(
            self._place(with_ghosts(agents, self.layout, int(self.many)), PartitionSpec(*axes)),
            self._place(server, SHARED),
            jnp.int32(meta["round"]),
        )
        self.done, self.seconds, self.updates = meta["round"], meta["seconds"], arrays["updates"]
        self.totals = meta["totals"]
        self.diverged = [None if d is None else Divergence(*d) for d in meta["diverged"]]
        for i, history in enumerate(self.histories):
            rounds = arrays[f"history.{i}.round"]
            # A run that was to end here measured its last round; one that goes on keeps only its own rows.
            keep = (rounds % self.every == 0) | (rounds == self.rounds) | (self.diverged[i] is not None)
            self.histories[i] = {name: arrays[f"history.{i}.{name}"][keep] for name in history}

    def _place(self, tree: Tree, spec: PartitionSpec) -> Tree:
        where = None if self.layout.mesh is None else NamedSharding(self.layout.mesh, spec)
        return jax.device_put(tree, where)


def _next_multiple(done: int, every: int) -> int:
    return (done // every + 1) * every


def _pace(step: int, seconds: float) -> int:
    """How many rounds the next chunk should have, after one of `step` rounds took so long."""
    if seconds < CHUNK_SECONDS / 2:
        return min(2 * step, LONGEST_CHUNK)
    return max(1, step // 2) if seconds > 2 * CHUNK_SECONDS else step
