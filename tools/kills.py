"""Kill runs at random moments, resume them, and compare the results with those of runs that were never killed.

    python tools/kills.py --kills 200

Every method runs with all agents, and random ones of those that allow it run in each other setting, a few methods per
experiment. An experiment is killed with SIGKILL, half of the time after a random time and half of the time while it
writes a random one of its files, and resumed until it is finished. All histories and model files must be the same, bit
for bit. Each start is a fork of this process, which has imported everything but started no computation, and then runs
the command line as `python -m fedpd` does.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

# Compilation is quick, and compiled programs are kept, so that a resumed run soon computes again.
os.environ |= {
    "FEDPD_CACHE": tempfile.mkdtemp(),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
}

from fedpd.__main__ import run as command_line
from fedpd.algorithms import variants
from fedpd.base.errors import FedpdError
from fedpd.cli import execution  # noqa: F401 (imported before the first fork, like the figures)
from fedpd.experiments import experiment, runner
from fedpd.experiments.calls import table_of, toml_text
from fedpd.report import figures  # noqa: F401

HEAD = """[problem]
name = "random_quadratic"
agents = 5
dimension = 3

[run]
rounds = 120
checkpoint_every = 10
"""
LAST = "round-000000120.safetensors"
CLOCK = 'clock = { up = "1 MB/s", down = "1 MB/s", compute = { median = "20 ms", sigma = 1.0 } }'
TOGETHER = 3  # methods per experiment
CHOSEN = 12  # methods of a setting, but all with all agents
ALL = "all agents"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    ALL: ("", {}),
    "participation": ("participation = 0.4", {}),
    "two seeds": ("seeds = [0, 1]", {}),
    "cohort on disk": ('cohort = 2\nstore = "state"', {}),
    "stragglers, few metrics": ("stragglers = 0.3\nmetrics_every = 3", {}),
    "compressed": ("", {"up": [{"name": "top_k", "share": 0.5}, {"name": "quantize", "bits": 4}]}),
    "median": ("", {"mean": {"name": "median"}}),
    "deadline": (f'deadline = "150 ms"\n{CLOCK}', {}),
    "asynchronous": (f"buffer = 2\n{CLOCK}", {}),
}


class Case(NamedTuple):
    """An experiment file, its setting, and the time that it takes if nothing kills it."""

    setting: str
    file: Path
    seconds: float = 0.0


def tables(setting: str) -> list[str]:
    """Return the tables of all methods, or of CHOSEN random ones of those that fedpd accepts in a setting."""
    run, more = SETTINGS[setting]
    labels = list(variants())
    random.shuffle(labels)
    found: list[str] = []
    for label in labels:
        table = {"label": label} | table_of(variants()[label].rule(2.0, 5, 1.0).spec) | more
        text = f"[[algorithm]]\n{toml_text(table)}\n"
        if setting == ALL or (len(found) < CHOSEN and is_accepted(f"{HEAD}{run}\n\n{text}")):
            found.append(text)
    return found


def is_accepted(text: str) -> bool:
    """Return whether fedpd would run an experiment."""
    try:
        runner.check(experiment.parse(text))
    except FedpdError:
        return False
    return True


def write_experiments(place: Path) -> None:
    """Write the experiment files of all settings, and say how many methods each setting has."""
    for setting, (run, _) in SETTINGS.items():
        found = tables(setting)
        print(f"{setting}: {len(found)} methods", flush=True)
        for first in range(0, len(found), TOGETHER):
            text = f"{HEAD}{run}\n\n" + "\n".join(found[first : first + TOGETHER])
            (place / f"{setting}-{first}.toml").write_text(text)


def start(place: Path, *arguments: object) -> int:
    """Fork a process that runs a command in a folder, and return its number. Its output is in the file `log`."""
    process = os.fork()
    if process:
        return process
    os.chdir(place)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["fedpd", *map(str, arguments)]
    code = 0
    try:
        command_line() if arguments else write_experiments(place)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def has_ended(process: int, place: Path, wait: bool = False) -> bool:
    """Return whether a command has ended; its message ends the program if it failed."""
    found, status = os.waitpid(process, 0 if wait else os.WNOHANG)
    if found and status and os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        sys.exit(f"The command failed ({os.waitstatus_to_exitcode(status)}): {(place / 'log').read_text()}")
    return bool(found)


def names(folder: Path) -> set[str]:
    """Return the names of all files of a folder."""
    return {name for _, _, files in os.walk(folder) for name in files}


def is_finished(folder: Path, reference: Path) -> bool:
    """Return whether a run has all its results, as far as their sizes tell; only its figures may be missing."""
    files = [reference / "history.parquet", *(reference / "models").iterdir()]
    mine = [folder / path.relative_to(reference) for path in files]
    return all(path.exists() for path in mine) and mine[0].stat().st_size == files[0].stat().st_size


def wait_for_moment(process: int, place: Path, folder: Path, case: Case) -> bool:
    """Wait until a random moment, and return whether the process still runs."""
    end, writes, seen = time.monotonic() + random.uniform(0, case.seconds / 3), 0, names(folder)
    finished = False
    if random.random() < 0.5:
        end, writes = time.monotonic() + 10 * case.seconds, random.randint(1, 30)
    while time.monotonic() < end:
        if has_ended(process, place):
            return False
        if not finished and is_finished(folder, place / case.file.stem):  # it still draws
            finished, end = True, time.monotonic() + random.uniform(0, 1)
        if writes:
            new = names(folder) - seen
            seen |= new
            writes -= len(new)
            if writes <= 0:
                break
        time.sleep(0.0005)
    return not has_ended(process, place)


def phase(folder: Path, reference: Path) -> str:
    """Return in which phase a run was killed, as its folder shows it."""
    found = names(folder)
    if any(name.endswith(".tmp") for name in found):
        return "while it wrote a file"
    if is_finished(folder, reference):
        return "after the last method"
    if not any(name.startswith("round-") for name in found):
        return "before the first checkpoint"
    unfinished = [one for one in (folder / "checkpoints").iterdir() if not (one / LAST).exists()]
    return "in the rounds of a method" if unfinished else "between methods"


def results(folder: Path) -> dict[str, bytes]:
    """Return the files that must be the same bit for bit."""
    files = [folder / "history.parquet", *sorted((folder / "models").iterdir())]
    return {path.name: path.read_bytes() for path in files}


def killed(place: Path, folder: Path, case: Case) -> Counter[str]:
    """Run an experiment, kill it at random moments and resume it until it has its results; return kills by phase."""
    kills: Counter[str] = Counter()
    reference = place / case.file.stem
    while True:
        begun = (folder / ".fedpd-run").exists() and (folder / "experiment.toml").exists()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        command = ("resume", folder) if begun else ("run", case.file, "--out", folder)
        process = start(place, *command)
        if not wait_for_moment(process, place, folder, case):
            return kills
        os.kill(process, signal.SIGKILL)
        has_ended(process, place, wait=True)
        kills[phase(folder, reference)] += 1
        if is_finished(folder, reference):
            return kills


def whole(place: Path, file: Path) -> Case:
    """Run an experiment without a kill, and return it with its time."""
    begin = time.monotonic()
    has_ended(start(place, "run", file, "--out", place / file.stem), place, wait=True)
    return Case(file.stem.rpartition("-")[0], file, time.monotonic() - begin)


def main() -> None:
    """Kill until there are enough kills, and every experiment was killed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()
    random.seed(chosen.seed)
    kills: Counter[str] = Counter()
    place = Path(tempfile.mkdtemp())
    has_ended(start(place), place, wait=True)
    print((place / "log").read_text(), flush=True)
    cases: list[Case] = []
    files = sorted(place.glob("*.toml"))
    random.shuffle(files)
    for number in count():
        if number < len(files):
            cases.append(whole(place, files[number]))
        elif kills.total() >= chosen.kills:
            break
        case, folder = cases[number % len(files)], place / "killed"
        kills += killed(place, folder, case)
        if results(folder) != results(place / case.file.stem):
            sys.exit(f"{folder} differs from {place / case.file.stem}, which was not killed.")
        shutil.rmtree(folder)
        seconds = f"{case.seconds:.1f} s without kills"
        print(f"{kills.total()} kills in {number + 1} runs ({case.setting}, {seconds}): {dict(kills)}", flush=True)
    shutil.rmtree(place)
    shutil.rmtree(os.environ["FEDPD_CACHE"])
    print("All histories and models are the same, bit for bit.")


if __name__ == "__main__":
    main()
