"""The table of a comparison: what each method reached, and what it cost."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from fedpd.experiments.runner import Result


def comparison_table(results: Sequence[Result]) -> Table:
    """One row a method: final stationarity (and accuracy) and costs; means over the seeds, with their spread."""
    judged = all("test_accuracy" in run.history for result in results for run in result.runs)
    table = Table(title="Final stationarity ‖∇f‖² and what it cost", title_justify="left")
    table.add_column("method", no_wrap=not judged)
    reached = ("stationarity", "accuracy", "comm.") if judged else ("stationarity", "communications")
    for name in (*reached, "samples", "bytes", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        final = {name: np.array([run.history[name][-1] for run in result.runs]) for name in result.runs[0].history}
        table.add_row(
            Text(result.label),
            _reached(result, final["stationarity"]),
            *((f"{final['test_accuracy'].mean():.1%}",) if judged else ()),
            f"{final['communications'].mean():,.0f}",
            quantity(final["samples"].mean()),
            quantity((final["bytes_up"] + final["bytes_down"]).mean(), "B"),
            f"{result.runs[0].seconds:.1f} s",
        )
    return table


def target_table(results: Sequence[Result], target: float) -> Table:
    """What each method spent until its stationarity was at most `target`, fewest communications first."""
    table = Table(title=f"Cost to reach ‖∇f‖² ≤ {target:g}", title_justify="left")
    table.add_column("method", no_wrap=True)
    for name in ("communications", "samples", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    reached, missed = [], []
    for result in results:
        rows = [first_at_most(run.history["stationarity"], target) for run in result.runs]
        if None in rows:
            missed.append(result)
        else:
            reached.append((result, _spent(result, rows)))
    for result, spent in sorted(reached, key=lambda pair: pair[1]["communications"]):
        moved = quantity(spent["bytes_up"] + spent["bytes_down"], "B")
        table.add_row(Text(result.label), f"{spent['communications']:,.0f}", quantity(spent["samples"]), moved)
    for result in missed:
        best = np.nanmin([np.nanmin(run.history["stationarity"]) for run in result.runs])
        table.add_row(Text(result.label), f"no: best {best:.1e}", "", "")
    return table


def first_at_most(stationarity: np.ndarray, target: float) -> int | None:
    """The first row whose stationarity is at most the target, or None."""
    rows = np.flatnonzero(stationarity <= target)
    return int(rows[0]) if len(rows) else None


def _spent(result: Result, rows: Sequence[int | None]) -> dict[str, float]:
    names = ("communications", "samples", "bytes_up", "bytes_down")
    pairs = list(zip(result.runs, rows, strict=True))
    return {name: float(np.mean([run.history[name][row] for run, row in pairs])) for name in names}


def _reached(result: Result, stationarity: np.ndarray) -> str:
    diverged = [run.diverged.round for run in result.runs if run.diverged is not None]
    if diverged:
        return f"diverged at {min(diverged)}"
    one = len(stationarity) == 1
    return f"{stationarity[0]:.2e}" if one else f"{stationarity.mean():.2e} ± {stationarity.std():.0e}"


def quantity(number: float, unit: str = "") -> str:
    """A large number as people read it: 192 M, 9.6 MB."""
    prefixes = ("", "k", "M", "G", "T", "P")
    power = 0 if number < 1 else min(int(np.log10(number) // 3), len(prefixes) - 1)
    return f"{number / 1000**power:.3g} {prefixes[power]}{unit}".strip()
