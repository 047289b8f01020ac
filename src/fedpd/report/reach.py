"""What it cost to reach a target: the numbers behind the page's table, and the finding as a sentence."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpd.engine.run import Run
from fedpd.report.recorded import Entry, Recorded
from fedpd.report.tables import quantity as readable


class Quantity(NamedTuple):
    """Something that a run measures, and what is better."""

    words: str  # what an axis says
    symbol: str  # in a sentence
    more: bool = False  # whether more is better, a share; else less is


QUANTITIES = {
    "stationarity": Quantity("stationarity ‖∇f(x₀)‖², squared norm of the gradient", "‖∇f‖²"),
    "loss": Quantity("loss f(x₀), mean over the agents", "f"),
    "test_accuracy": Quantity("accuracy on all test samples", "test accuracy", more=True),
    "train_accuracy": Quantity("accuracy on all training samples", "training accuracy", more=True),
    "consensus": Quantity("consensus gap, largest distance between two agents' models", "consensus gap"),
    "heterogeneity": Quantity("heterogeneity δ = max‖∇fᵢ − ∇f‖ at x₀", "δ"),
}
COSTS = {
    "communications": "communications with the server",
    "samples": "sample gradients computed, all agents together",
    "bytes": "bytes sent and received, all agents together",
    "seconds": "seconds of wall time, compilation included",
}
USUAL = 1e-10  # the stationarity of interest, where a run gets there


class Reached(NamedTuple):
    """How a method met a target. `costs` by name as (mean, least, most) over the seeds; None unless all reached it."""

    seeds: int  # that reached it
    costs: dict[str, tuple[float, float, float]] | None
    best: float  # the best value of the seed whose best is the worst; NaN where nothing is finite
    at: float  # communications when that was


def cost_columns(run: Recorded | Run) -> dict[str, np.ndarray]:
    history = run.history
    moved = history["bytes_up"] + history["bytes_down"]
    return {
        "communications": history["communications"],
        "samples": history["samples"],
        "bytes": moved,
        "seconds": run.elapsed,
    }


def shared_quantities(entries: Sequence[Entry]) -> list[str]:
    """The quantities that all the runs have measured."""
    return [name for name in QUANTITIES if all(name in run.history for entry in entries for run in entry.runs)]


def known_costs(entries: Sequence[Entry]) -> list[str]:
    """All costs, without the seconds where no run has recorded them."""
    timed = any(np.isfinite(run.elapsed).any() for entry in entries for run in entry.runs)
    return [name for name in COSTS if timed or name != "seconds"]


def reach(entry: Entry, quantity: str, target: float) -> Reached:
    more = QUANTITIES[quantity].more
    rows, bests = [], []
    for run in entry.runs:
        column = run.history[quantity]
        met = np.flatnonzero(np.isfinite(column) & (column >= target if more else column <= target))
        if len(met):
            rows.append((run, met[0]))
        finite = np.where(np.isfinite(column), column, -np.inf if more else np.inf)
        row = int(np.argmax(finite) if more else np.argmin(finite))
        bests.append((finite[row], float(run.history["communications"][row])))
    best, at = min(bests) if more else max(bests)
    if len(rows) < len(entry.runs):
        return Reached(len(rows), None, float(best) if np.isfinite(best) else float("nan"), at)
    each = [{name: float(column[row]) for name, column in cost_columns(run).items()} for run, row in rows]
    columns = {name: np.array([costs[name] for costs in each]) for name in COSTS}
    costs = {name: (float(c.mean()), float(c.min()), float(c.max())) for name, c in columns.items()}
    return Reached(len(rows), costs, float(best), at)


def targets(entries: Sequence[Entry], quantity: str, also: float | None = None) -> list[float]:
    """Round numbers from what all start with to the best of all, the easiest first, and `also`."""
    more = QUANTITIES[quantity].more
    starts = np.array([run.history[quantity][0] for entry in entries for run in entry.runs])
    bests = np.array([reach(entry, quantity, np.nan).best for entry in entries])
    starts, bests = starts[np.isfinite(starts)], bests[np.isfinite(bests)]
    low, high = _ends(starts, bests, more)
    numbers = _equal_steps(low, high) if more or low <= 0 or high <= 10 * low else _decades(low, high)
    chosen = set(numbers) | ({also} if also is not None else set())
    return sorted(chosen, reverse=not more) or [high]


def _ends(starts: np.ndarray, bests: np.ndarray, more: bool) -> tuple[float, float]:
    everything = np.concatenate([starts, bests]) if len(starts) + len(bests) else np.zeros(1)
    low, high = float(everything.min()), float(everything.max())
    if not more and high > 0:
        low = max(low, 1e-30) if low >= 0 else low  # below it nothing is left of float64
    return low, high


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    numbers = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [number for number in numbers if low <= number <= high]


def _equal_steps(low: float, high: float) -> list[float]:
    """Up to 100 multiples of a round step."""
    spread = (high - low) or abs(high) or 1.0
    power = int(np.floor(np.log10(spread / 100)))
    step = next(size for size in (float(f"{digit}e{power}") for digit in (1, 2, 5, 10)) if size >= spread / 100)
    first = int(np.ceil(low / step - 1e-9))
    numbers = [float(f"{step * (first + i):.12g}") for i in range(int((high - low) / step) + 1)]
    return [number for number in numbers if low <= number <= high]


def usual_target(entries: Sequence[Entry], quantity: str, offered: Sequence[float]) -> float:
    """1e-10 where it is reached; else the hardest target that a method reached with all seeds."""
    reached = [target for target in offered if any(reach(entry, quantity, target).costs for entry in entries)]
    if quantity == "stationarity" and USUAL in reached:
        return USUAL
    return reached[-1] if reached else offered[0]


def goal(quantity: str, target: float) -> str:
    """ "‖∇f‖² ≤ 1e-10"."""
    about = QUANTITIES[quantity]
    return f"{about.symbol} {'≥' if about.more else '≤'} {value_words(quantity, target, 12)}"


def value_words(quantity: str, value: float, digits: int = 3) -> str:
    return f"{100 * value:.{digits}g}%" if QUANTITIES[quantity].more else f"{value:.{digits}g}"


def finding(entries: Sequence[Entry], quantity: str, target: float) -> str:
    """Which method reached the target with the fewest communications, by what factor, and which did not reach it."""
    found = [(entry.label, reach(entry, quantity, target)) for entry in entries]
    ranked = sorted((r.costs["communications"][0], label) for label, r in found if r.costs is not None)
    missed = [label for label, r in found if r.costs is None]
    what = goal(quantity, target)
    if not ranked:
        return _closest(found, quantity, what)
    fewest, last = ranked[0][0], ranked[-1]
    winners = [label for number, label in ranked if number == fewest]
    others = ranked[len(winners) :]
    sentence = f"{_listed(winners)} reached {what} with {_communications(fewest)}"
    if others:
        sentence += f", the fewest: {others[0][1]}, the next, took {_factor(others[0][0], fewest)}"
        sentence += f", and {last[1]}, the last, {_factor(last[0], fewest)}" if len(others) > 1 else ""
    if missed:
        who = _listed(missed) if len(missed) <= 3 else f"{len(missed)} of {len(entries)} methods"
        sentence += f"; {who} did not reach it"
    return sentence + "."


def _closest(found: Sequence[tuple[str, Reached]], quantity: str, what: str) -> str:
    known = [(r.best, r.at, label) for label, r in found if np.isfinite(r.best)]
    nobody = f"{found[0][0]} did not reach {what}" if len(found) == 1 else f"No method reached {what}"
    if not known:
        return f"{nobody}: nothing finite was measured."
    best, at, label = max(known) if QUANTITIES[quantity].more else min(known)
    who = "it came as close as" if len(found) == 1 else f"{label} came closest,"
    return f"{nobody}; {who} {value_words(quantity, best)}, after {_communications(at)}."


def _communications(number: float) -> str:
    shown = f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:.1f}"  # a mean over seeds
    return f"{shown} communication" + ("" if number == 1 else "s")


def _factor(number: float, fewest: float) -> str:
    if not fewest:
        return readable(number)
    ratio = number / fewest
    return f"{ratio:.3g} times as many" if ratio < 100 else f"{ratio:,.0f} times as many"


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
