"""Read what a report is made of: runs from their folders, finished or not, or runs in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.engine.divergence import Divergence
from fedpd.engine.history import History
from fedpd.engine.resume import SavedRun, peek
from fedpd.engine.run import Ensemble, Run
from fedpd.experiments import experiment, run_folder
from fedpd.experiments.runner import Result


@dataclass(frozen=True)
class Recorded:
    """One method with one seed: the part of a `Run` that a report needs.

    Attributes:
        seed: The seed.
        history: The rows that are there so far.
        elapsed: The seconds at each row; NaN where they are not known.
        diverged: When it diverged, if it did.
    """

    seed: int
    history: History
    elapsed: np.ndarray
    diverged: Divergence | None = None


class Entry(NamedTuple):
    """The runs of a method, one per seed, with the rows that are there so far.

    Attributes:
        label: The name of the method in tables and figures.
        runs: Its runs.
        rounds: The number of rounds that were asked for.
    """

    label: str
    runs: tuple[Recorded | Run, ...]
    rounds: int

    @property
    def done(self) -> int:
        """Return the number of rounds that all seeds have done, apart from those that diverged."""
        return min(int(run.history["round"][-1]) for run in self.runs if run.diverged is None or self.diverged)

    @property
    def diverged(self) -> bool:
        """Return whether all seeds diverged."""
        return all(run.diverged is not None for run in self.runs)

    @property
    def finished(self) -> bool:
        """Return whether there are no more rounds to come."""
        return self.diverged or self.done >= self.rounds


class Record(NamedTuple):
    """An experiment and its results so far.

    Attributes:
        name: The name of its folder.
        entries: The methods that have rows.
        seeds: The seeds of each method.
        rounds: The number of rounds that were asked for.
        waiting: The labels of the methods that have no rows yet.
        text: The experiment file, word for word.
        problem: The problem's table in that file.
        versions: The versions and the machine that it ran with.
    """

    name: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    rounds: int
    waiting: tuple[str, ...] = ()
    text: str = ""
    problem: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None

    @property
    def finished(self) -> bool:
        """Return whether all methods are finished."""
        return not self.waiting and all(entry.finished for entry in self.entries)


Results = Mapping[str, Run | Ensemble] | Sequence[Result | Entry]


def read(folder: Path) -> Record:
    """Read a run folder, also during the run: finished methods, and the others up to their last checkpoint."""
    text = run_folder.read_experiment(folder)
    try:
        _, settings, methods = outline = experiment.read_outline(text)
    except FedpdError as error:
        raise FedpdError(f"{folder / run_folder.EXPERIMENT}: {error}") from None
    whole, entries, versions = run_folder.read_histories(folder), [], None
    for number, method in enumerate(methods, 1):
        saved = peek(run_folder.checkpoints_of(folder, number, method.label))
        runs = [_recorded(saved, i, seed, whole.get((method.label, seed))) for i, seed in enumerate(settings.seeds)]
        known = tuple(run for run in runs if run is not None)
        if len(known) == len(runs):
            entries.append(Entry(method.label, known, settings.rounds))
        versions = saved[1] if saved else versions
    waiting = tuple(method.label for method in methods if method.label not in {entry.label for entry in entries})
    name = folder.resolve().name
    return Record(name, tuple(entries), settings.seeds, settings.rounds, waiting, text, outline.problem, versions)


def _recorded(
    saved: tuple[list[SavedRun], Mapping[str, str]] | None, i: int, seed: int, history: History | None
) -> Recorded | None:
    """Return one seed's rows from the last checkpoint, which is never older than `history`, or else from `history`."""
    if saved is not None:
        return Recorded(seed, *saved[0][i])
    if history is None or not len(history["round"]):
        return None
    return Recorded(seed, history, np.full(len(history["round"]), np.nan))


def read_all(folders: Sequence[Path]) -> list[Record]:
    """Read several run folders, and make their names and labels differ.

    Raises:
        FedpdError: A folder is given twice, or has no rows yet.
    """
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            refuse("RUN", str(folder), "is given twice", "Give every folder once")
    records = [read(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        if not record.entries:
            raise FedpdError(
                f"{folder}: nothing is recorded yet, and a report needs at least the first checkpoint. "
                f"Wait for it, or resume the run: fedpd resume {folder}."
            )
    names = _names(places)
    return distinguish([record._replace(name=name) for record, name in zip(records, names, strict=True)])


def entries_of(results: Results) -> list[Entry]:
    """Return the entries of results in memory.

    Args:
        results: A mapping of labels to a `Run` or an `Ensemble`, or the results of an experiment.

    Raises:
        FedpdError: There are no runs.
    """
    if not results:
        refuse("runs", results, "must hold at least one run", "Give e.g. {'FedPD': fedpd.simulate(...)}")
    if isinstance(results, Mapping):
        return [_entry(label, one.runs if isinstance(one, Ensemble) else (one,)) for label, one in results.items()]
    return [one if isinstance(one, Entry) else _entry(one.label, one.runs) for one in results]


def _entry(label: str, runs: tuple[Run, ...]) -> Entry:
    return Entry(label, runs, max(int(run.history["round"][-1]) for run in runs))


def record_of(results: Results) -> Record:
    """Return the record of results in memory."""
    entries = entries_of(results)
    seeds = sorted({run.seed for entry in entries for run in entry.runs})
    return Record("this session", tuple(entries), tuple(seeds), max(entry.rounds for entry in entries))


def distinguish(records: Sequence[Record]) -> list[Record]:
    """Add the name of the record to every label that several records have."""
    seen = Counter(entry.label for record in records for entry in record.entries)

    def entry(one: Entry, record: Record) -> Entry:
        return one._replace(label=f"{one.label} ({record.name})") if seen[one.label] > 1 else one

    return [record._replace(entries=tuple(entry(one, record) for one in record.entries)) for record in records]


def _names(places: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]
