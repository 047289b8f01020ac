"""Compare methods fairly: equal local work, equal budgets of tries, fresh seeds, and everything that it costs.

tries    at most `budget` settings per method, judged by validation samples where test samples report the result
runs     the best setting of each method on all training samples, with seeds that no try had
targets  three values of the criterion, between the start and what the first method reaches at the end
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedpd.base.checks import check_seeds, count, nearest, refuse
from fedpd.base.progress import StepFunction
from fedpd.base.saved import write_result
from fedpd.base.typed import typed
from fedpd.core import Problem
from fedpd.engine.config import RunConfig
from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.run import Run, Runs
from fedpd.engine.views.entries import COSTS, MAIN, Entry, entry_of
from fedpd.search.candidates import Listed
from fedpd.search.tuned import (
    VALIDATION,
    Criterion,
    Tuned,
    TuningPlan,
    is_central,
    is_tested,
    judged_column,
    target_of,
    tune_equally,
)
from fedpd.search.views import comparison_html, comparison_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TUNING_SEEDS = 2  # the tries of a setting; their seeds follow those of the results
ROWS = 50  # measurements of a run, about
SHARES = (0.9, 0.97, 1.0)  # the targets of an accuracy, in units of what the first method reaches
PARTS = (0.5, 0.75, 1.0)  # those of a column on a logarithmic axis: parts of the way of the first method, in decades


@dataclass(frozen=True, repr=False)
class Comparison(Runs):
    """Methods with their best settings, each found with the same local work and the same budget of tries.

    Attributes:
        problem: The problem's name.
        criterion: The column of the history that decides.
        targets: The values of it for which costs are shown, the easiest first.
        budget: The most tries of a method.
        work: The local work of all methods, in words.
        chosen: How settings were chosen, in words.
        seeds: The seeds of the runs.
        methods: The methods: their tries, their best settings and their runs.
    """

    problem: str
    criterion: str
    targets: tuple[float, ...]
    budget: int
    work: str
    chosen: str
    seeds: tuple[int, ...]
    methods: tuple[Tuned, ...]

    def __repr__(self) -> str:
        return comparison_text(self)

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def __getitem__(self, label: str) -> Tuned:
        """Return a method by its label."""
        found = {one.label: one for one in self.methods}
        if label not in found:
            refuse("label", label, "is not a method of this comparison", f"Choose from: {', '.join(found)}")
        return found[label]

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs of each method with its label, for figures and reports."""
        return tuple(entry_of(one.label, one.runs) for one in self.methods)

    def keyed(self) -> list[tuple[Mapping[str, Any], Run]]:
        """Return every run with its method and its seed."""
        return [pair for one in self.methods for pair in one.keyed()]

    def plot(
        self,
        quantity: str = "",
        against: str | Sequence[str] = ("communications", "samples"),
        *,
        title: str = "",
        width: float = 9.0,
    ) -> "Figure":
        """Return a figure of the criterion, or another quantity, against communications and sample gradients."""
        return super().plot(quantity or self.criterion, against, title=title, width=width)

    def costs(self, target: float, cost: str = "communications") -> dict[str, np.ndarray]:
        """Return what each run spent until it kept a target, by method; NaN if it did not.

        Args:
            target: The value of the criterion.
            cost: "communications", "samples", "bytes" or "seconds".
        """
        rule = Criterion(column_of(self.criterion), target)
        if cost not in COSTS:
            refuse("cost", cost, "is no cost", f"Choose from: {', '.join(COSTS)}")
        return {one.label: np.array([rule.spent(run, target, cost) for run in one.runs]) for one in self.methods}

    def finals(self) -> dict[str, np.ndarray]:
        """Return the criterion at the end of each run, by method: the mean of the last measurements."""
        rule = Criterion(column_of(self.criterion), None)
        return {one.label: np.array([rule.final(run) for run in one.runs]) for one in self.methods}


