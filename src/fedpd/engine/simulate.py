"""Simulate a federation on one machine."""

import inspect
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.atomic import held
from fedpd.base.checks import TheoryWarning, check_seeds, count, refuse
from fedpd.base.errors import warn
from fedpd.base.precision import scope
from fedpd.base.progress import Event, Listener, all_listeners, ends_run, shown
from fedpd.base.typed import typed
from fedpd.core import Method, Mixing, Problem, form_with_absent
from fedpd.engine.average import averaged
from fedpd.engine.backends.lazy_rows import check_measurable
from fedpd.engine.checks import (
    check_agents,
    check_batch,
    check_outside_of_jax,
    check_random_layers,
    check_schedules,
    check_variance,
    explain_running,
    explain_tracing,
    fewest_present,
)
from fedpd.engine.clock import apply_clock
from fedpd.engine.config import Callback, RunConfig, RunOptions
from fedpd.engine.driver import Driver
from fedpd.engine.measure.columns import (
    MEASURED,
    SAMPLE,
    Column,
    central_columns,
    central_test,
    check_names,
    measures_of,
    metric_columns,
    recorded_columns,
)
from fedpd.engine.measure.history import are_reached, make_targets
from fedpd.engine.participation import attendance_rule, sample_agents, straggler_rule
from fedpd.engine.plan import Plan, choose_layout, identity
from fedpd.engine.privacy import with_example_privacy, with_privacy
from fedpd.engine.resume import continue_runs, restore, runs_of, save, start_at
from fedpd.engine.run import Ensemble, Run, ensemble, results
from fedpd.loggers import log_rows, opened
from fedpd.theory.curvature import known_smoothness


