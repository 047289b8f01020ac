"""Made-up runs to report on: what a page shows of them can be worked out by hand."""

import numpy as np

from fedpd.engine.measure.columns import COLUMNS
from fedpd.engine.measure.history import Divergence, History
from fedpd.engine.views.entries import Entry
from fedpd.experiments.recorded import Record, Recorded

QUADRATIC = {"name": "random_quadratic", "agents": 4, "dimension": 3}


def history(rate: float, rounds: int = 100, every: int = 1, accuracy: bool = False) -> History:
    """Stationarity 10^(-rate r) after r rounds, one communication every `every` rounds."""
    r = np.arange(rounds + 1)
    columns = {name: np.zeros(rounds + 1, column.dtype) for name, column in COLUMNS.items()}
    columns |= {"round": r, "communications": r // every, "samples": 1501 * r, "local_updates": 2 * r}
    columns |= {"bytes_up": 24_010 * (r // every), "bytes_down": 24_010 * (r // every)}
    columns |= {"loss": 1 + 10.0 ** (-rate * r), "stationarity": 10.0 ** (-rate * r)}
    return columns | ({"test_accuracy": 1 - 0.9 * 10.0 ** (-rate * r)} if accuracy else {})


def recorded(rate: float, seed: int = 0, rounds: int = 100, every: int = 1, accuracy: bool = False) -> Recorded:
    rows = history(rate, rounds, every, accuracy)
    return Recorded(seed, rows, 0.26 * rows["round"])


def entry(label: str, *rates: float, every: int = 1, accuracy: bool = False) -> Entry:
    """A method whose seeds converge at these rates."""
    return Entry(label, tuple(recorded(rate, i, 100, every, accuracy) for i, rate in enumerate(rates)), 100)


def sparse(label: str, rate: float = 1.0, every: int = 5, rounds: int = 20) -> Entry:
    """A federation that evaluates every `every` communications: what was not measured is NaN."""
    rows = history(rate, rounds, accuracy=True)
    skipped = rows["round"] % every != 0
    for name in ("loss", "stationarity", "test_accuracy"):
        rows[name][skipped] = np.nan
    return Entry(label, (Recorded(0, rows, 0.26 * rows["round"]),), rounds)


def diverging(label: str) -> Entry:
    rows = {name: column[:4].copy() for name, column in history(0.1).items()}
    rows["stationarity"][1:] = [1e3, np.inf, np.nan]
    rows["loss"][1:] = [np.inf, np.nan, -np.inf]
    run = Recorded(0, rows, np.array([0.0, 1.0, 2.0, 3.0]), Divergence(3, f"{label} diverged at round 3. Try 1/L."))
    return Entry(label, (run,), 100)


def record(*entries: Entry, text: str = "[problem]\n", waiting: tuple[str, ...] = ()) -> Record:
    seeds = tuple(run.seed for run in entries[0].runs)
    versions = {"fedpd": "0.1.0", "jax": "1.2.3", "machine": "Linux", "devices": "2 x cpu"}
    return Record("a-run", entries, seeds, 100, waiting, text, QUADRATIC, versions)
