"""Simulate a federation on one machine."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.algorithms import cards
from fedpd.base.checks import TheoryWarning, check_seeds, choice, count, refuse
from fedpd.base.precision import scope
from fedpd.base.progress import Report, reporter
from fedpd.core import Algorithm, Mixing, Problem, Tree
from fedpd.engine.driver import Divergence, Engine, Plan
from fedpd.engine.execution import choose_layout
from fedpd.engine.history import History, mean_and_spread
from fedpd.engine.metrics import RECORDED, mean_copy
from fedpd.engine.participation import participation_rule, straggler_rule
from fedpd.loggers import Log, logging, opened

Participating = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray


@dataclass(frozen=True)
class Run:
    """One method on one problem with one seed."""

    algorithm: str
    seed: int
    model: Tree  # x_0 = mean_i x_{0,i}, the user's own pytree, NumPy leaves
    history: History
    agents: Any  # the agents' final state, leaves (N, ...)
    updates: np.ndarray  # (N,) local steps of each agent in all rounds together: sum_r Q_i^r
    seconds: float  # wall time, compilation and earlier sessions of a resumed run included
    elapsed: np.ndarray  # (rows,) seconds at each row of the history; apart from it, as they are never the same twice
    diverged: Divergence | None = None


@dataclass(frozen=True)
class Ensemble:
    """One method on one problem with several seeds, run as one program."""

    runs: tuple[Run, ...]
    mean: History  # over the seeds that did not diverge
    spread: History  # their standard deviation


@overload
def simulate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    seed: int = ...,
    participation: Participating = ...,
    stragglers: float = ...,
    metrics_every: int = ...,
    record: Sequence[str] | None = ...,
    checkpoints: str | Path | None = ...,
    checkpoint_every: int = ...,
    store: str | Path | None = ...,
    progress: bool | Report | None = ...,
    log: Log | None = ...,
    execution: str = ...,
    devices: int | None = ...,
) -> Run: ...
@overload
def simulate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    seed: Sequence[int],
    participation: Participating = ...,
    stragglers: float = ...,
    metrics_every: int = ...,
    record: Sequence[str] | None = ...,
    checkpoints: str | Path | None = ...,
    checkpoint_every: int = ...,
    store: str | Path | None = ...,
    progress: bool | Report | None = ...,
    log: Log | None = ...,
    execution: str = ...,
    devices: int | None = ...,
) -> Ensemble: ...
def simulate(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    seed: int | Sequence[int] = 0,
    participation: Participating = 1.0,
    stragglers: float = 0.0,
    metrics_every: int = 1,
    record: Sequence[str] | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int = 50,
    store: str | Path | None = None,
    progress: bool | Report | None = None,
    log: Log | None = None,
    execution: str = "auto",
    devices: int | None = None,
) -> Run | Ensemble:
    """Run `rounds` rounds of a method on a problem.

    seed:          one seed gives a Run; several give an Ensemble, run at once as one program.
    participation: who is present: a share of the agents, drawn anew every round; a probability per agent, (N,); or an
                   array (rounds, N) of who is present in which round.
    stragglers:    the probability that an agent does only some of its local steps in a round, uniformly many.
    metrics_every: measure (and keep a history row) every k rounds, and at the last; costs are counted in all.
    record:        what else to measure: "heterogeneity", delta = max_i ||grad f_i - grad f|| at the mean model;
                   "smoothness", the largest |eigenvalue| of the Hessians there (ten power iterations); "accuracy", on
                   training and test samples, which is recorded unasked where the problem has test samples.
    checkpoints:   a folder. Every `checkpoint_every` rounds the run is saved there; if it already holds this run, it is
                   continued, and gives bit for bit what an uninterrupted run gives.
    store:         a folder for the agents' state where there is more of it than memory: it lives in files there, which
                   vanish with the run, a few agents in memory at a time. The same numbers up to rounding, at the speed
                   of the disk.
    progress:      a bar (None: where a person looks on and it takes over two seconds), or a function that is told.
    log:           a function that is given the history's new rows as they come, see `fedpd.loggers`.
    execution:     how agents are executed: "sequential", "parallel", or "auto" by backend and work.
    devices:       over how many devices (CPU cores count) the agents are sharded; None: as many as pay.

    >>> from fedpd import algorithms, oracles, problems
    >>> problem = problems.opposing_quadratics()
    >>> run = simulate(algorithms.fedpd(eta=0.2, oracle=oracles.gd(0.1, 5)), problem, rounds=100, metrics_every=50)
    >>> run.history["round"].tolist(), run.history["communications"].tolist()
    ([0, 50, 100], [0, 50, 100])
    """
    several = np.ndim(seed) > 0
    seeds = list(cast(Sequence[int], seed)) if several else [cast(int, seed)]
    check_run(rounds, metrics_every, seeds)
    count("checkpoint_every", checkpoint_every, "Give the rounds between two checkpoints, e.g. 50")
    who = participation_rule(participation, problem.agents, rounds)
    if who is not None and algorithm.away.partial is not None:
        algorithm = algorithm.away.partial
    if who is not None and algorithm.away.everyone:
        rule = "needs all agents in every communication"
        refuse("algorithm", algorithm.description, rule, 'Leave participation at 1, or use drift="corrected-exact"')
    _check_mixing(algorithm, problem.agents, who is not None)
    check_batch(algorithm, problem)
    warn_beyond_theory(algorithm, problem)
    record = record if record is not None else ("accuracy",) if problem.evaluation is not None else ()
    for name in record:
        choice("record", name, RECORDED)
    if "accuracy" in record and problem.evaluation is None:
        refuse("record", "accuracy", "needs a problem with test samples", "Build it with problems.classification")
    if store is not None:
        _check_store(algorithm, store, several)
    plan = Plan(rounds, metrics_every, seeds, several, who, straggler_rule(stragglers), tuple(record))
    layout = choose_layout(algorithm, problem, execution, devices)
    name = algorithm.name + ("" if store is None else ", agents on disk")
    with scope(problem.double), reporter(progress, name, rounds) as report, opened(log):
        engine = Engine(algorithm, problem, layout, plan, None if store is None else Path(store))
        tell = report if log is None else logging(log, engine, report)
        engine.run(None if checkpoints is None else Path(checkpoints), checkpoint_every, tell)
        runs = results(engine, [algorithm.description] * len(seeds))
    if not several:
        return runs[0]
    finished = [run.history for run in runs if run.diverged is None]
    return Ensemble(runs, *mean_and_spread(finished or [run.history for run in runs]))


def check_run(rounds: Any, metrics_every: Any, seeds: Sequence[Any]) -> None:
    count("rounds", rounds, "Give T, the number of rounds")
    count("metrics_every", metrics_every, "1 measures every round")
    check_seeds("seed", seeds)


def warn_beyond_theory(algorithm: Algorithm, problem: Problem) -> None:
    """Warn where the method's card says that no theorem covers this run."""
    card, L = cards().get(algorithm.name), problem.answer.smoothness
    if card is not None and card.caution is not None and L is not None and not isinstance(algorithm.spec, str):
        caution = card.caution(algorithm.spec, L)
        if caution is not None:
            warnings.warn(caution, TheoryWarning, stacklevel=3)