@typed
def compare(
    problem: Problem,
    methods: "Sequence[str] | Listed | None" = None,
    *,
    criterion: str | None = None,
    target: float | None = None,
    targets: Sequence[float] | None = None,
    budget: int = 16,
    seeds: Sequence[int] = range(5),
    rounds: int = 100,
    batch: int | None = None,
    iterations: int | None = None,
    epochs: int | None = None,
    decay: float = 1.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    weights: Literal["samples"] | None = None,
    ranges: Mapping[str, Any] | None = None,
    validation: float | None = None,
    L: float | None = None,
    folder: str | Path | None = None,
    progress: bool | StepFunction | None = None,
    record: Sequence[str | Column] | None = None,
    **options: Any,
) -> Comparison:
    """Tune each method with the same local work and the same budget, run the best settings on fresh seeds, and compare.

    Args:
        problem: The problem.
        methods: Names of methods, such as ["fedavg", "scaffold", "fedpd"]; or by label a function that makes a method,
            a method with nothing to tune, a name, or a table of an experiment file in which lists are searched. The
            arguments of a function are searched, from their defaults if these are real numbers. Those called oracle,
            batch, iterations, epochs, agents and cohort get the values of the comparison, an `oracle` with a step that
            is searched: {"FedPD": lambda eta, oracle: algorithms.fedpd(eta=eta, oracle=oracle)}. None: FedAvg, FedProx,
            SCAFFOLD and FedPD.
        criterion: The column that decides; None: "test_accuracy" if the problem has test samples and knows which
            predictions are correct, otherwise "stationarity".
        target: A setting is best if it reaches this value with the fewest communications; None: 1e-10 for the
            stationarity, and for other criteria the value at the end decides.
        targets: Values of the criterion for which costs are shown; None: three, by what the first method reaches.
        budget: The most settings that are tried of a method.
        seeds: The seeds of the results. The tries have two other seeds.
        rounds: The rounds of every run.
        batch: Samples per local step; None: all samples with `iterations`, 20 with `epochs`.
        iterations: Local steps per round. Without `iterations` and `epochs`: 8 full-gradient steps if the criterion is
            the stationarity, otherwise one epoch.
        epochs: Passes over each agent's own samples per round.
        decay: The factor on the step size from one round to the next, e.g. 0.998.
        momentum: Momentum of the local steps.
        weight_decay: The weight of the model in its local gradient.
        clip: The largest norm of a local gradient.
        weights: "samples": the server weighs messages by the agents' numbers of samples, as McMahan's FedAvg does;
            None: the plain mean, whose fixed point is that of f = (1/N) sum_i f_i.
        ranges: Lists of values to search in place of a ladder without ends: {"step": [0.01, 0.1]} for all methods, or
            {"FedPD": {"penalty": [1, 5]}} for one.
        validation: The share of each agent's samples that judges the tries, if the criterion is measured on test
            samples; None: 0.15. With 0 the test samples themselves judge, which is not fair.
        L: The smoothness, with which step sizes of full gradients begin; None: it is measured.
        folder: A folder for the tries, the runs and the result, which `fedpd.load` reads. The same call continues there
            after an interruption.
        progress: Whether to show a bar, or a function of (what, runs done, runs in all). Default: a bar in a terminal
            or a notebook, after two seconds.
        record: What else to measure, as for `simulate`.

    Keyword Args:
        options: The other options of `fedpd.simulate`, such as cohort, participation, average and metrics_every
            (default: about 50 measurements).

    Returns:
        The comparison. Print it for the table, `plot()` it, and `fedpd.report.page` makes a page of it.

    Raises:
        FedpdError: An argument is not valid. The message names the value, the rule and the remedy.

    Examples:
        >>> from fedpd import compare, data, problems
        >>> problem = problems.penalized_logistic(*data.strongly_noniid(4, 20, 3))
        >>> found = compare(
        ...     problem, ["local_gd", "fedpd"], rounds=20, budget=4, seeds=[0], progress=False
        ... )
        >>> found.criterion, [one.label for one in found.methods]
        ('stationarity', ['Local GD', 'FedPD'])
    """
    tests = problem.evaluation
    usual = "test_accuracy" if tests is not None and tests.correct is not None else MAIN
    chosen = usual if criterion is None else criterion
    column, record = judged_column(problem, chosen, record, options.get("test"))
    rule = Criterion(column, target_of(chosen, target))
    count("rounds", rounds, "Give the rounds of every run, e.g. 100", bits=31)
    check_seeds("seeds", list(seeds))
    if len(set(seeds)) < len(seeds):
        refuse("seeds", list(seeds), "holds a seed twice", "Give different seeds")
    for name in ("checkpoints", "until", "callback", "start", "store", "log"):
        if name in options:
            refuse(name, options.get(name), "is not an option of a comparison", "Leave it out")
    known = {one.name for one in fields(RunConfig)}
    for name in options:
        if name not in known:
            raise TypeError(f"compare() got an unexpected keyword argument {name!r}. {nearest(name, known)}")
    every = {"metrics_every": max(1, rounds // ROWS)}
    local = {"batch": batch, "iterations": iterations, "epochs": epochs}
    more = {"decay": decay, "momentum": momentum, "weight_decay": weight_decay, "clip": clip}
    exact = chosen == MAIN and batch is None and epochs is None and not {"cohort", "participation"} & set(options)
    tuning = tuple(max(seeds) + 1 + i for i in range(1 if exact else TUNING_SEEDS))  # one is enough for full gradients
    plan = TuningPlan(
        problem,
        rule,
        rounds,
        tuning,
        {"record": record, **every, **options},
        local | more,
        budget,
        validation,
        ranges or {},
        L,
        None if folder is None else Path(folder),
        weights,
    )
    found = tune_equally(plan, methods, tuple(seeds), progress)
    tested = is_tested(column) or is_central(column)
    share = (VALIDATION if validation is None else validation) if tested else 0.0
    judged = f"on {share:.0%} of the training samples, held out" if share else "on the problem itself"
    words = f"{rule.words}; tries with seeds {', '.join(map(str, tuning))}, judged {judged}"
    result = Comparison(
        problem.name,
        chosen,
        tuple(targets) if targets is not None else usual_targets(rule, found[0].runs),
        budget,
        plan.local_work.words,
        words,
        tuple(seeds),
        tuple(found),
    )
    if plan.folder is not None:
        write_result(result, plan.folder, found[0].runs[0].model)
    return result


def usual_targets(rule: Criterion, runs: Sequence[Run]) -> tuple[float, ...]:
    """Return three targets, the easiest first, up to the criterion's own or to what the runs of a method reach.

    Shares of an accuracy; for a column on a logarithmic axis, parts of the way from the start in decades; otherwise
    parts of the way from the start.
    """
    column = rule.column
    start = float(np.mean([run.history[column.name][0] for run in runs]))
    reached = float(np.mean([rule.final(run) for run in runs]))
    end = reached if rule.target is None else rule.target
    if not np.isfinite(end):
        return ()
    if column.unit == "share":
        return tuple(_easier(share * end, 3, rule) for share in SHARES)
    if column.log and start > 0 and end > 0:
        return tuple(_easier(start * (end / start) ** part, 2, rule) for part in PARTS)
    return tuple(_easier(start + share * (end - start), 4, rule) for share in SHARES)


def _easier(value: float, digits: int, rule: Criterion) -> float:
    """Return a value with few digits, rounded so that it is not harder to reach."""
    unit = 10.0 ** (np.floor(np.log10(abs(value) or 1.0)) - digits + 1)
    number = value / unit
    rounded = np.floor(number + 1e-6) if rule.column.better == "more" else np.ceil(number - 1e-6)
    return float(f"{rounded * unit:.{digits}g}")
