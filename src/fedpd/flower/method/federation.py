"""Runs a method on the clients of a Flower grid: `federate` is the server's program, `server_app` its ServerApp.

After every communication, when its row and its checkpoint are complete, an `Observation` tells users about it, as in a
simulation: progress, rows, early stops, own evaluation.
"""

import logging
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedpd.base.atomic import held
from fedpd.base.checks import refuse
from fedpd.base.errors import FedpdError
from fedpd.base.precision import is_double, scope
from fedpd.base.process import return_large_blocks
from fedpd.base.progress import ProgressFunction, Row, ends_run
from fedpd.core import Method, Tree
from fedpd.engine.measure.columns import KNOWN
from fedpd.engine.measure.history import History, Target, Until, has_row, make_targets, write_parquet
from fedpd.engine.simulate import Callback
from fedpd.experiments import federated
from fedpd.flower.carry.collect import Timeouts, collect
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.carry.protocol import EVALUATE, TRAIN
from fedpd.flower.carry.records import is_large, stored
from fedpd.flower.carry.secure import collect_numbers, collect_sum
from fedpd.flower.method.evaluation import ClientEvaluation, check_evaluation
from fedpd.flower.method.run import (
    FederatedRun,
    apply_replies,
    apply_sum,
    close,
    ends_round,
    evaluation_requests,
    evaluation_subject,
    is_evaluation_due,
    label_of,
    new_communication,
    next_step,
    open_run,
    read_client_evaluation,
    read_metrics,
)
from fedpd.flower.method.server import delivered_model
from fedpd.flower.method.settings import (
    Config,
    MakeAlgorithm,
    MakeStart,
    Settings,
    WatchedConfig,
    check_settings,
    choose_form,
    read_settings,
)
from fedpd.flower.method.shapes import check_algorithm, check_start, framework_of
from fedpd.loggers import Log, opened, prometheus

flower_log = logging.getLogger(f"flwr.{__name__}")

Test = Callable[[Tree], Mapping[str, float]]  # the model -> further columns of the history


class Observation(NamedTuple):
    """The functions of one call of `federate`, which describes them.

    Attributes:
        report: Called with (rounds done, rounds, stationarity).
        callback: Called with (round, model, row) after every row; True ends the run.
        test: Evaluates the model on the server's own data, whenever an evaluation is due.
        loggers: The loggers, which are open.
        targets: The targets of `until`, which end the run.
        began: When the call began (`time.monotonic`).
    """

    report: ProgressFunction
    callback: Callback | None
    test: Test | None
    loggers: list[Log]
    targets: tuple[Target, ...]
    began: float

    def is_reached(self, run: FederatedRun) -> bool:
        """Return whether the history has a row in which all targets are reached."""
        return bool(self.targets) and bool(run.ledger.history) and has_row(self.targets, run.ledger.history)

    def tested(self, run: FederatedRun) -> dict[str, float]:
        """Return the columns of the user's own evaluation of the current model; none if it is not due."""
        every = run.settings.evaluation_interval or 1
        if self.test is None or run.state.number % every:
            return {}
        return {str(name): float(value) for name, value in self.test(_model(run)).items()}

    def observe(self, run: FederatedRun) -> bool:
        """Pass the newest row on, keep the model if it is the best, and return whether the run ends here."""
        row = self._row(run)
        for logger in self.loggers:
            logger([row])
        keep_best(run)
        done = int(row["round"])
        if run.state.number:
            self.report(done, run.settings.rounds, float(row["stationarity"]))
            for text in _accuracy(row):
                flower_log.info("Round %d of %d: %s", done, run.settings.rounds, text)
        stops = self.callback is not None and ends_run(self.callback(done, _model(run), row))
        if stops or self.is_reached(run):
            flower_log.info("The run ends early, after round %d.", done)
            return True
        return False

    def _row(self, run: FederatedRun) -> Row:
        history = run.ledger.history
        names = {"algorithm": run.setup.algorithm.description, "seed": run.settings.seed}
        seconds = {"seconds": time.monotonic() - self.began}
        return {name: column[-1].item() for name, column in history.items()} | names | seconds


