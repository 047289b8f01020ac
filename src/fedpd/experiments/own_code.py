"""The user's own code in an experiment file: "my_module:my_method" names a function of a module.

fedpd looks for a module beside the experiment file, then on Python's path. It refuses two different modules of one
name, so a file beside the experiment never replaces an installed package, and no package replaces the file. To locate
a module, fedpd runs nothing. It imports the module only to run an experiment, never for a report.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.base.checks import FedpdError, nearest

NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
REFERENCE = re.compile(f"({NAME}):({NAME})")
# The arguments that may be a text "my_module:thing", which names an object of the module. For any argument, a table
# with such a name is a call of the object.
KEYS = (
    *("losses", "penalty", "apply", "normalisation", "answer", "weights", "start", "hessians", "linear"),
    *("data", "model", "oracle", "optimizer", "step", "p", "g", "draw", "mixing", "record", "log", "callback"),
    *("loss", "correct", "metrics", "own"),
)
Find = Callable[[str], Any]  # "my_module:thing" -> the object


class Code(NamedTuple):
    """A module of the user's own, and the file that it is in."""

    module: str
    path: Path


def is_reference(value: Any) -> bool:
    """Return whether a value of an experiment file names the user's own code."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def references(table: Any, key: str = "") -> Iterator[str]:
    """Yield every name of own code in the tables of an experiment file."""
    if isinstance(table, Mapping):
        for inner, value in table.items():
            yield from references(value, inner)
    elif isinstance(table, list | tuple):
        for value in table:
            yield from references(value, key)
    elif key in ("name", *KEYS) and is_reference(table):
        yield table


def locate(names: Iterable[str], beside: Path | None) -> tuple[Code, ...]:
    """Return the modules that these references name, and their files, without running anything.

    Args:
        beside: The folder of the experiment file, which fedpd searches first; None: it searches only Python's path.

    Raises:
        FedpdError: A module does not exist, or there are two of one name.
    """
    found = {}
    for name in names:
        module = name.partition(":")[0]
        found[module] = Code(module, _file(module, beside))
    return tuple(found.values())


def refuse_code(reference: str) -> Any:
    """Refuse to run the user's own code: a report only reads."""
    raise FedpdError(
        f"{reference!r} is the experiment author's own code, and reading results never runs it. "
        "Use fedpd run, resume, tune, solve or advise, which do."
    )


def importing(beside: Path | None) -> Find:
    """Return a function that imports modules and returns the object of a reference."""

    def find(reference: str) -> Any:
        (code,) = locate([reference], beside)
        name = reference.partition(":")[2]
        module = _import(code, beside)
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                public = [known for known in vars(found) if not known.startswith("_")]
                raise FedpdError(f"{code.path} has no {name!r}. {nearest(part, public)}")
            found = getattr(found, part)
        return found

    return find


def _import(code: Code, beside: Path | None) -> Any:
    """Return the imported module. Its own imports find installed packages first, then other modules beside it."""
    loaded = sys.modules.get(code.module)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() != code.path:
        raise FedpdError(
            f"{code.path}: this process has already imported another module {code.module!r}. Rename one of them."
        )
    folder = None if beside is None else str(beside.resolve())
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        sentence = error_in_code(error, [code]) or f"{code.path}: {_error_text(error)}. Correct the module."
        raise FedpdError(sentence) from error


@contextmanager
def explain_errors(code: Iterable[Code]) -> Iterator[None]:
    """Replace an error of the user's own code by a sentence that names the module, the line and the error.

    Raises:
        FedpdError: The user's own code failed. Errors of other code do not change.
    """
    code = tuple(code)
    try:
        yield
    except FedpdError as error:
        sentence = None if error.__cause__ is None else error_in_code(error.__cause__, code)
        where = "" if sentence is None else ": ".join(sentence.split(": ")[:2])
        if where in str(error):  # the message names the line already, or own code is not the cause
            raise
        raise FedpdError(f"{error} ({where})") from error
    except Exception as error:
        sentence = error_in_code(error, code)
        if sentence is None:
            raise
        raise FedpdError(sentence) from error


def error_in_code(error: BaseException, code: Iterable[Code]) -> str | None:
    """Return a sentence that names the module, the line and the error; None if own code did not raise the error."""
    files = {os.path.realpath(one.path): one for one in code}
    if isinstance(error, SyntaxError) and os.path.realpath(error.filename or "") in files:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}. Correct the module."
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.realpath(frame.filename) in files:
            return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {_error_text(error)}. Correct the module."
    return None


def _error_text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _file(module: str, beside: Path | None) -> Path:
    """Return the file of a module, beside the experiment file or on Python's path."""
    folder = None if beside is None else beside.resolve()
    others = [entry for entry in sys.path if folder is None or Path(entry or ".").resolve() != folder]
    here = None if folder is None else _spec(module, [str(folder)])
    elsewhere = _spec(module, others) or _spec(module, None)
    top = module.partition(".")[0]
    if here is not None and (top in sys.stdlib_module_names or (elsewhere and elsewhere.origin != here.origin)):
        other = "one of Python's own" if elsewhere is None else elsewhere.origin
        raise FedpdError(f"{here.origin}: there is another module of that name, {other}. Rename your module.")
    spec = here or elsewhere
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        place = "on Python's path" if folder is None else f"in {folder} nor on Python's path"
        raise FedpdError(
            f"there is no module {module!r} {place}. Put {module.replace('.', '/')}.py beside the experiment file, or "
            "set PYTHONPATH to its folder."
        )
    return Path(spec.origin).resolve()


def _spec(module: str, path: list[str] | None) -> ModuleSpec | None:
    """Return the import spec of a module, without importing it or the packages around it.

    Args:
        path: The folders to search; None: ask the finders of packages that are installed in place (pip install -e).
    """
    top, *inner = module.split(".")
    finders = [finder for finder in sys.meta_path if finder is not PathFinder] if path is None else [PathFinder]
    spec = next(filter(None, (finder.find_spec(top, path) for finder in finders)), None)
    name = top
    for part in inner:
        if spec is None or not spec.submodule_search_locations:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec
