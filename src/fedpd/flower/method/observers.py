"""Tell users about a federation while it runs, as in a simulation: progress, rows, early stops, own evaluation.

The server calls these functions after every communication, when its row and its checkpoint are complete.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.progress import ProgressFunction, Row, ends_run
from fedpd.core import Tree
from fedpd.engine.measure.columns import KNOWN
from fedpd.engine.measure.targets import Target, Until, has_row, make_targets
from fedpd.engine.simulate import Callback
from fedpd.experiments import federated
from fedpd.flower.method.run import FederatedRun, label_of
from fedpd.flower.method.server import server_model
from fedpd.flower.method.shapes import framework_of
from fedpd.loggers import Log, opened, prometheus

log = logging.getLogger(f"flwr.{__name__}")

Test = Callable[[Tree], Mapping[str, float]]  # the model -> further columns of the history


class Observers(NamedTuple):
    """The user's functions.

    Attributes:
        report: Called with (rounds done, rounds, stationarity).
        callback: Called with (round, model, row) after every row; True ends the run.
        log: A logger of `fedpd.loggers`, which gets every new row.
        until: Ends the run at the first row in which all these columns have reached their values.
        test: Evaluates the model on the server's own data, whenever an evaluation is due.
    """

    report: ProgressFunction | None = None
    callback: Callback | None = None
    log: Log | None = None
    until: Until | None = None
    test: Test | None = None


class Observation:
    """The observers of one call of `federate`.

    Args:
        observers: The user's functions.
        loggers: The loggers, which are open.
        targets: The targets of `until`.
    """

    def __init__(self, observers: Observers, loggers: list[Log], targets: tuple[Target, ...]) -> None:
        self.observers, self.loggers, self.targets = observers, loggers, targets
        self.began = time.monotonic()

    def is_reached(self, run: FederatedRun) -> bool:
        """Return whether the history has a row in which all targets are reached."""
        return bool(self.targets) and bool(run.ledger.history) and has_row(self.targets, run.ledger.history)

    def tested(self, run: FederatedRun) -> dict[str, float]:
        """Return the columns of the user's own evaluation of the current model; none if it is not due."""
        every = run.settings.evaluation_interval or 1
        if self.observers.test is None or run.state.number % every:
            return {}
        return {str(name): float(value) for name, value in self.observers.test(_model(run)).items()}

    def observe(self, run: FederatedRun) -> bool:
        """Pass the newest row on, keep the model if it is the best, and return whether the run ends here."""
        row = self._row(run)
        for logger in self.loggers:
            logger([row])
        keep_best(run)
        done, report = int(row["round"]), self.observers.report or _log
        if run.state.number:
            report(done, run.settings.rounds, float(row["stationarity"]))
        callback = self.observers.callback
        stops = callback is not None and ends_run(callback(done, _model(run), row))
        if stops or self.is_reached(run):
            log.info("The run ends early, after round %d.", done)
            return True
        return False

    def _row(self, run: FederatedRun) -> Row:
        history = run.ledger.history
        names = {"algorithm": run.setup.algorithm.description, "seed": run.settings.seed}
        return {name: column[-1].item() for name, column in history.items()} | names | {"seconds": self._seconds()}

    def _seconds(self) -> float:
        return time.monotonic() - self.began


def _model(run: FederatedRun) -> Tree:
    return server_model(run.setup, run.state)


def _log(done: int, rounds: int, stationarity: float) -> None:
    log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


@contextmanager
def observing(observers: Observers, run_folder: Path | None, port: int) -> Iterator[Observation]:
    """Open the loggers, and write the log to the run's folder, line by line.

    Args:
        observers: The user's functions.
        run_folder: The folder of the run; None: there is none.
        port: The port for Prometheus; 0: none.
    """
    targets = make_targets(observers.until, tuple(KNOWN.values()))
    with ExitStack() as stack:
        loggers = [] if observers.log is None else [observers.log]
        if port:
            loggers.append(prometheus(port))
        for logger in loggers:
            stack.enter_context(opened(logger))
        if run_folder is not None:
            stack.enter_context(_log_file(run_folder / federated.LOG))
        yield Observation(observers, loggers, targets)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Append Flower's log to a file, which has each line as soon as it is logged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
    if out is None:
        log.info("Finished: %d rounds%s. Set out to keep the model.", history["round"][-1], loss)
        return
    load = f"fedpd.load_model({str(out)!r})"
    if framework_of(run.setup.start):
        load = f"module.load_state_dict({load})"
    log.info("Finished: %d rounds%s. Model: %s", history["round"][-1], loss, out.absolute() / federated.MODEL)
    log.info("Load it in Python: %s. Show the run: fedpd report %s", load, out)