def _model(run: FederatedRun) -> Tree:
    return delivered_model(run.setup, run.state)


def _accuracy(row: Mapping[str, Any]) -> list[str]:
    """Return the accuracy on the clients' test samples, else on their training samples; of an unmeasured row, none."""
    found = [name for name in ("test_accuracy", "accuracy") if math.isfinite(row.get(name, math.nan))]
    return [f"{name.replace('_', ' ')} {row[name]:.3f}" for name in found[:1]]


def _log(done: int, rounds: int, stationarity: float) -> None:
    flower_log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


@contextmanager
def observing(
    settings: Settings,
    report: ProgressFunction | None,
    callback: Callback | None,
    log: Log | None,
    until: Until | None,
    test: Test | None,
) -> Iterator[Observation]:
    """Open the loggers, and write Flower's log to the run's folder, line by line."""
    targets = make_targets(until, tuple(KNOWN.values()))
    with ExitStack() as stack:
        loggers = [] if log is None else [log]
        if settings.metrics_port:
            loggers.append(prometheus(settings.metrics_port))
        for logger in loggers:
            stack.enter_context(opened(logger))
        if settings.out is not None:
            stack.enter_context(_log_file(settings.out / federated.LOG))
        yield Observation(report or _log, callback, test, loggers, targets, time.monotonic())


class OneLine(logging.Formatter):
    """Writes each message in one line, and no control characters, so that no text in it looks like another message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        return "".join(one if one.isprintable() else repr(one)[1:-1] for one in super().formatMessage(record))


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Append Flower's log to a file, which has each line as soon as it is logged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    flower = logging.getLogger("flwr")
    flower.addHandler(handler)
    try:
        yield
    finally:
        flower.removeHandler(handler)
        handler.close()


def keep_best(run: FederatedRun) -> None:
    """Write the model to best.safetensors if its row is the best so far by the setting `best`."""
    words, history = run.settings.best.split(), run.ledger.history
    if run.settings.out is None or not words or not run.state.number:
        return
    which, name = words
    if name not in history:
        if name in KNOWN:  # it is not evaluated
            return
        refuse("best", run.settings.best, f"the history has no column {name!r}", f"Use one of {', '.join(history)}")
    values = history[name] if which == "max" else -history[name]
    if np.isfinite(values[-1]) and values[-1] >= np.nanmax(np.where(np.isfinite(values), values, np.nan)):
        write_model(run, federated.BEST)


def write_model(run: FederatedRun, name: str) -> Path:
    """Write the current model to the run's folder, and return the path."""
    setup, settings, history = run.setup, run.settings, run.ledger.history
    assert settings.out is not None
    meta = {
        "label": label_of(run),
        "algorithm": setup.algorithm.description,
        "seed": settings.seed,
        "rounds": int(history["round"][-1]),
        "run": setup.run,
    }
    path = settings.out / name
    federated.write_model(path, _model(run), setup.algorithm.spec, framework_of(setup.start), meta)
    return path


def log_success(run: FederatedRun) -> None:
    """Log how the run ended: the last loss, the path of the model, and how to load it."""
    history, out = run.ledger.history, run.settings.out
    losses = history["loss"][np.isfinite(history["loss"])]
    loss = f", loss {losses[-1]:.6g}" if len(losses) else ""
    loss += "".join(f", {text}" for text in _accuracy({name: column[-1] for name, column in history.items()}))
    if out is None:
        flower_log.info("Finished: %d rounds%s. Set out to keep the model.", history["round"][-1], loss)
        return
    folder = out.absolute()  # a person reads this elsewhere than in the folder in which the server runs
    load = f"fedpd.load_model({str(folder)!r})"
    if framework_of(run.setup.start):
        load = f"module.load_state_dict({load})"
    show = shlex.join(["fedpd", "report", str(folder)])
    flower_log.info("Finished: %d rounds%s. Model: %s", history["round"][-1], loss, folder / federated.MODEL)
    flower_log.info("At the server: load it in Python: %s; show the run: %s", load, show)


