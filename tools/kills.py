"""Kill runs at random moments, resume them, and compare the results with those of a run that was never killed.

    python tools/kills.py --kills 200

One experiment has every method that fedpd knows. It is killed with SIGKILL after a random time and resumed, again and
again, until it is finished; then it starts anew. All histories and model files must be the same, bit for bit.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fedpd.algorithms import variants
from fedpd.experiments.calls import table_of, toml_text

HEAD = """[problem]
name = "random_quadratic"
agents = 5
dimension = 3

[run]
rounds = 400
checkpoint_every = 20
{run}
"""
SETTINGS = ("", "participation = 0.4", "seeds = [0, 1]")


def experiment(run: str) -> str:
    """Return an experiment file with every method, or, with participation, with those that allow it."""
    tables = []
    for label, variant in variants().items():
        algorithm = variant.rule(2.0, 5, 1.0)
        mixes = any(not callable(exchange.aggregate) for exchange in algorithm.exchanges)
        if "participation" in run and (mixes or (algorithm.away.everyone and algorithm.away.partial is None)):
            continue
        tables.append(f"[[algorithm]]\n{toml_text({'label': label} | table_of(algorithm.spec))}\n")
    return HEAD.format(run=run) + "\n".join(tables)


def fedpd(*arguments: object) -> subprocess.Popen[str]:
    """Start a command."""
    command = [sys.executable, "-m", "fedpd", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a command, and end with its message if it fails."""
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"The command ended with code {process.returncode}: {errors}")


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that must be the same bit for bit."""
    files = [folder / "history.parquet", *sorted((folder / "models").iterdir())]
    return {path.name: path.read_bytes() for path in files}


def killed(folder: Path, file: Path, longest: float) -> int:
    """Run an experiment, kill it at random moments and resume it until it is finished; return the number of kills."""
    kills, process = 0, fedpd("run", file, "--out", folder)
    while True:
        try:
            process.wait(random.uniform(0.5, longest))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            begun = (folder / ".fedpd-run").exists() and (folder / "experiment.toml").exists()
            if not begun:
                shutil.rmtree(folder, ignore_errors=True)
            process = fedpd("resume", folder) if begun else fedpd("run", file, "--out", folder)
        else:
            finish(process)
            return kills


def main() -> None:
    """Kill until there are enough kills."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--longest", type=float, default=8.0, help="the longest time until a kill, in seconds")
    chosen = arguments.parse_args()
    random.seed(chosen.seed)
    kills, runs = 0, 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for i, run in enumerate(SETTINGS):
            (place / f"{i}.toml").write_text(experiment(run))
            finish(fedpd("run", place / f"{i}.toml", "--out", place / f"whole-{i}"))
        while kills < chosen.kills:
            i = runs % len(SETTINGS)
            folder = place / f"killed-{runs}"
            kills, runs = kills + killed(folder, place / f"{i}.toml", chosen.longest), runs + 1
            if results(folder) != results(place / f"whole-{i}"):
                sys.exit(f"Run {runs} ({SETTINGS[i] or 'all agents'}) differs from the one that was not killed.")
            print(f"{kills} kills in {runs} runs: all histories and models are the same", flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