@overload
def simulate(
    algorithm: Method, problem: Problem, *, rounds: int, seed: int = 0, **options: Unpack[RunOptions]
) -> Run: ...
@overload
def simulate(
    algorithm: Method, problem: Problem, *, rounds: int, seed: Sequence[int], **options: Unpack[RunOptions]
) -> Ensemble: ...
@typed
def simulate(
    algorithm: Method, problem: Problem, *, rounds: int, seed: int | Sequence[int] = 0, **options: Unpack[RunOptions]
) -> Run | Ensemble:
    """Run `rounds` rounds of a method on a problem, and return the model and the history.

    Args:
        algorithm: The method, e.g. `algorithms.fedpd(eta=0.08, oracle=oracles.gd(step=0.08, iterations=8))`.
        problem: The problem, from `fedpd.problems`.
        rounds: T, the number of rounds.
        seed: One seed gives a `Run`; several give an `Ensemble`, run at once as one program.

    Keyword Args:
        participation (float | Sequence | np.ndarray): Who takes part: a share of the agents, drawn in every round; a
            probability per agent, (N,); or an array (rounds, N) of 0 and 1. Default 1.0. A round costs what the agents
            cost that are present, and the run keeps the state of agents that were present at least once.
        cohort (int): K, the number of agents that take part in a round, instead of `participation`. The K agents are
            drawn from the seed and the round alone.
        sampling (str): How a cohort is drawn: "uniform", or "size", one agent after another with probabilities
            proportional to their numbers of samples. Default "uniform".
        stragglers (float): The probability that an agent does only some of its local steps in a round. Default 0.0.
        metrics_every (int): Measure, and add a row to the history, every k rounds and in the last round. The costs of
            all rounds count. Default 1.
        metrics_agents (int): Measure over this many agents, drawn once from the first seed, instead of all agents. The
            column "metrics_agents" of the history then has this number.
        record (Sequence[str | Column]): What else to measure: "heterogeneity", delta = max_i ||grad f_i - grad f|| at
            the mean model; "smoothness", the largest |eigenvalue| of the Hessians there (ten power iterations);
            "local_accuracy", FedPD's eps_1 = max_i ||grad L_i||^2 after the local solves, for `theory.check`;
            "accuracy", on training and test samples; "fairness", the standard deviation of the agents' test accuracies
            and the mean of the best tenth of the agents, beside the worst tenth that "accuracy" has; "metrics", those
            of the problem on test samples; or a `fedpd.Column` of your own. Default: "accuracy" and "metrics", as far
            as the problem has them.
        checkpoints (str | Path): A folder, to which the run writes a checkpoint every `checkpoint_every` rounds. If the
            folder already holds this run, the run resumes, with the same result bit for bit as without interruption.
        checkpoint_every (int): Rounds between two checkpoints. Default 50.
        store (str | Path): A folder for the agents' state if it does not fit into memory. The run keeps it in files
            there, which disappear with the run, and has a few agents in memory at a time. Results are the same up to
            rounding.
        progress (bool | Callable): Whether to show a bar, or a function of (rounds done, total rounds, stationarity).
            Default: a bar in a terminal or a notebook, if the run takes more than two seconds.
        log (Callable): A function that receives the new rows of the history; see `fedpd.loggers`.
        callback (Callable): A function of (round, model, row), called with every measured row, the row of the start
            included, and the model of that round. With several seeds, it is called with the row and the model of each
            seed. If it returns True, the run ends and `simulate` returns the result so far. It may return True, False
            or None; fedpd refuses any other answer.
        until (Mapping): Ends the run at the first measured row in which all these columns have reached their values,
            e.g. {"stationarity": 1e-10}. Each column defines whether less or more is better. With several seeds, the
            run ends when every seed that did not diverge has had such a row.
        start (Tree | Run | Ensemble): The first model, instead of `problem.start`; or a finished run to continue. To
            continue a run, repeat the call that made it with more `rounds` in total. The result is the same, bit for
            bit, as that of one long run.
        test (Mapping | str | Path): A central test set, samples that belong to no agent, in the form of one agent's
            samples, e.g. {"x": (m, ...), "y": (m,)}; or the path of an .npz file with these arrays. The server measures
            the model on it: the columns "central_loss" and, for a classification problem, "central_accuracy", and those
            of the problem's metrics with the prefix "central_". A model with batch normalisation uses the mean of the
            agents' statistics.
        average (bool): Whether to deliver the running mean of the server's models, which the history, `until` and
            `run.model` then are about. Agents compute as without it, and it costs no message. With mini-batches or few
            agents per round it is usually more accurate than the newest model. Default False.
        execution (str): How agents run: "sequential" (one after another), "parallel" (all at once), "auto" (by backend
            and work), or "debug" (one after another without compilation; an error names the agent, the stage and the
            round). Default "auto".
        devices (int): The number of devices (CPU cores count) over which the agents are sharded; None: fedpd chooses.
        clock (Clock): A clock, from `fedpd.clock`. The history then has the column "network_seconds".
        buffer (int): K: the run is asynchronous. The server steps when K agents have returned, and agents never wait
            for slower ones. `rounds` counts server steps. It needs a clock.
        deadline (float | str): The longest time of a round, e.g. "30 s". A slower agent is absent in that round. It
            needs a clock.

    Returns:
        The model, the history and the agents' final state.

    Raises:
        FedpdError: An argument is not valid. The message names the value, the rule and the remedy.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, simulate
        >>> problem = problems.opposing_quadratics()
        >>> algorithm = algorithms.fedpd(eta=0.2, oracle=oracles.gd(0.1, 5))
        >>> run = simulate(algorithm, problem, rounds=100, metrics_every=50)
        >>> run.history["round"].tolist(), run.history["communications"].tolist()
        ([0, 50, 100], [0, 50, 100])
    """
    several = np.ndim(seed) > 0
    seeds = list(cast(Sequence[int], seed)) if several else [cast(int, seed)]
    check_seeds("seed", seeds)
    if len(set(seeds)) < len(seeds):
        refuse("seed", seeds, "holds a seed twice, whose run would count twice in every mean", "Give different seeds")
    config = RunConfig.of(options)
    plan = make_plan(algorithm, problem, rounds, seeds, several, config)
    runs = run_plan(plan, config)
    return ensemble(runs) if several else runs[0]


def _show_options(function: Any) -> None:
    """Add the options with their defaults to the signature of a function, for `help` and editors."""
    signature = inspect.signature(function)
    named = [parameter for name, parameter in signature.parameters.items() if name != "options"]
    more = inspect.signature(RunConfig).parameters.values()
    function.__signature__ = signature.replace(parameters=[*named, *more])


_show_options(simulate)


def make_plan(
    algorithm: Method, problem: Problem, rounds: int, seeds: list[int], many: bool, options: RunConfig
) -> Plan:
    """Check all arguments of a run, and return its plan."""
    check_outside_of_jax("simulate")
    check_run(rounds, options.metrics_every, seeds)
    count("checkpoint_every", options.checkpoint_every, "Give the rounds between two checkpoints, e.g. 50", bits=31)
    if options.start is not None and not runs_of(options.start):
        problem = start_at(problem, options.start)
    participation = attendance_rule(options.cohort, options.sampling, options.participation, problem.sizes, rounds)
    algorithm, participation, timing = apply_clock(algorithm, problem, rounds, seeds, participation, options)
    if participation is not None:
        algorithm = form_with_absent(algorithm)
    if participation is not None and algorithm.needs_everyone:
        rule = "needs all agents in every communication"
        remedy = 'Leave participation at 1 and give no cohort; FedPD takes them with drift="corrected-exact"'
        refuse("algorithm", algorithm.description, rule, remedy)
    _check_mixing(algorithm, problem.agents, participation is not None)
    check_batch(algorithm, problem)
    check_random_layers(algorithm, problem)
    check_schedules(algorithm, rounds)
    check_variance(algorithm, problem.dimension)
    check_agents(algorithm, problem.agents, lambda: fewest_present(participation, seeds, rounds, problem.agents))
    _warn_beyond_theory(algorithm, problem)
    sample = sample_agents(options.metrics_agents, problem.agents, seeds[0])
    central = None if options.test is None else central_test(problem, options.test)
    added = () if central is None else central_columns(central.metrics)
    recorded = check_names(
        (*_recorded(problem, options.record, central is not None), *added, *(() if sample is None else (SAMPLE,)))
    )
    check_measurable(problem, recorded, sample is not None)
    store, debug = options.store, options.execution == "debug"
    _check_states(algorithm, recorded, participation is not None or store is not None or problem.lazy, options.average)
    if store is not None or debug:
        _check_host_run(algorithm, store, many and (participation is None or debug))
    if debug and problem.lazy:
        rule = "needs the samples of all agents in memory"
        refuse("execution", "debug", rule, "Give problem.in_memory(), or problem.subset(agents).in_memory()")
    plan = Plan(
        algorithm,
        problem,
        choose_layout(algorithm, problem, options.execution, options.devices, participation),
        rounds,
        options.metrics_every,
        seeds,
        many,
        participation,
        straggler_rule(options.stragglers),
        recorded,
        None if store is None else Path(store),
        debug,
        targets=make_targets(options.until, (*MEASURED, *recorded)),
        sample=sample,
        timing=timing,
        central=central,
    )
    with scope(problem.double):
        plan = with_example_privacy(with_privacy(plan))
        if not options.average:
            return plan
        return plan._replace(algorithm=averaged(plan.algorithm, problem.start), average=True)


def run_plan(plan: Plan, options: RunConfig, listen: Listener | None = None) -> tuple[Run, ...]:
    """Run a plan to its end, and return the runs of its seeds."""
    with scope(plan.problem.double):
        with explain_tracing(), explain_running():
            driver = Driver(plan)
        with explain_running():
            drive(driver, options, listen)
        return results(driver)


def drive(driver: Driver, options: RunConfig, listen: Listener | None = None) -> None:
    """Run a plan to its end, with the bar, the loggers, the callback and the checkpoints of the options."""
    log, callback = options.log, options.callback
    folder = None if options.checkpoints is None else Path(options.checkpoints)
    identified = {} if folder is None else identity(driver.plan)
    targets, runs = driver.plan.targets, runs_of(options.start)
    with ExitStack() as stack:
        if runs:
            continue_runs(driver, runs)
        if folder is not None:
            if jax.process_index() == 0:  # it alone writes
                stack.enter_context(held(folder))
            restore(driver, folder, identified)
        bar = stack.enter_context(shown(options.progress)) if listen is None else listen
        stack.enter_context(opened(log))
        listeners = [bar, None if log is None else log_rows(log), None if callback is None else _call_back(callback)]
        listeners.append((lambda event: are_reached(targets, driver.measurements)) if targets else None)
        write = None if folder is None else lambda: save(driver, folder, identified)
        rows = callback is not None or (driver.plan.many and bool(targets))  # a single run's chunk ends at its targets
        listen_all = all_listeners(listeners)
        if not listen_all(driver.first_event()):
            driver.run(listen_all, write, options.checkpoint_every, row_by_row=rows)


def _call_back(callback: Callback) -> Listener:
    def listen(event: Event) -> bool:
        pairs = zip(event.models(), event.rows(), strict=True)
        answers = [ends_run(callback(row["round"], model, row)) for model, row in pairs]
        return any(answers)

    return listen


