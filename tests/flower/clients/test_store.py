"""A client's own file."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpd.engine.measure.costs import Costs
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.clients import store
from fedpd.flower.method.agent import SavedAgent
from fedpd.flower.method.shapes import Shapes


def saved(number: int) -> SavedAgent:
    return SavedAgent(number, {"x": np.zeros(2)}, {"x": np.arange(2.0)}, 0, np.array([3]), np.array([18]))


def context(**node_config: str) -> Context:
    return Context(1, 5, dict(node_config), RecordDict(), {})


def test_what_is_saved_is_loaded_and_what_is_torn_is_lost(tmp_path: Path) -> None:
    shapes = Shapes(None, {"x": np.zeros(2)}, [], [], Costs((), ()))
    path = store.file(tmp_path, "ab-12")
    assert store.load(path, shapes) is None
    store.save(path, saved(7))
    found = store.load(path, shapes)
    assert found is not None
    assert found.number == 7
    np.testing.assert_array_equal(found.after["x"], [0, 1])
    path.write_bytes(path.read_bytes()[:-1])
    assert store.load(path, shapes) is None


def test_only_the_newest_runs_are_kept(tmp_path: Path) -> None:
    """Of runs that had an order within a day, at most 8; of others, the newest two."""
    for run in range(store.MOST + 3):
        store.save(store.file(tmp_path, f"{run:x}"), saved(0))
        time.sleep(0.002)
    assert {path.stem for path in tmp_path.iterdir()} == {f"{run:x}" for run in range(3, store.MOST + 3)}
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        moment = time.time() - store.IN_USE_SECONDS - 100 + number
        os.utime(path, (moment, moment))
    store.save(store.file(tmp_path, "f"), saved(0))
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "f"}


def test_arrays_that_an_order_did_not_change_are_in_the_file_once(tmp_path: Path) -> None:
    big, other = np.arange(5000.0), np.array([0.0, 1.0])
    long = np.zeros(200_000)  # the arrays differ in the last entry only
    agent = {"x": other, "x0": big, "y": long}
    shapes = Shapes(None, agent, [], [], Costs((), ()))
    path = store.file(tmp_path, "ab")
    before = {"x": -other, "x0": big, "y": np.append(long[:-1], 1.0)}  # -0.0 equals 0.0, but has other bits
    store.save(path, SavedAgent(1, before, agent, 0, np.array([3]), np.array([18])))
    assert 0 < path.stat().st_size - 2 * long.nbytes < 1.2 * big.nbytes
    found = store.load(path, shapes)
    assert found is not None
    np.testing.assert_array_equal(found.before["x0"], big)
    assert np.signbit(found.before["x"]).all()
    assert not np.signbit(found.after["x"]).any()
    assert (found.before["y"][-1], found.after["y"][-1]) == (1.0, 0.0)


@pytest.mark.parametrize("run", ["../../etc/passwd", "", "a/b", "A", "a" * 81, "a.b"])
def test_a_run_cannot_lead_out_of_the_folder(tmp_path: Path, run: str) -> None:
    with pytest.raises(RefusedError, match="is not the identity of a run"):
        store.file(tmp_path, run)


@pytest.mark.parametrize("name", ["..", "a/b", "../x", "höre"])
def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = store.folder(context(**{"fedpd-state": str(tmp_path)}), name)
    assert folder.parent == tmp_path
    assert folder.resolve().parent == tmp_path.resolve()