class Federated(NamedTuple):
    """The result of a federation.

    Attributes:
        algorithm: The label of the method.
        seed: The seed of the run.
        model: x_0 after the last communication, or what the server delivers in its place (`Settings.average`), as the
            user's own pytree with NumPy leaves.
        history: One row per communication, with a simulation's columns, and also `wire_bytes_up` and similar ones.
        names: The names of agent 0, 1, ...
        run: The identity of the run, under which clients keep their state.
    """

    algorithm: str
    seed: int
    model: Tree
    history: History
    names: list[str]
    run: str


def federate(
    grid: Grid,
    algorithm: Method,
    start: Tree,
    settings: Settings,
    report: ProgressFunction | None = None,
    *,
    callback: Callback | None = None,
    log: Log | None = None,
    until: Until | None = None,
    test: Test | None = None,
) -> Federated:
    """Run a method on the clients of a Flower grid, or resume the run in the folder `settings.out`.

    A finished run continues if `settings.rounds` is larger than before. Clients do not compute the rounds after the
    last communication, because the server would not receive their results.

    Args:
        grid: Flower's grid, or an `InProcessGrid`.
        algorithm: The method, the same as the clients'.
        start: The model x^0, any pytree.
        settings: The settings of the run.
        report: Called after every communication with the rounds done, the total number of rounds and the stationarity
            (NaN if it is not evaluated); by default fedpd writes a line to Flower's log.
        callback: A function of (round, model, row), called with every row of the history, as in `fedpd.simulate`. If it
            returns True, the run ends and `federate` returns the result so far.
        log: A logger of `fedpd.loggers`, which receives the new rows.
        until: Ends the run at the first row in which all these columns have reached their values, e.g. {"loss": 0.1}.
        test: (model) -> a dict of numbers, from an evaluation on the server's own data. They become columns of the
            history. It is called at the start and whenever an evaluation is due, or after every communication if
            `evaluate_every` is 0.

    Returns:
        The model, the history and the clients' names.

    Raises:
        FederationError: If clients are missing or refuse, and `settings.on_timeout` does not let the run continue.
        FedpdError: If another server is writing to the folder `settings.out`.
    """
    settings = check_settings(settings)
    start = check_start(start)
    if is_large(start):
        return_large_blocks()
        start = stored(start, settings.out)
    algorithm = choose_form(check_algorithm(algorithm), settings)
    folder = nullcontext() if settings.out is None else held(settings.out)
    observed = observing(settings, report, callback, log, until, test)
    with folder, scope(is_double(start)), observed as observation:
        run = open_run(grid, algorithm, start, settings)
        ends = observation.is_reached(run)
        if not run.ledger.history:
            run = _evaluate_and_close(grid, run, observation)
            ends = observation.observe(run)
        while not ends and (last := next_step(run)) is not None:
            run = _evaluate_and_close(grid, _communicate(grid, run, last), observation)
            ends = observation.observe(run)
        result = write_result(run)
        log_success(run)
        return result


def _timeouts(settings: Settings) -> Timeouts:
    return Timeouts(settings.deadline, settings.resend, settings.poll, quorum=settings.quorum)


def _communicate(grid: Grid, run: FederatedRun, last: int) -> FederatedRun:
    """Send the orders of the communication at step `last`, collect the replies and apply them."""
    communication, timeouts = new_communication(run, last), _timeouts(run.settings)
    if run.settings.secure_range:
        found, mean = collect_sum(grid, run.directory, communication, timeouts, run.settings.secure_range)
        return apply_sum(run, communication, found, mean)
    found = collect(grid, run.directory, communication.lazy_orders(), TRAIN, timeouts, communication.read)
    return apply_replies(run, communication, found)


