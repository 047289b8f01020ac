"""The commands for federations on Flower: an app, a federation on this machine, and one on several machines.

The first ones are for this machine: an app, the federation and its state, runs, backups. Those from `provision` on are
for several machines: start-up kits, the registration of keys, the client and its checks.
"""

import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedpd.base.errors import extra

Dir = Annotated[Path, typer.Option("--dir", help="The federation's folder: keys, settings, states and logs.")]
App = Annotated[Path, typer.Argument(metavar="APP", help="The folder of a Flower app.")]
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The client's kit, or its site.toml.")]
ServerKit = Annotated[Path, typer.Argument(metavar="KIT", help="The server's kit.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]
Passphrase = Annotated[
    Path | None, typer.Option(help="The file `passphrase` of fedpd provision. Without it, the command asks.")
]
FEDERATION = Path("runs/federation")


def _needs(command: str, package: str = "flwr") -> None:
    """Name the extra of fedpd to install if a command's package is missing."""
    with extra("flower", f"fedpd {command}"):
        import_module(package)


def new_app(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder. Its name becomes the app's name.")],
    framework: Annotated[str, typer.Option(help="The framework of the model: jax, torch or numpy.")] = "jax",
) -> None:
    """Write a Flower app that trains with FedPD.

    The app is complete, with toy data. It runs in Flower's simulation and on a real federation.
    """
    _needs("new-app")
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
    _needs("up")
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
    _needs("down", "psutil")
    from fedpd.cli.terminal import console, show_lines
    from fedpd.flower import local

    with console.status("ending"):
        ended = local.down(folder)
    show_lines(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")


def status(folder: Dir = FEDERATION) -> None:
    """Show which processes of a federation run, and what to do about the others.

    With the kit of a server, also which clients it sees online. The exit code is 1 if a process or a client is missing.
    """
    _needs("status", "psutil")
    from fedpd.base.checks import refuse
    from fedpd.cli.terminal import show_lines
    from fedpd.flower import local
    from fedpd.flower.local.doctor import examine_processes
    from fedpd.flower.local.federation import describe
    from fedpd.flower.local.provision import is_server

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
    _needs("warm")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.warm.program import write_programs

    show_lines(str(write_programs(folder.absolute())))


def start(
    app: Annotated[Path | None, typer.Argument(metavar="[APP]", help="The app's folder; not with --attach.")] = None,
    config: Annotated[
        list[str] | None, typer.Option("--run-config", "-c", help='Entries of its configuration: "rounds=50 p=0.5".')
    ] = None,
    attach: Annotated[str | None, typer.Option(help='Follow this run, "newest" or its number, and start none.')] = None,
    folder: Annotated[Path, typer.Option("--dir", help="The federation's folder, or a server's kit.")] = FEDERATION,
) -> None:
    """Start a run of a federation, and follow it until it ends.

    The exit code is 0 if the run is complete, 1 if it failed or was stopped, and 130 after Ctrl-C. The run continues
    after Ctrl-C and a lost connection: fedpd start --attach newest follows it again.
    """
    _needs("start")
    from fedpd.base.checks import FedpdError
    from fedpd.cli.terminal import interruptible, show_lines
    from fedpd.flower.local import start as runs

    if (app is None) == (attach is None):
        raise FedpdError("fedpd start needs either APP, to start a run, or --attach, to follow one. Give one of them.")
    home, where = runs.home_of(folder), "" if folder == FEDERATION else f" --dir {shlex.quote(str(folder))}"
    if app is not None:
        run = runs.submit(home, app, config or [])
    else:
        run = runs.newest(home) if attach == "newest" else str(attach)
    show_lines(f"Run {run}. Ctrl-C does not end it; follow it again: fedpd start --attach {run}{where}")
    with interruptible(f"The run continues. Follow it: fedpd start --attach {run}{where}"):
        ended = runs.follow(home, run, show_lines)
    show_lines(ended.sentence)
    if not ended.completed:
        raise typer.Exit(1)


def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="At the server: the run's out. At a client: STATE.")],
    backup: Annotated[Path | None, typer.Option("--from", help="A copy of the folder from a backup.")] = None,
    run: Annotated[str | None, typer.Option(help="At a client: the identity of the run.")] = None,
    number: Annotated[int | None, typer.Option(help="At a client: the communications in the server's backup.")] = None,
) -> None:
    """Bring a run of a federation back from a backup.

    Run it first at the server, with the run's folder. It shows the command for each client. A client that has done more
    communications than the server's backup continues only after that command.
    """
    _needs("restore")
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


