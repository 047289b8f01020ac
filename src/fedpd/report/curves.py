"""The runs as the page's script gets them: curves with their bands, and the costs to every target of the slider."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpd.report.reach import (
    COSTS,
    QUANTITIES,
    cost_columns,
    finding,
    goal,
    known_costs,
    reach,
    shared_quantities,
    targets,
    usual_target,
    value_words,
)
from fedpd.report.recorded import Entry

POINTS = 400  # of a curve; more cannot be told apart on a screen. Costs are found from all rows
ENTRIES = 10  # beyond this many curves, each gets fewer points

Numbers = list[float | None]


def page_data(entries: Sequence[Entry], target: float | None = None) -> dict[str, Any]:
    """Everything that the page's script needs, of plain numbers and texts; what is not finite is None."""
    names, costs = shared_quantities(entries), known_costs(entries)
    offered = {name: targets(entries, name, target if name == names[0] else None) for name in names}
    return {
        "quantities": [_quantity(entries, name, offered[name], target if name == names[0] else None) for name in names],
        "costs": [{"name": name, "words": COSTS[name]} for name in costs],
        "entries": [_entry(entry, offered, costs, len(entries)) for entry in entries],
    }


def _quantity(entries: Sequence[Entry], name: str, offered: Sequence[float], target: float | None) -> dict[str, Any]:
    chosen = usual_target(entries, name, offered) if target is None else target
    columns = [run.history[name] for entry in entries for run in entry.runs]
    return {
        "name": name,
        "words": QUANTITIES[name].words,
        "share": QUANTITIES[name].more,
        "log": not QUANTITIES[name].more and name != "loss",
        "positive": all((column[np.isfinite(column)] >= 0).all() for column in columns),
        "targets": list(offered),
        "goals": [goal(name, one) for one in offered],
        "chosen": list(offered).index(chosen),
        "findings": [finding(entries, name, one) for one in offered],
    }


def _entry(entry: Entry, offered: dict[str, list[float]], costs: list[str], entries: int) -> dict[str, Any]:
    rows = min(len(run.history["round"]) for run in entry.runs)
    kept = thinned(rows, POINTS if entries <= ENTRIES else POINTS // 2)
    columns = [cost_columns(run) for run in entry.runs]
    x = {name: _finite(np.mean([column[name][:rows] for column in columns], axis=0)[kept]) for name in costs}
    return {
        "label": entry.label,
        "seeds": len(entry.runs),
        "round": entry.runs[0].history["round"][:rows][kept].tolist(),
        "x": x,
        "y": {name: _band(entry, name, rows, kept) for name in offered},
        "reached": {name: [_cells(entry, name, target, costs) for target in offered[name]] for name in offered},
    }


def thinned(rows: int, points: int) -> np.ndarray:
    """Rows that draw a curve well on linear and on logarithmic axes: evenly spread ones and ever denser early ones."""
    if rows <= points:
        return np.arange(rows)
    even = np.linspace(0, rows - 1, points * 3 // 4)
    early = np.geomspace(1, rows - 1, points // 4)
    return np.unique(np.round(np.concatenate([even, early])).astype(int))


def _band(entry: Entry, name: str, rows: int, kept: np.ndarray) -> dict[str, Numbers]:
    """Mean over the seeds, geometric where the quantity spans decades, with the least and the most."""
    y = np.array([run.history[name][:rows][kept] for run in entry.runs], np.float64)
    if len(y) == 1:
        return {"mean": _finite(y[0])}
    with np.errstate(all="ignore"):  # a run may have diverged
        geometric = name == "stationarity" and (y > 0).all()
        mean = np.exp(np.log(y).mean(axis=0)) if geometric else y.mean(axis=0)
    return {"mean": _finite(mean), "low": _finite(y.min(axis=0)), "high": _finite(y.max(axis=0))}


def _cells(entry: Entry, name: str, target: float, costs: list[str]) -> dict[str, Any]:
    met = reach(entry, name, target)
    if met.costs is None:
        best = value_words(name, met.best) if np.isfinite(met.best) else "nothing finite"
        return {"seeds": met.seeds, "best": best}
    return {"costs": [_finite(np.array(met.costs[cost]), 12) for cost in costs]}  # rounded once, where they are shown


def _finite(numbers: np.ndarray, digits: int = 5) -> Numbers:
    """Some digits of each, more than a curve shows; None for what JSON has no word for."""
    return [float(f"{number:.{digits}g}") if np.isfinite(number) else None for number in numbers]
