"""The command that compares methods on the suite of problems and draws performance profiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedpd.base.progress import StepFunction


METHODS_HELP = "A name from fedpd methods, or FedPD-M (solve) for fedpd solve. Default: all that fit."


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(benchmark)


def benchmark(
    methods: Annotated[list[str] | None, typer.Option(help=METHODS_HELP, show_default=False)] = None,
    problems: Annotated[
        list[str] | None, typer.Option(help="A name from --list. Default: all problems.", show_default=False)
    ] = None,
    budgets: Annotated[
        list[int] | None, typer.Option(help="The runs to tune each method: 0, 8 or 64. Default: 0.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(help="The largest number of rounds of a run.")] = 512,
    out: Annotated[Path, typer.Option(help="The folder. Existing results are kept.")] = Path("runs/suite"),
    again: Annotated[
        bool, typer.Option("--again", help="Run the chosen methods anew and replace their results.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the problems and exit.")] = False,
) -> None:
    """Compare methods on a suite of problems.

    fedpd measures what each method spends until ||grad f||^2 is 1e-10 of its value at the start. It writes tables and
    performance profiles. After Ctrl-C, the same command continues.
    """
    from fedpd.base.interrupts import CODE, in_order
    from fedpd.cli.terminal import console, say, show_lines
    from fedpd.suite.results import list_problems, write_results
    from fedpd.suite.runner import run_suite

    if show:
        console.print(list_problems())
        return
    chosen = budgets or [0]
    try:
        with in_order(), _one_bar() as display:
            cells = run_suite(
                out / "cells.jsonl",
                methods=methods,
                problems=problems,
                budgets=chosen,
                rounds=rounds,
                again=again,
                progress=display,
            )
    except KeyboardInterrupt:
        show_lines(f"Interrupted. The same command resumes the work in {out}")
        raise typer.Exit(CODE) from None
    written = write_results(cells, chosen, out)
    for sentence in written.findings:
        say(sentence)
    for path in written.files:
        show_lines(f"Saved: {path}")


@contextmanager
def _one_bar() -> "Iterator[StepFunction]":
    """Show one bar, which names the method and the problem that run."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpd.cli.terminal import console

    columns = BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console) as display:
        task = display.add_task("", total=None)
        yield lambda what, done, total: display.update(task, description=what, completed=done, total=total)