def provision(
    file: Annotated[Path, typer.Argument(metavar="SITES", help="The description of the federation, sites.toml.")],
    out: Annotated[Path, typer.Option(help="A new folder for the kits.")] = Path("kits"),
) -> None:
    """Write a start-up kit for the server and for each client.

    A kit has fedpd itself, keys, certificates, settings, scripts, systemd units, a compose file and instructions.
    """
    _needs("provision")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import provision as write

    for kit in write(file, out):
        show_lines(f"{kit}: see {kit / 'README.md'}")
    show_lines(f"{out / 'passphrase'}: keep it apart from the server. fedpd add-site and fedpd renew ask for it.")


def register(
    kit: ServerKit, port: Annotated[int, typer.Option(help="The port of the SuperLink on this machine.")] = 8000
) -> None:
    """Register the clients' keys at the SuperLink of this server.

    The names of the clients then belong to their keys. Keys that are registered already stay as they are.
    """
    _needs("register")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import register_clients

    for name, node in register_clients(kit, port).items():
        show_lines(f"{name}: node {node}")


def client(site: Kit) -> None:
    """Run a client of a federation, until it is ended.

    It connects to the server and runs only apps that the client's policy allows.
    """
    _needs("client")
    from fedpd.flower.local.sites import read_site, run_client

    run_client(read_site(site))


def app_hash(app: App) -> None:
    """Print the SHA-256 hash of an app, as a client's policy lists it."""
    _needs("app-hash")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.sites import app_hash as hash_of

    show_lines(hash_of(app))


def doctor(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a client or of the server.")],
    app: Annotated[Path | None, typer.Option(help="The app's folder: its data are read, and one step is done.")] = None,
) -> None:
    """Check a client's machine or the server's: everything that would keep a client out of a federation.

    The exit code is 1 if something is wrong.
    """
    _needs("doctor")
    from fedpd.cli.terminal import say
    from fedpd.flower.local.doctor import examine, examine_app, examine_server
    from fedpd.flower.local.provision import is_server
    from fedpd.flower.local.sites import read_site

    if is_server(kit):
        findings = [examine_server(kit)]
    else:
        settings = read_site(kit)
        findings = [examine(settings)] if app is None else [examine(settings), examine_app(settings, app)]
    good = True
    for finding in (one for group in findings for one in group):
        say(f"{'ok     ' if finding.good else 'PROBLEM'}  {finding.what}: {finding.found}")
        good = good and finding.good
    if not good:
        raise typer.Exit(1)


def add_site(
    kit: ServerKit,
    name: Name,
    out: Annotated[Path, typer.Option(help="The folder in which to write the client's kit.")] = Path("kits"),
    key: Annotated[Path | None, typer.Option(help="The client's public key, if it has made its own.")] = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Add a client to a federation that runs: write its kit, and register its key. Other clients need nothing."""
    _needs("add-site")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import add_site as add

    show_lines(add(kit, name, out, _passphrase(passphrase_file), key))


def remove_site(kit: ServerKit, name: Name) -> None:
    """Remove a client from a federation that runs: its node, key and certificate. Its name is free again."""
    _needs("remove-site")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import remove_site as remove

    show_lines(remove(kit, name))


def renew(kit: ServerKit, passphrase_file: Passphrase = None) -> None:
    """Make a new certificate for the server. Clients need nothing, because its authority stays."""
    _needs("renew")
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import renew as make_new

    show_lines(make_new(kit, _passphrase(passphrase_file)))


def _passphrase(file: Path | None) -> bytes:
    """Return the passphrase of the authority's key, from a file or from the terminal."""
    if file is None:
        return str(typer.prompt("Passphrase of the authority", hide_input=True)).strip().encode()
    try:
        return file.read_bytes().strip()
    except OSError as error:
        from fedpd.base.checks import refuse

        refuse("--passphrase-file", str(file), f"cannot be read ({error.strerror})", "Give the file of fedpd provision")


COMMANDS = (
    *(new_app, up, down, status, warm, start, restore),  # on this machine
    *(provision, register, client, app_hash, doctor, add_site, remove_site, renew),  # on several
)
