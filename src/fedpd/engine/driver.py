"""The host's side of a run: compiled rounds in chunks, the books, checkpoints, divergence as an answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from tree_math import Vector

from fedpd import theory
from fedpd.base import checkpoint
from fedpd.base.checks import refuse
from fedpd.base.progress import Report
from fedpd.base.versions import versions
from fedpd.core import Algorithm, Array, Problem, State, Tree
from fedpd.core.agents import AGENTS, SHARED, Functions, Layout, Shard, arrays, sharded, with_padding_agents
from fedpd.engine import stored
from fedpd.engine.costs import message_costs
from fedpd.engine.history import Totals, extend, start_row
from fedpd.engine.metrics import Metrics, measure
from fedpd.engine.participation import Participation
from fedpd.engine.rounds import INPUTS, ROWS, STATE, Inputs, Program, Rows, chunk, init_agents

Settings = Mapping[str, Array] | None

LONGEST_CHUNK = 256  # rounds; what they record is kept on the device until the chunk ends
CHUNK_SECONDS = 0.2  # how long a chunk should take: the interval of the progress bar
LARGE_PROBLEM = 1e9  # parameters times samples, beyond which L is not estimated to advise on a divergence
EXPLOSION = 1e12  # growth of loss or stationarity beyond the larger of 1 and the start's that counts as divergence


class Divergence(NamedTuple):
    """That a run left the finite world: when, and what to try."""

    round: int
    message: str


class Plan(NamedTuple):
    """What is to be run."""

    rounds: int
    every: int  # rounds between two rows
    seeds: Sequence[int]
    many: bool  # several variants at once, each with its seed, as opposed to one by itself
    participation: Participation | None = None
    stragglers: np.float32 | None = None
    record: tuple[str, ...] = ()  # what is measured besides, see metrics.RECORDED
    build: Callable[..., Algorithm] | None = None  # the algorithm of a variant from its settings, in a sweep
    settings: Mapping[str, np.ndarray] | None = None  # name -> (variants,)


@partial(jax.jit, static_argnums=0)
def _begin(program: Program, shard: Shard, start: Vector, settings: Settings) -> tuple[State, Metrics]:
    def begin(shard: Shard, start: Vector, settings: Settings) -> tuple[State, Metrics]:
        chosen = program.of(settings)
        agents = init_agents(chosen, shard, start)
        metrics = measure(*chosen[:3], shard, agents, False, chosen.record)
        return State(agents, chosen.algorithm.server(start), jnp.int32(0)), metrics

    run = sharded(begin, program.layout, (AGENTS, SHARED, SHARED), (STATE, SHARED))
    if settings is not None:
        run = jax.vmap(run, in_axes=(None, None, 0), out_axes=(State(0, 0, None), None))  # type: ignore[arg-type]
    return run(shard, start, settings)


def _rounds(
    program: Program, length: int, every: int, many: bool, inputs: Inputs, state: State, count: Array, last: Array
) -> tuple[State, Rows]:
    def rounds(inputs: Inputs, state: State, count: Array, last: Array) -> tuple[State, Rows]:
        return chunk(program.of(inputs.settings), length, every, not many, inputs, state, count, last)

    run = sharded(rounds, program.layout, (INPUTS, STATE, SHARED, SHARED), (STATE, ROWS))
    if many:
        each, variants = State(0, 0, None), Inputs(None, 0, None, None, 0)  # type: ignore[arg-type]
        run = jax.vmap(run, in_axes=(variants, each, None, None), out_axes=(each, 0))
    return run(inputs, state, count, last)


_compile = partial(jax.jit, _rounds, static_argnums=(0, 1, 2, 3), donate_argnums=5)
_advance = _compile()
# On a CPU, cores have agents of their own: splitting small loops over the same cores once more only makes them wait.
# Measured on 2 cores: batch 1, Q = 600, N = 100, D = 100 1.4 times as fast on two devices; N = 10 3 times on one.
_advance_on_cores = _compile(compiler_options={"xla_disable_hlo_passes": "cpu-parallel-task-assigner"})


class Engine:
    """Feeds chunks of rounds to the compiled program and keeps the books, for one variant or for several at once."""

    def __init__(
        self, algorithm: Algorithm, problem: Problem, layout: Layout, plan: Plan, store: Path | None = None
    ) -> None:
        self.began = time.perf_counter()
        self.algorithm, self.problem, self.layout, self.plan = algorithm, problem, layout, plan
        who = plan.participation
        functions = Functions.of(problem)
        self.program = Program(algorithm, functions, layout, None if who is None else who.kind, plan.record, plan.build)
        keys = [jax.random.key(number, impl="threefry2x32") for number in plan.seeds]
        key = jnp.stack(keys) if plan.many else keys[0]
        numbers = None if who is None else who.numbers
        self.store: stored.Store | None = None
        begin = self._begin if store is None else partial(self._begin_stored, store)
        shard, metrics = begin(arrays(problem), Vector(problem.start))
        self.inputs = Inputs(shard, key, numbers, plan.stragglers, plan.settings)  # type: ignore[arg-type]
        number = len(plan.seeds)
        agents, server = jax.eval_shape(lambda tree: first(tree) if plan.many else tree, self.state[:2])
        one, agent = jax.eval_shape(first, (shard, agents))
        self.costs = message_costs(algorithm, functions, one, agent, server)
        self.histories = [start_row(**_columns(jax.device_get(metrics)))] * number
        self.totals: list[Totals] = [{} for _ in plan.seeds]
        self.updates = np.zeros((number, problem.agents), np.int64)
        self.diverged: list[Divergence | None] = [None] * number
        self.done, self.seconds = 0, 0.0
        self.clock = [(0, 0.0)]  # (rounds, seconds) when each chunk was done

    def _begin(self, shard: Shard, start: Vector) -> tuple[Shard, Metrics]:
        """All agents at the start; the problem's arrays on the devices, and what is measured there."""
        plan = self.plan
        shard = self._place(with_padding_agents(shard, self.layout), AGENTS)
        state, metrics = _begin(self.program, shard, start, plan.settings)
        if plan.many and plan.settings is None:
            repeat = partial(jax.tree.map, lambda leaf: jnp.stack([leaf] * len(plan.seeds)))
            state = State(repeat(state.agents), repeat(state.server), state.round)
        self.state = state
        return shard, metrics

    def _begin_stored(self, folder: Path, shard: Shard, start: Vector) -> tuple[Shard, Metrics]:
        """The same with the agents' state in files."""
        block = stored.block_size(self.program, shard, start)
        filled = with_padding_agents(shard, self.layout, block=block)
        self.store = stored.create(folder, self.program, filled, block, start, self._place)
        server = jax.jit(self.algorithm.server)(start)
        self.state = State(self.store.agents, server, jnp.int32(0))
        shard = self._place(with_padding_agents(shard, self.layout), AGENTS)
        return shard, stored.measure(self.program, shard, self.store, False)

    def run(self, folder: Path | None, checkpoint_every: int, report: Report) -> None:
        if folder is not None:
            self._restore(folder)
        rounds, before, step = self.plan.rounds, self.seconds, 1
        while self.done < rounds and not all(self.diverged):
            until = rounds if folder is None else min(rounds, _next_multiple(self.done, checkpoint_every))
            started = time.perf_counter()
            self._play(min(step, until - self.done), report)
            step = _pace(step, time.perf_counter() - started) if self.store is None else 1
            self.seconds = before + time.perf_counter() - self.began
            self.clock.append((self.done, self.seconds))
            report(self.done, rounds, self._stationarity())
            if folder is not None and (self.done == until or all(self.diverged)):
                self._save(folder)

    def elapsed(self, i: int) -> np.ndarray:
        """The seconds at each row of the history of variant i: read at the ends of chunks, interpolated between."""
        return np.interp(self.histories[i]["round"], *np.array(self.clock).T)

    def _stationarity(self) -> float:
        return float(np.mean([history["stationarity"][-1] for history in self.histories]))

    def _play(self, number: int, report: Report) -> None:
        plan = self.plan
        if self.store is None:
            length, numbers = min(LONGEST_CHUNK, plan.rounds), (np.int32(number), np.int32(plan.rounds))
            advance = _advance_on_cores if jax.default_backend() == "cpu" else _advance
            state, rows = advance(self.program, length, plan.every, plan.many, self.inputs, self.state, *numbers)
        else:

            def tell(part: float) -> None:
                report(self.done + part, plan.rounds, self._stationarity())

            state, rows = stored.play(self.program, self.inputs, self.store, self.state, plan.every, plan.rounds, tell)
        self.state = state
        rows = jax.tree.map(on_host, rows)
        for i in range(len(plan.seeds)):
            if self.diverged[i] is None:
                self._book(i, jax.tree.map(lambda leaf, i=i: (leaf[i] if plan.many else leaf)[:number], rows))
        self.done = int(on_host(state.round))

    def _book(self, i: int, rows: Rows) -> None:
        """Enter the rounds of a chunk into the history of variant i, up to where it diverged if it did."""
        communicated, senders, receivers, work = rows.rounds
        rounds = {
            "communicated": communicated,
            "senders": senders,
            "receivers": receivers,
            "updates": work.updates[:, : self.problem.agents],
            "samples": work.samples[:, : self.problem.agents],
            **_columns(rows.metrics),
        }
        numbers = self.done + 1 + np.arange(len(communicated))
        measured = (numbers % self.plan.every == 0) | (numbers == self.plan.rounds)
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
        L, source = self.problem.answer.smoothness, "known"
        if not L:  # of a large network it would take longer than the run did
            small = self.problem.dimension * self.problem.samples < LARGE_PROBLEM
            L, source = theory.smoothness(self.problem) if small else 0.0, "estimated at the start"
        bound = f"; with L = {L:.3g} ({source}), below 1/L = {1 / L:.3g}" if L > 0 else ""
        return (
            f"{self.algorithm.description} diverged at round {number} (stationarity {metrics.stationarity[row]:.3g}). "
            f"Try a smaller local step{bound}, and where the method adds a penalty 1/eta (FedProx: rho), below "
            "1/(L + 1/eta)."
        )

    def agents(self) -> Any:
        """The state of the agents without padding: leaves (N, ...), or (variants, N, ...) where there are several."""
        return jax.tree.map(self._real, self.state.agents)

    def release(self) -> Any:
        """`agents()`, array by array, each given up as soon as it is on the host: the run is over after it."""
        leaves, structure = jax.tree.flatten(self.state.agents)
        self.state = self.state._replace(agents=None)
        for i in range(len(leaves)):
            leaves[i] = self._real(leaves[i])
        return jax.tree.unflatten(structure, leaves)

    def _real(self, leaf: Any) -> np.ndarray:
        return self._real_part(on_host(leaf))

    def _real_part(self, leaf: Any) -> Any:
        return leaf[(slice(None),) * self.plan.many + (slice(self.problem.agents),)]

    def _identity(self) -> dict[str, Any]:
        """What makes two runs the same run, so that one may go on from the other's checkpoint."""
        arrays = (self.problem.data, self.problem.sizes, self.problem.scale, self.problem.start)
        return {
            "algorithm": self.algorithm.description,
            "problem": self.problem.name,
            "data": checkpoint.fingerprint(*arrays),
            "seeds": list(self.plan.seeds),
            "metrics_every": self.plan.every,
            "participation": _words(self.plan.participation),
            "stragglers": _words(self.plan.stragglers),
            "record": list(self.plan.record),
        }

    def _save(self, folder: Path) -> None:
        arrays = checkpoint.flatten("state", (self.agents(), self.state.server)) | {"updates": self.updates}
        for i, history in enumerate(self.histories):
            arrays |= {f"history.{i}.{name}": column for name, column in history.items()}
        diverged = [None if d is None else list(d) for d in self.diverged]
        books = {"round": self.done, "seconds": self.seconds, "totals": self.totals, "diverged": diverged}
        arrays["clock"] = np.array(self.clock)
        if jax.process_index() == 0:
            checkpoint.save_round(folder, self.done, arrays, self._identity() | books | {"versions": versions()})

    def _restore(self, folder: Path) -> None:
        found = checkpoint.load_newest(folder, self._identity())
        if found is None:
            return
        arrays, meta = found
        if meta["round"] > self.plan.rounds:
            rule = f"{folder} already holds {meta['round']} rounds, and a run does not go back"
            refuse("rounds", self.plan.rounds, rule, "Ask for more rounds, or choose another folder")
        self._take_up(arrays, meta)

    def _take_up(self, arrays: checkpoint.Arrays, meta: dict[str, Any]) -> None:
        like = jax.eval_shape(lambda agents: jax.tree.map(self._real_part, agents), self.state.agents)
        agents, server = checkpoint.unflatten("state", (like, self.state.server), arrays)
        if self.store is None:
            axes = [None, *AGENTS] if self.plan.many else AGENTS
            agents = self._place(with_padding_agents(agents, self.layout, int(self.plan.many)), PartitionSpec(*axes))
        else:
            agents = self.store.fill(agents)
        self.state = State(agents, self._place(server, SHARED), jnp.int32(meta["round"]))
        self.done, self.seconds, self.updates = meta["round"], meta["seconds"], arrays["updates"]
        self.totals = meta["totals"]
        moment = np.array([(0, 0.0), (meta["round"], meta["seconds"])])  # all that is known without a clock
        self.clock = [(int(done), seconds) for done, seconds in arrays.get("clock", moment).tolist()]
        self.diverged = [None if d is None else Divergence(*d) for d in meta["diverged"]]
        for i, history in enumerate(self.histories):
            rounds = arrays[f"history.{i}.round"]
            # A run that was to end here measured its last round; one that goes on keeps only its own rows.
            keep = (rounds % self.plan.every == 0) | (rounds == self.plan.rounds) | (self.diverged[i] is not None)
            self.histories[i] = {name: arrays[f"history.{i}.{name}"][keep] for name in history}

    def _place(self, tree: Tree, spec: PartitionSpec) -> Tree:
        where = None if self.layout.mesh is None else NamedSharding(self.layout.mesh, spec)
        return jax.device_put(tree, where)


def first(tree: Tree) -> Tree:
    """Of stacked arrays, the first."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def on_host(leaf: Any) -> np.ndarray:
    """An array, gathered from other processes where agents are sharded over several."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


def _columns(metrics: Metrics) -> dict[str, Any]:
    """What was measured, by the name of its column."""
    usual = {"loss": metrics.loss, "stationarity": metrics.stationarity, "consensus": metrics.consensus}
    return usual | dict(metrics.recorded)


def _words(rule: Any) -> str | None:
    """A rule for attendance as text, for the identity of a run; a schedule by its hash."""
    if rule is None:
        return None
    if isinstance(rule, Participation) and np.ndim(rule.numbers):
        return f"{rule.kind} {checkpoint.fingerprint(rule.numbers)}"
    return str(rule)


def _next_multiple(done: int, every: int) -> int:
    return (done // every + 1) * every


def _pace(step: int, seconds: float) -> int:
    """How many rounds the next chunk should have, after one of `step` rounds took so long."""
    if seconds < CHUNK_SECONDS / 2:
        return min(2 * step, LONGEST_CHUNK)
    return max(1, step // 2) if seconds > 2 * CHUNK_SECONDS else step
