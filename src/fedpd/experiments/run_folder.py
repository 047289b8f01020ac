"""Write and read the files of a run folder. No other module knows their names.

    .fedpd-run                              marks the folder as fedpd's own
    experiment.toml                         the experiment file, word for word
    checkpoints/METHOD/round-*.safetensors
    history.parquet                         all histories, by label and seed
    models/METHOD-seed-S.safetensors
    comparison.*, accuracy.*, sensitivity.*, report*    figures, reports and tables

A folder with only an `experiment.toml` is no run folder: users give their own files this name.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base import checkpoint
from fedpd.base.atomic import held, read_file, replace_file
from fedpd.base.checks import FedpdError, shown
from fedpd.base.process import versions
from fedpd.base.saved import pack, unpack
from fedpd.base.spec import Spec
from fedpd.core import Tree
from fedpd.engine.measure.history import History, read_parquet, write_parquet
from fedpd.engine.run import Run

MARKER = ".fedpd-run"
EXPERIMENT = "experiment.toml"
HISTORY = "history.parquet"
CHECKPOINTS = "checkpoints"
MODELS = "models"
LONGEST = 100  # characters of a label in the names of files, which file systems limit to 255
# Everything that fedpd writes into a run folder, as relative paths. `--overwrite` removes nothing else.
WRITTEN = re.compile(
    r"\.fedpd-run|experiment\.toml|history\.parquet"
    r"|checkpoints/\d\d+-[a-z0-9.-]+/(damaged-)?round-\d+\.safetensors"
    r"|models/\d\d+-[a-z0-9.-]+-seed-\d+\.safetensors"
    r"|(comparison|accuracy|sensitivity)\.(png|svg)"
    r"|report\.html|report-(histories|costs)\.csv|report-figures/[a-z_]+-[a-z_]+\.(pdf|svg|png)"
    r"|(.+/)?\.[^/]+\.\d+\.tmp|(checkpoints/[^/]+|models)/\.tmp[A-Za-z0-9]{6}"  # left by a process that was killed
)
WRITTEN_FOLDERS = re.compile(r"checkpoints(/\d\d+-[a-z0-9.-]+)?|models|report-figures")


def method_name(number: int, label: str) -> str:
    """Return the name that the files of a method share. The numbers of methods start at 1.

    Examples:
        >>> from fedpd.experiments.run_folder import method_name
        >>> method_name(3, "FedPD-GD p=0.5")
        '03-fedpd-gd-p-0.5'
    """
    return f"{number:02d}-{re.sub(r'[^a-z0-9.]+', '-', label.lower())[:LONGEST].strip('-.') or 'method'}"


def checkpoints_of(folder: Path, number: int, label: str) -> Path:
    """Return the folder of a method's checkpoints."""
    return folder / CHECKPOINTS / method_name(number, label)


def check_same_method(folder: Path, number: int, label: str) -> None:
    """Refuse to run a method if the folder holds another one of this number, because its experiment file was edited.

    Raises:
        FedpdError: The folder holds checkpoints of method `number` under another name.
    """
    wanted = checkpoints_of(folder, number, label)
    others = [path for path in (folder / CHECKPOINTS).glob(f"{number:02d}-*") if path.name != wanted.name]
    if others:
        raise FedpdError(
            f"{folder}: its method {number} was {others[0].name!r} and is now {wanted.name!r}: {EXPERIMENT} was edited,"
            " and fedpd never mixes runs. Undo the change, or use another folder: fedpd run FILE --out DIR."
        )


def write_model(folder: Path, number: int, label: str, run: Run) -> None:
    """Write the model of one seed of a method, with the fields of a `Run` that the history does not hold.

    The file does not depend on the time: after a resume, it has the same bytes.
    """
    model, arrays = pack(run.model, "model", run.model)
    spec, more = pack(run.spec, "spec")
    meta = {
        "label": label,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "rounds": int(run.history["round"][-1]),
        "model": model,
        "spec": spec,
    }
    path = folder / MODELS / f"{method_name(number, label)}-seed-{run.seed}.safetensors"
    checkpoint.write(path, arrays | more | {"updates": run.updates}, meta)


class SavedModel(NamedTuple):
    """A model of a run folder, with the fields of a `Run` that the history does not hold."""

    model: Tree
    algorithm: str  # the method's description
    spec: Spec | str  # the factory and the arguments of the method
    updates: np.ndarray  # (N,) local steps of each agent


def read_models(folder: Path, like: Tree | None = None) -> dict[tuple[str, int], SavedModel]:
    """Return the models of a run folder by label and seed.

    Args:
        like: A model of the same structure, if a file cannot describe the model.

    Raises:
        FedpdError: A file is damaged, or `like` is needed.
    """
    found = {}
    for path in sorted((folder / MODELS).glob("*.safetensors")):
        arrays, meta = checkpoint.read(path)
        if "model" not in meta:
            raise FedpdError(f"{path}: it holds no model. Remove it from the folder.")
        model, spec = unpack(meta["model"], arrays, like), unpack(meta["spec"], arrays)
        saved = SavedModel(model, meta["algorithm"], spec, arrays["updates"])
        found[meta["label"], meta["seed"]] = saved
    return found


def write_histories(folder: Path, histories: Mapping[tuple[str, int], History]) -> None:
    """Write the histories of the finished methods, by label and seed."""
    write_parquet(folder / HISTORY, histories)


