"""Agents whose state lives in files: the same numbers, a few agents in memory at a time, nothing left behind."""

import mmap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, schedules, simulate
from fedpd.core import Algorithm, Problem
from fedpd.engine.backends import disk
from tests.slow_cases import slow_but

SGD = oracles.sgd(step=0.1, iterations=3, batch=2)
METHODS = {
    "fedpd": algorithms.fedpd(eta=0.5, oracle=SGD),
    "fedpd p=0.5": algorithms.fedpd(eta=0.5, oracle=SGD, p=0.5),
    "fedpd schedule": algorithms.fedpd(eta=0.5, oracle=SGD, p=schedules.decreasing_skips(6)),
    "fedpd auto": algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.3, iterations=3), p="auto"),
    "fedpd vr": algorithms.fedpd(eta=0.5, oracle=oracles.vr(gamma=0.5, iterations=2, refresh=3)),
    "fedavg": algorithms.fedavg(oracle=SGD),
    "scaffold": algorithms.scaffold(step=0.1, iterations=3, batch=2),
    "two exchanges": algorithms.feddane(mu=1.0, oracle=SGD),
    "who speaks": algorithms.lag(step=0.3, memory=3),
}


def problem() -> Problem:
    features, labels = data.strongly_noniid(agents=5, samples=12, dimension=4)
    return problems.penalized_logistic(features, labels)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take two agents at a time, so that five agents need three blocks and one padding agent.

    simulate chooses its blocks: an argument would be one more that users should not have to know.
    """
    monkeypatch.setattr(disk, "BLOCK_BYTES", 1)


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", slow_but(["fedpd p=0.5", "fedpd vr", "two exchanges"], METHODS))
def test_files_give_the_numbers_of_memory(name: str, tmp_path: Path) -> None:
    method: Algorithm = METHODS[name]
    settings: dict[str, Any] = {"rounds": 6, "seed": 3, "metrics_every": 2}
    memory = simulate(method, problem(), **settings)
    files = simulate(method, problem(), **settings, store=tmp_path)
    assert_same(files.history, memory.history)
    assert_same(files.agents, memory.agents)
    assert_same(files.model, memory.model)
    np.testing.assert_array_equal(files.updates, memory.updates)


@pytest.mark.parametrize("devices", [1, 2])
def test_agents_come_and_go(devices: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 5, "participation": 0.4, "stragglers": 0.5, "devices": devices}
    memory = simulate(METHODS["fedpd"], problem(), **settings)
    files = simulate(METHODS["fedpd"], problem(), **settings, store=tmp_path)
    assert_same(files.history, memory.history)


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    simulate(METHODS["fedpd"], problem(), rounds=1, store=tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_the_state_is_in_files_and_not_in_memory(tmp_path: Path) -> None:
    run = simulate(METHODS["fedpd"], problem(), rounds=1, store=tmp_path)
    assert all(is_mapped(leaf) for leaf in jax.tree.leaves(run.agents))


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_progress_moves_within_a_round(tmp_path: Path) -> None:
    seen: list[float] = []
    note = lambda done, total, stationarity: seen.append(done)  # noqa: E731
    simulate(METHODS["fedpd"], problem(), rounds=2, store=tmp_path, progress=note, devices=1)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 1
    assert seen[-1] == 2


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    method = METHODS["fedpd p=0.5"]
    whole = simulate(method, problem(), rounds=6, store=tmp_path / "a")
    saved: dict[str, Any] = {"checkpoints": tmp_path / "saved", "store": tmp_path / "b"}
    simulate(method, problem(), rounds=3, **saved)
    resumed = simulate(method, problem(), rounds=6, **saved)
    assert_same(resumed.agents, whole.agents)
    assert_same(resumed.history, whole.history)


def test_divergence_is_an_answer(tmp_path: Path) -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=1e200, iterations=2))
    assert simulate(method, problem(), rounds=50, store=tmp_path).diverged is not None


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(FedpdError, match=r"state of 5 agents needs .* Give a folder on a larger disk"):
        simulate(METHODS["fedpd"], problem(), rounds=1, store=tmp_path)


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FedpdError, match="must be a folder"):
        simulate(METHODS["fedpd"], problem(), rounds=1, store=file)
    with pytest.raises(FedpdError, match="allows only one seed"):
        simulate(METHODS["fedpd"], problem(), rounds=1, seed=[0, 1], store=tmp_path)
