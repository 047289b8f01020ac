"""Hold a folder, so that no other process writes to it, and remove what killed processes left there."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpd.base.atomic import make_folder
from fedpd.base.errors import FedpdError

if sys.platform != "win32":
    import fcntl

# The names that `replace_file` gives to an unfinished file of a process, and safetensors to one that it writes.
TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp|\.tmp[A-Za-z0-9]{6}")


@contextmanager
def held(folder: Path, *within: Path) -> Iterator[None]:
    """Hold a folder during a block; make it if it does not exist.

    The system releases the folder when the process ends, however it ends. Unfinished files of processes that no longer
    exist are removed. The system gives the number of a killed process to new ones, so all unfinished files are removed
    from the folders `within`.

    Args:
        folder: The folder.
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
    """Remove the temporary files that killed processes left in a folder, if there is such a folder.

    Args:
        folder: The folder.
        all_of_them: Whether to remove those of running processes too, because none of them can be writing here.
    """
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