def read_histories(folder: Path) -> dict[tuple[str, int], History]:
    """Return the histories of the finished methods, by label and seed."""
    path = folder / HISTORY
    try:
        return read_parquet(path) if path.exists() else {}
    except (OSError, LookupError, TypeError, ValueError) as error:  # it may be Parquet of something else
        raise FedpdError(f"{path} cannot be read ({error}). Write it again: fedpd resume {folder}.") from None


def read_experiment(folder: Path) -> str:
    """Return the text of a run folder's experiment file.

    Raises:
        FedpdError: fedpd did not make this folder for a run.
    """
    path = folder / EXPERIMENT
    if not path.is_file() or not is_run_folder(folder):
        what = "fedpd did not make this folder for a run" if folder.exists() else "there is no such folder"
        if folder.is_file():
            what = "this is a file, not the folder of a run"
        raise FedpdError(f"{folder}: {what}. Start a run: fedpd run FILE.")
    try:
        return read_file(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedpdError(f"{path} cannot be read ({error}). Start the run again in another folder.") from None


def is_run_folder(folder: Path) -> bool:
    """Return whether fedpd has made this folder for a run."""
    return (folder / MARKER).is_file()


def modules_of(folder: Path) -> Path:
    """Return the folder of the original experiment file, in which fedpd looks first for the user's own modules."""
    return folder / str(_marker(folder).get("modules", "."))


def _marker(folder: Path) -> dict[str, Any]:
    """Return the content of the marker; {} if it cannot be read."""
    try:
        found = json.loads(read_file(folder / MARKER))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def was_edited(folder: Path, text: str) -> bool:
    """Return whether the experiment file differs from the one whose results the folder holds."""
    return _marker(folder).get("experiment", _hash(text)) != _hash(text)


def mark_finished(folder: Path, text: str) -> None:
    """Record that the folder holds the results of this experiment file, e.g. after a resume with more rounds."""
    if was_edited(folder, text):
        _write_files(folder, {MARKER: json.dumps(_marker(folder) | {"experiment": _hash(text)})})


def create(folder: Path, text: str, *, overwrite: bool = False, beside: Path | None = None) -> None:
    """Make a run folder with its experiment file.

    Args:
        folder: A folder that is empty or does not exist yet; with `overwrite`, also one that holds a run.
        overwrite: Whether to remove the run that the folder holds. fedpd removes only files that it wrote.
        beside: The folder in which fedpd looks for the user's own modules. The run folder stores its relative path, so
            both folders can be moved together.

    Raises:
        FedpdError: The folder holds anything that fedpd did not write, or it is the current folder.
    """
    check_free(folder, overwrite)
    marker = {"fedpd": versions()["fedpd"], "experiment": _hash(text)}
    if beside is not None:
        marker["modules"] = os.path.relpath(beside.resolve(), folder.resolve())
    files = {MARKER: json.dumps(marker), EXPERIMENT: text}
    if folder.exists() and any(folder.iterdir()):
        with held(folder):
            _replace_run(folder.resolve(), files)
    else:
        _write_files(folder, files)


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        with replace_file(folder / name) as file:
            file.write(content.encode())


def _replace_run(folder: Path, files: Mapping[str, str]) -> None:
    """Replace a run by a new one: make the new folder beside it, exchange both, and remove the old one."""
    new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{word}") for word in ("new", "old"))
    try:
        _write_files(new, files)
        folder.rename(old)
    except OSError:  # it is a mounted disk, or its parent is read-only
        _empty(new)
        if new.exists():
            new.rmdir()
        _empty(folder)
        _write_files(folder, files)
        return
    new.rename(folder)
    _empty(old)
    old.rmdir()


def _empty(folder: Path) -> None:
    """Remove everything in a folder; there are no links in it."""
    for path in sorted(_contents(folder), reverse=True):  # a folder comes after its contents
        path.rmdir() if path.is_dir() else path.unlink()


def check_free(folder: Path, overwrite: bool) -> None:
    """Check that a run can be made in a folder.

    Raises:
        FedpdError: It is a file, it holds anything that must not be removed, or it cannot be read.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise FedpdError(f"--out {folder}: this is a file, not a folder. Choose another folder.")
        if folder.exists() and any(folder.iterdir()):
            _check_removable(folder, overwrite)
    except (OSError, ValueError) as error:
        if isinstance(error, FedpdError):
            raise
        raise FedpdError(f"--out {shown(str(folder))} cannot be used: {error}. Choose another folder.") from None


def _check_removable(folder: Path, overwrite: bool) -> None:
    """Refuse to replace a folder unless it holds nothing but a run, and `overwrite` was given."""
    if not is_run_folder(folder):
        raise FedpdError(
            f"--out {folder}: the folder is not empty, and fedpd did not make it for a run. Choose another folder."
        )
    if not overwrite:
        raise FedpdError(
            f"--out {folder}: the folder already holds a run, and fedpd never mixes runs. "
            f"Resume it: fedpd resume {folder}; or start again: --overwrite."
        )
    here = Path.cwd()
    if folder.resolve() in (here, *here.parents):
        raise FedpdError(
            f"--out {folder}: the current folder is inside it, and fedpd never removes the current folder. "
            "Change to another folder, or choose another --out."
        )
    for path in _contents(folder):
        known = WRITTEN_FOLDERS if path.is_dir() else WRITTEN
        if path.is_symlink() or not known.fullmatch(path.relative_to(folder).as_posix()):
            raise FedpdError(
                f"--out {folder}: it also holds {path.relative_to(folder)}, which fedpd did not write, so nothing was "
                "removed. Move that file away, or choose another folder."
            )


def _contents(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, without following links; nothing if there is no such folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _contents(path)
