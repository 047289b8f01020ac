"""Reads the tables of TOML files and the configuration of a run into typed classes, with one form of error message.

The keys of a table are the fields of a NamedTuple, with "-" in place of "_". A message has the place, the value, the
rule and the remedy. The class describes types and defaults; whoever reads a table checks the ranges of its numbers.
"""

import inspect
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedpd.base.atomic import read_file, reading_fault
from fedpd.base.checks import FedpdError, choice, nearest, refuse
from fedpd.base.typed import misfit

T = TypeVar("T")
EXAMPLES = {bool: "true", int: "1", float: "0.5", str: '"..."', tuple: '["..."]', dict: '{ name = "..." }'}


def read_toml(path: Path, remedy: str, what: str = "") -> dict[str, Any]:
    """Return the content of a TOML file; the message for a file that cannot be read names `what` it is."""
    try:
        return tomllib.loads(read_file(path).decode())
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: brackets within brackets
        raise FedpdError(f"{path}{what} cannot be read ({reading_fault(error)}). {remedy}.") from None


def read_table(
    kind: Callable[..., T], table: Any, place: str = "", *, what: str = "entry", folder: Path = Path(), **known: Any
) -> T:
    """Return an object with the values of a table.

    Args:
        kind: The NamedTuple.
        table: The table.
        place: The place of the table, for error messages; "": the keys alone are a place.
        what: The word for a key in error messages.
        folder: The folder at which relative paths start.
        **known: Fields that do not come from the table.

    Raises:
        FedpdError: If the table has an unknown key or a value of another type, or lacks a key.
    """
    fields = {name: one for name, one in inspect.signature(kind).parameters.items() if name not in known}
    kinds, before = get_type_hints(kind), place and f"{place}: "
    if not isinstance(table, Mapping):
        refuse(place, table, "must be a table", "Write name = value in it")
    check_keys(table, [name.replace("_", "-") for name in fields], before, what)
    for name, field in fields.items():
        key = name.replace("_", "-")
        if key not in table and field.default is field.empty:
            raise FedpdError(f"{before}{key} is missing. Add it.")
        value = table.get(key, field.default)
        if key in table:
            value = _checked(before + key, value, kinds[name])
        known[name] = folder / value if isinstance(value, Path) else value
    return kind(**known)


def check_keys(table: Mapping[str, Any], known: Collection[str], before: str, what: str) -> None:
    """Refuse a table with an unknown key."""
    for key in table:
        if key not in known:
            refuse(f"{before}{key}", table[key], f"there is no such {what}", nearest(key, known))


def _checked(place: str, value: Any, kind: Any) -> Any:
    """Return a value if it has the type of its field. A field that may be None is None for an empty path."""
    optional = NoneType in get_args(kind)
    (kind,) = (one for one in get_args(kind) if one is not NoneType) if optional else (kind,)
    if get_origin(kind) is Literal:
        return choice(place, value, get_args(kind))
    wanted = str if kind is Path else kind
    if reason := misfit(value, wanted):
        example = EXAMPLES[get_origin(wanted) or wanted]
        rule = reason.replace("True or False, not", "true or false, not")  # as TOML writes them
        refuse(place, value, rule, f"Write {place.rpartition(' ')[2]} = {example}")
    if kind is Path:
        return Path(value) if value or not optional else None
    return tuple(value) if isinstance(value, list) else value
