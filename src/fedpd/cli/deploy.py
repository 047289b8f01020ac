"""The commands for Flower: an app, a federation on this machine and its state, and quick programs for clients."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedpd.base.errors import extra

Dir = Annotated[Path, typer.Option("--dir", help="The federation's folder: keys, settings, states and logs.")]
FEDERATION = Path("runs/federation")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands: dict[str, Callable[..., None]] = {
        "new-app": new_app,
        "up": up,
        "down": down,
        "status": status,
        "warm": warm,
        "start": start,
    }
    commands["restore"] = restore
    for name, command in commands.items():
        app.command(name=name, rich_help_panel="Federations")(command)


def new_app(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder. Its name becomes the app's name.")],
    framework: Annotated[str, typer.Option(help="The framework of the model: jax, torch or numpy.")] = "jax",
) -> None:
    """Write a Flower app that trains with FedPD.

    The app is complete, with toy data. It runs in Flower's simulation and on a real federation.
    """
    with extra("flower", "fedpd new-app"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.new_app import new_app as write

    for path in write(folder, framework):
        show_lines(str(path))
    show_lines(f"How to run it: {folder / 'README.md'}")


def up(
    agents: Annotated[int, typer.Option(help="The number of SuperNodes.")] = 4,
    folder: Dir = FEDERATION,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Also serve a live page of its runs.")] = False,
    dashboard_port: Annotated[int, typer.Option(help="The port of the page.", min=1, max=65535)] = 8050,
    dashboard_host: Annotated[
        str, typer.Option(help="The address of the page. Default: this machine only.")
    ] = "127.0.0.1",
) -> None:
    """Start a Flower federation on this machine.

    It has one SuperLink and one SuperNode per agent, with TLS and node authentication. The page of --dashboard shows
    the newest run, its clients and the processes. It cannot change anything, but whoever reaches it can read it.
    """
    with extra("flower", "fedpd up"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import console, show_lines
    from fedpd.flower import local
    from fedpd.flower.local import programs
    from fedpd.flower.local.federation import Page

    if dashboard:
        with extra("web", "fedpd up --dashboard"):
            import uvicorn as _uvicorn  # noqa: F401
    page = Page(dashboard_host, dashboard_port) if dashboard else None
    with console.status(f"starting a SuperLink and {agents} SuperNodes"):
        federation = local.up(folder, agents, page)
    program = shutil.which("flwr", path=str(programs.bin_folder()))
    program = "flwr" if program == shutil.which("flwr") else str(program)  # by its path where a shell finds another
    run = f"FLWR_HOME={shlex.quote(str(federation.home))} {program} run APP {programs.CONNECTION} --stream"
    ending = shlex.join(["fedpd", "down"] + ([] if folder == FEDERATION else ["--dir", str(folder)]))
    gate = f"SuperNodes use {programs.HOST}:{federation.gate}, where nginx serves the fleet API and nothing else."
    if federation.gate == federation.port:
        gate = "nginx is not installed, so SuperNodes use the SuperLink's port: keep it on this machine."
    shown = federation.page
    lines = (
        f"A SuperLink at {programs.HOST}:{federation.port} and {agents} SuperNodes run, with TLS and registered keys.",
        gate,
        f"Run an app on it (fedpd new-app APP writes one):  {run}",
        *([] if shown is None else [f"Its live page:  {shown.url}"]),
        f"End it:  {ending}",
        f"Logs: {federation.folder / 'logs'}",
    )
    show_lines("\n".join(lines))


def down(folder: Dir = FEDERATION) -> None:
    """End the federation that `fedpd up` started.

    It ends nothing else. The keys and the agents' states stay in the federation's folder.
    """
    with extra("flower", "fedpd down"):
        import psutil as _  # noqa: F401
    from fedpd.cli.terminal import console, show_lines
    from fedpd.flower import local

    with console.status("ending"):
        ended = local.down(folder)
    show_lines(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")


def status(folder: Dir = FEDERATION) -> None:
    """Show which processes of a federation run, and what to do about the others.

    With the kit of a server, also which clients it sees online. The exit code is 1 if a process or a client is missing.
    """
    with extra("flower", "fedpd status"):
        import psutil as _  # noqa: F401
    from fedpd.base.checks import refuse
    from fedpd.cli.terminal import show_lines
    from fedpd.flower import local
    from fedpd.flower.local.federation import describe
    from fedpd.flower.local.membership import is_server
    from fedpd.flower.local.server_checks import examine_processes

    if is_server(folder):
        findings = list(examine_processes(folder))
        show_lines("\n".join(f"{found.what}: {found.found}" for found in findings))
        if not all(found.good for found in findings):
            raise typer.Exit(1)
        return
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


def start(
    app: Annotated[
        Path | None, typer.Argument(metavar="[APP]", help="The app's folder; not with --attach.", show_default=False)
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", help='Entries of its configuration: "rounds=50 p=0.5".', show_default=False),
    ] = None,
    attach: Annotated[
        str | None, typer.Option(help='Follow this run, "newest" or its number, and start none.', show_default=False)
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="The federation's folder, or a server's kit.")] = FEDERATION,
) -> None:
    """Start a run of a federation, and follow it until it ends.

    The exit code is 0 if the run is complete, 1 if it failed or was stopped, and 130 after Ctrl-C. The run continues
    after Ctrl-C and a lost connection: fedpd start --attach newest follows it again.
    """
    with extra("flower", "fedpd start"):
        import flwr as _  # noqa: F401
    from fedpd.base.checks import FedpdError
    from fedpd.base.interrupts import CODE, in_order
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local import start as runs

    if (app is None) == (attach is None):
        raise FedpdError("fedpd start needs either APP, to start a run, or --attach, to follow one. Give one of them.")
    home, where = runs.home_of(folder), "" if folder == FEDERATION else f" --dir {shlex.quote(str(folder))}"
    if app is not None:
        run = runs.submit(home, app, config or [])
    else:
        run = runs.newest(home) if attach == "newest" else str(attach)
    show_lines(f"Run {run}. Ctrl-C does not end it; follow it again: fedpd start --attach {run}{where}")
    try:
        with in_order():
            ended = runs.follow(home, run, show_lines)
    except KeyboardInterrupt:
        show_lines(f"The run continues. Follow it: fedpd start --attach {run}{where}")
        raise typer.Exit(CODE) from None
    show_lines(ended.sentence)
    if not ended.completed:
        raise typer.Exit(1)


def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="At the server: the run's out. At a client: STATE.")],
    backup: Annotated[
        Path | None, typer.Option("--from", help="A copy of the folder from a backup.", show_default=False)
    ] = None,
    run: Annotated[str | None, typer.Option(help="At a client: the identity of the run.", show_default=False)] = None,
    number: Annotated[
        int | None, typer.Option(help="At a client: the communications in the server's backup.", show_default=False)
    ] = None,
) -> None:
    """Bring a run of a federation back from a backup.

    Run it first at the server, with the run's folder. It shows the command for each client. A client that has done more
    communications than the server's backup continues only after that command.
    """
    with extra("flower", "fedpd restore"):
        import flwr as _  # noqa: F401
    from fedpd.base.checks import refuse
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.restore import restore_client, restore_server

    if not (folder if backup is None else backup).is_dir():
        refuse("FOLDER" if backup is None else "--from", str(backup or folder), "is not a folder", "Give its path")
    if (run is None) != (number is None):
        refuse("--run", run, "needs --number, and the other way round", "Copy the command that the server's shows")
    if run is None or number is None:
        show_lines(restore_server(folder, backup))
    else:
        show_lines(restore_client(folder, run, number, backup))
