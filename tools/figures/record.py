"""Measure what the figures show and cannot be measured in seconds, and write it to docs/figures.

python -m tools.figures.record paths                    the path of every method on a problem with two parameters
python -m tools.figures.record demo runs/demo           the curves of a run folder, here those of make demo
python -m tools.figures.record items runs/reproduce     the curves and titles of the items of fedpd reproduce
"""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from tools.figures import recorded
from tools.figures.svg import SETTINGS, save

from fedpd import TheoryWarning, problems, simulate
from fedpd.algorithms import variants
from fedpd.core import Algorithm, Problem
from fedpd.engine.views.entries import Entry
from fedpd.experiments.recorded import read
from fedpd.experiments.runner import Result
from fedpd.report.pages import thinned
from fedpd.reproduce import command
from fedpd.reproduce.command import ITEMS
from fedpd.reproduce.figure_2 import published
from fedpd.reproduce.session import Session

FOLDER = recorded.FOLDER
ROUNDS = 150
MINIMA = np.array([[1.5, -1.8], [-2.0, -1.9], [-1.7, 2.1]])  # of the three agents
ANGLES = (2.1, 1.5, 1.5)  # of their long axes
CURVATURES = (1.0, 0.12)  # across and along the long axis
START = np.array([2.0, 1.9])


def three_agents() -> Problem:
    """Return the sum of three quadratics with two parameters, whose minima lie apart and whose Hessians differ."""
    turns = np.array([[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in ANGLES])
    hessians = turns @ np.diag(CURVATURES[::-1]) @ turns.transpose(0, 2, 1)
    return problems.quadratic(hessians, np.einsum("nij,nj->ni", hessians, MINIMA), start=START)


def path(algorithm: Algorithm, rounds: int = ROUNDS) -> dict[str, list[Any]]:
    """Return the server's model and the communications of every round."""
    seen: dict[int, list[float]] = {}

    def look(r: int, model: Any, _: Any) -> None:
        seen[r] = _short(np.asarray(model))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TheoryWarning)  # pictures show what happens, whatever a theorem covers
        run = simulate(algorithm, three_agents(), rounds=rounds, callback=look, progress=False)
    seen[0] = START.tolist()
    kept = thinned(len(run.history["round"]), 60)
    return {
        "model": [seen[r] for r in kept],
        "communications": run.history["communications"][kept].tolist(),
        "stationarity": _short(run.history["stationarity"][kept]),
    }


def _short(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Return numbers with few digits, as integers if they are; None if they are not finite."""
    numbers = [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
    return [number if number is None or number % 1 else int(number) for number in numbers]


def record_paths() -> dict[str, Any]:
    """Return the paths of all methods, by label, each with the settings of its own rule for L = 1 and N = 3."""
    found = {}
    for label, variant in variants().items():
        print(label, flush=True)
        found[label] = path(variant.rule(1.0, len(MINIMA), 1.0))
    return found


def record_curves(folder: str) -> dict[str, Any]:
    """Return the curves of a run folder, by label, thinned to what a figure can show."""
    return {entry.label: curve(entry, ("stationarity",), 240) for entry in read(Path(folder)).entries}


def curve(one: Entry | Result, quantities: Sequence[str], points: int, also: Sequence[int] = ()) -> dict[str, Any]:
    """Return the curve of a method: a list per column, or one per seed where the seeds differ.

    Args:
        one: The method and its runs.
        quantities: The columns beside rounds, communications and samples.
        points: The most points.
        also: Numbers of communications whose last rows are kept as well.
    """
    histories = [run.history for run in one.runs]
    kept = set(thinned(min(len(history["round"]) for history in histories), points).tolist())
    for history in histories:
        rows = (np.flatnonzero(history["communications"] == number) for number in also)
        kept |= {int(row[-1]) for row in rows if len(row)}
    found: dict[str, Any] = {}
    for name in ("round", "communications", "samples", *quantities):
        seeds = [_short(history[name][sorted(kept)], 4) for history in histories]
        found[name] = seeds if any(values != seeds[0] for values in seeds) else seeds[0]
    ends = [run.diverged.round for run in one.runs if run.diverged is not None]
    return found | ({"diverged": max(ends)} if ends else {})


def record_items(folder: str) -> None:
    """Record the items of the paper that were run in this folder.

    The curves of items that take minutes go to docs/figures, with their titles. Other items are drawn at once.
    """
    titles = recorded.read("titles")
    for done in command.load(Path(folder)):
        with matplotlib.rc_context(SETTINGS):
            findings = ITEMS[done.name].run(Session(Path(folder), lambda *_: None))
        item = recorded.ITEMS.get(done.name)
        if item is None and findings.figure is not None:
            save(findings.figure, FOLDER.parent / "images" / "reproduction" / done.name)
        if item is not None and findings.figure is not None:
            titles[done.name] = " ".join(findings.figure.get_suptitle().split())
            also = sorted({n for one in published(item.file).values() for n in one.at}) if "2" in item.file else []
            write(item.file, {one.label: curve(one, item.quantities, 90, also) for one in findings.shown})
    write("titles", titles)


def write(name: str, lines: Mapping[str, Any]) -> None:
    """Write docs/figures/NAME.json, one line per key."""
    rows = (f"{json.dumps(key)}: {json.dumps(row, separators=(',', ':'))}" for key, row in lines.items())
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def main(name: str, *folder: str) -> None:
    """Record what the name says, as at the top of this file."""
    if name == "items":
        record_items(*folder)
    else:
        write(name, record_curves(*folder) if folder else record_paths())


if __name__ == "__main__":
    main(*sys.argv[1:])
