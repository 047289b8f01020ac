"""The commands for federated data in files."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.cli.arguments import PlainList


def register(app: typer.Typer) -> None:
    """Add the group `data` to the command line."""
    about = "Inspect federated data in files."
    group = typer.Typer(no_args_is_help=True, cls=PlainList, rich_markup_mode="markdown", help=about)
    group.callback()(_nothing)  # without it, Typer makes a group of one command the command itself
    group.command()(inspect)
    app.add_typer(group, name="data", rich_help_panel="Look at data")


def _nothing() -> None: ...


def inspect(
    path: Annotated[Path, typer.Argument(help="LEAF json (a file, or a folder of train/ and test/), Parquet or CSV.")],
    client: Annotated[
        str | None, typer.Option(help="Tables: the column with the client's name.", show_default=False)
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Tables: the columns of features, separated by commas.", show_default=False)
    ] = None,
    label: Annotated[str, typer.Option(help="Tables: the column of labels.")] = "label",
    split: Annotated[
        str | None, typer.Option(help='Tables: the column with "train" or "test".', show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the figure.")] = Path("runs/data"),
) -> None:
    """Show how much the agents' data differ.

    fedpd prints the agents, samples and labels, measures how much the gradients of the agents differ, and saves a
    figure.
    """
    from fedpd.base.atomic import make_folder
    from fedpd.cli.terminal import console, show_lines
    from fedpd.data.files import load
    from fedpd.report import save_figure
    from fedpd.report.data import summary_table

    with console.status("reading"):
        found = load(path, client=client, features=features, label=label, split=split)
        table = summary_table(found)
    console.print(table)
    make_folder(out)
    saved = save_figure(found.plot(), out, path.name.split(".")[0])
    show_lines(f"Figure: {saved[0]}")
