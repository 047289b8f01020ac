"""Every error of a command is a sentence with exit code 2 or 1, and no other file is touched."""

import csv
import errno
import os
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from importlib.resources import files
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

import pytest

from fedpd.base.errors import UnexpectedError
from fedpd.cli import main, sentence_of
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
    for out in ("x.toml", "x.toml/run", "a" * 300):
        done = fedpd("run", "x.toml", "--out", out, folder=tmp_path)
        assert done.returncode == 2
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_nothing_is_a_failure_of_the_system(number: int, tmp_path: Path) -> None:
    write(tmp_path)
    with patch("fedpd.base.atomic.os.fsync", side_effect=OSError(number, os.strerror(number))):
        done = fedpd("run", "x.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"cannot be written ({os.strerror(number)}). Make room there" in done.stderr
    with patch("fedpd.base.atomic.Path.mkdir", side_effect=OSError(number, os.strerror(number))):
        done = fedpd("run", "x.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 1, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_question_marks(encoding: str, tmp_path: Path) -> None:
    write(tmp_path, label="Größe ‖x‖")
    bytes_out = BytesIO()
    out = TextIOWrapper(bytes_out, encoding=encoding)
    words = patch.object(sys, "argv", ["fedpd", "run", "x.toml", "--out", "out"])
    with redirect_stdout(out), chdir(tmp_path), words, pytest.raises(SystemExit) as end:
        main()
    out.flush()
    assert end.value.code == 0
    shown = "Gr??e ?x?" if encoding == "ascii" else "Größe ?x?"
    assert shown in bytes_out.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("variable", "error"),
    [
        ("JAX_NUM_CPU_DEVICES=abc", ValueError('Invalid value "abc" for JAX flag jax_num_cpu_devices')),
        ("JAX_ENABLE_X64=maybe", ValueError("invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'")),
        ("JAX_PLATFORMS=quantum", RuntimeError("Unable to initialize backend 'quantum': it is not known")),
    ],
)
def test_a_wrong_variable_of_jax_is_named(
    variable: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(*variable.split("="))
    with patch("fedpd.experiments.experiment.load", side_effect=error):
        done = fedpd("run", "x.toml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {variable}: JAX does not start with this environment (")
    assert "fault of fedpd" not in done.stderr


def test_jax_refuses_a_number_of_devices_that_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedpd", "tune", "strong"]
    wrong = os.environ | {"JAX_NUM_CPU_DEVICES": "abc"}
    done = subprocess.run(command, cwd=tmp_path, env=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX_NUM_CPU_DEVICES=abc: ")


WRONG: dict[str, str] = {
    "run none.toml": "none.toml cannot be read (No such file or directory). Give the path of an experiment file",
    "run bin.toml": "bin.toml cannot be read (it is not text in UTF-8; save it as UTF-8)",
    "run .": "cannot be read (it is a folder)",
    "run key.toml": "key.toml: [run]: round = 3: there is no such key. Did you mean 'rounds'?",
    "run x.toml --out x.toml": "--out x.toml: this is a file, not a folder. Choose another folder",
    "tune x.toml --criterion accuracyy": "criterion = 'accuracyy': must be a column of which less or more is better. "
    "Did you mean 'test_accuracy'?",
    "tune x.toml --methods all,FedPD-GD": "all stands for every method, so no other name may be beside it",
    "tune x.toml --methods FedPD-GE": "methods = 'FedPD-GE': there is no such method. Did you mean 'FedPD-",
    "tune x.toml --seeds 0": "--seeds = 0: must be an integer of at least 1",
    "tune x.toml --criterion test_accuracy": "criterion = 'test_accuracy': needs a problem with test samples",
    "solve name.toml": "name.toml: [problem] name = 'opposing': there is no such name. ",
    "solve bad.toml": "bad.toml: not valid TOML: ",
    "solve x.toml --target 0": "--target = 0.0: must be positive and finite",
    "solve x.toml --max-communications 0": "--max-communications = 0: must be an integer of at least 1",
    "solve share.toml": "share.toml: [run] participation = 2",
    "advise weekly": "PROBLEM 'weekly': there is no such file or problem. Did you mean 'weak'?",
    "advise x.toml --floor 1e9": "floor = 1000000000.0: must be at most",
    "advise x.toml --epsilon 0": "epsilon = 0.0: must be positive and finite",
    "advise x.toml --pilot 0": "pilot = 0: must be an integer of at least 1",
    "advise x.toml --out x.toml": "--out x.toml: a file of this name exists",
    "report nowhere": "nowhere: there is no such folder. Start a run: fedpd run FILE",
    "report x.toml": "x.toml: this is a file, not the folder of a run. Start a run: fedpd run FILE",
    "report .": "fedpd did not make this folder for a run",
    "report . --target 0": "--target = 0.0: must be positive and finite",
    "report . --out r.pdf": "--out = 'r.pdf': must end in .html, because the report is HTML",
    "compare --data strongg": "--data = 'strongg': there is no such choice. Did you mean 'strong'?",
    "compare --methods fedpd": "--methods = 'fedpd': there is no such choice. Choose from: paper, all",
    "compare --rounds 0": "--rounds = 0: must be an integer of at least 1",
    "compare --seeds -1": "--seeds = -1: must be an integer of at least 1",
    "compare --target 0": "--target = 0.0: must be positive and finite",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_input_is_named_with_its_remedy_before_anything_runs(command: str, tmp_path: Path) -> None:
    write(tmp_path)
    right = (tmp_path / "x.toml").read_text()
    (tmp_path / "key.toml").write_text(right.replace("rounds", "round"))
    (tmp_path / "name.toml").write_text(right.replace("opposing_quadratics", "opposing"))
    (tmp_path / "share.toml").write_text(right.replace("rounds = 3", "rounds = 3\nparticipation = 2"))
    (tmp_path / "bad.toml").write_text("[run")
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\x00")
    before = sorted(tmp_path.iterdir())
    done = fedpd(*command.split(), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert WRONG[command] in done.stderr
    assert done.stdout.strip() == ""
    assert sorted(tmp_path.iterdir()) == before
