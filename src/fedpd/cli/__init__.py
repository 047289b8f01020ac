"""The command line: its commands, and the form of warnings and errors.

The files of this package hold the commands by topic. They import JAX and everything else that takes time to load when
a command runs, so that `fedpd --help` answers at once.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, TextIO

import typer

from fedpd import __version__
from fedpd.base.errors import FedpdError
from fedpd.cli import benchmark, data, deploy, experiments, results, search
from fedpd.cli.arguments import PlainList

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=PlainList,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Federated optimisation for clients whose data differ: FedPD and the methods it is compared with.",
)
experiments.register(app)
results.register(app)
search.register(app)
data.register(app)
deploy.register(app)
benchmark.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedpd {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


@app.callback()
def options(version: Version = False) -> None: ...


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as a sentence."""
    from fedpd.cli.terminal import say_beside

    say_beside("note: ", "bold yellow", str(message))


def main(function: Callable[[], None] = app) -> None:
    """Run the command line. After a mistake of the user, print a sentence without traceback and exit with code 2."""
    warnings.showwarning = _note
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        function()
    except FedpdError as error:
        from fedpd.cli.terminal import say_beside

        say_beside("error: ", "bold red", str(error))
        sys.exit(2)
