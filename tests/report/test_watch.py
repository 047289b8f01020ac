"""Folders are read as they are: whole, half, hardly begun, damaged; and shown in a terminal."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedpd import FedpdError
from fedpd.base.progress import Event
from fedpd.engine.views.style import Style
from fedpd.experiments import experiment, run_folder, runner
from fedpd.experiments.recorded import read, read_all
from fedpd.report.pages import page_data
from fedpd.report.watch import plot, view, watch
from tests.report.recordings import diverging, entry, record

EXPERIMENT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = 20
checkpoint_every = 5

[[algorithm]]
label = "First"
name = "fedavg"
oracle = { name = "gd", step = 0.1, iterations = 2 }

[[algorithm]]
label = "Explodes"
name = "fedavg"
oracle = { name = "gd", step = 1e6, iterations = 8 }
"""


class StopError(Exception):
    pass


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run that was stopped after ten rounds of its first method."""
    folder = tmp_path / "half"
    run_folder.create(folder, EXPERIMENT)

    def stop(event: Event) -> None:
        if event.done > 10:
            raise StopError

    with pytest.raises(StopError):
        runner.run(experiment.parse(EXPERIMENT), folder, stop)
    return folder


def text(folder: Path, **options: bool) -> str:
    console = Console(width=90, record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
    watch(folder, console, **options)
    console.file.close()
    return console.export_text()


def test_half_a_run_is_read_from_its_checkpoint_and_then_whole(half: Path) -> None:
    record = read(half)
    assert [one.label for one in record.entries] == ["First"]
    assert record.entries[0].done == 10
    assert not record.finished
    assert record.waiting == ("Explodes",)
    shown = text(half, once=True)
    assert "as of the last checkpoints" in shown
    assert "waiting" in shown
    runner.run(experiment.parse(EXPERIMENT), half, lambda *_: None)
    record = read(half)
    assert record.finished
    assert record.entries[1].diverged
    shown = text(half)
    assert "half: finished" in shown
    assert "diverged" in shown
    assert any("⠀" <= character <= "⣿" for character in shown), "the curves"


def test_without_checkpoints_the_history_is_enough_and_seconds_are_unknown(half: Path) -> None:
    runner.run(experiment.parse(EXPERIMENT), half, lambda *_: None)
    before = read(half)
    shutil.rmtree(half / "checkpoints")
    after = read(half)
    for old, new in zip(before.entries, after.entries, strict=True):
        for name, column in old.runs[0].history.items():
            assert np.array_equal(column, new.runs[0].history[name], equal_nan=column.dtype.kind == "f")
        assert np.isnan(new.runs[0].elapsed).all()
    assert after.versions is None
    data = page_data(after.entries)
    assert [cost["name"] for cost in data["costs"]] == ["communications", "samples", "bytes"]
    json.dumps(data, allow_nan=False)


def test_a_torn_checkpoint_is_passed_over(half: Path) -> None:
    newest = max((half / "checkpoints" / "01-first").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    assert read(half).entries[0].done == 5


def test_folders_that_cannot_be_reported(tmp_path: Path, half: Path) -> None:
    empty = tmp_path / "empty"
    run_folder.create(empty, EXPERIMENT)
    assert "first checkpoint" in text(empty, once=True)
    with pytest.raises(FedpdError, match=r"the folder has no rows yet.*fedpd resume"):
        read_all([empty])
    with pytest.raises(FedpdError, match=r"fedpd did not make this folder for a run"):
        read(tmp_path)
    with pytest.raises(FedpdError, match="is given twice"):
        read_all([half, half / ".." / "half"])
    (half / "history.parquet").write_bytes(b"not parquet")
    with pytest.raises(FedpdError, match=r"history.parquet cannot be read.*fedpd resume"):
        read(half)
    (empty / "experiment.toml").write_text("[run")
    with pytest.raises(FedpdError, match=r"experiment.toml: not valid TOML"):
        read(empty)


def test_ctrl_c_ends_the_view_only(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(3))

    def sleep(seconds: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedpd.report.watch.time.sleep", sleep)
    assert "First" in text(half)


def test_a_view_ends_with_the_run(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(seconds: float) -> None:
        runner.run(experiment.parse(EXPERIMENT), half, lambda *_: None)

    monkeypatch.setattr("fedpd.report.watch.time.sleep", finish)
    assert "half: finished" in text(half)


def test_odd_curves_are_drawn() -> None:
    solid = [Style("blue", "solid")]
    lines, (left, right, bottom, top) = plot([(np.array([0, 10]), np.array([0.0, -5.0]))], solid, 20, 5)
    assert (left, right, bottom, top) == (0, 10, -5, 0)
    assert lines[0].plain[0] != " "
    assert lines[-1].plain[-1] != " "
    plot([(np.array([3]), np.array([1.0]))], solid, 20, 5)
    plot([(np.array([]), np.array([]))], solid, 20, 5)
    console = Console(width=90)
    with console.capture() as captured:
        console.print(view(record(diverging("Explodes [red]"), entry("Fine", 0.1)), 90))
    assert "Explodes [red]" in captured.get()
