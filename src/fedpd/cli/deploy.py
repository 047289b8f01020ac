"""The commands that have to do with Flower: a federation on this machine, and an app to run on it.

What needs Flower is imported when a command runs: `fedpd` works without it.
"""

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fedpd.base.checks import FedpdError

console = Console()

Dir = Annotated[Path, typer.Option("--dir", help="The federation's folder: keys, settings, states, logs.")]
FEDERATION = Path("runs/federation")


def register(app: typer.Typer) -> None:
    for name, command in (("new-app", new_app), ("up", up), ("down", down)):
        app.command(name=name)(command)


def new_app(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder; its name is the app's.")],
    framework: Annotated[str, typer.Option(help="What the model is written in: jax, torch or numpy.")] = "jax",
) -> None:
    """Write a complete Flower app: FedPD on toy data, to run in Flower's simulation and on a real federation."""
    _need("flwr", "flower")
    from fedpd.flower.local.new_app import new_app as write

    for path in write(folder, framework):
        console.print(Text(str(path)), soft_wrap=True)
    console.print(Text(f"How to run it: {folder / 'README.md'}"), soft_wrap=True)


def up(
    agents: Annotated[int, typer.Option(help="How many SuperNodes.")] = 4,
    folder: Dir = FEDERATION,
) -> None:
    """Start a Flower federation on this machine: a SuperLink and SuperNodes, with TLS and node authentication."""
    _need("flwr", "flower")
    from fedpd.flower import local
    from fedpd.flower.local import programs

    with console.status(f"starting a SuperLink and {agents} SuperNodes"):
        federation = local.up(folder, agents)
    program = shutil.which("flwr", path=str(programs.bin_folder()))
    program = "flwr" if program == shutil.which("flwr") else str(program)  # by its path where a shell finds another
    run = f"FLWR_HOME={shlex.quote(str(federation.home))} {program} run APP {programs.CONNECTION} --stream"
    ending = shlex.join(["fedpd", "down"] + ([] if folder == FEDERATION else ["--dir", str(folder)]))
    lines = (
        f"A SuperLink at {programs.HOST}:{federation.port} and {agents} SuperNodes run, with TLS and registered keys.",
        f"Run an app on it (fedpd new-app APP writes one):  {run}",
        f"End it:  {ending}",
        f"Logs: {federation.folder / 'logs'}",
    )
    console.print(Text("\n".join(lines)), soft_wrap=True)


def down(folder: Dir = FEDERATION) -> None:
    """End the federation that `fedpd up` has started, and nothing else. Keys and agents' states stay in its folder."""
    _need("psutil", "flower")
    from fedpd.flower import local

    with console.status("ending"):
        ended = local.down(folder)
    console.print(Text(f"Ended: {', '.join(ended)}." if ended else "Nothing was running."), soft_wrap=True)


def _need(module: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise FedpdError(f"{module} is needed here and is not installed. pip install 'fedpd[{extra}]'.")
