"""The commands that run experiments: compare, run and resume."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.cli.arguments import Out, Overwrite


def compare(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="An experiment file, or: strong, weak. Default: the paper's first experiment."
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Names from fedpd methods, separated by commas. Default: those of the file, or FedAvg, FedProx, "
            "SCAFFOLD, FedPD. Without FILE: paper, or all.",
            show_default=False,
        ),
    ] = "",
    criterion: Annotated[str, typer.Option(help="The column that decides, e.g. test_accuracy, stationarity.")] = "",
    seeds: Annotated[
        int | None, typer.Option(help="The number of seeds of the results. Default: 5; without FILE 1.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="The settings that each method may try. Default: 16.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="The rounds of each run. Default: the file's, or 100; without FILE 600.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per local step, for all methods.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local passes per round, for all methods.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Local steps per round, for all methods.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Choose settings by the communications to this value. Stationarity: 1e-10.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Without FILE: strong, weak, or strong_program (as the authors' program makes it).")
    ] = "strong",
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare methods fairly, from a file to a figure and a page.

    Every method gets the same local work and the same number of tries; validation samples choose its settings, and
    fresh seeds run them. fedpd prints what each method spends to reach three targets, and writes a figure, a page and
    an experiment file with the tuned methods. The same command continues after an interruption. A table [compare] of
    the file holds the same options. Without FILE, this is the paper's first experiment.
    """
    from fedpd.base.checks import refuse
    from fedpd.cli import execution
    from fedpd.cli.terminal import new_folder

    given: dict[str, float | str | None] = {
        "batch": batch,
        "epochs": epochs,
        "iterations": iterations,
        "budget": budget,
        "criterion": criterion,
    }
    if source is None:
        for name, value in given.items():
            if value:
                refuse(f"--{name}", value, "needs an experiment file", "Give FILE, or: fedpd compare strong")
        goal = 1e-10 if target is None else target
        experiment = execution.paper_comparison(
            600 if rounds is None else rounds, data, 1 if seeds is None else seeds, methods or "paper", goal
        )
        execution.start(experiment, out or new_folder("compare"), overwrite, goal)
        return
    given |= {"seeds": seeds, "rounds": rounds, "target": target}
    execution.compare_file(
        source, methods, {name: value for name, value in given.items() if value not in (None, "")}, out, overwrite
    )


def run(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).")],
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Run an experiment file.

    fedpd checks the whole file before it runs anything.
    """
    from fedpd.cli import execution
    from fedpd.cli.terminal import new_folder, say
    from fedpd.experiments import experiment

    execution.start(experiment.load(file, say), out or new_folder(file.stem), overwrite)


def resume(folder: Annotated[Path, typer.Argument(help="The run folder of an interrupted run.")]) -> None:
    """Resume an interrupted run.

    The result is the same, bit for bit, as without the interruption.
    """
    from fedpd.cli import execution
    from fedpd.cli.terminal import say
    from fedpd.experiments import runner

    experiment = runner.open_folder(folder, say)
    runner.check(experiment)
    execution.execute(experiment, folder)
