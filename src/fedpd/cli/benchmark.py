"""The command that runs methods on the suite of problems and draws performance profiles."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fedpd.base.progress import bars

console = Console()


def register(app: typer.Typer) -> None:
    app.command(name="benchmark")(benchmark)


def benchmark(
    methods: Annotated[
        list[str] | None, typer.Option(help="Labels as in `fedpd methods`; by default all that fit.")
    ] = None,
    problems: Annotated[list[str] | None, typer.Option(help="Names of problems; by default all.")] = None,
    budgets: Annotated[list[int] | None, typer.Option(help="Runs to tune each method: 0, 8 or 64.")] = None,
    rounds: Annotated[int, typer.Option(help="The rounds of a run, at most.")] = 1024,
    out: Annotated[Path, typer.Option(help="The folder of the results; existing results are kept.")] = Path(
        "runs/suite"
    ),
    show: Annotated[bool, typer.Option("--list", help="List the problems and what is known of them, and end.")] = False,
) -> None:
    """Run methods on the suite of problems: costs to 1e-10, tables, performance profiles. Ctrl-C, and it resumes."""
    from fedpd.suite.report import list_problems, write_results
    from fedpd.suite.runner import run_suite

    if show:
        console.print(list_problems())
        return
    chosen = budgets or [0]
    with bars(console, unit="cells") as display:
        task = display.add_task("benchmark", total=1, note="")

        def on_progress(what: str, done: int, total: int) -> None:
            display.update(task, description=what, completed=done, total=total)

        try:
            cells = run_suite(
                out / "cells.jsonl",
                methods=methods,
                problems=problems,
                budgets=chosen,
                rounds=rounds,
                progress=on_progress,
            )
        except KeyboardInterrupt:
            display.stop()
            console.print(Text(f"Interrupted. What is done is in {out}: the same command continues."), soft_wrap=True)
            raise typer.Exit(130) from None
    written = write_results(cells, chosen, out)
    for sentence in written.findings:
        console.print(Text(sentence), soft_wrap=True)
    for path in written.files:
        console.print(Text(f"Saved: {path}"), soft_wrap=True)
