"""Files that are complete or missing, and folders to which one process writes at a time.

fedpd writes a temporary file, calls fsync and renames it. A process that holds a folder removes what killed ones left.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedpd.base.errors import FedpdError

if sys.platform != "win32":
    import fcntl

# The names that `replace_file` gives to an unfinished file of a process, and safetensors to one that it writes.
TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp|\.tmp[A-Za-z0-9]{6}")
NEAR = 4096  # bytes at the beginning and at the end of a file, among which fedpd looks for its own mark


def make_folder(folder: Path) -> Path:
    """Make a folder if it does not exist, and return it.

    Raises:
        FedpdError: It cannot be made, e.g. because a file has this name or the disk is read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: the name has a zero byte
        reason = getattr(error, "strerror", None) or error
        raise FedpdError(f"{str(folder)[:200]!r} cannot be a folder ({reason}). Choose another folder.") from None
    return folder


def nameless_file(folder: Path) -> IO[bytes]:
    """Return a new file in a folder. It has no name, so the system removes it however the process ends.

    Raises:
        FedpdError: The folder cannot be made, or no file can be made in it.
    """
    make_folder(folder)
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        remedy = "Make room there and check the permissions, or choose another folder"
        raise FedpdError(f"{folder}: no file can be made in it ({error.strerror or error}). {remedy}.") from None


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file to write. It replaces `path` only when it is complete and on disk.

    Raises:
        FedpdError: The file cannot be written, e.g. because the disk is full or the folder is read-only.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    make_folder(path.parent)
    try:
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # the rename itself
        finally:
            os.close(directory)
    except OSError as error:
        remedy = "Make room there and check the permissions, or choose another folder"
        raise FedpdError(f"{path} cannot be written ({error.strerror or error}). {remedy}.") from None


def check_replaceable(path: Path, mark: bytes | None = None) -> None:
    """Refuse to replace a file of the user's: fedpd replaces only files that it wrote itself.

    Args:
        mark: Bytes near the beginning or the end of every such file that fedpd writes; None: an existing file is never
            replaced.

    Raises:
        FedpdError: There is such a file, and fedpd did not write it.
    """
    if not os.path.lexists(path):
        return
    try:
        content = b"" if mark is None else read_file(path)
        own = mark is not None and (mark in content[:NEAR] or mark in content[-NEAR:])
    except OSError:
        own = False
    if not own:
        raise FedpdError(f"--out {path}: a file of this name exists. Choose another name, or remove the file.")


def read_file(path: Path) -> bytes:
    """Return the content of a file. A pipe or a device is refused, because reading it may never end.

    Raises:
        OSError: There is no such file, or it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is a folder" if path.is_dir() else "it is not a file, but a pipe or a device")
    return path.read_bytes()


def reading_fault(error: Exception) -> str:
    """Return why a file cannot be read, without its name, which a message has already.

    Examples:
        >>> from fedpd.base.atomic import reading_fault
        >>> reading_fault(FileNotFoundError(2, "No such file or directory", "x.toml"))
        'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8; save it as UTF-8"
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def held(folder: Path, *within: Path) -> Iterator[None]:
    """Hold a folder during a block; make it if it does not exist.

    The system releases the folder when the process ends, however it ends. Unfinished files of processes that no longer
    exist are removed. The system gives the number of a killed process to new ones, so all unfinished files are removed
    from the folders `within`.

    Args:
        within: Folders in it, to which only a process that holds the folder writes.

    Raises:
        FedpdError: Another process holds the folder, or it cannot be made.
    """
    make_folder(folder)
    if sys.platform == "win32":  # which has no locks on folders
        yield
        return
    # The lock is on the folder itself: one of filelock would leave a file in it, and fedpd asks for empty folders.
    directory = os.open(folder, os.O_RDONLY)
    try:
        alone = True
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "Wait until it has finished, end it, or choose another folder"
            raise FedpdError(f"{folder}: another process is writing to this folder. {remedy}.") from None
        except OSError:  # a file system without locks
            alone = False
        remove_unfinished(folder)
        for place in within:
            remove_unfinished(place, all_of_them=alone)
        yield
    finally:
        os.close(directory)


def remove_unfinished(folder: Path, all_of_them: bool = False) -> None:
    """Remove temporary files that killed processes left in a folder; with `all_of_them` also those of running ones."""
    for path in folder.iterdir() if folder.is_dir() else ():
        found = TEMPORARY.fullmatch(path.name)
        dead = found and (all_of_them or (found[1] is not None and not _runs(int(found[1]))))
        if dead and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # it belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def kept_rows(
    file: Path, settings: dict[str, Any], keep: Callable[[dict[str, Any]], bool] = lambda row: True
) -> list[dict[str, Any]]:
    """Return the results that a file has after its settings, and remove those not to keep; make it if it is not there.

    Args:
        file: One JSON object per line.
        settings: The first line, which all results share.
        keep: Whether to keep a result.

    Raises:
        FedpdError: The file has other settings.
    """
    if not file.exists() or not json_rows(file):
        make_folder(file.parent)
        file.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    first, *rows = json_rows(file)
    if first != settings:
        raise FedpdError(f"{file} holds results of {first}, not of {settings}. Give another folder.")
    kept = [row for row in rows if keep(row)]
    whole = "".join(json.dumps(row) + "\n" for row in (settings, *kept))
    if file.read_text(encoding="utf-8") != whole:  # drop also what an interruption left of a line
        with replace_file(file) as new:
            new.write(whole.encode())
    return kept


def json_rows(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; a last line that was cut off by an interruption is left out."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
