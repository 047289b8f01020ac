"""Write to the terminal. Sentences wrap at words; paths and commands stay on one line, so that users can copy them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from fedpd.base.atomic import replace_file
from fedpd.base.interrupts import CODE, in_order
from fedpd.base.progress import Event, StepFunction, terminal_bars

console = Console()


def say(text: str | Text) -> None:
    """Print sentences. On a terminal they wrap at words; in a file or a pipe each stays on one line."""
    console.print(Text(text) if isinstance(text, str) else text, soft_wrap=not console.is_terminal)


def say_beside(heading: str, style: str, text: str) -> None:
    """Print a sentence on the standard error, after a heading in colour."""
    beside = Console(stderr=True)
    beside.print(Text.assemble((heading, style), text), soft_wrap=not beside.is_terminal)


def show_lines(text: str) -> None:
    """Print lines that the user may copy, without breaking them."""
    console.print(Text(text), soft_wrap=True)


@contextmanager
def steps() -> Iterator[StepFunction]:
    """Show a bar for each step of a command. A bar appears when its step begins."""
    with terminal_bars(console) as listen:
        yield lambda what, done, total: listen(Event(what, done, total))


@contextmanager
def interruptible(sentence: str) -> Iterator[Callable[[], None]]:
    """After Ctrl-C in the block, print how to continue, and exit; see `in_order` for the function that it yields."""
    try:
        with in_order() as check:
            yield check
    except KeyboardInterrupt:
        show_lines(sentence)
        raise typer.Exit(CODE) from None


def write(path: Path, text: str) -> None:
    """Write a file and say where it is."""
    with replace_file(path) as file:
        file.write(text.encode())
    show_lines(f"Saved: {path}")


def new_folder(name: str) -> Path:
    """Return the path of a new run folder under runs/."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
