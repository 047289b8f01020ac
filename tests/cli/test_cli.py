"""The command line from a user's view: runs that are killed and resumed, and wrong input."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fedpd import load
from fedpd.base import checkpoint
from fedpd.cli import main
from fedpd.engine.measure.history import COLUMNS, read_parquet

EXPERIMENT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = {rounds}
checkpoint_every = {checkpoint_every}

[[algorithm]]
label = "FedPD-VR"
name = "fedpd"
eta = 0.5
p = 0.5
oracle = {{ name = "vr", gamma = 0.5, iterations = 2, refresh = 7 }}

[[algorithm]]
label = "Explodes"
name = "fedavg"
oracle = {{ name = "gd", step = 1e6, iterations = 8 }}

[[algorithm]]
label = "FedAvg"
name = "fedavg"
oracle = {{ name = "gd", step = 0.1, iterations = 2 }}
"""


COMMAND = [sys.executable, "-c", "from fedpd.cli import main; main()"]


def fedpd(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, in another folder."""
    code: Any = 0
    words = patch.object(sys, "argv", ["fedpd", *arguments])
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, chdir(folder), words:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def experiment(rounds: int, checkpoint_every: int = 20) -> str:
    return EXPERIMENT.format(rounds=rounds, checkpoint_every=checkpoint_every)


def write(folder: Path, rounds: int, checkpoint_every: int = 20) -> None:
    (folder / "small.toml").write_text(experiment(rounds, checkpoint_every))


def test_killed_and_resumed_is_as_if_never_interrupted(tmp_path: Path) -> None:
    write(tmp_path, 3_000, checkpoint_every=100)
    whole = fedpd("run", "small.toml", "--out", "whole", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    command = [*COMMAND, "run", "small.toml", "--out", "killed"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = tmp_path / "killed" / "checkpoints" / "01-fedpd-vr"
    deadline = time.monotonic() + 120
    while not list(first.glob("round-*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "history.parquet").exists(), "it was killed in its first method"
    resumed = fedpd("resume", "killed", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    a, b = (read_parquet(tmp_path / name / "history.parquet") for name in ("whole", "killed"))
    assert list(a) == list(b) == [("FedPD-VR", 0), ("Explodes", 0), ("FedAvg", 0)]
    for key in a:
        assert all(
            np.array_equal(a[key][name], b[key][name], equal_nan=a[key][name].dtype.kind == "f") for name in COLUMNS
        )
    for path in (tmp_path / "whole" / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / "models" / path.name).read_bytes()


def test_a_run_leaves_table_figure_histories_and_models(tmp_path: Path) -> None:
    write(tmp_path, 40)
    done = fedpd("run", "small.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedPD-VR" in done.stdout
    assert "communications" in done.stdout
    assert re.search(r"Explodes: .*diverged at round \d+.*1/L", done.stdout)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".fedpd-run", "experiment.toml", "history.parquet", "checkpoints", "models", "comparison.png", "comparison.svg",
    }  # fmt: skip
    histories = read_parquet(tmp_path / "out" / "history.parquet")
    assert len(histories["FedAvg", 0]["round"]) == 41
    arrays, meta = checkpoint.read(tmp_path / "out" / "models" / "03-fedavg-seed-0.safetensors")
    assert arrays["model"].shape == (3,)
    assert meta["label"] == "FedAvg"
    written = fedpd("report", "out", "--target", "1e-3", folder=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "‖∇f‖² ≤ 0.001" in written.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1_400_000
    watched = fedpd("watch", "out", folder=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert "out: finished" in watched.stdout
    again = fedpd("run", "small.toml", "--out", "out", folder=tmp_path)
    assert again.returncode == 2
    assert "fedpd resume out" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "--rounds", "0"), "--rounds = 0: must be an integer of at least 1"),
        (("compare", "--data", "stong"), "Did you mean 'strong'?"),
        (("run", "nothing.toml"), "nothing.toml cannot be read"),
        (("run", "wrong.toml"), "error: wrong.toml: [run] rounds = 0: must be an integer of at least 1"),
        (("resume", "."), "fedpd did not make this folder for a run"),
        (("run", "small.toml", "--out", ".", "--overwrite"), "--out .: the folder is not empty, and fedpd did not"),
        (("report", "full"), "full: fedpd did not make this folder for a run"),
        (("watch", "nothing"), "nothing: there is no such folder"),
        (("watch", "nothing", "--web", "--host", ""), "--host = '': must be an address"),
        (("compare", "--out", "full"), "the folder is not empty"),
        (("advise", "stong"), "PROBLEM 'stong': there is no such file or problem. Did you mean 'strong'?"),
        (("advise", "weak", "--epsilon", "-1"), "epsilon = -1.0: must be positive"),
        (("data", "inspect", "nothing.json"), "nothing.json does not exist"),
        (("solve", "week"), "PROBLEM 'week': there is no such file or problem. Did you mean 'weak'?"),
        (("solve", "weak", "--target", "0"), "--target = 0.0: must be positive"),
        (("solve", "weak", "--out", "full"), "the folder is not empty"),
        (("tune", "weak", "--methods", "FedPDGD"), "methods = 'FedPDGD': there is no such method. Did you mean"),
    ],
)
def test_wrong_input_is_a_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "wrong.toml").write_text(experiment(0))
    write(tmp_path, 1)
    (tmp_path / "full" / "thesis.tex").touch()
    done = fedpd(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "full" / "thesis.tex").exists()


def test_compare_runs_the_papers_methods(tmp_path: Path) -> None:
    done = fedpd("compare", "--rounds", "2", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for label in ("FedPD-GD p=0 ", "FedPD-GD p=0.5", "FedPD-GD p=1-r/T", "FedPD-SGD", "FedPD-VR", "FedAvg-GD"):
        assert label in done.stdout
    assert len(read_parquet(tmp_path / "out" / "history.parquet")) == 8


@pytest.mark.slow
def test_advice_prints_an_experiment_file_that_runs(tmp_path: Path) -> None:
    write(tmp_path, 40)
    done = fedpd("advise", "small.toml", "--epsilon", "1e-6", "--pilot", "40", "--out", "advice.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("guaranteed", "recommended", "skip probability", "smoothness of the f_i; exact", "[[algorithm]]"):
        assert word in done.stdout, word
    ran = fedpd("run", "advice.toml", "--out", "out", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    history = read_parquet(tmp_path / "out" / "history.parquet")["FedPD, recommended", 0]
    assert history["stationarity"].min() <= 1e-6


def test_tuning_leaves_a_table_a_figure_and_an_experiment_file(tmp_path: Path) -> None:
    write(tmp_path, 40)
    options = ("--methods", "FedPD-GD, Local GD", "--rounds", "30", "--target", "1e-4", "--out", "out")
    done = fedpd("tune", "small.toml", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"FedPD-GD +│ eta = ", done.stdout)
    assert (tmp_path / "out" / "sensitivity.png").stat().st_size > 10_000
    ran = fedpd("run", "out/experiment.toml", "--out", "again", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert list(read_parquet(tmp_path / "again" / "history.parquet")) == [("FedPD-GD", 0), ("Local GD", 0)]


def test_solving_leaves_the_run_and_a_figure(tmp_path: Path) -> None:
    write(tmp_path, 40)
    done = fedpd("solve", "small.toml", "--target", "1e-8", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == "FedPD with a memory of 30 rounds; L-BFGS solves the local problems; eta is found during the run."
    assert second == "Run of fedpd(eta=auto, oracle=lbfgs(pairs=40), memory=30), seed 0"
    assert "Figure: out/run.png\nIn Python: fedpd.load('out')\n" in done.stdout
    assert (tmp_path / "out" / "run.png").stat().st_size > 10_000
    run = load(tmp_path / "out")
    assert run.history["stationarity"][-1] <= 1e-8
    again = fedpd("solve", "small.toml", "--out", "out", folder=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_training_leaves_the_run_and_a_figure(tmp_path: Path) -> None:
    write(tmp_path, 40)
    settings = "--communications", "3", "--cohort", "2", "--validation", "0"
    done = fedpd("train", "small.toml", *settings, "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert re.match(r"FedPD-N with 2 of \d+ agents per round, \d+ local steps of \d+ samples; trials find", first)
    assert second.startswith("Run of fedpd_n(")
    assert "The model is that of the last round." in done.stdout
    assert (tmp_path / "out" / "run.png").stat().st_size > 10_000
    assert load(tmp_path / "out").history["round"][-1] == 3
    for more, words in (
        (("--cohort", "99"), "cohort = 99: must be at most"),
        ((), "validation = 0.1: holds out no sample"),
    ):
        wrong = fedpd("train", "small.toml", *more, folder=tmp_path)
        assert wrong.returncode == 2
        assert f"error: {words}" in wrong.stderr


@pytest.mark.filterwarnings("default:solve came to")
def test_solving_says_where_it_does_not_get_there(tmp_path: Path) -> None:
    write(tmp_path, 40)
    done = fedpd("solve", "small.toml", "--max-communications", "2", "--out", "out", folder=tmp_path)
    assert done.returncode == 0
    assert re.match(r"note: solve came to .* in 2 communications and did not reach 1e-10", done.stderr)


@pytest.mark.parametrize("line", ["participation = 0.5", "stragglers = 0.1"])
def test_solving_needs_all_agents(tmp_path: Path, line: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text(experiment(40).replace("rounds = 40", f"rounds = 40\n{line}"))
    done = fedpd("solve", "small.toml", folder=tmp_path)
    assert done.returncode == 2
    assert f"error: {line}: solve needs all agents, with all their steps, in every round" in done.stderr


def test_who_takes_part_is_kept_by_advice_and_tuning(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(experiment(40).replace("rounds = 40", "rounds = 40\nparticipation = 0.5"))
    done = fedpd("advise", "small.toml", "--pilot", "5", "--out", "advice.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "participation = 0.5\n" in (tmp_path / "advice.toml").read_text()
    options = ("--methods", "FedPD-GD", "--rounds", "3", "--target", "1e-30", "--out", "out")
    done = fedpd("tune", "small.toml", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "participation = 0.5\n" in (tmp_path / "out" / "experiment.toml").read_text()
    assert "never: " in done.stdout  # a table and a sentence, though there is nothing to draw
    assert "No method reached stationarity 1e-30 in 3 rounds. Give more --rounds or an easier --target." in done.stdout
    refused = fedpd("tune", "small.toml", "--criterion", "test_accuracy", "--target", "0.9", folder=tmp_path)
    assert refused.returncode == 2
    assert "criterion = 'test_accuracy': needs a problem with test samples" in refused.stderr


OWN_METHOD = """
from fedpd import algorithms
print("it runs")

def gd(step):
    return algorithms.local_gd(step=step, iterations=2)
"""


def test_code_of_ones_own_is_named_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_method.py").write_text(OWN_METHOD)
    text = experiment(4).partition("[[algorithm]]")[0]
    (tmp_path / "own.toml").write_text(f'{text}[[algorithm]]\nname = "own_method:gd"\nstep = 0.1\n')
    done = fedpd("run", "own.toml", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first == f"Running code of own_method ({tmp_path / 'own_method.py'}), which the experiment file names."
    assert second == "it runs"
    resumed = fedpd("resume", "out", folder=tmp_path)
    assert resumed.stdout.splitlines()[0] == first
    watched = fedpd("watch", "out", folder=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert "own_method:gd(step=0.1)" in watched.stdout
    assert "it runs" not in watched.stdout
    del sys.modules["own_method"]  # as in another process
    (tmp_path / "own_method.py").write_text("import nowhere_at_all\n")
    broken = fedpd("resume", "out", folder=tmp_path)
    assert broken.returncode == 2
    assert "own_method.py, line 1, in <module>: ModuleNotFoundError: No module named 'nowhere_at_all'" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_an_unknown_command_is_answered(tmp_path: Path) -> None:
    done = fedpd("compair", folder=tmp_path)
    assert done.returncode == 2
    assert "No such command" in done.stderr


COMPARE = """
[problem]
name = "penalized_logistic"
data = "strong"

[run]
rounds = 4

[compare]
iterations = 2
budget = 2
seeds = 1
criterion = "loss"
"""


@pytest.mark.slow
def test_compare_with_a_file_tunes_draws_and_continues(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(COMPARE)
    command = ("compare", "x.toml", "--methods", "fedavg,fedpd", "--out", "a")
    done = fedpd(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 methods on" in done.stdout
    assert "2 local steps with full gradients, at most 2 tries each" in " ".join(done.stdout.split())
    assert "FedAvg: fedavg(oracle=sgd(step=" in done.stdout
    written = {path.name for path in (tmp_path / "a").iterdir() if not path.name.startswith(".")}
    assert written == {
        "tries.jsonl",
        "result.safetensors",
        "checkpoints",
        "tuned.toml",
        "report.html",
        "comparison.png",
        "comparison.svg",
    }
    tries = (tmp_path / "a" / "tries.jsonl").read_text()
    again = fedpd(*command, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a" / "tries.jsonl").read_text() == tries
    repeated = fedpd("run", "a/tuned.toml", "--out", "b", folder=tmp_path)
    assert repeated.returncode == 0, repeated.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["compare", "--epochs", "2"], "--epochs = 2: needs an experiment file. Give FILE, or: fedpd compare strong"),
        (
            ["compare", "x.toml", "--methods", "fedavg,fedpb"],
            "methods = 'fedpb': there is no such method. Did you mean",
        ),
        (["compare", "none.toml"], "none.toml cannot be read"),
        (["compare", "key.toml"], "[compare]: buget = 2: there is no such key. Did you mean 'budget'?"),
        (["compare", "x.toml", "--criterion", "test_accuracy"], "needs a problem with test samples"),
        (["compare", "x.toml", "--out", "x.toml"], "--out x.toml: this is a file, not a folder"),
        (["compare", "x.toml", "--out", "."], "--out .: it holds 'key.toml', and fedpd never mixes results"),
    ],
)
def test_wrong_comparisons_are_refused(arguments: list[str], answer: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(COMPARE)
    (tmp_path / "key.toml").write_text(COMPARE.replace("budget", "buget"))
    done = fedpd(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert answer in done.stderr.replace("x.toml', and", "key.toml', and")


@pytest.mark.slow
def test_tune_without_a_target_takes_the_best_value_and_keeps_the_seeds(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(COMPARE.partition("[compare]")[0])
    command = ("tune", "x.toml", "--criterion", "loss", "--methods", "fedavg", "--rounds", "3", "--seeds", "2")
    done = fedpd(*command, "--out", "a", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "by loss at the end" in " ".join(done.stdout.split())
    assert "never" not in done.stdout.partition("x rule:")[0]
    assert "seeds = [0, 1]" in (tmp_path / "a" / "experiment.toml").read_text()
    assert (tmp_path / "a" / "sensitivity.png").exists()
