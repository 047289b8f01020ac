"""The result of a simulation: one method on one problem, with one seed or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedpd.base.checks import choice, refuse
from fedpd.base.identity import UnidentifiedError
from fedpd.base.saved import save_result
from fedpd.clock import Clock
from fedpd.core import Method, Problem, Spec, Tree
from fedpd.engine.clock import kept_rule, timed_history, timed_rows
from fedpd.engine.driver import Driver
from fedpd.engine.measure.columns import column_of
from fedpd.engine.measure.history import Divergence, History, mean_and_spread, variant
from fedpd.engine.measure.metrics import mean_copy
from fedpd.engine.measure.personal import (
    Personalized,
    check_fit,
    compare,
    evaluate_agents,
    final_values,
    personal_models,
    personalize,
)
from fedpd.engine.plan import Plan, on_host, run_identity
from fedpd.engine.views.entries import (
    MAIN,
    Entry,
    Frame,
    end_text,
    ends_text,
    entries_html,
    entry_of,
    history_frame,
    run_html,
    spent_text,
)
from fedpd.oracles import sgd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Runs:
    """Runs by label, and what they have in common: a figure, a table, a folder. A `Run` is one of them alone.

    `simulate` returns a `Run` or an `Ensemble`, `fedpd.sweep` a `Sweep`, `fedpd.tune` a list of `Tuned`, and
    `fedpd.compare` a `Comparison`.
    """

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs by label, those of all seeds together, for figures and reports."""
        raise NotImplementedError

    def keyed(self) -> "list[tuple[Mapping[str, Any], Run]]":
        """Return every run with what distinguishes it from the others, such as its method and its seed."""
        raise NotImplementedError

    def plot(
        self,
        quantity: str = MAIN,
        against: str | Sequence[str] = "communications",
        *,
        title: str = "",
        width: float = 6.4,
    ) -> "Figure":
        """Return a matplotlib figure of a quantity against a cost, with a band over several seeds.

        `fedpd.report.figure` describes the arguments.
        """
        from fedpd.engine.views.drawing import draw  # only a figure needs matplotlib

        return draw(self.entries(), quantity, against, title=title, width=width)

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per run and measured round: the history and the seconds."""
        return history_frame(self.keyed())

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the result to a folder of its own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.
        """
        return save_result(self, folder, model=self.keyed()[0][1].model, overwrite=overwrite)


