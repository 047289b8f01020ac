"""Loggers send the history elsewhere during a run: to TensorBoard, MLflow, Prometheus, or a function of your own.

    fedpd.simulate(algorithm, problem, rounds=600, log=fedpd.loggers.tensorboard("logs/FedPD"))
    fedpd.simulate(algorithm, problem, rounds=600, log=fedpd.loggers.mlflow("my experiment"))
    fedpd.simulate(algorithm, problem, rounds=600, log=fedpd.loggers.prometheus(9464))
    fedpd.simulate(algorithm, problem, rounds=600, log=lambda rows: print(rows[-1]["stationarity"]))

A logger is a function that fedpd calls with the new rows, several times per second. Each row is a dict with the
history's columns, "seconds", "seed" and "algorithm". If the logger is also a context manager, fedpd enters it before
the run and exits it after the run. A resumed run sends only the rows that it adds; it sends the rows since its last
checkpoint a second time, with the same values.
"""

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpd.base.checks import refuse
from fedpd.base.errors import extra
from fedpd.base.progress import Event, Listener, Row

Log = Callable[[list[Row]], object]

LABELS = ("algorithm", "seed", "round")  # columns that identify a row; the other columns are measurements
HOST = "127.0.0.1"
BATCH = 1000  # metrics that an MLflow server accepts at once


def opened(log: Log | None) -> AbstractContextManager[Any]:
    """Return the logger if it is a context manager, else a context manager that does nothing."""
    return log if isinstance(log, AbstractContextManager) else nullcontext()


def log_rows(log: Log) -> Listener:
    """Return a listener that gives the new rows to a logger."""

    def listen(event: Event) -> None:
        rows = event.rows()
        if rows:
            log(rows)

    return listen


def measured(row: Row) -> dict[str, float]:
    """Return the measurements of a row by their names."""
    return {name: float(value) for name, value in row.items() if name not in LABELS}


def run_of(row: Row) -> tuple[str, int]:
    """Return the method and the seed of a row. The points of a sweep share a seed."""
    return str(row["algorithm"]), int(row["seed"])


class TensorBoard:
    """The logger that `tensorboard` returns."""

    def __init__(self, folder: str | Path) -> None:
        with extra("log", "loggers.tensorboard"):
            from tensorboard.summary import Writer

        self.open = Writer
        self.folder, self.writers = Path(folder), dict[tuple[str, int], Any]()

    def __call__(self, rows: list[Row]) -> None:
        for row in rows:
            run = run_of(row)
            if run not in self.writers:
                self.writers[run] = self.open(str(self._folder_of(*run)))
            for name, value in measured(row).items():
                self.writers[run].add_scalar(name, value, row["round"])
        for writer in self.writers.values():
            writer.flush()

    def _folder_of(self, algorithm: str, seed: int) -> Path:
        """Return the folder of a run; that of a further method with this seed has the method's name."""
        if not any(other == seed for _, other in self.writers):
            return self.folder / f"seed-{seed}"
        return self.folder / f"{re.sub(r'[^0-9A-Za-z=.,()-]+', '_', algorithm)}-seed-{seed}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self.writers:
            self.writers.popitem()[1].close()


def tensorboard(folder: str | Path) -> TensorBoard:
    """Return a logger that writes every column as a scalar per round, with one run `seed-S` per seed.

    In a sweep, the runs of further points have the name of their method before `-seed-S`.

    Args:
        folder: The folder that `tensorboard --logdir` shows.
    """
    return TensorBoard(folder)


class MLflow:
    """The logger that `mlflow` returns."""

    def __init__(self, experiment: str, name: str | None, tracking_uri: str | None) -> None:
        with extra("log", "loggers.mlflow"):
            import mlflow

        self.module = mlflow
        self.client = self.module.MlflowClient(tracking_uri)
        self.experiment, self.name, self.runs = experiment, name, dict[tuple[str, int], str]()

    def __call__(self, rows: list[Row]) -> None:
        batches: dict[tuple[str, int], list[Any]] = {}
        for row in rows:
            run = run_of(row)
            metrics = batches.setdefault(run, [])
            for key, value in measured(row).items():  # a metric's time is the run's, so that MLflow can plot over it
                metrics.append(self.module.entities.Metric(key, value, int(1000 * row["seconds"]), row["round"]))
            if run not in self.runs:
                self.runs[run] = self._begin(row)
        for run, metrics in batches.items():
            for first in range(0, len(metrics), BATCH):
                self.client.log_batch(self.runs[run], metrics=metrics[first : first + BATCH])

    def _begin(self, row: Row) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        number = self.client.create_experiment(self.experiment) if found is None else found.experiment_id
        run = self.client.create_run(number, run_name=self.name or row["algorithm"]).info.run_id
        for key in ("algorithm", "seed"):
            self.client.log_param(run, key, row[key])
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        status = "FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        while self.runs:
            self.client.set_terminated(self.runs.popitem()[1], status)


def mlflow(experiment: str = "fedpd", name: str | None = None, tracking_uri: str | None = None) -> MLflow:
    """Return a logger that writes every column as a metric per round, with one MLflow run per method and seed.

    Args:
        experiment: The name of the experiment.
        name: The name of the runs; None: the method with its settings.
        tracking_uri: Where MLflow stores the runs; None: the place that MLflow is configured for.
    """
    return MLflow(experiment, name, tracking_uri)


class Prometheus:
    """The logger that `prometheus` returns.

    Attributes:
        port: The port at which it answers during the run.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.rows: dict[tuple[str, int], Row] = {}
        self.server: ThreadingHTTPServer | None = None

    def __call__(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows[run_of(row)] = row

    def text(self) -> str:
        """Return the newest rows in Prometheus' text format: one gauge per column.

        prometheus-client would keep a gauge per column and seed in a registry of its own, to write the same lines.
        """
        lines: dict[str, list[str]] = {}
        for (algorithm, seed), row in dict(self.rows).items():
            label = algorithm.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
            for name, value in {"round": float(row["round"]), **measured(row)}.items():
                lines.setdefault(name, []).append(f'fedpd_{name}{{algorithm="{label}",seed="{seed}"}} {value!r}')
        return "".join(f"# TYPE fedpd_{name} gauge\n" + "\n".join(own) + "\n" for name, own in lines.items())

    def __enter__(self) -> Self:
        try:
            self.server = ThreadingHTTPServer((HOST, self.port), _answer(self.text))
        except OSError as error:
            refuse("port", self.port, f"cannot be used on {HOST} ({error.strerror})", "Give another port, e.g. 9464")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()


def _answer(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    """Return a handler that answers every request with a text."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text().encode())

        def log_message(self, *_: Any) -> None:
            """Write nothing: Prometheus asks every few seconds."""

    return Answer


def prometheus(port: int = 9464) -> Prometheus:
    """Return a logger that answers Prometheus with the newest row, at http://127.0.0.1:PORT/metrics during the run.

    Args:
        port: The port.
    """
    return Prometheus(port)
