"""Run folders: which files `--overwrite` removes, and which files it never removes."""

import os
from pathlib import Path

import pytest

from fedpd import FedpdError
from fedpd.base.atomic import held
from fedpd.experiments import run_folder

TEXT = "[problem]\n"


def snapshot(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run folder with a file of every kind that fedpd writes."""
    folder = tmp_path / "run"
    run_folder.create(folder, TEXT)
    names = (
        "checkpoints/01-fedpd/round-000000050.safetensors",
        "checkpoints/01-fedpd/.round-000000100.safetensors.1234.tmp",
        "models/01-fedpd-seed-0.safetensors",
        "history.parquet",
        "comparison.png",
        "comparison.svg",
        "accuracy.png",
        "sensitivity.svg",
        "report.html",
        "report-costs.csv",
        "report-figures/stationarity-communications.pdf",
    )
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    return folder


def test_a_new_run_folder_is_marked(tmp_path: Path) -> None:
    run_folder.create(tmp_path / "run", TEXT)
    assert run_folder.is_run_folder(tmp_path / "run")
    assert (tmp_path / "run" / "experiment.toml").read_text() == TEXT


def test_overwrite_leaves_only_the_new_run(finished: Path) -> None:
    run_folder.create(finished, "[run]\n", overwrite=True)
    assert sorted(snapshot(finished)) == [".fedpd-run", "experiment.toml"]
    assert (finished / "experiment.toml").read_text() == "[run]\n"


def test_overwrite_leaves_nothing_beside_the_folder(finished: Path) -> None:
    run_folder.create(finished, TEXT, overwrite=True)
    assert [path.name for path in finished.parent.iterdir()] == ["run"]


def test_overwrite_works_where_the_folder_cannot_be_renamed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", refuse)
    run_folder.create(finished, "[run]\n", overwrite=True)
    assert sorted(snapshot(finished)) == [".fedpd-run", "experiment.toml"]
    assert [path.name for path in finished.parent.iterdir()] == ["run"]


def test_overwrite_through_a_link_replaces_the_run_and_keeps_the_link(finished: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(finished)
    run_folder.create(link, "[run]\n", overwrite=True)
    assert link.is_symlink()
    assert sorted(snapshot(finished)) == [".fedpd-run", "experiment.toml"]


def test_a_folder_in_which_another_process_runs_is_not_replaced(finished: Path) -> None:
    before = snapshot(finished)
    with held(finished), pytest.raises(FedpdError, match="another process is writing"):
        run_folder.create(finished, TEXT, overwrite=True)
    assert sorted(snapshot(finished)) == sorted(before)


def test_a_run_is_kept_without_overwrite(finished: Path) -> None:
    before = snapshot(finished)
    with pytest.raises(FedpdError, match=r"already holds a run.*fedpd resume.*--overwrite\.$"):
        run_folder.create(finished, TEXT)
    assert snapshot(finished) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_users_folder_with_an_experiment_file_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "experiment.toml").write_text("mine")
    (tmp_path / "thesis.tex").write_text("three years of work")
    before = snapshot(tmp_path)
    with pytest.raises(FedpdError, match="fedpd did not make it for a run") as refusal:
        run_folder.create(tmp_path, TEXT, overwrite=overwrite)
    assert "--overwrite" not in str(refusal.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/notes.txt",
        "models/best-seed-0.safetensors",
        "notes.md",
        "checkpoints/01-fedpd/notes.md",
        "models/best.pt",
        "figures/a.png",
    ],
)
def test_a_run_folder_with_a_users_file_is_never_touched(finished: Path, name: str) -> None:
    (finished / name).parent.mkdir(exist_ok=True)
    (finished / name).write_text("mine")
    before = snapshot(finished)
    with pytest.raises(FedpdError, match="which fedpd did not write, so nothing was removed"):
        run_folder.create(finished, TEXT, overwrite=True)
    assert snapshot(finished) == before


@pytest.mark.parametrize("inside", [".", "checkpoints"])
def test_the_current_folder_is_never_removed(finished: Path, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished / inside)
    before = snapshot(finished)
    with pytest.raises(FedpdError, match="never removes the current folder"):
        run_folder.create(Path(os.path.relpath(finished)), TEXT, overwrite=True)
    assert snapshot(finished) == before


@pytest.mark.parametrize("name", ["history.parquet", "models"])
def test_links_are_not_followed(finished: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "01-fedpd-seed-0.safetensors").write_text("mine")
    for path in sorted((finished / name).rglob("*"), reverse=True):
        path.unlink()
    (finished / name).rmdir() if (finished / name).is_dir() else (finished / name).unlink()
    (finished / name).symlink_to(elsewhere)
    with pytest.raises(FedpdError, match="which fedpd did not write"):
        run_folder.create(finished, TEXT, overwrite=True)
    assert (elsewhere / "01-fedpd-seed-0.safetensors").read_text() == "mine"


def test_a_method_in_the_place_of_another_is_refused(finished: Path) -> None:
    """Without a label, editing eta gives the method another name; fedpd must not mix its results with the old ones."""
    run_folder.check_same_method(finished, 1, "FedPD")
    run_folder.check_same_method(finished, 2, "FedAvg")
    with pytest.raises(FedpdError, match=r"method 1 was '01-fedpd' and is now '01-fedpd-eta-0\.6'"):
        run_folder.check_same_method(finished, 1, "fedpd(eta=0.6)")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FedpdError, match="this is a file, not a folder"):
        run_folder.create(tmp_path / "run", TEXT, overwrite=True)
