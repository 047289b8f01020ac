"""Rows are sent as they come, once each, and the loggers write what their own programs read back."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, algorithms, loggers, oracles, problems, simulate, sweep
from fedpd.engine.measure.history import COLUMNS

PROBLEM = problems.random_quadratic(4, 3)
ALGORITHM = algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 4))


def test_a_function_is_given_every_row_once_with_its_seed() -> None:
    rows: list[loggers.Row] = []
    runs = simulate(ALGORITHM, PROBLEM, rounds=20, seed=[3, 4], log=rows.extend).runs
    for run in runs:
        mine = [row for row in rows if row["seed"] == run.seed]
        assert [row["round"] for row in mine] == list(range(21))
        for name in COLUMNS:
            assert [row[name] for row in mine] == run.history[name].tolist()
        assert np.all(np.diff([row["seconds"] for row in mine]) > 0)
        assert mine[-1]["seconds"] == run.elapsed[-1] == run.seconds
    assert {row["algorithm"] for row in rows} == {ALGORITHM.description}


def test_a_resumed_run_sends_what_it_adds(tmp_path: Path) -> None:
    simulate(ALGORITHM, PROBLEM, rounds=10, checkpoints=tmp_path)
    rows: list[loggers.Row] = []
    run = simulate(ALGORITHM, PROBLEM, rounds=15, checkpoints=tmp_path, log=rows.extend)
    assert [row["round"] for row in rows] == list(range(11, 16))
    assert np.all(np.diff(run.elapsed) > 0), "the seconds go on where they were"


def test_rows_of_a_run_that_diverges_end_there() -> None:
    rows: list[loggers.Row] = []
    run = simulate(algorithms.fedavg(oracle=oracles.gd(1e6, 8)), PROBLEM, rounds=60, log=rows.extend)
    assert run.diverged is not None
    assert rows[-1]["round"] == run.diverged.round


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    runs = simulate(ALGORITHM, PROBLEM, rounds=5, seed=[0, 1], log=loggers.tensorboard(tmp_path)).runs
    for run in runs:
        found = reading.EventAccumulator(str(tmp_path / f"seed-{run.seed}"), size_guidance={"tensors": 0}).Reload()
        assert {"stationarity", "loss", "communications", "seconds"} <= set(found.Tags()["tensors"])
        events = found.Tensors("stationarity")
        assert [event.step for event in events] == list(range(6))
        values = [event.tensor_proto.float_val[0] for event in events]
        assert np.allclose(values, run.history["stationarity"])


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_the_points_of_a_sweep_are_runs_of_their_own(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def build(step: float) -> Algorithm:
        return algorithms.fedavg(oracle=oracles.gd(step=step, iterations=1))

    found = sweep(build, PROBLEM, grid={"step": [0.1, 0.2]}, rounds=2, log=loggers.tensorboard(tmp_path))
    for folder, (run,) in zip(["seed-0", "fedavg(oracle=gd(step=0.2,_iterations=1))-seed-0"], found.runs, strict=True):
        events = reading.EventAccumulator(str(tmp_path / folder), size_guidance={"tensors": 0}).Reload().Tensors("loss")
        assert np.allclose([event.tensor_proto.float_val[0] for event in events], run.history["loss"])


@pytest.mark.filterwarnings("ignore")  # MLflow's own, about what it is built on
def test_mlflow_reads_what_was_written(tmp_path: Path) -> None:
    module = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy", reason="MLflow keeps local runs in SQLite through it")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    run = simulate(ALGORITHM, PROBLEM, rounds=5, log=loggers.mlflow("ours", name="FedPD", tracking_uri=uri))
    client = module.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["seed"] == "0"
    metrics = client.get_metric_history(found.info.run_id, "stationarity")
    assert [metric.value for metric in metrics] == run.history["stationarity"].tolist()


class FakeClient:
    """The calls of MLflow's client that are made, as its documentation has them."""

    def __init__(self, tracking_uri: str | None) -> None:
        self.batches: list[tuple[str, list[Any]]] = []
        self.params: list[tuple[str, str, Any]] = []
        self.ended: list[tuple[str, str]] = []
        self.names: list[str] = []

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, experiment: str, run_name: str) -> Any:
        assert experiment == "7"
        self.names.append(run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run-{len(self.names)}"))

    def log_param(self, run: str, key: str, value: Any) -> None:
        self.params.append((run, key, value))

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        self.batches.append((run, metrics))

    def set_terminated(self, run: str, status: str) -> None:
        self.ended.append((run, status))


@pytest.fixture
def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def metric(key: str, value: float, timestamp: int, step: int) -> dict[str, Any]:
        return {"key": key, "value": value, "timestamp": timestamp, "step": step}

    module = SimpleNamespace(MlflowClient=FakeClient, entities=SimpleNamespace(Metric=metric))
    monkeypatch.setitem(sys.modules, "mlflow", module)


@pytest.mark.usefixtures("fake_mlflow")
def test_mlflow_gets_a_run_a_seed_in_batches_that_a_server_takes() -> None:
    log = loggers.mlflow("ours")
    simulate(ALGORITHM, PROBLEM, rounds=300, seed=[5, 6], log=log)
    client = log.client
    assert client.names == [ALGORITHM.description] * 2
    assert ("run-2", "seed", 6) in client.params
    assert max(len(metrics) for _, metrics in client.batches) <= loggers.BATCH
    ours = [metric for run, metrics in client.batches if run == "run-1" for metric in metrics]
    assert [metric["step"] for metric in ours if metric["key"] == "loss"] == list(range(301))
    assert all(math.isfinite(metric["value"]) for metric in ours)
    assert sorted(client.ended) == [("run-1", "FINISHED"), ("run-2", "FINISHED")]


@pytest.mark.usefixtures("fake_mlflow")
def test_an_interrupted_run_is_marked_as_killed() -> None:
    log = loggers.mlflow()

    def interrupt(done: int, total: int, stationarity: float) -> None:
        if done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(ALGORITHM, PROBLEM, rounds=50, progress=interrupt, log=log)
    assert log.client.ended == [("run-1", "KILLED")]


@pytest.mark.parametrize(("make", "package"), [(loggers.tensorboard, "tensorboard"), (loggers.mlflow, "mlflow")])
def test_a_missing_package_is_named(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedpdError, match=rf'needs {package}, which is not installed. Run: pip install "fedpd\[log\]"'):
        make("somewhere")