def _evaluate_and_close(grid: Grid, run: FederatedRun, observation: Observation) -> FederatedRun:
    """Evaluate the model if it is due, at the clients and at the server, and write the row and the checkpoint."""
    tested = observation.tested(run) if ends_round(run) else {}
    if not is_evaluation_due(run):
        return close(run, tested)

    requests, timeouts = evaluation_requests(run), _timeouts(run.settings)
    if run.settings.secure_range:
        evaluated, metrics = _evaluate_masked(grid, run, requests, timeouts)
        return close(evaluated, tested | metrics)

    def read(name: str, content: RecordDict) -> ClientEvaluation:
        return read_client_evaluation(run, requests[name], content)

    found = collect(grid, run.directory, requests, EVALUATE, timeouts, read)
    evaluated, metrics = read_metrics(run, found)
    return close(evaluated, tested | metrics)


def _evaluate_masked(
    grid: Grid, run: FederatedRun, requests: dict[str, RecordDict], timeouts: Timeouts
) -> tuple[FederatedRun, dict[str, float]]:
    """Return the metrics from the sums of the clients' numbers, of which the server sees no single one."""

    def check(name: str, content: RecordDict) -> str:
        check_evaluation(requests[name], content)
        return name

    try:
        found, sums = collect_numbers(grid, run.directory, evaluation_subject(run), requests, timeouts, check)
    except FederationError as error:  # a run does not need its evaluations
        flower_log.warning("The model is not evaluated this time. %s", error)
        return run, {}
    return read_metrics(run, found, sums)


def write_result(run: FederatedRun) -> Federated:
    """Return the result of a run, and write it to the folder `settings.out`."""
    setup, settings, history = run.setup, run.settings, run.ledger.history
    if settings.out is not None:
        done = run.state.step // setup.exchanges  # of this model; a folder may hold more rounds than `settings.rounds`
        if done > settings.rounds:
            flower_log.warning(
                "rounds = %d, but the run in %s has already done %d.", settings.rounds, settings.out, done
            )
        write_model(run, federated.MODEL)
        write_parquet(settings.out / federated.HISTORY, {(label_of(run), settings.seed): history})
    name, model = setup.algorithm.description, delivered_model(setup, run.state)
    return Federated(name, settings.seed, model, history, setup.names, setup.run)


def server_app(
    algorithm: MakeAlgorithm,
    start: MakeStart,
    *,
    defaults: Config | None = None,
    done: Callable[[Federated], None] | None = None,
    report: ProgressFunction | None = None,
    callback: Callback | None = None,
    log: Log | None = None,
    until: Until | None = None,
    test: Test | None = None,
) -> ServerApp:
    """Return a ServerApp that runs any method on the clients of `client_app`.

    `Settings` lists the entries of the run's configuration.

    Args:
        algorithm: Run configuration -> Method, the same function as the clients'.
        start: Run configuration -> the model x^0.
        defaults: Entries that the run's configuration may leave out.
        done: Called with the result of the federation.
        report: Called after every communication, as in `federate`.
        callback: Called with (round, model, row), as in `federate`; True ends the run.
        log: A logger of `fedpd.loggers`.
        until: Ends the run when these columns have reached their values, e.g. {"loss": 0.1}.
        test: Evaluates the model on the server's own data, as in `federate`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").addFilter(without_traceback)
        config = WatchedConfig({**(defaults or {}), **context.run_config})
        method, model, settings = algorithm(config), start(config), read_settings(config)
        check_folder(settings.out)
        outcome = federate(
            grid,
            method,
            model,
            settings,
            report,
            callback=callback,
            log=log,
            until=until,
            test=test,
        )
        if done is not None:
            done(outcome)

    return app


def check_folder(out: Path | None) -> None:
    """Refuse a folder outside of the server's own: whoever may start a run must not choose where the server writes."""
    if out is not None and not out.resolve().is_relative_to(Path.cwd()):
        rule = f"must be inside of the server's own folder, {Path.cwd()}"
        refuse("out", str(out), rule, 'Give e.g. out = "results"')


def without_traceback(record: logging.LogRecord) -> bool:
    """Shorten Flower's report of fedpd's own errors to their sentence. It is a filter of Flower's logger."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, FedpdError):
        record.msg, record.args, record.exc_info = f"error: {error}", (), None
    return True
