"""What comes out of a run: one method on one problem, with one seed or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedpd.core import Algorithm, Spec, Tree
from fedpd.engine.books import variant
from fedpd.engine.divergence import Divergence
from fedpd.engine.driver import Driver, on_host
from fedpd.engine.history import History, mean_and_spread
from fedpd.engine.metrics import mean_copy
from fedpd.engine.plan import Plan


@dataclass(frozen=True, repr=False)
class Run:
    """One method on one problem with one seed.

    Attributes:
        algorithm: The method's label.
        seed: The seed.
        model: x_0 = mean_i x_{0,i}: the user's own pytree with NumPy leaves.
        history: Maps each column's name to an array with one value per measured round.
        agents: The agents' final state, leaves (N, ...).
        updates: (N,) local steps of each agent in all rounds together: sum_r Q_i^r.
        seconds: Wall time, compilation and earlier sessions of a resumed run included.
        elapsed: (rows,) seconds at each row of the history; not in it, as they are never the same twice.
        diverged: When the run diverged and what to try; None: it did not.
        spec: What the method was made with; a name where it was made by hand.
        server: The server's final state.
        settings: What else `simulate` was asked for, which a continued run has to repeat.
    """

    algorithm: str
    seed: int
    model: Tree
    history: History
    agents: Any
    updates: np.ndarray
    seconds: float
    elapsed: np.ndarray
    diverged: Divergence | None = None
    spec: Spec | str = ""
    server: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = {name: column[-1] for name, column in self.history.items()}
        lines = [
            f"Run of {self.algorithm}, seed {self.seed}",
            f"  {last['round']} rounds, {last['communications']} communications, {last['samples']:,} samples, "
            f"{last['bytes_up'] + last['bytes_down']:,} bytes, {self.seconds:.1f} s",
            f"  loss {last['loss']:.6g}, stationarity {last['stationarity']:.3g}"
            + (f", test accuracy {last['test_accuracy']:.1%}" if "test_accuracy" in last else ""),
        ]
        return "\n".join(lines + ([] if self.diverged is None else [f"  diverged at round {self.diverged.round}"]))


@dataclass(frozen=True, repr=False)
class Ensemble:
    """One method on one problem with several seeds, run as one program.

    Attributes:
        runs: One run per seed.
        mean: The mean of the histories, over the seeds that did not diverge.
        spread: Their standard deviation.
    """

    runs: tuple[Run, ...]
    mean: History
    spread: History

    def __repr__(self) -> str:
        mean, spread = self.mean["stationarity"][-1], self.spread["stationarity"][-1]
        diverged = sum(run.diverged is not None for run in self.runs)
        lines = [
            f"Ensemble of {self.runs[0].algorithm}, seeds {', '.join(str(run.seed) for run in self.runs)}",
            f"  stationarity {mean:.3g} ± {spread:.1g} after {self.mean['round'][-1]:.0f} rounds",
        ]
        return "\n".join(lines + ([f"  {diverged} diverged"] if diverged else []))


def ensemble(runs: tuple[Run, ...]) -> Ensemble:
    """Return runs of several seeds with their mean and spread, over those that did not diverge."""
    finished = [run.history for run in runs if run.diverged is None]
    return Ensemble(runs, *mean_and_spread(finished or [run.history for run in runs]))


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return what `simulate` was asked for besides method, problem and seeds, as far as it changes the rounds."""
    who = plan.participation
    kept = None if who is None else [who.kind, None if who.kind == "schedule" else np.asarray(who.numbers).tolist()]
    return {
        "metrics_every": plan.every,
        "participation": kept,
        "stragglers": None if plan.stragglers is None else float(plan.stragglers),
        "record": [column.name for column in plan.recorded],
    }


def results(driver: Driver, algorithms: Sequence[Algorithm]) -> tuple[Run, ...]:
    """Return the runs of all variants, which ends the driver's."""
    server, plan = jax.tree.map(on_host, driver.state.server), driver.plan
    state = driver.release()

    def result(i: int, algorithm: Algorithm) -> Run:
        agents, books = variant(state, i, plan.many), driver.books[i]
        return Run(
            algorithm=algorithm.description,
            seed=plan.seeds[i],
            model=mean_copy(plan.algorithm, agents, plan.problem.agents),
            history=books.history,
            agents=agents,
            updates=books.updates,
            seconds=driver.seconds,
            elapsed=driver.elapsed(i),
            diverged=books.diverged,
            spec=algorithm.spec,
            server=variant(server, i, plan.many),
            settings=settings_of(plan),
        )

    return tuple(result(i, algorithm) for i, algorithm in enumerate(algorithms))
