"""Arguments that several commands share, and the list of commands."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Out = Annotated[
    Path | None, typer.Option(help="The run folder. Default: a new folder under runs/.", show_default=False)
]
Source = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="An experiment file, whose [problem] is used, or: strong, weak.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again if the folder already holds a run.")]


class PlainList(TyperGroup):
    """Lists its commands as plain text. Typer's boxes take longer to import than the rest of the command line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**(settings | {"rich_markup_mode": None}))
