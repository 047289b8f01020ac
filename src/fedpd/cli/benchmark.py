"""The commands that compare methods on problems and draw performance profiles: on smooth ones, and on networks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpd.cli.arguments import listed, listed_numbers

if TYPE_CHECKING:
    from fedpd.base.progress import StepFunction
    from fedpd.suite.results import Written

group = typer.Typer(rich_markup_mode="markdown")
Listed = list[str] | None
List = Annotated[bool, typer.Option("--list", help="List the problems and exit.")]
METHODS_HELP = "Names from fedpd methods separated by commas; FedPD-M (solve) is fedpd solve. Default: all that fit."
OUT = typer.Option(help="The folder. Existing results are kept.")


@group.callback(invoke_without_command=True)
def benchmark(
    context: typer.Context,
    methods: Annotated[Listed, typer.Option(help=METHODS_HELP)] = None,
    problems: Annotated[
        Listed, typer.Option(help="Names from --list, separated by commas. Default: all problems.")
    ] = None,
    budgets: Annotated[Listed, typer.Option(help="The runs to tune each method, e.g. 0,8,64. Default: 0.")] = None,
    rounds: Annotated[int, typer.Option(help="The largest number of rounds of a run.")] = 512,
    out: Annotated[Path, OUT] = Path("runs/suite"),
    again: Annotated[
        bool, typer.Option("--again", help="Run the chosen methods anew and replace their results.")
    ] = False,
    show: List = False,
) -> None:
    """Compare methods on a suite of problems.

    fedpd measures what each method spends until ||grad f||^2 is 1e-10 of its value at the start. It writes tables and
    performance profiles. After Ctrl-C, the same command continues.
    """
    if context.invoked_subcommand is not None:
        return
    from fedpd.cli.terminal import console
    from fedpd.suite.results import list_problems, write_results
    from fedpd.suite.runner import run_suite

    if show:
        console.print(list_problems())
        return
    chosen = listed_numbers("--budgets", budgets) or [0]
    with _resumable(out) as display:
        cells = run_suite(
            out / "cells.jsonl",
            methods=listed(methods),
            problems=listed(problems),
            budgets=chosen,
            rounds=rounds,
            again=again,
            progress=display,
        )
    _show(write_results(cells, chosen, out))


@group.command()
def networks(
    methods: Annotated[
        Listed,
        typer.Option(help="Names separated by commas, e.g. FedPD-N,SCAFFOLD. Default: all. FedAvg always runs."),
    ] = None,
    problems: Annotated[
        Listed, typer.Option(help="Names from --list, separated by commas. Default: all whose data are here.")
    ] = None,
    budgets: Annotated[
        Listed, typer.Option(help="The settings that each rival may try, e.g. 0,8,32. Default: 0.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="The seeds of the results. Tuning has two others.")] = 5,
    data: Annotated[Path | None, typer.Option(help="The folder of some problems' data. Default: this one.")] = None,
    out: Annotated[Path, OUT] = Path("runs/networks"),
    show: List = False,
) -> None:
    """Compare FedPD-N, which has nothing to tune, with tuned rivals on small networks.

    fedpd tunes each rival on validation samples. It measures what each method spends until it keeps 90, 97 and 100 % of
    tuned FedAvg's test accuracy, and writes a page and performance profiles. After Ctrl-C, the same command continues.
    """
    from fedpd.cli.terminal import console
    from fedpd.suite.networks_results import list_tasks, write_networks
    from fedpd.suite.networks_runner import run_networks

    if show:
        console.print(list_tasks())
        return
    chosen = listed_numbers("--budgets", budgets) or [0]
    with _resumable(out) as display:
        outcomes = run_networks(
            out / "cells.jsonl",
            methods=listed(methods),
            problems=listed(problems),
            budgets=chosen,
            seeds=seeds,
            data=data,
            progress=display,
        )
    _show(write_networks(outcomes, chosen, out))


@contextmanager
def _resumable(out: Path) -> "Iterator[StepFunction]":
    """Show one bar, which names the method and the problem that run; after Ctrl-C, say how to continue, and exit."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpd.cli.terminal import console, interruptible

    columns = BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    bar = Progress(*columns, TextColumn("{task.description}", markup=False), console=console)
    with interruptible(f"Interrupted. The same command resumes the work in {out}"), bar as display:
        task = display.add_task("", total=None)
        yield lambda what, done, total: display.update(task, description=what, completed=done, total=total)


def _show(written: "Written") -> None:
    """Print the findings and the paths of the files."""
    from fedpd.cli.terminal import say, show_lines

    for sentence in written.findings:
        say(sentence)
    for path in written.files:
        show_lines(f"Saved: {path}")
