"""The rows of a run folder: its histories decide, and a checkpoint counts only if it is intact and of this run."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpd.base import checkpoint
from fedpd.experiments import recorded, run_folder
from fedpd.report.pages import notices
from tests.experiments.test_loading import finished


def newest(folder: Path, method: int) -> Path:
    (place,) = (folder / "checkpoints").glob(f"{method:02d}-*")
    return max(place.glob("round-*"))


def losses(folder: Path) -> dict[str, list[float]]:
    return {entry.label: entry.runs[0].history["loss"].tolist() for entry in recorded.read(folder).entries}


def test_the_checkpoint_of_a_finished_method_gives_the_seconds_of_its_rows(tmp_path: Path) -> None:
    finished(tmp_path, "0")
    for entry in recorded.read(tmp_path).entries:
        assert np.isfinite(entry.runs[0].elapsed).all()


def test_an_altered_checkpoint_does_not_change_the_rows(tmp_path: Path) -> None:
    finished(tmp_path, "0")
    before, path = losses(tmp_path), newest(tmp_path, 1)
    arrays, meta = checkpoint.read(path)
    arrays["history.0.loss"] = arrays["history.0.loss"] / 2
    checkpoint.write(path, arrays, meta)  # with the right checksums
    assert losses(tmp_path) == before


def test_the_checkpoint_of_another_method_is_left_out(tmp_path: Path) -> None:
    finished(tmp_path, "0")
    before = losses(tmp_path)
    shutil.copy(newest(tmp_path, 2), newest(tmp_path, 1))
    with pytest.warns(UserWarning, match="FedPD: its checkpoint is of another method or of other seeds"):
        assert losses(tmp_path) == before
    (tmp_path / run_folder.HISTORY).unlink()
    with pytest.warns(UserWarning, match="FedPD: its checkpoint"):
        assert list(losses(tmp_path)) == ["FedAvg"]


def test_results_of_an_earlier_experiment_file_are_marked(tmp_path: Path) -> None:
    finished(tmp_path, "0")
    path = tmp_path / run_folder.EXPERIMENT
    assert not recorded.read(tmp_path).edited
    path.write_text(path.read_text().replace("rounds = ", "rounds = 1"))
    with pytest.warns(UserWarning, match="was edited after this run, so the results are those of the earlier file"):
        record = recorded.read(tmp_path)
    assert "was edited after this run" in notices([record], 1)
    run_folder.mark_finished(tmp_path, path.read_text())
    assert not recorded.read(tmp_path).edited
