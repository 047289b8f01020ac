"""Runs a method on the clients of a Flower grid: `federate` is the server's program."""

import logging
import math
from typing import NamedTuple

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedpd.base import checkpoint
from fedpd.base.precision import is_double, scope
from fedpd.base.progress import ProgressFunction
from fedpd.core import Algorithm, Tree
from fedpd.engine.history import History, write_parquet
from fedpd.flower.carry.collect import Timeouts, collect
from fedpd.flower.carry.protocol import EVALUATE, TRAIN
from fedpd.flower.carry.secure import collect_sum
from fedpd.flower.method.evaluation import ClientEvaluation
from fedpd.flower.method.run import (
    FederatedRun,
    apply_replies,
    apply_sum,
    close,
    evaluation_requests,
    is_evaluation_due,
    new_communication,
    next_step,
    open_run,
    read_client_evaluation,
    read_metrics,
)
from fedpd.flower.method.server import server_model
from fedpd.flower.method.settings import Settings, choose_form
from fedpd.flower.method.shapes import check_algorithm, check_start

log = logging.getLogger(f"flwr.{__name__}")


class Federated(NamedTuple):
    """The result of a federation.

    Attributes:
        algorithm: The label of the method.
        seed: The seed of the run.
        model: x_0 after the last communication, the user's own pytree with NumPy leaves.
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
    grid: Grid, algorithm: Algorithm, start: Tree, settings: Settings, report: ProgressFunction | None = None
) -> Federated:
    """Run a method on the clients of a Flower grid, or resume the run in the folder `settings.out`.

    Clients do not compute the rounds after the last communication, because the server would not receive their results.

    Args:
        grid: Flower's grid, or an `InProcessGrid`.
        algorithm: The method, the same as the clients'.
        start: The model x^0, any pytree.
        settings: The settings of the run.
        report: Called after every communication with the rounds done, the total number of rounds and the stationarity
            (NaN if it is not evaluated); by default fedpd writes a line to Flower's log.

    Returns:
        The model, the history and the clients' names.

    Raises:
        FederationError: If clients are missing or refuse, and `settings.on_timeout` does not let the run continue.
    """
    start = check_start(start)
    algorithm = choose_form(check_algorithm(algorithm), settings)
    report = report or _log
    with scope(is_double(start)):
        run = open_run(grid, algorithm, start, settings)
        if not run.ledger.history:
            run = _evaluate_and_close(grid, run)
        while (last := next_step(run)) is not None:
            run = _evaluate_and_close(grid, _communicate(grid, run, last))
            done = run.state.step // run.setup.exchanges
            report(done, settings.rounds, float(run.ledger.history["stationarity"][-1]))
        return write_result(run)


def _timeouts(settings: Settings) -> Timeouts:
    return Timeouts(settings.deadline, settings.resend, settings.poll, quorum=settings.quorum)


def _communicate(grid: Grid, run: FederatedRun, last: int) -> FederatedRun:
    """Send the orders of the communication at step `last`, collect the replies and apply them."""
    communication, timeouts = new_communication(run, last), _timeouts(run.settings)
    if run.settings.secure_range:
        found, mean = collect_sum(grid, run.directory, communication, timeouts, run.settings.secure_range)
        return apply_sum(run, communication, found, mean)
    found = collect(grid, run.directory, communication.orders(), TRAIN, timeouts, communication.read)
    return apply_replies(run, communication, found)


def _evaluate_and_close(grid: Grid, run: FederatedRun) -> FederatedRun:
    """Ask all clients for an evaluation if one is due, and write the row of the history and the checkpoint."""
    if not is_evaluation_due(run):
        return close(run, {})

    def read(_: str, content: RecordDict) -> ClientEvaluation:
        return read_client_evaluation(run, content)

    requests = evaluation_requests(run)
    return close(*read_metrics(run, collect(grid, run.directory, requests, EVALUATE, _timeouts(run.settings), read)))


def _log(done: int, rounds: int, stationarity: float) -> None:
    log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


def write_result(run: FederatedRun) -> Federated:
    """Return the result of a run, and write it to the folder `settings.out`."""
    setup, settings, history = run.setup, run.settings, run.ledger.history
    model, name = server_model(setup, run.state), setup.algorithm.description
    if settings.out is not None:
        meta = {"algorithm": name, "seed": settings.seed, "rounds": settings.rounds, "run": setup.run}
        checkpoint.write(settings.out / "model.safetensors", checkpoint.flatten("model", model), meta)
        write_parquet(settings.out / "history.parquet", {(settings.label or name, settings.seed): history})
    return Federated(name, settings.seed, model, history, setup.names, setup.run)