def _recorded(problem: Problem, record: Sequence[str | Column] | None, central: bool) -> tuple[Column, ...]:
    """Return the columns to record. By default, these are the accuracies and the metrics that the problem has."""
    tests = problem.evaluation
    metrics = problem.judge.metrics if problem.judge is not None and problem.judge.asked else ()
    if metrics and tests is None and not central:
        rule = "are measured on test samples, and there are none"
        remedy = "Give simulate(..., test=...), take some samples as tests with data.split, or leave the metrics out"
        refuse("metrics", [name for name, _ in metrics], rule, remedy)
    if record is None:
        known = tests is not None and tests.correct is not None
        record = (*(("accuracy",) if known else ()), *(("metrics",) if metric_columns(problem) else ()))
    for one in record:
        name, columns = one.name if isinstance(one, Column) else one, recorded_columns([one], problem)
        tested = one == "metrics" or any(measure.tests for measure in measures_of(columns))
        if tested and tests is None:
            refuse("record", name, "needs a problem with test samples", "Build it with problems.classification")
        if one in ("accuracy", "fairness") and tests is not None and tests.correct is None:
            rule = "needs a problem that knows which predictions are correct"
            refuse("record", name, rule, 'Give correct= where you build the problem, or record ["metrics"]')
    return recorded_columns(record, problem)


def _check_states(algorithm: Method, recorded: Sequence[Column], elsewhere: bool, average: bool) -> None:
    """Refuse a column of the agents' states if they are not in memory, or if the method does not show it."""
    for column in recorded:
        if column.measure is None or column.measure.state is None:
            continue
        if elsewhere:
            rule = "needs the states of all agents in memory, in every round"
            refuse("record", column.name, rule, "Leave out participation, cohort, buffer, deadline and store")
        if average or algorithm.local_gradient is None:
            rule = "needs algorithms.fedpd itself, whose duals show the gradient of a local solve"
            remedy = "Leave it out, as well as average=True, memory, and transforms around FedPD"
            refuse("record", column.name, rule, remedy)


def check_run(rounds: Any, metrics_every: Any, seeds: Sequence[Any]) -> None:
    """Refuse rounds, intervals and seeds that are not valid."""
    count("rounds", rounds, "Give T, the number of rounds", bits=31)
    count("metrics_every", metrics_every, "Give e.g. 1, to measure every round", bits=31)
    check_seeds("seed", seeds)


def _warn_beyond_theory(algorithm: Method, problem: Problem) -> None:
    """Warn if no theorem covers this run."""
    known = known_smoothness(problem)
    caution = None if known is None else algorithm.caution(known.value)
    if known is not None and caution is not None:
        warn(caution if known.bound else f"{caution} L is {known.kind}.", TheoryWarning)


def _check_host_run(algorithm: Method, store: str | Path | None, many: bool) -> None:
    """Refuse options that do not work with store=, or with execution="debug"."""
    name, value = ("execution", "debug") if store is None else ("store", str(store))
    if many:
        refuse(name, value, "allows only one seed", f"Give one seed, or leave {name} out")
    if jax.process_count() > 1:
        refuse(
            name, value, "allows only one process", f"Leave {name} out: the processes share the agents' state already"
        )
    if store is None:
        return
    if any(exchange.mixes for exchange in algorithm.exchanges()):
        rule = f"needs a server, and {algorithm.description} mixes the agents' models"
        refuse(name, value, rule, "Leave store out")
    if os.path.lexists(store) and not Path(store).is_dir():
        refuse(name, value, "must be a folder", "Give a folder on a disk with room for the agents' state")


def _check_mixing(algorithm: Method, agents: int, partial: bool) -> None:
    """Refuse a mixing matrix of another size than the number of agents, or with partial participation."""
    for exchange in algorithm.exchanges():
        if not isinstance(exchange.aggregate, Mixing):
            continue
        if partial:
            rule = "mixes the models of all agents, so all must take part"
            refuse("algorithm", algorithm.description, rule, "Leave participation at 1, and give no cohort")
        (columns,) = jax.eval_shape(exchange.aggregate.weights, jnp.int32(0)).shape
        if columns != agents:
            rule = f"mixes {columns} agents, and the problem has {agents}"
            refuse("algorithm", algorithm.description, rule, f"Give a mixing matrix ({agents}, {agents})")
