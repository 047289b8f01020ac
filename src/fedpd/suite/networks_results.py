"""The results of `fedpd benchmark networks`: a page of tables, performance profiles, and the list of problems.

    python -m fedpd.suite.networks_results docs/figures/networks.json docs/networks/results.md

remakes the parts of a page between `<!-- networks: NAME BUDGET -->` and `<!-- end -->` from a file `results.json`.

FedPD-N delivers the running mean of the server's models, so on each problem and for each target it is compared with the
best rival, with the running mean or without, whichever is better.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from fedpd.engine.views.entries import WINDOW
from fedpd.report.tables import markdown_table, text_table
from fedpd.search.tuned import LAST
from fedpd.suite.networks import TASKS, Task
from fedpd.suite.networks_methods import FEDPD_N, REFERENCE, RIVALS, STEPS
from fedpd.suite.networks_runner import COSTS, SHARES, TUNING, Outcome
from fedpd.suite.networks_watch import HELD_OUT
from fedpd.suite.results import Written, draw_profiles

PART = re.compile(r"(<!-- networks: (\w+) (\d+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PERCENT = [f"{100 * share:.0f} %" for share in SHARES]
ALL = " and ".join([", ".join(one.removesuffix(" %") for one in PERCENT[:-1]), PERCENT[-1]])


def problems_of(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(one.problem for one in outcomes))


def costs_to_targets(outcomes: Sequence[Outcome], cost: str, budget: int) -> dict[str, np.ndarray]:
    """Return (problems, targets) what each method spent, by its name; infinite where it missed a target."""
    found: dict[str, list[list[float]]] = {}
    for one in outcomes:
        if one.budget == budget:
            found.setdefault(one.name, []).append(one.spent[cost])
    return {name: np.array(rows) for name, rows in found.items()}


def by_method(spent: Mapping[str, np.ndarray], mean: bool = True) -> dict[str, np.ndarray]:
    """Return the costs of each method, the less of those with and without the running mean; `mean` False: without."""
    found = {}
    for label in (FEDPD_N, *RIVALS):
        names = [label, *([f"{label} + mean"] if mean else [])]
        own = [spent[name] for name in names if name in spent]
        if own:
            found[label] = np.min(own, axis=0)
    return found


class Comparison(NamedTuple):
    """FedPD-N against the best rival on each problem, for one cost and one target.

    Attributes:
        ratio: The geometric mean of the ratios of their costs, over the problems where both kept the target.
        worst: The largest of these ratios.
        ahead: The number of problems on which FedPD-N spent no more.
        alone: The number on which only a rival kept the target.
        problems: The number on which FedPD-N or a rival did.
    """

    ratio: float
    worst: float
    ahead: int
    alone: int
    problems: int


def compare(spent: Mapping[str, np.ndarray], mean: bool) -> list[Comparison]:
    """Return the comparison for each target.

    Args:
        spent: (problems, targets) what each method spent, by its name.
        mean: Whether rivals may have the running mean.
    """
    methods = by_method(spent, mean)
    own = methods.pop(FEDPD_N)
    rival = np.min(list(methods.values()), axis=0)
    found = []
    for mine, other in zip(own.T, rival.T, strict=True):
        both, known = np.isfinite(mine) & np.isfinite(other), np.isfinite(mine) | np.isfinite(other)
        ratios = mine[both] / other[both]
        ratio, worst = (np.exp(np.log(ratios).mean()), ratios.max()) if both.any() else (np.nan, np.nan)
        ahead = int((known & (mine <= other)).sum())
        alone = int((known & ~np.isfinite(mine)).sum())
        found.append(Comparison(float(ratio), float(worst), ahead, alone, int(known.sum())))
    return found


def table_markdown(outcomes: Sequence[Outcome], budget: int) -> str:
    """Return a table with one row per method: communications to the targets, and the final accuracy."""
    own = [one for one in outcomes if one.budget == budget]
    problems = problems_of(own)
    cells: dict[str, dict[str, str]] = {}
    for one in own:
        counts = _counts(one.spent["communications"]).replace(" ", "")
        cells.setdefault(one.name, {})[one.problem] = f"{counts} {_accuracy(one.finals)}"
    order = sorted(cells, key=lambda name: name != FEDPD_N)
    rows = [(name, *(cells[name].get(problem, "") for problem in problems)) for name in order]
    return markdown_table(("method", *problems), rows)


def problems_markdown(outcomes: Sequence[Outcome], budget: int) -> str:
    """Return a table with one row per problem: FedPD-N, the best rival for each target, the most accurate, FedAvg."""
    own = [one for one in outcomes if one.budget == budget]
    rows = []
    for problem in problems_of(own):
        here = [one for one in own if one.problem == problem]
        mine = next(one for one in here if one.method == FEDPD_N)
        reference = next(one for one in here if one.method == REFERENCE and not one.mean)
        rivals = [one for one in here if one.method != FEDPD_N]
        best = np.min([one.spent["communications"] for one in rivals], axis=0).tolist()
        accurate = max(rivals, key=lambda one: float(np.mean(one.finals)))
        named = f"{_accuracy(accurate.finals)}, {accurate.name}"
        cells = _counts(mine.spent["communications"]), _counts(best), _counts(reference.spent["communications"])
        rows.append((problem, *cells, _accuracy(mine.finals), named, _accuracy(reference.finals)))
    counts = [f"{name}, communications" for name in (FEDPD_N, "best rival", REFERENCE)]
    return markdown_table(("problem", *counts, f"{FEDPD_N}, accuracy", "best rival", REFERENCE), rows)


def _counts(spent: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" if np.isfinite(value) else "-" for value in spent)


def rivals_markdown(outcomes: Sequence[Outcome], budget: int) -> str:
    """Return a table with one row per rival: FedPD-N's communications over its, and the difference in accuracy."""
    own = [one for one in outcomes if one.budget == budget]
    spent = by_method(costs_to_targets(own, "communications", budget))
    problems, rows = problems_of(own), []
    finals = {(one.method, one.mean, one.problem): float(np.mean(one.finals)) for one in own}
    for label in spent:
        if label == FEDPD_N:
            continue
        found = compare({FEDPD_N: spent[FEDPD_N], label: spent[label]}, True)
        more = [
            finals[FEDPD_N, True, name] - max(finals[label, mean, name] for mean in (False, True)) for name in problems
        ]
        rows.append((label, *(_told(one) for one in found), f"{np.mean(more):+.3f}, worst {min(more):+.3f}"))
    return markdown_table(("rival", *PERCENT, "accuracy"), rows)


def _accuracy(finals: Sequence[float]) -> str:
    spread = f" ± {_short(float(np.std(finals, ddof=1)))}" if len(finals) > 1 else ""
    return _short(float(np.mean(finals))) + spread


def _short(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def ratios_markdown(outcomes: Sequence[Outcome], budget: int, costs: Mapping[str, str] = COSTS) -> str:
    """Return a table of FedPD-N's costs over those of the best rival: geometric mean, worst, and problems ahead."""
    rows = []
    for cost, words in costs.items():
        spent = costs_to_targets(outcomes, cost, budget)
        for mean, rivals in ((True, "with or without the mean"), (False, "without the mean")):
            found = compare(spent, mean)
            rows.append((words, rivals, *(_told(one) for one in found)))
    return markdown_table(("cost", "rivals", *PERCENT), rows)


def _told(one: Comparison) -> str:
    failed = f"; missed on {one.alone}" if one.alone else ""
    if np.isnan(one.ratio):
        return f"-; {one.ahead} of {one.problems}{failed}"
    return f"{one.ratio:.2f}, worst {one.worst:.1f}; {one.ahead} of {one.problems}{failed}"


def finding(outcomes: Sequence[Outcome], budget: int) -> str:
    """Return one sentence: how untuned FedPD-N compares with the best rival on each problem."""
    own = [one for one in outcomes if one.budget == budget]
    methods, number = {one.method for one in own}, len(problems_of(own))
    rivals = len(methods - {FEDPD_N})
    how = f"each with the best of {budget} settings" if budget else "each with its usual setting"
    if FEDPD_N not in methods:
        return f"FedPD-N was not run, only {_several(rivals, 'rival')}, {how}."
    found = compare(costs_to_targets(own, "communications", budget), True)
    ratios = ", ".join("-" if np.isnan(one.ratio) else f"{one.ratio:.2f}" for one in found)
    missed = sum(one.alone for one in found)
    failed = f" It missed {missed} of {number * len(SHARES)} targets, which a rival kept." if missed else ""
    return (
        f"FedPD-N, untuned, takes {ratios} times the communications of the best of {_several(rivals, 'rival')}, {how}, "
        f"to keep {ALL} of FedAvg's final accuracy: geometric means over {_several(number, 'problem')}, where both "
        f"kept it.{failed}"
    )


def _several(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def profiles(outcomes: Sequence[Outcome], budget: int) -> Figure:
    """Draw the share of problems and targets against the factor to the best method, one panel per cost."""
    spent: dict[str, np.ndarray] = {}
    labels: list[str] = []
    for cost, words in COSTS.items():
        methods = by_method(costs_to_targets(outcomes, cost, budget))
        labels = list(methods)
        spent[words] = np.stack([costs.ravel() for costs in methods.values()], axis=1)
    number = len(problems_of(outcomes))
    what = f"{len(SHARES)} targets on {_several(number, 'problem')}"
    return draw_profiles(spent, labels, FEDPD_N, what, finding(outcomes, budget))


def chosen_markdown(outcomes: Sequence[Outcome], budget: int) -> str:
    """Return a table of the settings that were chosen."""
    own = [one for one in outcomes if one.budget == budget and one.method != FEDPD_N]
    return markdown_table(("problem", "method", "chosen"), [(one.problem, one.name, one.setting) for one in own])


def page(outcomes: Sequence[Outcome], budgets: Sequence[int], tasks: Mapping[str, Task]) -> str:
    """Return the whole page."""
    seeds = len(outcomes[0].finals)
    parts = ["# FedPD-N, untuned, against its rivals on networks\n", how_to_read(seeds)]
    for budget in budgets:
        heading = f"Rivals with the best of {budget} settings" if budget else "Rivals with their usual setting"
        parts += [f"## {heading}\n", f"{finding(outcomes, budget)}\n", table_markdown(outcomes, budget)]
        if any(one.method == FEDPD_N for one in outcomes):
            parts += ["FedPD-N's cost over that of the best rival:\n", ratios_markdown(outcomes, budget)]
            parts.append(f"![Performance profiles](profiles-{budget}.png)\n")
        if budget:
            parts.append(chosen_markdown(outcomes, budget))
    parts += [
        "## The problems\n",
        markdown_table(HEADINGS, task_rows({n: tasks[n] for n in problems_of(outcomes)})),
        CAPTION + "\n",
    ]
    return "\n".join([*parts, LIMITS])


def how_to_read(seeds: int) -> str:
    """Return the meaning of the numbers."""
    steps = f"{min(STEPS):g} to {max(STEPS):g}"
    return (
        f"A cell of the first table has the communications to {ALL} of the final accuracy of FedAvg, "
        "tuned within the same budget, and the method's own final accuracy. A target counts from the first measurement "
        f"from which the mean of {WINDOW} is at it; - is a target that was missed. The final accuracy is the mean of "
        f"the last {LAST} measurements on test samples, with its standard deviation over {seeds} seeds; the "
        "communications are those of the mean curve. All rivals do the same local work: agents per round, local steps, "
        'samples per step. "+ mean" measures the running mean of the server\'s models, which FedPD-N always delivers.'
        "\n\n"
        "A rival with a choice of settings takes the one that is best on validation samples, "
        f"{100 * HELD_OUT:.0f} % of the training samples, on which nothing trains, with {len(TUNING)} other seeds: "
        f"steps of {steps}, and with 32 settings a second one. The samples of FedPD-N's trials of step sizes count. "
        "In tables of ratios, a cell has the geometric mean over the problems where both kept the target, the worst, "
        "and on how many FedPD-N spent no more than the best rival, taken anew for each problem and target.\n"
    )


LIMITS = """## What this does not show

- All seeds of a problem share the first model and the division of the data. They differ in cohorts and mini-batches.
- The networks are small, and all rivals use constant step sizes.
- The targets follow FedAvg: where it is poor, for lack of tuning, they are easy.
- The best of several rivals is chosen on the test curves, which favours rivals.
- Where all agents take part, FedDyn is FedPD by another name (alpha = 1/eta), and so is A-FedPD.
- Seconds are those of a simulation on one machine, with the time to measure, and differ from run to run.
  They say nothing about a network.
"""
HEADINGS = ("problem", "data and network", "K", "Q", "batch", "rounds")
CAPTION = "K: agents per round; Q: local steps; batch: samples per step."


def task_rows(tasks: Mapping[str, Task] = TASKS) -> list[tuple[str, ...]]:
    """Return the cells of the list of problems, in the order of `HEADINGS`."""
    return [
        (name, one.words, str(one.cohort or "all"), *map(str, (one.iterations, one.batch, one.rounds)))
        for name, one in tasks.items()
    ]


def list_tasks() -> Table:
    """Return a table of the problems, for a terminal."""
    title = "Problems of fedpd benchmark networks"
    return text_table(title, HEADINGS, task_rows(), right=set(HEADINGS[2:]), whole=HEADINGS[:1], caption=CAPTION)


def write_networks(
    outcomes: Sequence[Outcome], budgets: Sequence[int], folder: Path, tasks: Mapping[str, Task] = TASKS
) -> Written:
    """Write the results, a page, and a figure per budget.

    Args:
        outcomes: Results.
        budgets: The tuning budgets.
        folder: Where to write.
        tasks: The tasks, by name.
    """
    chosen, text = sorted(set(budgets)), folder / "networks.md"
    text.write_text(page(outcomes, chosen, tasks), encoding="utf-8")
    files = [text, folder / "results.json"]
    rows = [json.dumps(one._asdict() | {"spent": _bounded(one.spent)}) for one in outcomes]
    files[1].write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    if any(one.method == FEDPD_N for one in outcomes):
        for budget in chosen:
            files.append(folder / f"profiles-{budget}.png")
            profiles(outcomes, budget).savefig(files[-1], dpi=120)
    return Written([finding(outcomes, budget) for budget in chosen], files)


def _bounded(spent: Mapping[str, list[float]]) -> dict[str, list[float | None]]:
    """Return costs as JSON has them: null where a target was missed."""
    return {cost: [one if np.isfinite(one) else None for one in each] for cost, each in spent.items()}


def read_outcomes(file: Path) -> list[Outcome]:
    """Return the results that `write_networks` wrote."""
    found = [Outcome(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    return [
        one._replace(spent={cost: [np.inf if x is None else x for x in each] for cost, each in one.spent.items()})
        for one in found
    ]


def main(file: str, page: str) -> None:
    """Remake the measured parts of a page of the documentation from a file of results."""
    outcomes, path = read_outcomes(Path(file)), Path(page)
    counted = {cost: words for cost, words in COSTS.items() if cost != "seconds"}  # which depend on the machine
    parts = {
        "finding": lambda budget: f"{finding(outcomes, budget)}\n",
        "problems": lambda budget: problems_markdown(outcomes, budget),
        "rivals": lambda budget: rivals_markdown(outcomes, budget),
        "ratios": lambda budget: ratios_markdown(outcomes, budget, counted),
    }
    text = path.read_text(encoding="utf-8")
    new = PART.sub(lambda found: f"{found[1]}{parts[found[2]](int(found[3]))}{found[5]}", text)
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
