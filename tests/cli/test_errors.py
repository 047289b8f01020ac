"""Every error of a command is a sentence with exit code 2 or 1, and no other file is touched."""

import csv
import os
from importlib.resources import files
from pathlib import Path
from unittest.mock import patch

import pytest

from fedpd.base.errors import UnexpectedError
from fedpd.cli import sentence_of
from fedpd.experiments import run_folder

from .test_cli import fedpd

SMALL = """
[problem]
name = "{problem}"

[run]
rounds = 3

[[algorithm]]
label = '''{label}'''
name = "fedavg"
oracle = {{ name = "gd", step = {step}, iterations = 2 }}
"""


def write(folder: Path, problem: str = "opposing_quadratics", label: str = "A", step: float = 0.1) -> None:
    (folder / "x.toml").write_text(SMALL.format(problem=problem, label=label, step=step))


def test_a_fault_is_told_and_debug_shows_the_place(tmp_path: Path) -> None:
    with patch("fedpd.experiments.experiment.load", side_effect=RuntimeError("a wheel came off")):
        told = fedpd("run", "x.toml", folder=tmp_path)
        shown = fedpd("--debug", "run", "x.toml", folder=tmp_path)
    assert told.returncode == shown.returncode == 1
    assert told.stderr.startswith("error: RuntimeError: a wheel came off. This is a fault of fedpd. Repeat")
    assert "Traceback" not in told.stderr
    assert "Traceback" in shown.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    done = fedpd("run", "x.toml", "--out", "closed/run", folder=tmp_path)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr


def test_errors_of_the_system_are_sentences(tmp_path: Path) -> None:
    write(tmp_path)
    full = OSError(28, "No space left on device", "out/x")
    with patch("fedpd.experiments.run_folder.replace_file", side_effect=full):
        done = fedpd("run", "x.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: out/x: No space left on device. Choose another place")
    assert sentence_of(MemoryError()).startswith("There is not enough memory.")
    for out, code in (("x.toml", 2), ("x.toml/run", 1), ("a" * 300, 1)):
        done = fedpd("run", "x.toml", "--out", out, folder=tmp_path)
        assert done.returncode in (code, 2)
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.toml"]


def test_a_method_that_cannot_run_leaves_no_folder(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "x.toml").open("a") as file:
        file.write('[[algorithm]]\nname = "coop_sgd"\nmixing = [[1.0]]\noracle = { name = "lbfgs" }\n')
    done = fedpd("run", "x.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 2
    assert "error: [[algorithm]] 2 (coop_sgd" in done.stderr
    assert "mixes 1 agents, and the problem has 2" in done.stderr
    assert not (tmp_path / "out").exists()


def test_tune_checks_its_options_first(tmp_path: Path) -> None:
    done = fedpd("tune", "strong", "--methods", ",,,", folder=tmp_path)
    assert done.returncode == 2
    assert "--methods = ',,,': must be names separated by commas" in done.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    done = fedpd("tune", "strong", "--out", "mine", folder=tmp_path)
    assert done.returncode == 2
    assert "the folder is not empty, and fedpd did not make it" in done.stderr


def test_runs_that_never_measure_anything_are_drawn_and_reported(tmp_path: Path) -> None:
    """Such a run diverges in its first round. Its label is invalid mathematics, longer than a file name may be."""
    label = "=$\\frac" + "x" * 300
    write(tmp_path, label=label, step=1e200)
    done = fedpd("run", "x.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "diverged at round 1" in done.stdout
    done = fedpd("report", "out", "--figures", "png", "--csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "report-histories.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["label"] == f"'{label}"
    assert rows[0]["loss"] == "0.0"  # numbers are as they are, also negative ones


def test_the_packages_own_experiment_with_f_equal_to_zero_runs(tmp_path: Path) -> None:
    text = files("fedpd.reproduce").joinpath("experiments", "claim2.2.toml").read_text()
    (tmp_path / "claim.toml").write_text(text)
    done = fedpd("run", "claim.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_report_downloads_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    assert fedpd("run", "x.toml", "--out", "out", folder=tmp_path).returncode == 0
    data = 'data = { name = "hub", source = "someone/data", client = "c", features = "x", label = "y" }'
    text = (
        (tmp_path / "x.toml")
        .read_text()
        .replace('name = "opposing_quadratics"', f'name = "softmax_regression"\n{data}')
    )
    (tmp_path / "out" / "experiment.toml").write_text(text)
    run_folder.mark_finished(tmp_path / "out", text)
    with patch("fedpd.data.hub", side_effect=AssertionError("a download")):
        done = fedpd("report", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert "come from the network, and a report fetches nothing unless you give --download" in page


def test_an_error_that_nobody_foresaw_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    with patch("fedpd.experiments.experiment.load", side_effect=UnexpectedError("a key is missing.")):
        assert fedpd("run", "x.toml", folder=tmp_path).returncode == 1


def test_a_users_file_is_never_replaced(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "mine.html").write_text("mine")
    run_folder.create(tmp_path / "out", (tmp_path / "x.toml").read_text())
    for words in (("report", "out", "--out", "mine.html"), ("advise", "x.toml", "--out", "x.toml")):
        done = fedpd(*words, folder=tmp_path)
        assert done.returncode == 2
        assert "a file of this name exists. Choose another name" in done.stderr
    assert (tmp_path / "mine.html").read_text() == "mine"
