"""The commands for a federation that is running: its state, and the programs that make clients quick."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.base.extras import extra
from fedpd.cli.deploy import FEDERATION, Dir


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for name, command in (("status", status), ("warm", warm)):
        app.command(name=name)(command)


def status(folder: Dir = FEDERATION) -> None:
    """Show which processes of a federation run, and what to do about the others.

    The exit code is 1 if one of them does not run.
    """
    with extra("flower", "fedpd status"):
        import psutil as _  # noqa: F401
    from fedpd.base.checks import refuse
    from fedpd.cli.terminal import show_lines
    from fedpd.flower import local
    from fedpd.flower.local.federation import describe

    federation = local.read(folder.absolute())
    if federation is None:
        refuse("--dir", str(folder), "holds no federation", "Start one with fedpd up, or give its folder")
    found = describe(federation)
    show_lines("\n".join(found.lines))
    if not found.good:
        raise typer.Exit(1)


def warm(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to, for the front of PATH.")],
) -> None:
    """Write Flower's client programs in a form that answers messages in a warm process.

    Flower starts a new process for every message. With these programs first on PATH, a SuperNode keeps one process,
    which imports and compiles once. FEDPD_WARM=0 turns this off. SuperNodes and SuperExecs also ask a SuperLink again
    that answers with HTTP 500, and a SuperExec that dies starts again. `fedpd up` does all of this by itself.
    """
    with extra("flower", "fedpd warm"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.warm.program import write_programs

    show_lines(str(write_programs(folder.absolute())))
