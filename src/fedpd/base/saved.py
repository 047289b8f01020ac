"""Save a result to a folder of its own, and load it.

The folder holds one file with a checksum and without pickle. A process that is killed leaves a whole file or none.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError, refuse, shown
from fedpd.base.trees import pack, unpack
from fedpd.base.versions import versions

FILE = "result.safetensors"


def save_result(result: Any, folder: str | Path, *, model: Any = None, overwrite: bool = False) -> Path:
    """Write a result to a folder, from which `fedpd.load` reads it.

    Args:
        result: A result of fedpd, e.g. a `Run`.
        folder: A folder that is empty or does not exist yet.
        model: The model of the result, which may be a pytree of any kind.
        overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.

    Returns:
        The folder.

    Raises:
        FedpdError: The folder holds something else, or the result cannot be described in a file.
    """
    if not isinstance(folder, str | Path) or not str(folder):
        refuse("folder", folder, "must be the path of a folder", 'Give e.g. "runs/a"')
    check_free(Path(folder), overwrite)
    return write_result(result, Path(folder), model)


def write_result(result: Any, folder: Path, model: Any = None) -> Path:
    """Write a result to a folder that may hold other files too, and return the folder; see `save_result`."""
    plain, arrays = pack(result, "result", model)
    meta = {"kind": type(result).__name__, "result": plain, "versions": versions()}
    checkpoint.write(folder / FILE, arrays, meta)
    return folder


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds a saved result."""
    return (folder / FILE).is_file()


def load_result(folder: Path, like: Any = None, leave_out: Sequence[str] = ()) -> Any:
    """Return the result that a folder holds.

    Args:
        like: A model of the same structure, if the model is a pytree that a file cannot describe.
        leave_out: Fields of fedpd's own classes to leave out. They become None.
    """
    arrays, meta = checkpoint.read(folder / FILE)
    if "result" not in meta:
        raise FedpdError(f"{folder / FILE}: the file holds no saved result. Give a folder that save() wrote.")
    try:
        return unpack(_without(meta["result"], leave_out), arrays, like)
    except FedpdError as error:
        raise FedpdError(f"{folder}: {error}") from None


def _without(plain: Any, names: Sequence[str]) -> Any:
    """Return a packed result with these fields of fedpd's own classes set to None."""
    if isinstance(plain, list):
        return [_without(one, names) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if str(plain.get("class", "")).startswith("fedpd."):
        fields = {key: None if key in names else _without(one, names) for key, one in plain["fields"].items()}
        return {**plain, "fields": fields}
    return {key: _without(one, names) for key, one in plain.items()}


def check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds anything that must not be replaced."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except (OSError, ValueError) as error:  # it cannot be read, or its name is not possible
        raise FedpdError(f"{shown(str(folder))} cannot be used: {error}. Choose another folder.") from None
    if is_free:
        return
    if not folder.is_dir():
        raise FedpdError(f"{folder}: this is a file, not a folder. Choose another folder.")
    if not is_saved(folder):
        raise FedpdError(f"{folder}: the folder is not empty, and it holds no saved result. Choose another folder.")
    if not overwrite:
        remedy = "Choose another folder, or give overwrite=True (in a shell: --overwrite)"
        raise FedpdError(f"{folder}: the folder holds a saved result. {remedy}.")
    checkpoint.read(folder / FILE)  # refuses a file that fedpd did not write
