"""Five typical tasks, as a newcomer would write them: they run, and they stay short."""

import ast
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpd

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# Statements of each task: those that a user writes, without the pictures that one of them makes up.
STATEMENTS = {"hospitals.py": 8, "images_by_client.py": 16, "long_run.py": 6, "paper_figure.py": 7}


def run(name: str, folder: Path) -> str:
    """Run an example in a folder of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", EXAMPLES / name], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "most"), STATEMENTS.items())
def test_a_task_is_short(name: str, most: int) -> None:
    tree = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
    made_up = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - 1  # the docstring
    assert statements - sum(isinstance(inner, ast.stmt) for node in made_up for inner in ast.walk(node)) <= most


def test_logistic_regression_on_a_csv_with_a_column_for_the_hospital(tmp_path: Path) -> None:
    printed = run("hospitals.py", tmp_path)
    assert "agents   5" in printed
    assert float(printed.split("stationarity ")[1].split(",")[0]) <= 1e-10
    assert (tmp_path / "hospitals.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_small_network_on_images_by_client(tmp_path: Path) -> None:
    assert float(run("images_by_client.py", tmp_path).split("test accuracy ")[1].strip(" %\n")) > 85
    assert (tmp_path / "images.png").exists()


def test_a_figure_for_a_paper_from_three_seeds(tmp_path: Path) -> None:
    run("paper_figure.py", tmp_path)
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_a_script_is_interrupted_and_resumed(tmp_path: Path) -> None:
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C
    command = [sys.executable, str(EXAMPLES / "long_run.py")]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, ignored)
    folder, began = tmp_path / "runs/long", time.monotonic()
    while not list(folder.glob("*.safetensors")) and time.monotonic() - began < 120:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    resumed = run("long_run.py", tmp_path)
    assert "2,000 rounds" in resumed
    (tmp_path / "whole").mkdir()
    assert _numbers(run("long_run.py", tmp_path / "whole")) == _numbers(resumed)


def _numbers(printed: str) -> str:
    return printed.split("stationarity")[1]


@pytest.mark.slow
def test_a_loop_over_step_sizes_in_a_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = nbformat.reads((EXAMPLES / "step_sizes.ipynb").read_text(encoding="utf-8"), as_version=4)
    assert sum(len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code") <= 12
    client(notebook, timeout=300, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    data: list[dict[str, Any]] = [output["data"] for output in shown if "data" in output]
    assert any("image/png" in one for one in data)  # the figure
    assert any("<table" in str(one.get("text/html", "")) for one in data)  # the run


def test_the_notebook_holds_no_outputs() -> None:
    cells = json.loads((EXAMPLES / "step_sizes.ipynb").read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_a_saved_run_gives_its_model(tmp_path: Path) -> None:
    problem = fedpd.problems.opposing_quadratics()
    method = fedpd.algorithms.fedpd(eta=0.2, oracle=fedpd.oracles.gd(0.1, 5))
    saved = fedpd.simulate(method, problem, rounds=10)
    saved.save(tmp_path / "run")
    np.testing.assert_array_equal(fedpd.load_model(tmp_path / "run"), saved.model)
