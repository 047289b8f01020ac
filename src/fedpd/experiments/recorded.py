"""Read the runs of a report from their folders, finished or not, or from memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpd.base.checkpoint import as_read
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import warn
from fedpd.base.saved import is_saved, load_result
from fedpd.clock import Clock
from fedpd.engine.clock import kept_rule, timed_history
from fedpd.engine.measure.columns import NETWORK
from fedpd.engine.measure.history import Divergence, History
from fedpd.engine.participation import attendance_rule
from fedpd.engine.resume import SavedRuns, peek
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.experiments import experiment, federated, run_folder
from fedpd.experiments.calls import at
from fedpd.experiments.experiment import MethodLabel, RunTable
from fedpd.experiments.runner import Result

STATE = ("model", "agents", "server")  # a report does not show these fields, so it need not know their classes
SESSION = "this session"  # the name of a record of runs in memory
EDITED = (
    "was edited after this run, so the results are those of the earlier file. "
    "Undo the change, or run the new file in another folder."
)


@dataclass(frozen=True)
class Recorded:
    """One method with one seed: the part of a `Run` that a report needs."""

    seed: int
    history: History  # the rows so far
    elapsed: np.ndarray  # the seconds at each row; NaN if they are not known
    diverged: Divergence | None = None  # when it diverged, if it did
    agents: int = 0  # N; 0: it is not known
    # what a `Run` keeps of its settings and a clock needs: who took part, the buffer and the deadline
    settings: Mapping[str, Any] = field(default_factory=dict)

    def timed(self, clock: Clock) -> "Recorded":
        """Return the run with its simulated seconds on a network; see `Run.timed`."""
        return replace(self, history=timed_history(self.history, clock, self.agents, self.settings, self.seed))


class Record(NamedTuple):
    """An experiment and its results so far."""

    name: str  # the name of its folder
    entries: tuple[Entry, ...]  # the methods that have rows
    seeds: tuple[int, ...]  # the seeds of each method
    rounds: int  # the number of rounds of a finished run
    waiting: tuple[str, ...] = ()  # the labels of the methods that have no rows yet
    text: str = ""  # the experiment file, word for word
    problem: Mapping[str, Any] | None = None  # the problem's table in that file
    versions: Mapping[str, str] | None = None  # the versions of the packages, and the machine
    # whether the experiment file was edited after the run, so that the results are those of an earlier text
    edited: bool = False
    # for a federation, the number of the last communication to which each client replied, by its name
    replies: Mapping[str, int] | None = None
    # for a federation, what each client measured on its own data at the newest evaluation, by its name
    by_client: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    # the quantity that the runs were compared by, with its target (None: there is none); {}: it is not known
    asked: Mapping[str, float | None] = MappingProxyType({})

    @property
    def finished(self) -> bool:
        """Return whether all methods are finished."""
        return not self.waiting and all(entry.finished for entry in self.entries)


class HasEntries(Protocol):
    """A result that has runs by label: a `Run`, an `Ensemble`, a `Sweep` or a `Tuned`."""

    def entries(self) -> Sequence[Entry]: ...


# The input of figures, tables and pages.
Results = HasEntries | Mapping[str, HasEntries] | Sequence[Result | Entry] | str | Path | Sequence[str | Path]


def read(folder: Path) -> Record:
    """Return the record of a folder that `save`, `fedpd run` or a federation's server wrote.

    A run may still be running. The record then has its finished methods, and the others up to their last checkpoint.
    """
    if is_saved(folder):
        return _in_memory(folder.resolve().name, load_result(folder, leave_out=STATE))
    if federated.is_federation(folder):
        return _federation(folder)
    text = run_folder.read_experiment(folder)
    try:
        _, settings, methods = outline = experiment.read_outline(text)
    except FedpdError as error:
        raise FedpdError(f"{folder / run_folder.EXPERIMENT}: {error}") from None
    whole, entries, versions = run_folder.read_histories(folder), [], None
    for number, method in enumerate(methods, 1):
        saved = _of_this_run(peek(run_folder.checkpoints_of(folder, number, method.label)), method, settings.seeds)
        runs = [_recorded(saved, i, seed, whole.get((method.label, seed))) for i, seed in enumerate(settings.seeds)]
        known = tuple(_with_clock(run, settings, saved) for run in runs if run is not None)
        if len(known) == len(runs):
            entries.append(Entry(method.label, known, settings.rounds))
        versions = saved.versions if saved else versions
    waiting = tuple(method.label for method in methods if method.label not in {entry.label for entry in entries})
    name, edited = folder.resolve().name, run_folder.was_edited(folder, text)
    if edited:
        warn(f"{folder / run_folder.EXPERIMENT} {EDITED}")
    kept = tuple(entries), settings.seeds, settings.rounds, waiting, text, outline.problem, versions
    return Record(name, *kept, edited=edited)


def _with_clock(run: Recorded, settings: RunTable, saved: SavedRuns | None) -> Recorded:
    """Return a run with the settings that a clock needs, and timed by the clock of its experiment file."""
    if saved is None:
        return run
    taking_part = settings.cohort, settings.sampling, settings.participation, np.ones(saved.agents), settings.rounds
    kept = {
        "participation": kept_rule(attendance_rule(*taking_part)),
        "buffer": settings.buffer,
        "deadline": settings.deadline,
    }
    run = replace(run, agents=saved.agents, settings=kept)
    fixed = settings.buffer is not None or settings.deadline is not None  # only a finished run has its seconds
    timed = settings.clock is None or fixed or NETWORK.name in run.history
    return run if timed or settings.clock is None else run.timed(settings.clock)


def timed_records(records: Sequence[Record], clock: Clock) -> list[Record]:
    """Return the records with the simulated seconds of all runs on a network.

    Raises:
        FedpdError: A run does not keep what a clock needs. The message names the method.
    """

    def timed(entry: Entry) -> Entry:
        return entry._replace(
            runs=tuple(at(f"{entry.label}:", methodcaller("timed", clock), run) for run in entry.runs)
        )

    return [record._replace(entries=tuple(timed(entry) for entry in record.entries)) for record in records]


def _federation(folder: Path) -> Record:
    """Return the record of a federation's folder."""
    found = federated.read_progress(folder)
    entry = Entry(found.label, (Recorded(found.seed, found.history, found.elapsed),), found.rounds)
    kept = folder.resolve().name, (entry,), (found.seed,), found.rounds
    return Record(*kept, versions=found.versions, replies=found.replies, by_client=found.by_client)


