"""Write histories and costs as CSV, for spreadsheets and other programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedpd.base.atomic import replace_file
from fedpd.engine.views.quantities import SECONDS, shared_costs
from fedpd.experiments.recorded import Record
from fedpd.report.reach import reach

HISTORIES = ("run", "label", "seed")  # the first columns; fedpd knows its own files by them
COSTS = ("run", "label", "quantity", "target", "seeds", "reached", "best")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a text that begins with one of them


def save_histories(records: Sequence[Record], path: Path) -> Path:
    """Write all rows of all runs, with the seconds at each row. A column that a run did not record is empty."""
    histories = [(record, entry, run) for record in records for entry in record.entries for run in entry.runs]
    names = list(dict.fromkeys(name for _, _, run in histories for name in run.history))

    def rows() -> Iterable[Sequence[Any]]:
        for record, entry, run in histories:
            length = len(run.history["round"])
            columns = [run.history[name].tolist() if name in run.history else [""] * length for name in names]
            for values in zip(*columns, run.elapsed.tolist(), strict=True):
                yield record.name, entry.label, run.seed, *values

    return _save(path, (*HISTORIES, *names, SECONDS.name), rows())


def save_costs(records: Sequence[Record], quantity: str, target: float, path: Path) -> Path:
    """Write the costs of each method to reach the target: mean, least and most over the seeds."""
    names = shared_costs([entry for record in records for entry in record.entries])
    spent = [f"{cost}_{which}" for cost in names for which in ("mean", "least", "most")]

    def rows() -> Iterable[Sequence[Any]]:
        for record in records:
            for entry in record.entries:
                met = reach(entry, quantity, target)
                costs = [""] * len(spent) if met.costs is None else [n for cost in names for n in met.costs[cost]]
                yield record.name, entry.label, quantity, target, len(entry.runs), met.seeds, met.best, *costs

    return _save(path, (*COSTS, *spent), rows())


def _cell(value: Any) -> Any:
    """Return a cell that a spreadsheet shows and does not run: a text that begins like a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _save(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_cell, names))
    writer.writerows(map(_cell, row) for row in rows)
    with replace_file(path) as file:
        file.write(text.getvalue().encode())
    return path
