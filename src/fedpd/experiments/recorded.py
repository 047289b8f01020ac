"""Read results from folders that `save`, `fedpd run`, `fedpd compare` or a federation wrote, or from memory."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import warn
from fedpd.base.saved import is_saved, load_result
from fedpd.base.typed import explained
from fedpd.clock import Clock
from fedpd.core import Method, Tree
from fedpd.engine.clock import kept_rule, timed_history
from fedpd.engine.measure.columns import NETWORK
from fedpd.engine.measure.history import Divergence, History
from fedpd.engine.participation import attendance_rule
from fedpd.engine.resume import SavedRuns, peek
from fedpd.engine.run import Ensemble, Run, ensemble
from fedpd.engine.views.entries import Entry, entry_of
from fedpd.experiments import experiment, federated, run_folder
from fedpd.experiments.calls import at
from fedpd.experiments.experiment import RunTable
from fedpd.experiments.run_folder import SavedModel, read_models
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
    for number, (label, method) in enumerate(methods.items(), 1):
        found = peek(run_folder.checkpoints_of(folder, number, label))
        saved = _of_this_run(found, label, method, settings.seeds)
        runs = [_recorded(saved, i, seed, whole.get((label, seed))) for i, seed in enumerate(settings.seeds)]
        known = tuple(_with_clock(run, settings, saved) for run in runs if run is not None)
        if len(known) == len(runs):
            entries.append(Entry(label, known, settings.rounds))
        versions = saved.versions if saved else versions
    waiting = tuple(label for label in methods if label not in {entry.label for entry in entries})
    name, edited = folder.resolve().name, run_folder.was_edited(folder, text)
    if edited:
        warn(f"{folder / run_folder.EXPERIMENT} {EDITED}")
    kept = tuple(entries), settings.seeds, settings.rounds, waiting, text, outline.problem, versions
    return Record(name, *kept, edited=edited)


def _federation(folder: Path) -> Record:
    """Return the record of a federation up to its last communication.

    Raises:
        FedpdError: The folder has no intact checkpoint.
    """
    by_client = f"{federated.BY_CLIENT}."
    found = checkpoint.peek(folder / federated.CHECKPOINTS, "history.", by_client, federated.ELAPSED)
    if found is None or "label" not in found[1]:
        raise FedpdError(f"{folder}: it has no checkpoint of a federation that can be read. Start the run again.")
    arrays, meta = found
    history, own = (
        {name.removeprefix(prefix): column for name, column in arrays.items() if name.startswith(prefix)}
        for prefix in ("history.", by_client)
    )
    done, model = int(history["round"][-1]), folder / federated.MODEL
    ended = model.is_file() and checkpoint.read(model, checkpoint.NOTHING)[1].get("rounds") == done
    rounds = done if ended else max(meta["rounds"], done)
    measured = {
        name: {column: float(values[i]) for column, values in own.items() if np.isfinite(values[i])}
        for i, name in enumerate(meta["names"])
    }
    entry = Entry(meta["label"], (Recorded(meta["seed"], history, arrays[federated.ELAPSED]),), rounds)
    return Record(
        folder.resolve().name,
        (entry,),
        (meta["seed"],),
        rounds,
        versions=meta["versions"],
        replies={name: number + 1 for name, number in zip(meta["names"], meta["counted"], strict=True)},
        by_client=measured if own else {},
    )


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


def _of_this_run(saved: SavedRuns | None, label: str, method: Method | None, seeds: Sequence[int]) -> SavedRuns | None:
    """Return what a checkpoint holds; None with a warning if it is of another method or of other seeds."""
    if saved is None:
        return None
    other_method = (
        isinstance(saved.algorithm, dict)
        and method is not None
        and saved.algorithm != checkpoint.as_read(method.spec.plain())
    )
    if not other_method and saved.seeds == list(seeds):
        return saved
    warn(
        f"{label}: its checkpoint is of another method or of other seeds, so it is not used. "
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
    if from_checkpoint is not None:
        rows = from_checkpoint.history
        same = rows.keys() == history.keys() - {NETWORK.name}  # a checkpoint does not have the simulated seconds
        if same and all(np.array_equal(rows[name], history[name], equal_nan=True) for name in rows):
            return replace(from_checkpoint, history=history)
    return Recorded(seed, history, np.full(len(history["round"]), np.nan))


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
    records = [record._replace(name=name) for record, name in zip(records, _names(places), strict=True)]
    times = Counter(entry.label for record in records for entry in record.entries)

    def labelled(one: Entry, record: Record) -> Entry:
        return one._replace(label=f"{one.label} ({record.name})") if times[one.label] > 1 else one

    return [record._replace(entries=tuple(labelled(one, record) for one in record.entries)) for record in records]


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


def _names(places: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]


@explained
def load(folder: str | Path, *, like: Tree | None = None) -> Any:
    """Return the result that a folder holds. fedpd runs no code from the folder.

    Args:
        folder: A folder that `save` wrote, the run folder of `fedpd run` or `fedpd compare`, or a federation's `out`.
        like: A model of the same structure, e.g. `problem.start`. It is needed only if the model is a pytree of classes
            that a file cannot describe, such as a module of a neural network; the error message then asks for it.

    Returns:
        The `Run`, `Ensemble`, `Sweep`, `Tuned` or `Advice` that was saved, exact to the bit. A run folder gives a dict
        from the label of each method to its `Run`, or to its `Ensemble` if there are several seeds, with the rows so
        far. These runs have no state of the agents (`fedpd resume` continues them), and unfinished ones have no model.

    Raises:
        FedpdError: The folder holds no result, or fedpd cannot read it.
    """
    folder = Path(folder)
    if is_saved(folder):
        return load_result(folder, like)
    record, models = read(folder), _models(folder, like)
    if not record.entries:
        raise FedpdError(
            f"{folder}: the folder holds an experiment file without results, as fedpd tune writes it, or of a run "
            f"without a checkpoint yet. Run it: fedpd resume {folder}."
        )
    runs: dict[str, list[Run]] = {}
    for label, one in ((entry.label, one) for entry in record.entries for one in entry.runs):
        # A run that is not finished has no model.
        saved = models.get((label, one.seed), SavedModel(None, label, "", np.zeros(0, np.int64)))
        run = Run(
            algorithm=saved.algorithm,
            seed=one.seed,
            model=saved.model,
            history=one.history,
            agents=None,
            updates=saved.updates,
            seconds=float(one.elapsed[-1]),
            elapsed=one.elapsed,
            diverged=one.diverged,
            spec=saved.spec,
            settings=one.settings if isinstance(one, Recorded) else {},
        )
        runs.setdefault(label, []).append(run)
    return {label: own[0] if len(own) == 1 else ensemble(tuple(own)) for label, own in runs.items()}


@explained
def load_model(
    folder: str | Path, *, method: str | None = None, seed: int | None = None, like: Tree | None = None
) -> Tree:
    """Return the trained model that a folder holds: the user's own pytree with NumPy leaves.

    The leaves are tensors if a federation trained a PyTorch module: `module.load_state_dict(fedpd.load_model(out))`.

    Args:
        folder: As for `load`; or a file with one model, such as best.safetensors of a federation.
        method: The label of the method; None if there is only one.
        seed: The seed; None if there is only one.
        like: As for `load`.

    Raises:
        FedpdError: There is no model, or there are several and the arguments do not select one. The message lists them.
    """
    if Path(folder).is_file():
        return federated.read_model(Path(folder), like)[0]
    found = [run for run in _labelled_runs(load(folder, like=like)) if run[1].model is not None]
    chosen = [(label, run) for label, run in found if method in (None, label) and seed in (None, run.seed)]
    if len(chosen) == 1:
        return chosen[0][1].model
    if not found:
        raise FedpdError(f"{folder}: there is no model yet. Finish the run first, e.g. with fedpd resume {folder}.")
    asked = ", ".join(f"{name}={value!r}" for name, value in (("method", method), ("seed", seed)) if value is not None)
    labels = ", ".join(repr(label) for label in dict.fromkeys(label for label, _ in found))
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for _, run in found))
    which = f"none of its {len(found)} models has {asked}" if not chosen else f"the folder holds {len(chosen)} models"
    raise FedpdError(f"{folder}: {which}. Select one: method= one of {labels}, and seed= one of {seeds}.")


def _models(folder: Path, like: Tree | None) -> dict[tuple[str, int], SavedModel]:
    """Return the models of a run folder or of a federation's folder, by label and seed."""
    path = folder / federated.MODEL
    if not federated.is_federation(folder):
        return read_models(folder, like)
    if not path.is_file():
        return {}
    model, spec, meta = federated.read_model(path, like)
    return {(meta["label"], meta["seed"]): SavedModel(model, meta["algorithm"], spec, np.zeros(0, np.int64))}


def _labelled_runs(result: Any) -> Iterator[tuple[str, Run]]:
    """Yield all runs of a result with their labels."""
    if isinstance(result, Mapping):
        for label, one in result.items():
            yield from ((label, run) for run in (one.runs if isinstance(one, Ensemble) else [one]))
    elif hasattr(result, "entries"):
        yield from ((entry.label, run) for entry in result.entries() for run in entry.runs)
