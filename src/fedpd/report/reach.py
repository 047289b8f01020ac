"""Find the costs to reach a target, for tables, and the finding as a sentence."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedpd.engine.measure.columns import Column, column_of
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    Entry,
    cost_text,
    cost_values,
    goal,
    local_work,
    measured_rows,
    measured_values,
    reached_row,
    short_number,
    target_text,
    unequal_work,
)

COMMUNICATED = ("communications", "bytes")  # costs that do not count local work
USUAL = 1e-10  # the hardest stationarity that is chosen without being asked for


class Reached(NamedTuple):
    """The costs of a method to reach a target and to stay there."""

    seeds: int  # the number of seeds that reached it and stayed
    # mean, least and most over the seeds, by the names of `cost_values`; None unless all seeds reached it
    costs: dict[str, tuple[float, float, float]] | None
    best: float  # the best value of the seed whose best value is the worst; NaN if no value is finite
    at: float  # the communications of that seed at that value
    work: float = float("nan")  # the sample gradients of all agents per communication; see `local_work`
    # whether that value is better than the one at the start. It may be so before any communication
    improved: bool = False


def reach(entry: Entry, quantity: str, target: float) -> Reached:
    """Return the costs of a method until a quantity reached the target, and stayed there, with all seeds."""
    rows = [reached_row(run, quantity, target) for run in entry.runs]
    best, at, improved = _worst_best(entry, quantity)
    seeds = sum(row is not None for row in rows)
    if seeds < len(rows):
        return Reached(seeds, None, best, at, local_work(entry), improved)
    each = [cost_values(run) for run in entry.runs]
    spent = {name: [float(costs[name][row]) for costs, row in zip(each, rows, strict=True)] for name in each[0]}
    costs = {name: (float(np.mean(values)), min(values), max(values)) for name, values in spent.items()}
    return Reached(seeds, costs, best, at, local_work(entry), improved)


def best_text(found: Reached, quantity: str, target: float) -> str:
    """Return the best value of a method that did not reach the target, and whether it reached it but did not stay."""
    if not np.isfinite(found.best):
        return "nothing finite"
    touched = found.best >= target if _better(quantity) == "more" else found.best <= target
    return target_text(quantity, found.best) + (", not kept" if touched else "")


def _better(quantity: str) -> Literal["less", "more"]:
    return column_of(quantity).better or "less"


def _worst_best(entry: Entry, quantity: str) -> tuple[float, float, bool]:
    """Return the best value of the seed whose best value is the worst, its communications, and whether any improved."""
    more = _better(quantity) == "more"
    bests = []
    for run in entry.runs:
        column = run.history[quantity]
        finite = np.where(np.isfinite(column), column, -np.inf if more else np.inf)
        row = int(np.argmax(finite) if more else np.argmin(finite))
        first = measured_rows(run, quantity)[:1]  # a federation need not measure its start
        improved = bool(len(first) and row > first[0])  # argmin and argmax return the first of equal values
        bests.append((float(finite[row]), float(run.history["communications"][row]), improved))
    best, at, _ = min(bests) if more else max(bests)
    improved = any(one for _, _, one in bests)  # a seed that diverged at once says nothing about the others
    return (best if np.isfinite(best) else float("nan")), at, improved


def targets(entries: Sequence[Entry], quantity: str, also: float | None = None) -> list[float]:
    """Return round numbers from the start to the best value of all methods, the easiest first, and `also`."""
    more = _better(quantity) == "more"
    starts = [measured_values(run, quantity)[:1] for entry in entries for run in entry.runs]
    values = np.concatenate([*starts, [_worst_best(entry, quantity)[0] for entry in entries]])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if not more and high > 0 and low >= 0:
        low = max(low, 1e-30)  # smaller values are rounding errors of float64
    if more or low <= 0 or high <= 10 * low:
        numbers = _equal_steps(low, high)
    else:  # 1, 2 and 5 times the powers of ten
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        numbers = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    chosen = {number for number in numbers if low <= number <= high} | ({also} if also is not None else set())
    return sorted(chosen, reverse=not more) or [high]


def _equal_steps(low: float, high: float) -> list[float]:
    """Return up to 100 multiples of a round step from about `low` to about `high`."""
    spread = (high - low) or abs(high) or 1.0
    power = int(np.floor(np.log10(spread / 100)))
    step = next(size for size in (float(f"{digit}e{power}") for digit in (1, 2, 5, 10)) if size >= spread / 100)
    first = int(np.ceil(low / step - 1e-9))
    return [float(f"{step * (first + i):.12g}") for i in range(int((high - low) / step) + 1)]


def starts_at_best(entries: Sequence[Entry], quantity: str) -> bool:
    """Return whether no run ever improved on its start, as the consensus gap, which is 0 there."""
    return not any(_worst_best(entry, quantity)[2] for entry in entries) and quantity != MAIN


def departures(entries: Sequence[Entry], quantity: str) -> str:
    """Return the finding of a quantity that no run improved: how far the methods moved away from their start."""
    name, more = column_of(quantity).symbol or quantity, _better(quantity) == "more"

    def distance(values: np.ndarray) -> float:
        worse = (values[:1] - values if more else values - values[:1])[np.isfinite(values)]
        return float(worse.max()) if len(worse) else 0.0

    far = [(max(distance(measured_values(run, quantity)) for run in one.runs), one.label) for one in entries]
    stayed, (most, label) = sum(distance == 0 for distance, _ in far), max(far)
    if most == 0:
        return f"{name}: no method moves away from the value at the start."
    kept = f"{stayed} of {len(entries)} methods keep the value of the start; " if stayed else ""
    return f"{name}: {kept}{label} moves away from it the most, by {target_text(quantity, most)}."


def usual_target(entries: Sequence[Entry], quantity: str, offered: Sequence[float]) -> float:
    """Return the hardest target that at least half of the methods reached, and at least two of them.

    If there is none, it is the hardest that one method reached. A target that holds at the start compares nothing. For
    quantities on a logarithmic axis it is a power of ten, if one was reached, and for the stationarity at least 1e-10.
    """
    reached = {target: [reach(entry, quantity, target).costs for entry in entries] for target in offered}
    counts = {
        target: sum(costs is not None for costs in found)
        for target, found in reached.items()
        if any(costs is not None and costs["communications"][0] > 0 for costs in found)
        and not (quantity == MAIN and target < USUAL)
    }
    enough = min(len(entries), max(2, -(-len(entries) // 2)))
    for least in (enough, 2, 1):
        found = [target for target, number in counts.items() if number >= least]
        powers = [target for target in found if column_of(quantity).log and f"{target:.6e}".startswith("1.000000")]
        if found:
            return (powers or found)[-1]
    return offered[0]


def ranked(entries: Sequence[Entry], quantity: str, target: float) -> list[int]:
    """Return the numbers of the methods, the fewest communications to the target first, then the best values."""
    found = [reach(entry, quantity, target) for entry in entries]
    sign = -1 if _better(quantity) == "more" else 1

    def cost(i: int) -> tuple[bool, float]:
        spent, best = found[i].costs, sign * found[i].best
        return (False, spent["communications"][0]) if spent else (True, best if np.isfinite(best) else np.inf)

    return sorted(range(len(entries)), key=cost)


def examples(entries: Sequence[Entry], quantity: str, target: float) -> list[int]:
    """Return the numbers of up to five methods, spread evenly from the best to the worst that have a finite value."""
    order = [i for i in ranked(entries, quantity, target) if np.isfinite(reach(entries[i], quantity, target).best)]
    places = np.unique(np.linspace(0, len(order) - 1, min(5, len(order))).round().astype(int))
    return [order[place] for place in places]


def finding(entries: Sequence[Entry], quantity: str, target: float, cost: Column = COSTS["communications"]) -> str:
    """Return the finding as a sentence.

    It says which method reached the target at the lowest cost, by what factor, and which did not reach it. If the cost
    does not count local work, and the methods differ in it, the sentence begins with that.
    """
    return sentence([(entry.label, reach(entry, quantity, target)) for entry in entries], quantity, target, cost)


def sentence(found: Sequence[tuple[str, Reached]], quantity: str, target: float, cost: Column) -> str:
    """Return the finding from the costs of each method, by label; see `finding`."""
    unequal = unequal_work({label: r.work for label, r in found}) if cost.name in COMMUNICATED else ""
    said = _outcome(found, quantity, target, cost)
    return f"{unequal}: {said}" if unequal else said


def _outcome(found: Sequence[tuple[str, Reached]], quantity: str, target: float, cost: Column) -> str:
    spent = sorted((r.costs[cost.name][0], label) for label, r in found if r.costs is not None)
    missed = [label for label, r in found if r.costs is None]
    what = goal(quantity, target)
    if not spent:
        return _closest(found, quantity, what)
    if all(r.costs["communications"][0] == 0 for _, r in found if r.costs is not None):
        return _at_the_start(found, quantity, what)
    if not np.isfinite([number for number, _ in spent]).all():
        return f"{_listed([label for _, label in spent])} reached {what}; not all runs recorded their {cost.name}."
    fewest, last = spent[0][0], spent[-1]
    winners = [label for number, label in spent if number == fewest]
    others = spent[len(winners) :]
    said = f"{_listed(winners)} reached {what} {_spent(cost, fewest)}"
    if others:
        least = "least time" if cost.unit == "s" else "fewest"
        said += f", the {least}: {others[0][1]}, the next, took {_factor(others[0][0], fewest, cost)}"
        said += f", and {last[1]}, the last, {_factor(last[0], fewest, cost)}" if len(others) > 1 else ""
    if missed:
        who = _listed(missed) if len(missed) <= 3 else f"{len(missed)} of {len(found)} methods"
        said += f"; {who} did not reach it"
    return said + "."


def _closest(found: Sequence[tuple[str, Reached]], quantity: str, what: str) -> str:
    known = [(r.best, r.at, label) for label, r in found if np.isfinite(r.best)]
    nobody = f"{found[0][0]} did not reach {what}" if len(found) == 1 else f"No method reached {what}"
    if not known:
        return f"{nobody}: nothing finite was measured."
    best, at, label = max(known) if _better(quantity) == "more" else min(known)
    who = "it came as close as" if len(found) == 1 else f"{label} came closest,"
    return f"{nobody}; {who} {target_text(quantity, best)}, after {_communications(at)}."


def _at_the_start(found: Sequence[tuple[str, Reached]], quantity: str, what: str) -> str:
    """Return the finding if a target holds before the first communication, so that reaching it is no result."""
    better = [(r.best, r.at, label) for label, r in found if np.isfinite(r.best) and r.improved]
    if not better:
        whom = f"{found[0][0]} did not improve" if len(found) == 1 else "No method improved"
        return f"{whom} on the start, where {what} holds already."
    best, at, label = max(better) if _better(quantity) == "more" else min(better)
    closest = f"{label} came furthest: {target_text(quantity, best)}, after {_communications(at)}"
    return f"Every method starts at {what}, so this target compares nothing. {closest}."


def _communications(number: float) -> str:
    shown = f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:.1f}"  # a mean over seeds
    return f"{shown} communication" + ("" if number == 1 else "s")


def _spent(cost: Column, number: float) -> str:
    """Return a cost in words, such as "with 36 communications", "with 1.2 M sample gradients" or "in 4.5 s"."""
    if cost.name == "communications":
        return f"with {_communications(number)}"
    if cost.unit == "s":
        return f"in {cost_text(cost, number)}" + (" on your network" if cost.name not in COSTS else "")
    words = {"samples": " sample gradients", "bytes": " of messages"}[cost.name]
    return f"with {cost_text(cost, number)}{words}"


def _factor(number: float, fewest: float, cost: Column) -> str:
    if not fewest:
        return cost_text(cost, number) if cost.name != "communications" else short_number(number)
    ratio, word = number / fewest, "as long" if cost.unit == "s" else "as many"
    if ratio < 1.005:
        return f"hardly more{' time' if cost.unit == 's' else ''}"
    return f"{ratio:.3g} times {word}" if ratio < 100 else f"{ratio:,.0f} times {word}"


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
