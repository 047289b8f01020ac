"""The table of a comparison: what each method reached, and what it cost."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from fedpd.runner import Result


def comparison_table(results: Sequence[Result]) -> Table:
    """One row a method: final stationarity and costs; means over the seeds, with the spread of the stationarity."""
    table = Table(title="Final stationarity ‖∇f‖² and what it cost", title_justify="left")
    table.add_column("method", no_wrap=True)
    for name in ("stationarity", "communications", "samples", "bytes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        final = {name: np.array([run.history[name][-1] for run in result.runs]) for name in result.runs[0].history}
        table.add_row(
            Text(result.label),
            _reached(result, final["stationarity"]),
            f"{final['communications'].mean():,.0f}",
            quantity(final["samples"].mean()),
            quantity((final["bytes_up"] + final["bytes_down"]).mean(), "B"),
            f"{result.runs[0].seconds:.1f}",
        )
    return table


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
