"""Make tables of a comparison, with the result and the costs of each method."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from fedpd.engine.measure.columns import KNOWN, Column, column_of
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    Entry,
    cost_text,
    last_costs,
    last_value,
    shared_quantities,
    unequal_work,
    value_text,
    works_of,
)
from fedpd.experiments.recorded import Results, entries_of
from fedpd.report.reach import best_text, reach

ACCURACY = "test_accuracy"

LONGEST_LABEL = 24


def comparison_table(results: Results) -> Table:
    """Return a table with one row per method: its final stationarity, its test accuracy if known, and its costs.

    If the runs have metrics of the problem or of your own, the table shows them, and fewer costs.

    Args:
        results: As for `report.figure`. For several seeds, the table shows means, and the standard deviation of the
            stationarity.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, report, simulate
        >>> algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
        >>> run = simulate(algorithm, problems.random_quadratic(agents=4, dimension=3), rounds=10, progress=False)
        >>> report.comparison_table({"FedAvg": run}).row_count
        1
    """
    entries = entries_of(results)
    shared = shared_quantities(entries)
    judged = ACCURACY in [column.name for column in shared]
    table = Table(
        title="Final stationarity ‖∇f‖² and its costs",
        title_justify="left",
        caption_justify="left",
        caption=work_caption(entries),
    )
    own = [column for column in shared if column.name not in KNOWN]
    table.add_column("method", no_wrap=not judged and not own and _are_short(entries), overflow="fold")
    reached = ("stationarity", "accuracy", "comm.") if judged else ("stationarity", "communications")
    if own:
        reached = ("stationarity", *(column.name for column in own), *reached[1:-1], "comm.")
    costs_shown = ("communications", "seconds") if own else tuple(COSTS)
    for name in (*reached, *(() if own else ("samples", "bytes")), "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        costs = last_costs(entry.runs)
        table.add_row(
            Text(entry.label),
            _final_stationarity(entry),
            *(_final_mean(entry, column) for column in own),
            *((_final_mean(entry, column_of(ACCURACY)),) if judged else ()),
            *(cost_text(COSTS[name], costs[name]) for name in costs_shown),
        )
    return table


def target_table(results: Results, target: float) -> Table:
    """Return a table of the costs of each method until its stationarity was at most `target`.

    Args:
        results: As for `report.figure`.
        target: The stationarity to reach with all seeds. The method with the fewest communications comes first.
    """
    entries, shown = entries_of(results), ("communications", "samples", "bytes")
    table = Table(
        title=f"Cost to reach ‖∇f‖² ≤ {target:g}",
        title_justify="left",
        caption_justify="left",
        caption=work_caption(entries),
    )
    table.add_column("method", no_wrap=_are_short(entries), overflow="fold")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    found = [(entry, reach(entry, MAIN, target)) for entry in entries]
    reached = [(entry, met.costs) for entry, met in found if met.costs is not None]
    for entry, costs in sorted(reached, key=lambda pair: pair[1]["communications"][0]):
        table.add_row(Text(entry.label), *(cost_text(COSTS[name], costs[name][0]) for name in shown))
    for entry, met in found:
        if met.costs is None:
            table.add_row(Text(entry.label), f"no: best {best_text(met, MAIN, target)}", "", "")
    return table


def work_caption(entries: Sequence[Entry]) -> str | None:
    """Return how the local work of the methods differs, for the caption of a table; None if it is equal."""
    unequal = unequal_work(works_of(entries))
    return f"{unequal}." if unequal else None


def _are_short(entries: Sequence[Entry]) -> bool:
    """Return whether the labels fit beside the numbers in 80 columns. The table wraps longer ones."""
    return all(len(entry.label) <= LONGEST_LABEL for entry in entries)


def _final_stationarity(entry: Entry) -> str:
    diverged = [run.diverged.round for run in entry.runs if run.diverged is not None]
    if diverged:
        return f"diverged at {min(diverged)}"
    values = np.array([last_value(run, MAIN) for run in entry.runs])
    if np.isnan(values).all():
        return "not measured"
    return f"{values[0]:.2e}" if len(values) == 1 else f"{values.mean():.2e} ± {values.std():.0e}"


def _final_mean(entry: Entry, column: Column) -> str:
    return value_text(column, float(np.mean([last_value(run, column.name) for run in entry.runs])))
