"""The commands for a federation on several machines: start-up kits, registration, the client and its checks."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.base.errors import extra

App = Annotated[Path, typer.Argument(metavar="APP", help="The folder of a Flower app.")]
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The client's kit, or its site.toml.")]
ServerKit = Annotated[Path, typer.Argument(metavar="KIT", help="The server's kit.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]
Passphrase = Annotated[
    Path | None,
    typer.Option(help="The file `passphrase` of fedpd provision. Without it, the command asks.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for name, command in (
        ("provision", provision),
        ("register", register_keys),
        ("client", client),
        ("app-hash", app_hash),
        ("doctor", doctor),
        ("add-site", add_site),
        ("remove-site", remove_site),
        ("renew", renew),
    ):
        app.command(name=name, rich_help_panel="Federations")(command)


def provision(
    file: Annotated[Path, typer.Argument(metavar="SITES", help="The description of the federation, sites.toml.")],
    out: Annotated[Path, typer.Option(help="A new folder for the kits.")] = Path("kits"),
) -> None:
    """Write a start-up kit for the server and for each client.

    A kit has fedpd itself, keys, certificates, settings, scripts, systemd units, a compose file and instructions.
    """
    with extra("flower", "fedpd provision"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import provision as write

    for kit in write(file, out):
        show_lines(f"{kit}: see {kit / 'README.md'}")
    show_lines(f"{out / 'passphrase'}: keep it apart from the server. fedpd add-site and fedpd renew ask for it.")


def register_keys(
    kit: ServerKit,
    port: Annotated[int, typer.Option(help="The port of the SuperLink on this machine.")] = 8000,
) -> None:
    """Register the clients' keys at the SuperLink of this server.

    The names of the clients then belong to their keys. Keys that are registered already stay as they are.
    """
    with extra("flower", "fedpd register"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.provision import register_clients

    for name, node in register_clients(kit, port).items():
        show_lines(f"{name}: node {node}")


def client(site: Kit) -> None:
    """Run a client of a federation, until it is ended.

    It connects to the server and runs only apps that the client's policy allows.
    """
    with extra("flower", "fedpd client"):
        import flwr as _  # noqa: F401
    from fedpd.flower.local.sites import read_site, run_client

    run_client(read_site(site))


def app_hash(app: App) -> None:
    """Print the SHA-256 hash of an app, as a client's policy lists it."""
    with extra("flower", "fedpd app-hash"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.guard import app_hash as hash_of

    show_lines(hash_of(app))


def doctor(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The kit of a client or of the server.")],
    app: Annotated[
        Path | None, typer.Option(help="The app's folder: its data are read, and one step is done.", show_default=False)
    ] = None,
) -> None:
    """Check a client's machine or the server's: everything that would keep a client out of a federation.

    The exit code is 1 if something is wrong.
    """
    with extra("flower", "fedpd doctor"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import say
    from fedpd.flower.local.doctor import examine, examine_app
    from fedpd.flower.local.membership import is_server
    from fedpd.flower.local.server_checks import examine_server
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
    key: Annotated[
        Path | None, typer.Option(help="The client's public key, if it has made its own.", show_default=False)
    ] = None,
    passphrase_file: Passphrase = None,
) -> None:
    """Add a client to a federation that runs: write its kit, and register its key. Other clients need nothing."""
    with extra("flower", "fedpd add-site"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.membership import add_site as add

    show_lines(add(kit, name, out, _passphrase(passphrase_file), key))


def remove_site(kit: ServerKit, name: Name) -> None:
    """Remove a client from a federation that runs: its node, key and certificate. Its name is free again."""
    with extra("flower", "fedpd remove-site"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.membership import remove_site as remove

    show_lines(remove(kit, name))


def renew(kit: ServerKit, passphrase_file: Passphrase = None) -> None:
    """Make a new certificate for the server. Clients need nothing, because its authority stays."""
    with extra("flower", "fedpd renew"):
        import flwr as _  # noqa: F401
    from fedpd.cli.terminal import show_lines
    from fedpd.flower.local.membership import renew as make_new

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
