"""The report of an error that a client sends to the server: without its text, unless the site allows it."""

import sysconfig
import traceback
from pathlib import Path

from fedpd.base import checks
from fedpd.base.checks import FedpdError
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.method.agent import LostStateError

CHECKS = Path(checks.__file__).parent  # whose functions raise errors for others
FOREIGN = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}


class AppError(Exception):
    """An error in the app, of which the text says only the type and the place."""


def told(error: Exception, *, texts: bool) -> str:
    """Return an error as the server reports it.

    Refusals of fedpd are told as they are: they come from the order, the run or the policy, and hold no samples. Of
    other errors the type and the place are told; the rest is in the client's own log.

    Args:
        error: The error.
        texts: Whether the text of the error may be told.
    """
    if isinstance(error, RefusedError | LostStateError | AppError) or (texts and isinstance(error, FedpdError)):
        return str(error)
    first = origin(error)
    where = f"{type(first).__name__} in {place_of(first)}"
    if texts:
        return f"{where}: {' '.join(str(error).split())[:300]}. Correct the app or its data."
    return f"{where}. Its text may hold data, so it is only in this client's own log. Correct the app or its data."


def origin(error: BaseException) -> BaseException:
    """Return the error of the app's own code that fedpd reports in words of its own, or the error itself."""
    while isinstance(error, FedpdError) and error.__context__ is not None:
        error = error.__context__
    return error


def place_of(error: BaseException) -> str:
    """Return the file and the line of the app's or fedpd's code that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(Path(frame.filename)) and Path(frame.filename).parent != CHECKS]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def is_own(path: Path) -> bool:
    """Return whether a file belongs to the app or to fedpd, and not to another package."""
    return "fedpd" in path.parts or not any(path.is_relative_to(folder) for folder in FOREIGN)
