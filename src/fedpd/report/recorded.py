"""What a report is made of: runs as their folder holds them, finished or not, or as they are in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyarrow import ArrowException

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError, refuse
from fedpd.engine.divergence import Divergence
from fedpd.engine.history import COLUMNS, History, read_parquet
from fedpd.engine.run import Ensemble, Run
from fedpd.experiments import experiment, run_folder, runner


@dataclass(frozen=True)
class Recorded:
    """One method with one seed: the part of a `Run` that a report needs."""

    seed: int
    history: History
    elapsed: np.ndarray  # (rows,) seconds at each row; NaN where they are not known
    diverged: Divergence | None = None


class Entry(NamedTuple):
    """A method's runs, one a seed, over the rows that are there so far."""

    label: str
    runs: tuple[Recorded | Run, ...]
    rounds: int  # that were asked for

    @property
    def done(self) -> int:
        return min(int(run.history["round"][-1]) for run in self.runs if run.diverged is None or self.diverged)

    @property
    def diverged(self) -> bool:
        """Whether all seeds did."""
        return all(run.diverged is not None for run in self.runs)

    @property
    def finished(self) -> bool:
        return self.diverged or self.done >= self.rounds


class Record(NamedTuple):
    """An experiment with what came of it so far."""

    name: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    rounds: int
    waiting: tuple[str, ...] = ()  # methods of which nothing is recorded yet
    text: str = ""  # the experiment file, word for word
    problem: Mapping[str, Any] | None = None  # its table
    versions: Mapping[str, str] | None = None

    @property
    def finished(self) -> bool:
        return not self.waiting and all(entry.finished for entry in self.entries)


def read(folder: Path) -> Record:
    """A run's folder, also while the run goes on: what is finished and, up to the last checkpoint, what is not."""
    path = folder / run_folder.EXPERIMENT
    if not path.is_file():
        what = "there is no such folder" if not folder.exists() else f"there is no {run_folder.EXPERIMENT} in it"
        raise FedpdError(f"{folder}: {what}, so this is not a run's folder. Give one that fedpd run or compare made.")
    text = experiment.read_text(path)
    try:
        _, settings, methods = outline = experiment.read_outline(text)
    except FedpdError as error:
        raise FedpdError(f"{path}: {error}") from None
    whole, entries, versions = _whole(folder / run_folder.HISTORY), [], None
    for number, method in enumerate(methods, 1):
        books = checkpoint.peek(folder / "checkpoints" / runner.method_name(number, method.label), "history.", "clock")
        runs = [_recorded(books, i, seed, whole.get((method.label, seed))) for i, seed in enumerate(settings.seeds)]
        known = tuple(run for run in runs if run is not None)
        if len(known) == len(runs):
            entries.append(Entry(method.label, known, settings.rounds))
        versions = books[1].get("versions", versions) if books else versions
    waiting = tuple(method.label for method in methods if method.label not in {entry.label for entry in entries})
    name = folder.resolve().name
    return Record(name, tuple(entries), settings.seeds, settings.rounds, waiting, text, outline.problem, versions)


def _whole(path: Path) -> Mapping[tuple[str, int], History]:
    """The histories of the methods that are finished."""
    try:
        return read_parquet(path) if path.exists() else {}
    except (ArrowException, OSError, LookupError) as error:
        raise FedpdError(f"{path} cannot be read ({error}). Write it again: fedpd resume {path.parent}.") from None


def _recorded(
    books: tuple[checkpoint.Arrays, dict[str, Any]] | None, i: int, seed: int, history: History | None
) -> Recorded | None:
    """From the last checkpoint, which is never older than the history of the whole; without it, from that."""
    diverged = clock = None
    if books is not None:
        arrays, meta = books
        prefix = f"history.{i}."
        columns = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        history = {name: columns[name] for name in (*COLUMNS, *sorted(set(columns) - set(COLUMNS)))}
        diverged = Divergence(*meta["diverged"][i]) if meta["diverged"][i] else None
        clock = arrays["clock"].T if "clock" in arrays else None
    if history is None or not len(history["round"]):
        return None
    elapsed = np.full(len(history["round"]), np.nan) if clock is None else np.interp(history["round"], *clock)
    return Recorded(seed, history, elapsed, diverged)


def read_all(folders: Sequence[Path]) -> list[Record]:
    """Several folders, under names and labels that tell them apart. One without a single row is refused."""
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            refuse("RUN", str(folder), "is given twice", "Give every folder once")
    records = [read(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        if not record.entries:
            raise FedpdError(
                f"{folder}: nothing is recorded yet, and a report needs at least the first checkpoint. "
                f"Wait for it, or go on with the run: fedpd resume {folder}."
            )
    names = _names(places)
    return told_apart([record._replace(name=name) for record, name in zip(records, names, strict=True)])


def from_runs(runs: Mapping[str, Run | Ensemble]) -> Record:
    """Runs in memory, by their labels."""
    if not runs:
        refuse("runs", runs, "must hold at least one run", "Give e.g. {'FedPD': fedpd.simulate(...)}")
    entries = []
    for label, outcome in runs.items():
        each = outcome.runs if isinstance(outcome, Ensemble) else (outcome,)
        rounds = max(int(run.history["round"][-1]) for run in each)
        entries.append(Entry(label, each, rounds))
    seeds = sorted({run.seed for entry in entries for run in entry.runs})
    return Record("this session", tuple(entries), tuple(seeds), max(entry.rounds for entry in entries))


def told_apart(records: Sequence[Record]) -> list[Record]:
    """The same records, where a label that several have names its record too."""
    seen = Counter(entry.label for record in records for entry in record.entries)

    def entry(one: Entry, record: Record) -> Entry:
        return one._replace(label=f"{one.label} ({record.name})") if seen[one.label] > 1 else one

    return [record._replace(entries=tuple(entry(one, record) for one in record.entries)) for record in records]


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]
