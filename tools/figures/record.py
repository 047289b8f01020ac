"""Measure what the figures show and cannot be measured in seconds, and write it to docs/figures.

python -m tools.figures.record paths                the path of every method on a problem with two parameters
python -m tools.figures.record demo runs/demo       the curves of a run folder, here those of make demo
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from tools.figures.svg import SETTINGS, save

from fedpd import TheoryWarning, problems, simulate
from fedpd.algorithms import variants
from fedpd.core import Algorithm, Problem
from fedpd.experiments.recorded import read
from fedpd.report.curves import thinned
from fedpd.reproduce import command
from fedpd.reproduce.items import ITEMS
from fedpd.reproduce.session import Session

FOLDER = Path(__file__).parents[2] / "docs" / "figures"
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


def _short(values: np.ndarray) -> list[Any]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def record_paths() -> dict[str, Any]:
    """Return the paths of all methods, by label, each with the settings of its own rule for L = 1 and N = 3."""
    found = {}
    for label, variant in variants().items():
        print(label, flush=True)
        found[label] = path(variant.rule(1.0, len(MINIMA), 1.0))
    return found


def record_curves(folder: str) -> dict[str, Any]:
    """Return the curves of a run folder, by label, thinned to what a figure can show."""
    found = {}
    for entry in read(Path(folder)).entries:
        history = entry.runs[0].history
        kept = thinned(len(history["round"]), 240)
        names = ("round", "communications", "samples", "stationarity")
        found[entry.label] = {name: _short(history[name][kept]) for name in names}
    return found


def draw_items(folder: str) -> None:
    """Write the figures of all items of the paper that were run in this folder, for light and dark pages."""
    for done in command.load(Path(folder)):
        with matplotlib.rc_context(SETTINGS):
            figure = ITEMS[done.name].run(Session(Path(folder), lambda *_: None)).figure
            if figure is not None:
                save(figure, FOLDER.parent / "images" / "reproduction" / done.name)


def main(name: str, *folder: str) -> None:
    """Write docs/figures/NAME.json, one line per method; or the figures of "items"."""
    if name == "items":
        draw_items(*folder)
        return
    measured = record_curves(*folder) if folder else record_paths()
    lines = (f"{json.dumps(label)}: {json.dumps(rows, separators=(',', ':'))}" for label, rows in measured.items())
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
