"""Time a 32-point grid of the logistic problem as one `fedpd.sweep` and as 32 `fedpd run` commands."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedpd
from fedpd import algorithms, data, oracles, problems, theory

ROUNDS, POINTS, TRIED = 100, 32, 3  # only some of the commands are run: all take about the same time
GOAL = 5.0

EXPERIMENT = """
[problem]
name = "penalized_logistic"
data = "strong"

[run]
rounds = {rounds}

[[algorithm]]
name = "fedpd"
eta = {eta}
p = {p}
oracle = {{ name = "gd", step = {step}, iterations = 8 }}
"""


class Times(NamedTuple):
    sweep: float  # seconds, compilation included
    commands: float  # seconds of one command, times the points


def measure() -> Times:
    problem = problems.penalized_logistic(*data.strongly_noniid(100, 400, 20))
    L = theory.smoothness(problem)
    grid = {"eta": list(np.geomspace(0.05, 2, 8) / L), "p": [0.0, 0.25, 0.5, 0.75]}

    def build(eta: float, p: float) -> fedpd.Algorithm:
        return algorithms.fedpd(eta=eta, p=p, oracle=oracles.gd(step=1 / (L + 1 / eta), iterations=8))

    began = time.perf_counter()
    swept = fedpd.sweep(build, problem, grid, rounds=ROUNDS, progress=False)
    sweep = time.perf_counter() - began
    points = [swept.points[i] for i in np.linspace(0, POINTS - 1, TRIED).astype(int)]
    with tempfile.TemporaryDirectory() as folder:
        seconds = [_command(Path(folder) / f"{i}.toml", L, **point) for i, point in enumerate(points)]
    return Times(sweep, POINTS * float(np.mean(seconds)))


def _command(path: Path, L: float, eta: float, p: float) -> float:
    path.write_text(EXPERIMENT.format(rounds=ROUNDS, eta=eta, p=p, step=1 / (L + 1 / eta)))
    command = [sys.executable, "-c", "from fedpd.cli import main; main()", "run", str(path), "--out", f"{path}.run"]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began
