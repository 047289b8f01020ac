"""The commands that run experiments: compare, run and resume."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.cli.arguments import Out, Overwrite


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (compare, run, resume):
        app.command()(command)


def compare(
    rounds: Annotated[int, typer.Option(help="T, the rounds of each method.")] = 600,
    data: Annotated[
        str, typer.Option(help="strong, weak, or strong_program (as the authors' program makes it).")
    ] = "strong",
    seeds: Annotated[int, typer.Option(help="The number of seeds. The table shows their mean and spread.")] = 1,
    methods: Annotated[
        str, typer.Option(help="paper: the eight of the paper. all: every method, with its own rule for steps.")
    ] = "paper",
    target: Annotated[float, typer.Option(help="Show the costs of reaching this stationarity.")] = 1e-10,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare FedPD, FedAvg and FedProx on the paper's data.

    This is the paper's first experiment. fedpd prints a table, and saves a figure and the histories in a run folder.
    """
    from fedpd.cli import execution
    from fedpd.cli.terminal import new_folder

    plan = execution.comparison(rounds, data, seeds, methods, target)
    execution.start(plan, out or new_folder("compare"), overwrite, target)


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

    plan = runner.open_folder(folder, say)
    runner.check(plan)
    execution.execute(plan, folder)