def _of_this_run(saved: SavedRuns | None, method: MethodLabel, seeds: Sequence[int]) -> SavedRuns | None:
    """Return what a checkpoint holds; None with a warning if it is of another method or of other seeds."""
    if saved is None:
        return None
    other_method = (
        isinstance(saved.algorithm, dict) and method.spec is not None and saved.algorithm != as_read(method.spec)
    )
    if not other_method and saved.seeds == list(seeds):
        return saved
    warn(
        f"{method.label}: its checkpoint is of another method or of other seeds, so it is not used. "
        "If the experiment file was edited, undo the change."
    )
    return None


def _recorded(saved: SavedRuns | None, i: int, seed: int, history: History | None) -> Recorded | None:
    """Return the rows of one seed.

    The last checkpoint has them, with their seconds. But `history`, which a finished method has, decides: if the
    checkpoint has other rows, it was altered or is of another run.
    """
    from_checkpoint = None if saved is None else Recorded(seed, *saved.runs[i])
    if history is None or not len(history["round"]):
        return from_checkpoint
    if from_checkpoint is not None and _same_rows(from_checkpoint.history, history):
        return replace(from_checkpoint, history=history)
    return Recorded(seed, history, np.full(len(history["round"]), np.nan))


def _same_rows(one: History, other: History) -> bool:
    names = other.keys() - {NETWORK.name}  # a checkpoint does not have the simulated seconds
    return one.keys() == names and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def read_all(folders: Sequence[Path]) -> list[Record]:
    """Return the records of several run folders, with different names and labels.

    Raises:
        FedpdError: A folder occurs twice, or has no rows yet.
    """
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            refuse("RUN", str(folder), "is given twice", "Give every folder once")
    records = [read(folder) for folder in folders]
    for folder, record in zip(folders, records, strict=True):
        if not record.entries:
            raise FedpdError(
                f"{folder}: the folder has no rows yet, and a report needs at least the first checkpoint. "
                f"Wait for it, or resume the run: fedpd resume {folder}."
            )
    names = _names(places)
    return distinguish([record._replace(name=name) for record, name in zip(records, names, strict=True)])


def entries_of(results: Results) -> list[Entry]:
    """Return the runs by label, from any input of figures, tables and pages.

    Args:
        results: A run, an ensemble, a sweep, a tuned method, a list or a dict by label of them, a folder, or a list of
            folders. A folder is one that `save`, `fedpd run` or `fedpd compare` wrote.

    Raises:
        FedpdError: `results` has no runs, or is of another type.
    """
    return [entry for record in records_of(results) for entry in record.entries]


def records_of(results: Results) -> list[Record]:
    """Return one record per run folder, or the record of all runs in memory."""
    if isinstance(results, str | Path):
        results = [results]
    if isinstance(results, Sequence) and results and all(isinstance(one, str | Path) for one in results):
        return read_all([Path(one) for one in results if isinstance(one, str | Path)])
    return [_in_memory(SESSION, results)]


def _entries(results: Any) -> list[Entry]:
    example = "Give e.g. a run, {'FedPD': run}, or the folder of a run"
    if hasattr(results, "entries"):
        return list(results.entries())
    if not isinstance(results, Mapping | list | tuple):
        refuse("runs", results, f"{type(results).__name__} has no runs", example)
    if not results:
        refuse("runs", results, "must hold at least one run", example)
    if isinstance(results, Mapping):
        return [entry for label, one in results.items() for entry in _labelled(str(label), one, example)]
    return [entry for one in results for entry in _listed(one, example)]


def _listed(one: Any, example: str) -> Sequence[Entry]:
    """Return the entries of one result of a list."""
    if hasattr(one, "entries"):
        return one.entries()
    if isinstance(one, Entry):
        return [one]
    if not isinstance(one, Result):
        refuse("runs", one, f"{type(one).__name__} has no runs", example)
    return [entry_of(one.label, one.runs)]


def _labelled(label: str, one: Any, example: str) -> list[Entry]:
    """Return the entries of one result under this label. If there are several, the label precedes their own."""
    if not hasattr(one, "entries"):
        refuse(f"runs[{label!r}]", one, f"{type(one).__name__} has no runs", example)
    found = one.entries()
    return [entry._replace(label=label if len(found) == 1 else f"{label}, {entry.label}") for entry in found]


def _in_memory(name: str, results: Any) -> Record:
    entries = _entries(results)
    seeds = sorted({int(run.seed) for entry in entries for run in entry.runs})
    targets = getattr(results, "targets", ())
    asked = {results.criterion: targets[-1] if targets else None} if hasattr(results, "criterion") else {}
    return Record(name, tuple(entries), tuple(seeds), max(entry.rounds for entry in entries), asked=asked)


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
