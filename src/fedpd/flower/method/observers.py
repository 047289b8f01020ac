"""Tell users about a federation while it runs, as in a simulation: progress, rows, early stops, own evaluation.

The server calls these functions after every communication, when its row and its checkpoint are complete.
"""

import logging
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.progress import ProgressFunction, Row, ends_run
from fedpd.core import Tree
from fedpd.engine.measure.columns import KNOWN
from fedpd.engine.measure.history import Target, Until, has_row, make_targets
from fedpd.engine.simulate import Callback
from fedpd.experiments import federated
from fedpd.flower.method.run import FederatedRun, label_of
from fedpd.flower.method.server import delivered_model
from fedpd.flower.method.settings import Settings
from fedpd.flower.method.shapes import framework_of
from fedpd.loggers import Log, opened, prometheus

log = logging.getLogger(f"flwr.{__name__}")

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
                log.info("Round %d of %d: %s", done, run.settings.rounds, text)
        stops = self.callback is not None and ends_run(self.callback(done, _model(run), row))
        if stops or self.is_reached(run):
            log.info("The run ends early, after round %d.", done)
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
    log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


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
        log.info("Finished: %d rounds%s. Set out to keep the model.", history["round"][-1], loss)
        return
    folder = out.absolute()  # a person reads this elsewhere than in the folder in which the server runs
    load = f"fedpd.load_model({str(folder)!r})"
    if framework_of(run.setup.start):
        load = f"module.load_state_dict({load})"
    show = shlex.join(["fedpd", "report", str(folder)])
    log.info("Finished: %d rounds%s. Model: %s", history["round"][-1], loss, folder / federated.MODEL)
    log.info("At the server: load it in Python: %s; show the run: %s", load, show)
