"""Arguments that several commands share, and the list of commands."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Out = Annotated[Path | None, typer.Option(help="The run folder. Default: a new folder under runs/.")]
Source = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="An experiment file, whose [problem] is used, or: strong, weak.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again if the folder already holds a run.")]


LONGEST = 200  # characters of a command's summary: it wraps, and is never cut


class PlainList(TyperGroup):
    """Lists its commands as plain text, by topic. Typer's boxes take longer to import than the rest of the commands."""

    def __init__(self, **settings: Any) -> None:
        # Click 8.4 names the nearest command by itself. Newer versions of typer bring an own Click, which does not.
        click = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
        suggests = hasattr(sys.modules[f"{click}.exceptions"], "NoSuchCommand")
        super().__init__(**(settings | {"rich_markup_mode": None, "suggest_commands": not suggests}))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each topic, which is the panel that a command is registered with."""
        commands = {name: self.commands[name] for name in self.list_commands(ctx)}
        topics: dict[str, list[str]] = {}
        for name, command in commands.items():
            topics.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(name)
        for topic, names in topics.items():
            with formatter.section(topic):
                formatter.write_dl([(name, commands[name].get_short_help_str(LONGEST)) for name in names])


def listed(values: list[str] | None) -> list[str] | None:
    """Return the items of a list, given as `--problems a,b` or as `--problems a --problems b`; None: not given."""
    from fedpd.base.checks import refuse

    items = [item.strip() for value in values or () for item in value.split(",")]
    if not all(items):
        refuse("option", ",".join(values or ()), "has an empty item", "Give a list separated by commas, e.g. a,b")
    return items or None


def listed_numbers(name: str, values: list[str] | None) -> list[int] | None:
    """Return the whole numbers of an option that is a list; None: not given."""
    from fedpd.base.checks import refuse

    items = listed(values)
    for item in items or ():
        if not item.isdecimal():
            refuse(name, item, "must be whole numbers separated by commas", "Give e.g. 0,8")
    return None if items is None else [int(item) for item in items]


def method_names(methods: str) -> list[str] | None:
    """Return the names in a list separated by commas; None: no list was given."""
    from fedpd.base.checks import refuse

    names = [name.strip() for name in methods.split(",")]
    if methods and "all" in names and len(names) > 1:
        refuse("--methods", methods, "all stands for every method, so no other name may be beside it", "Give all alone")
    if methods and not all(names):
        refuse("--methods", methods, "must be names separated by commas", "Give e.g. FedPD-GD,SCAFFOLD, or all")
    return names if methods else None