@dataclass(frozen=True, repr=False)
class Run(Runs):
    """One method on one problem with one seed.

    Attributes:
        algorithm: The method's label.
        seed: The seed.
        model: x_0 = mean_i x_{0,i}: the user's own pytree with NumPy leaves.
        history: Maps each column's name to an array with one value per measured round.
        agents: The agents' final state, leaves (N, ...). If agents may be absent: an `AgentsSeen`, with the numbers of
            the agents that were present and what is kept of their states.
        updates: (N,) local steps of each agent in all rounds together: sum_r Q_i^r.
        seconds: Wall time, with compilation and, after a resume, the earlier sessions.
        elapsed: (rows,) seconds at each row of the history. They are not in the history, which is equal for equal runs.
        diverged: When the run diverged and what to try; None: it did not.
        spec: The factory and the arguments of the method; "": they are not known.
        server: The server's final state.
        settings: The other arguments of `simulate`, which a continued run must repeat.
        identity: Hashes of the method, the problem and the settings, which a continued run must repeat; None: they have
            a part that cannot be identified.
        by_agent: What the model reaches on each agent's samples, (N,) by column; see `per_agent`.
        copies: The agents' own models, leaves (N, ...), if some of their parameters are personal
            (`transforms.wrap(..., personal=...)`); None: the agents share one model.
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
    identity: Mapping[str, Any] | None = None
    by_agent: Mapping[str, np.ndarray] = field(default_factory=dict)
    copies: Tree | None = None

    def __repr__(self) -> str:
        lines = [f"Run of {self.algorithm}, seed {self.seed}", f"  {spent_text([self])}", f"  {ends_text(self)}"]
        return "\n".join(lines + ([] if self.diverged is None else [f"  diverged at round {self.diverged.round}"]))

    def _repr_html_(self) -> str:
        return run_html(f"Run of {self.algorithm}, seed {self.seed}", *self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """Return the run with its label, for figures and reports."""
        return (entry_of(self.algorithm, [self]),)

    def timed(self, clock: Clock) -> "Run":
        """Return the run with the column "network_seconds": its simulated time on a network.

        The column follows from the recorded costs, so an old run can have a clock too. It is exact if every round is
        measured and the agents of a round do the same number of local steps.

        Args:
            clock: The clock, from `fedpd.clock`. It replaces an earlier one.

        Raises:
            FedpdError: The run was asynchronous or had a deadline, so its rounds depend on its clock; or the run does
                not keep who took part.
        """
        history = timed_history(self.history, clock, len(self.updates), self.settings, self.seed)
        return replace(self, history=history)

    def keyed(self) -> "list[tuple[Mapping[str, Any], Run]]":
        """Return every run with what distinguishes it from the others."""
        return [({}, self)]

    def per_agent(self, name: str = "test_accuracy", problem: Problem | None = None) -> np.ndarray:
        """Return what the model reaches on each agent's own samples, (N,); NaN for agents without test samples.

        A run that records accuracies or metrics of all agents, up to 100,000, keeps these values, also when it is
        saved. Other runs need the problem, because a run does not keep its data.

        Args:
            name: "test_accuracy", "train_accuracy", "test_loss", "loss" (f_i), or a metric of the problem.
            problem: The problem of the run, or one with other samples of the same model; None: the values that the run
                keeps.

        Raises:
            FedpdError: There is no such value.

        Examples:
            >>> from fedpd import algorithms, oracles, problems, simulate
            >>> problem = problems.opposing_quadratics()
            >>> run = simulate(algorithms.fedpd(eta=0.2, oracle=oracles.gd(0.1, 5)), problem, rounds=100)
            >>> run.per_agent("loss", problem).shape
            (2,)
        """
        found, own = self.by_agent, self.copies
        if problem is not None:
            found = evaluate_agents(problem, self.model if own is None else own, same=own is None)
        if problem is None and not found:
            rule = "the run keeps no values of single agents: it recorded none, or there are too many agents"
            refuse("name", name, rule, f"Give the problem: run.per_agent({name!r}, problem)")
        return found[choice("name", name, found)]

    def personalize(
        self, problem: Problem, steps: int = 10, *, step: float, batch: int | None = None, seed: int = 0
    ) -> Personalized:
        """Return each agent's model after fine-tuning on its own samples, and what it reaches beside the shared one.

        Args:
            problem: The problem of the run; a run does not keep its data.
            steps: The number of local steps of stochastic gradient descent from the run's model.
            step: The step size.
            batch: Samples per step; None: all samples of the agent.
            seed: The seed of the draws.
        """
        return personalize(problem, self.model, sgd(step, steps, batch), seed=seed)

    def personal(self, problem: Problem) -> Personalized:
        """Return what the agents' own models reach on their samples beside the shared model.

        They are the personal models of Ditto and pFedMe, or models with personal parameters. In place of those, the
        shared model has their mean.

        Args:
            problem: The problem of the run; a run does not keep its data.
        """
        check_fit(problem, self.model)
        models = self.copies
        if models is None:
            models = personal_models(self.agents, self.model, problem.agents, self.algorithm)
        return compare(problem, self.model, models)


@dataclass(frozen=True, repr=False)
class Ensemble(Runs):
    """One method on one problem with several seeds, run as one program.

    Attributes:
        runs: One run per seed.
        mean: The mean of the histories over the seeds that did not diverge.
        spread: The standard deviation of the same histories.
    """

    runs: tuple[Run, ...]
    mean: History
    spread: History

    def __repr__(self) -> str:
        (entry,) = self.entries()
        lines = [
            f"Ensemble of {entry.label}, seeds {', '.join(str(run.seed) for run in self.runs)}",
            f"  {spent_text(entry.usable)}, means over the seeds",
            f"  stationarity {end_text(entry, column_of(MAIN))}",
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        (entry,), caption = self.entries(), f"Ensemble of {self.runs[0].algorithm}, {len(self.runs)} seeds"
        notes = [f"{end_text(entry, column_of(MAIN))}: stationarity ‖∇f‖², mean ± standard deviation over the seeds"]
        return entries_html(caption, [entry_of(str(run.seed), [run]) for run in self.runs], "seed", notes)

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs with their label, for figures and reports."""
        return (entry_of(self.runs[0].algorithm, self.runs),)

    def timed(self, clock: Clock) -> "Ensemble":
        """Return the runs with the column "network_seconds": their simulated time on a network; see `Run.timed`."""
        return ensemble(tuple(run.timed(clock) for run in self.runs))

    def keyed(self) -> "list[tuple[Mapping[str, Any], Run]]":
        """Return every run with what distinguishes it from the others."""
        return [({"seed": run.seed}, run) for run in self.runs]


def ensemble(runs: tuple[Run, ...]) -> Ensemble:
    """Return an ensemble of runs, with the mean and the spread over the runs that did not diverge."""
    finished = [run.history for run in runs if run.diverged is None]
    return Ensemble(runs, *mean_and_spread(finished or [run.history for run in runs]))


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return the arguments of `simulate` that change the rounds, besides the method, the problem and the seeds."""
    return {
        "metrics_every": plan.every,
        "participation": kept_rule(plan.participation),
        "stragglers": None if plan.stragglers is None else float(plan.stragglers),
        "record": [column.name for column in plan.recorded],
        "metrics_agents": None if plan.sample is None else len(plan.sample),
        "buffer": None if plan.timing is None else plan.timing.buffer,
        "deadline": None if plan.timing is None else plan.timing.deadline,
        "average": plan.average,
    }


def identity_of(plan: Plan, algorithm: Method, rounds: int) -> dict[str, Any] | None:
    """Return the identity of a run; None if it has a part that cannot be identified, such as an open file."""
    try:
        return run_identity(plan, algorithm, rounds)
    except UnidentifiedError:
        return None


def results(driver: Driver) -> tuple[Run, ...]:
    """Return the runs of all variants. The driver cannot continue afterwards."""
    server, plan = jax.tree.map(on_host, driver.backend.state.server), driver.plan
    # Agents in memory are read after their arrays on the device are free, so that there is no second copy of them.
    kept = driver.backend.absence or plan.algorithm.delivers is not None
    models = [driver.backend.model(i) for i in range(len(plan.seeds))] if kept else None
    copies = None if plan.algorithm.is_personal is None else list(map(driver.backend.copies, range(len(plan.seeds))))
    state = driver.backend.release()
    shard = driver.backend.inputs.shard if plan.layout.mesh is None else None
    # A sweep has many runs, of which few are looked at; a sample of the agents was asked for to save this time.
    single = plan.recorded if plan.variants is None and plan.sample is None else ()

    def result(i: int, algorithm: Method) -> Run:
        measurements, own = driver.measurements[i], None if copies is None else copies[i]
        history = measurements.history
        if plan.timing is not None:
            history = timed_rows(plan.timing, history, plan.problem.agents, plan.participation, plan.seeds[i])
        agents = state[i] if driver.backend.absence else variant(state, i, plan.many)
        model = mean_copy(plan.algorithm, agents, plan.problem.agents) if models is None else models[i]
        return Run(
            algorithm=algorithm.description,
            seed=plan.seeds[i],
            model=model,
            history=history,
            agents=agents,
            updates=measurements.updates,
            seconds=driver.seconds,
            elapsed=driver.elapsed(i),
            diverged=measurements.diverged,
            spec=algorithm.spec,
            server=variant(server, i, plan.many),
            settings=settings_of(plan),
            identity=identity_of(plan, algorithm, driver.done),
            by_agent=final_values(plan.problem, single, model, shard, own),
            copies=own,
        )

    return tuple(result(i, algorithm) for i, algorithm in enumerate(driver.methods))
