"""The examples run as they are, and say what they should."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedpd.experiments import experiment, run_folder, runner

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def output(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def number(after: str, printed: str) -> float:
    return float(re.findall(f"{after}([0-9.e+-]+)", printed)[0])


def test_own_loss(capsys: pytest.CaptureFixture[str]) -> None:
    fedpd, fedavg = output("own_loss.py", capsys).splitlines()
    assert number("stationarity ", fedpd) < 1e-20
    assert number("stationarity ", fedavg) > 1e-3  # it stops where the agents' own answers average out


@pytest.mark.slow
def test_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    printed = output("own_network.py", capsys)
    assert number("round 10  test accuracy ", printed) > 0.9
    assert printed.count("normalises by the means") == 4


@pytest.mark.slow
def test_own_equinox(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("equinox")
    assert number("round 40  test accuracy ", output("own_equinox.py", capsys)) > 0.9


@pytest.mark.slow
def test_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    texts, table = output("own_data.py", capsys).splitlines()
    assert texts.startswith("texts: 3 agents, 495 samples")
    assert number("-> ", texts) > 0.5
    assert number("-> ", table) > 0.9


def test_own_federation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setenv("FEDPD_STATE", "")  # put back afterwards
    printed = output("own_federation.py", capsys)
    assert number("stationarity ", printed) < 1e-3
    assert number("a simulation ", printed) < 1e-9


@pytest.mark.slow
def test_sensors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sensors.py"])
    sensors, shared, tuned, ditto = output("sensors.py", capsys).splitlines()
    assert sensors.startswith("23 sensors")
    assert number("error ", tuned) < number("error ", shared)
    assert number("error ", ditto) < number("error ", shared)
    assert ditto.endswith("100% gain")


def test_own_code(tmp_path: Path) -> None:
    """An experiment file that names the module beside it: a loader, a loss and a method."""
    said: list[str] = []
    plan = experiment.load(EXAMPLES / "own_code.toml", said.append)
    assert said == [f"Running code of own_code ({EXAMPLES / 'own_code.py'}), which the experiment file names."]
    run_folder.create(tmp_path / "run", plan.text, beside=plan.beside)
    own, fedpd = runner.run(plan, tmp_path / "run", lambda event: None)
    assert own.runs[0].history["stationarity"][-1] < 1e-2
    assert fedpd.runs[0].history["stationarity"][-1] < 1e-5
    again = runner.open_folder(tmp_path / "run")
    assert again.problem.sizes.tolist() == [20, 30, 40, 50]


@pytest.mark.slow
def test_torch_by_writer(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    printed = output("torch_by_writer.py", capsys)
    assert number("round 10  test accuracy ", printed) > 0.8
    assert number("trained module: ", printed) == number("round 10  test accuracy ", printed)


@pytest.mark.slow  # four programs of a transformer to compile
def test_lora_by_speaker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setenv("FEDPD_STATE", "")  # put back afterwards
    _, fedavg, fedpd, _, flower = output("lora_by_speaker.py", capsys).splitlines()
    assert number("-> ", fedpd) > number("-> ", fedavg) - 0.02
    assert number("accuracy ", flower) == number("-> ", fedpd)
    assert number("at most ", flower) < 1e-5


PROJECTS = {  # what each needs beside fedpd[torch], and the best number in its last line
    "own_loop_pytorch": ((), lambda last: number("test accuracy ", last) > 0.85),
    "own_loop_scipy": ((), lambda last: number("fit of all data ", last) < 0.1),
    "own_loop_lightning": (("lightning",), lambda last: number("test accuracy ", last) > 0.8),
    "own_loop_nvflare": (("nvflare",), lambda last: number("test accuracy ", last) > 0.8),
    "own_loop_trainer_lora": (("transformers", "peft", "accelerate"), lambda last: number("mean loss ", last) < 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_runs_by_its_readme(name: str, tmp_path: Path) -> None:
    needed, is_good = PROJECTS[name]
    for package in ("torch", "sklearn", *needed):
        pytest.importorskip(package)
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    commands = [line.split() for line in (folder / "README.md").read_text().splitlines() if line.startswith("    p")]
    assert commands[0] == ["pip", "install", "-r", "requirements.txt"]
    assert (folder / "requirements.txt").exists()
    assert commands[1][0] == "python"
    found = subprocess.run([sys.executable, *commands[1][1:]], cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert is_good(found.stdout.splitlines()[-1]), found.stdout