def check_batch(algorithm: Algorithm, problem: Problem) -> None:
    if problem.block is not None and algorithm.batch == 1:
        rule = "must be larger where a sample's loss depends on its batch, as with batch normalisation"
        refuse("batch", algorithm.batch, rule, "Give the oracle e.g. batch=10")


def _check_store(algorithm: Algorithm, store: str | Path, several: bool) -> None:
    remedy = "Leave store out"
    if several:
        refuse("store", store, "takes one seed at a time", "Give one seed, or " + remedy.lower())
    if any(isinstance(exchange.aggregate, Mixing) for exchange in algorithm.exchanges):
        refuse("store", store, f"needs a server, and {algorithm.description} mixes the agents' models", remedy)
    if jax.process_count() > 1:
        refuse("store", store, "is for one process", remedy + ": the processes share the agents' state already")
    if Path(store).exists() and not Path(store).is_dir():
        refuse("store", store, "must be a folder", "Give a folder on a disk with room for the agents' state")


def _check_mixing(algorithm: Algorithm, agents: int, partial: bool) -> None:
    """A mixing matrix is made for so many agents, all of them present."""
    for exchange in algorithm.exchanges:
        if not isinstance(exchange.aggregate, Mixing):
            continue
        if partial:
            rule = "mixes the models of all agents, so all must be present"
            refuse("algorithm", algorithm.description, rule, "Leave participation at 1")
        (columns,) = jax.eval_shape(exchange.aggregate.weights, jnp.int32(0)).shape
        if columns != agents:
            rule = f"mixes {columns} agents, and the problem has {agents}"
            refuse("algorithm", algorithm.description, rule, f"Give a mixing matrix ({agents}, {agents})")


def results(engine: Engine, descriptions: Sequence[str]) -> tuple[Run, ...]:
    """The runs of all variants, which ends the engine's."""
    state, plan = engine.release(), engine.plan

    def result(i: int, description: str) -> Run:
        agents = jax.tree.map(lambda leaf: leaf[i], state) if plan.many else state
        return Run(
            algorithm=description,
            seed=plan.seeds[i],
            model=mean_copy(engine.algorithm, agents, engine.problem.agents),
            history=engine.histories[i],
            agents=agents,
            updates=engine.updates[i],
            seconds=engine.seconds,
            elapsed=engine.elapsed(i),
            diverged=engine.diverged[i],
        )

    return tuple(result(i, description) for i, description in enumerate(descriptions))
