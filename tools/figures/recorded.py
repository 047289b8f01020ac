"""Read curves of docs/figures, and draw the items of `fedpd reproduce` from them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedpd.engine.measure.columns import COLUMNS, column_of
from fedpd.engine.measure.history import Divergence
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.experiments.recorded import Recorded
from fedpd.reproduce.better import steps_figure
from fedpd.reproduce.figure_2 import curves_figure, published
from fedpd.reproduce.session import runs_figure

FOLDER = Path(__file__).parents[2] / "docs" / "figures"


class Item(NamedTuple):
    """A figure of `fedpd reproduce` whose runs take minutes.

    Attributes:
        file: The name of the file with its curves; some items show the same runs.
        quantities: The columns that it draws.
        draw: The function that draws entries with a title.
    """

    file: str
    quantities: tuple[str, ...]
    draw: Callable[[list[Entry], str], Figure]


def _accuracy(file: str, measure: str, against: str = "communications") -> Item:
    return Item(file, ("train_accuracy", "test_accuracy"), partial(runs_figure, quantity=measure, against=against))


def _curves(file: str) -> Item:
    return Item(file, ("stationarity",), partial(curves_figure, published(file)))


ITEMS = {
    "fig2a": _curves("fig2a"),
    "fig2b": _curves("fig2b"),
    "fig2c": Item("fig2a", ("stationarity",), partial(runs_figure, quantity="stationarity", against="samples")),
    "fig2d": Item("fig2b", ("stationarity",), partial(runs_figure, quantity="stationarity", against="samples")),
    "fig3a": _accuracy("fig3a", "test_accuracy", "samples"),
    "fig3b": _accuracy("fig3b", "test_accuracy"),
    "fig4": _accuracy("fig4", "train_accuracy"),
    "fig5": _accuracy("fig4", "test_accuracy"),
    "better": Item("better", ("stationarity",), steps_figure),
}


def read(name: str) -> dict[str, Any]:
    """Return the contents of a file of docs/figures."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def entries(name: str) -> list[Entry]:
    """Return the recorded curves of a file, one entry per label.

    A column is a list of numbers, or one list per seed if the seeds differ. A run that diverged has its last round.
    """
    return [entry_of(label, _runs(columns)) for label, columns in read(name).items()]


def _runs(columns: dict[str, Any]) -> list[Recorded]:
    diverged = columns.pop("diverged", None)
    seeds = max(len(values) if isinstance(values[0], list) else 1 for values in columns.values())
    found = []
    for seed in range(seeds):
        rows = {
            name: np.array(values[seed] if isinstance(values[0], list) else values, column_of(name).dtype)
            for name, values in columns.items()
        }
        number = len(rows["round"])
        zeros = {name: np.zeros(number) for name in COLUMNS if name not in rows}
        end = None if diverged is None else Divergence(diverged, "")
        found.append(Recorded(seed, zeros | rows, np.full(number, np.nan), end))
    return found


def draw(name: str) -> Figure:
    """Draw an item."""
    item = ITEMS[name]
    return item.draw(entries(item.file), read("titles")[name])
