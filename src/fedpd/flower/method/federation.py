"""Runs a method on the clients of a Flower grid: `federate` is the server's program, `server_app` its ServerApp."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedpd.base.atomic import held
from fedpd.base.checks import refuse
from fedpd.base.errors import FedpdError
from fedpd.base.precision import is_double, scope
from fedpd.base.process import return_large_blocks
from fedpd.base.progress import ProgressFunction
from fedpd.core import Method, Tree
from fedpd.engine.measure.history import History, Until, write_parquet
from fedpd.engine.simulate import Callback
from fedpd.experiments import federated
from fedpd.flower.carry.collect import Timeouts, collect
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.carry.protocol import EVALUATE, TRAIN
from fedpd.flower.carry.records import is_large, stored
from fedpd.flower.carry.secure import collect_numbers, collect_sum
from fedpd.flower.method.evaluation import ClientEvaluation, check_evaluation
from fedpd.flower.method.observers import Observation, Test, log_success, observing, write_model
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
from fedpd.flower.method.shapes import check_algorithm, check_start
from fedpd.loggers import Log

logger = logging.getLogger(f"flwr.{__name__}")


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
        logger.warning("The model is not evaluated this time. %s", error)
        return run, {}
    return read_metrics(run, found, sums)


def write_result(run: FederatedRun) -> Federated:
    """Return the result of a run, and write it to the folder `settings.out`."""
    setup, settings, history = run.setup, run.settings, run.ledger.history
    if settings.out is not None:
        done = run.state.step // setup.exchanges  # of this model; a folder may hold more rounds than `settings.rounds`
        if done > settings.rounds:
            logger.warning("rounds = %d, but the run in %s has already done %d.", settings.rounds, settings.out, done)
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
