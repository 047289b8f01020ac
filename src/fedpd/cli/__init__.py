"""The command line: its commands, and the form of warnings and errors.

The files of this package hold the commands by topic. They import JAX and everything else that takes time to load when
a command runs, so that `fedpd --help` answers at once.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer

from fedpd import __version__
from fedpd.base.errors import FedpdError, UnexpectedError
from fedpd.cli import benchmark, experiments, federations, results, search
from fedpd.cli.arguments import PlainList

# Errors of the system that a correct command meets too.
FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENOMEM)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    cls=PlainList,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Federated optimisation for clients whose data differ: FedPD and the methods it is compared with.",
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {  # by topic, as the help lists them
    "Compare and run": (experiments.compare, experiments.run, experiments.resume),
    "Look at results and methods": (results.report, results.watch, results.methods),
    "Nothing to tune": (search.solve, search.train),
    "Find settings": (search.advise, search.tune),
    "Check claims": (search.reproduce,),
    "Federations": federations.COMMANDS,
}
for topic, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=topic)(command)
app.add_typer(results.data, name="data", rich_help_panel="Look at data")
app.add_typer(benchmark.group, name="benchmark", rich_help_panel="Check claims")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedpd {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
]


Debug = Annotated[bool, typer.Option("--debug", help="After an error, show where in the code it happened.")]


@app.callback()
def options(version: Version = False, debug: Debug = False) -> None: ...


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
    """Run the command line, and end every error with a sentence.

    The exit code is 2 after a mistake of the user, and 1 if the system or fedpd failed; the page on commands has the
    table. Only `--debug` shows where in the code it happened.
    """
    warnings.showwarning = _note
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII or Latin-1 terminal shows ? for other characters
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        function()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from fedpd.cli.terminal import say_beside

        if "--debug" in sys.argv:
            traceback.print_exception(error)
        say_beside("error: ", "bold red", sentence_of(error))
        sys.exit(2 if _is_mistake(error) else 1)


def _is_mistake(error: Exception) -> bool:
    """Return whether the user made a mistake, and neither the system nor fedpd failed."""
    if not isinstance(error, FedpdError):
        return bool(_wrong_variables(error))
    cause: BaseException | None = error
    while cause is not None:  # those that led to it
        if isinstance(cause, UnexpectedError) or (isinstance(cause, OSError) and cause.errno in FAILED):
            return False
        cause = cause.__context__
    return True


def _wrong_variables(error: Exception) -> list[str]:
    """Return the environment variables for JAX, with their values, that made JAX refuse to start."""
    given = [name for name in os.environ if name.startswith("JAX_")]
    text = str(error).lower()
    named = [name for name in given if name.lower() in text]
    unusable = isinstance(error, RuntimeError) and "unable to initialize backend" in text
    chosen = named or (given if unusable else [])
    refused = isinstance(error, ValueError | RuntimeError) and not isinstance(error, FedpdError)
    return [f"{name}={os.environ[name]}" for name in chosen] if refused else []


def sentence_of(error: Exception) -> str:
    """Return the sentence that tells a user about an error.

    Examples:
        >>> from fedpd.cli import sentence_of
        >>> sentence_of(OSError(28, "No space left on device", "runs/x"))
        'runs/x: No space left on device. Choose another place, or make room and permit access to this one.'
    """
    if isinstance(error, FedpdError):
        return str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}. Choose another place, or make room and permit access to this one."
    if isinstance(error, MemoryError):
        return "There is not enough memory. Use fewer agents or samples, a smaller batch, or the key store of [run]."
    what = " ".join(str(error).split())[:300].rstrip(".")
    variables = _wrong_variables(error)
    if variables:
        return f"{', '.join(variables)}: JAX does not start with this environment ({what}). Correct or unset it."
    return (
        f"{type(error).__name__}: {what}. This is a fault of fedpd. Repeat the command as `fedpd --debug ...`, and "
        "report what it prints."
    )
