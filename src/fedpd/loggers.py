"""Histories sent elsewhere while a run goes on: TensorBoard, MLflow, or any function of your own.

    fedpd.simulate(algorithm, problem, rounds=600, log=fedpd.loggers.tensorboard("logs/FedPD"))
    fedpd.simulate(algorithm, problem, rounds=600, log=fedpd.loggers.mlflow("my experiment"))
    fedpd.simulate(algorithm, problem, rounds=600, log=lambda rows: print(rows[-1]["stationarity"]))

A logger is a function of the new rows, called several times a second; each row is a dict of plain numbers: the
history's columns, "seconds", "seed" and "algorithm". One that is a context manager too is entered for the time of the
run. A resumed run sends only the rows that it adds; those since its last checkpoint are sent once more, the same.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpd.base.extras import extra
from fedpd.base.progress import Event, Listener, Row

Log = Callable[[list[Row]], object]

ABOUT = ("algorithm", "seed", "round")  # what says which row it is; the other columns are measured
BATCH = 1000  # metrics that an MLflow server takes at once


def opened(log: Log | None) -> AbstractContextManager[Any]:
    return log if isinstance(log, AbstractContextManager) else nullcontext()


def log_rows(log: Log) -> Listener:
    """Return a listener that hands the new rows to a logger."""

    def listen(event: Event) -> None:
        rows = event.rows()
        if rows:
            log(rows)

    return listen


def measured(row: Row) -> dict[str, float]:
    """Return what a row measures, as numbers to draw."""
    return {name: float(value) for name, value in row.items() if name not in ABOUT}


class TensorBoard:
    """See `tensorboard`."""

    def __init__(self, folder: str | Path) -> None:
        with extra("log", "loggers.tensorboard"):
            from tensorboard.summary import Writer

        self.open = Writer
        self.folder, self.writers = Path(folder), dict[int, Any]()

    def __call__(self, rows: list[Row]) -> None:
        for row in rows:
            if row["seed"] not in self.writers:
                self.writers[row["seed"]] = self.open(str(self.folder / f"seed-{row['seed']}"))
            for name, value in measured(row).items():
                self.writers[row["seed"]].add_scalar(name, value, row["round"])
        for writer in self.writers.values():
            writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self.writers:
            self.writers.popitem()[1].close()


def tensorboard(folder: str | Path) -> TensorBoard:
    """Return a logger that writes every column as a scalar by round, with one run `seed-S` per seed.

    Args:
        folder: The folder that `tensorboard --logdir` shows.
    """
    return TensorBoard(folder)


class MLflow:
    """See `mlflow`."""

    def __init__(self, experiment: str, name: str | None, tracking_uri: str | None) -> None:
        with extra("log", "loggers.mlflow"):
            import mlflow

        self.module = mlflow
        self.client = self.module.MlflowClient(tracking_uri)
        self.experiment, self.name, self.runs = experiment, name, dict[int, str]()

    def __call__(self, rows: list[Row]) -> None:
        batches: dict[int, list[Any]] = {}
        for row in rows:
            metrics = batches.setdefault(row["seed"], [])
            for key, value in measured(row).items():  # its time is the run's own, so that curves can be drawn by it
                metrics.append(self.module.entities.Metric(key, value, int(1000 * row["seconds"]), row["round"]))
            if row["seed"] not in self.runs:
                self.runs[row["seed"]] = self._begin(row)
        for seed, metrics in batches.items():
            for first in range(0, len(metrics), BATCH):
                self.client.log_batch(self.runs[seed], metrics=metrics[first : first + BATCH])

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
    """Return a logger that writes every column as a metric by round, with one MLflow run per seed.

    Args:
        experiment: The name of the experiment.
        name: The name of the runs; None: the method with its settings.
        tracking_uri: Where MLflow keeps them; None: as MLflow is configured.
    """
    return MLflow(experiment, name, tracking_uri)
