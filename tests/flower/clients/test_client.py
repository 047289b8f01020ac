"""A client's own part of the problem."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpd import problems, simulate
from fedpd.flower import FederationError, InProcessGrid, Local, Settings, client_app, client_name, federate
from tests.flower.federations import AGENTS, FEDPD, assert_same, losses, run, samples, start


def penalty(model: Any) -> Any:
    return 0.05 * (model["w"] @ model["w"])


def test_weights_and_a_penalty_are_those_of_a_problem() -> None:
    weights = [0.1, 0.2, 0.3]

    def part(context: Context) -> Local:
        i = int(context.node_config["partition-id"])
        return Local(losses, samples()[i], penalty, weights[i])

    grid = InProcessGrid(client_app(lambda config: FEDPD, start, part), AGENTS, {})
    problem = problems.from_losses(losses, samples(), start(), penalty=penalty, weights=weights)
    here = simulate(FEDPD, problem, rounds=4)
    there = run(FEDPD, 4, grid, evaluate_every=1)
    assert_same(there.model, here.model)
    np.testing.assert_allclose(there.history["loss"], here.history["loss"], rtol=1e-12)


def test_nothing_is_cast_down() -> None:
    def small(config: Any) -> Any:
        return {"w": np.zeros(4, np.float32), "b": np.zeros((), np.float32)}

    grid = InProcessGrid(client_app(lambda config: FEDPD, small, lambda context: Local(losses, samples()[0])), 1, {})
    settings = Settings(agents=1, rounds=1, evaluate_every=0, poll=0.001)
    with pytest.raises(FederationError, match="client '0' has float64 data, but the model is float32"):
        federate(grid, FEDPD, small({}), settings)


def test_a_name_is_stable_where_the_node_says_one() -> None:
    def named(**node_config: Any) -> str:
        return client_name(Context(1, 77, node_config, RecordDict(), {}))

    assert named(**{"name": "hospital-a", "partition-id": 3}) == "hospital-a"
    assert named(**{"partition-id": 3}) == "3"
    assert named() == "77"


def test_an_exception_of_the_users_own_is_reported_and_not_repeated_without_end() -> None:
    def broken(context: Context) -> Local:
        raise OSError("no such file: samples.csv")

    grid = InProcessGrid(client_app(lambda config: FEDPD, start, broken), AGENTS, {})
    with pytest.raises(FederationError, match=r"client '0': OSError in test_client\.py, line \d+"):
        run(FEDPD, 1, grid, resend=0.01)
    assert grid.pushed == AGENTS


def test_an_exception_within_a_loss_is_reported_by_its_place() -> None:
    """JAX ends its tracebacks with a remark about frames, which is not the reason."""

    def wrong(model: Any, batch: Any) -> Any:
        return model["no such leaf"]

    def local(context: Context) -> Local:
        return Local(wrong, samples()[0])

    grid = InProcessGrid(client_app(lambda config: FEDPD, start, local), AGENTS, {})
    with pytest.raises(FederationError, match=r"KeyError in test_client\.py, line \d+\. Its text may hold data"):
        run(FEDPD, 1, grid, resend=0.01)


def test_the_same_app_serves_runs_of_other_configurations() -> None:
    made = []

    def algorithm(config: Any) -> Any:
        made.append(config)
        return FEDPD

    shared = client_app(algorithm, start, lambda context: Local(losses, samples()[0]), defaults={"eta": 1, "a": 2})
    for eta in (3, 4, 4):
        run(FEDPD, 1, InProcessGrid(shared, AGENTS, {"eta": eta}))
    assert made == [{"eta": 3, "a": 2}, {"eta": 4, "a": 2}]


def test_a_process_reads_the_samples_of_each_client_once_while_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def part(context: Context) -> Local:
        read.append(int(context.node_config["partition-id"]))
        return Local(losses, samples()[read[-1] % AGENTS])

    def federation(agents: int) -> Any:
        read.clear()
        return run(FEDPD, 2, InProcessGrid(client_app(lambda config: FEDPD, start, part), agents, {}), agents=agents)

    federation(70)
    assert read == list(range(70))
    kept = federation(AGENTS).model
    monkeypatch.setattr("fedpd.flower.clients.client.KEPT_BYTES", 1)  # only the client that is at work
    assert_same(federation(AGENTS).model, kept, rtol=0)
    assert read == [*range(AGENTS)] * 3  # for the check before the run, and for each round


def test_a_disk_without_room_is_reported_before_the_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(FederationError, match=r"client '0': .*has 0 MB left, but the client's state needs 1 MB"):
        run(FEDPD, 1)


def test_a_folder_that_cannot_be_written_is_reported_before_the_first_order(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("a file")
    with pytest.raises(FederationError, match=r"client '0': .*the client cannot write its state there"):
        run(FEDPD, 1)
