"""The description of a federation (sites.toml), and of one of its clients (site.toml in its start-up kit).

    [server]
    host = "fl.example.org"          # the name or address by which clients reach the server

    [[sites]]
    name = "hospital-1"

    [[sites]]
    name = "hospital-2"
    config = { data = "/data/b.parquet" }             # for your app: context.node_config["data"]
    policy = { secure = true, min-clients = 3 }       # the client's own rules
    key = "hospital-2.pub"                            # its public key, if it has made its own keys

`fedpd provision` writes the kits from sites.toml. Paths in site.toml start at the folder of the kit.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedpd.base.atomic import read_file
from fedpd.base.checks import FedpdError, at_most, count, nearest, refuse
from fedpd.base.typed import typed

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")  # it becomes the name of a folder and of a systemd unit
HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
MOST_DAYS = 36_500
Entry = str | int | float | bool


class ServerPlan(NamedTuple):
    """The server of a federation.

    Attributes:
        host: The name or address by which clients reach it.
        port: The port of the proxy, which clients use.
        link_port: The port of the SuperLink, on 127.0.0.1.
        folder: The folder in which the kits will be installed, for systemd.
        user: The user that runs the processes, for systemd.
        days: The number of days for which the certificate is valid.
        also: Further names and addresses of the server.
    """

    host: str
    port: int
    link_port: int
    folder: str
    user: str
    days: int
    also: list[str]


class SitePlan(NamedTuple):
    """A client of a federation.

    Attributes:
        name: The client's permanent name.
        config: Further entries of its node's configuration.
        policy: The client's own rules.
        key: The file with its public key, if it has made its own keys; None: `provision` makes them.
    """

    name: str
    config: dict[str, Any]
    policy: dict[str, Any]
    key: Path | None


class Site(NamedTuple):
    """A client's own settings, from site.toml in its kit. Paths are absolute.

    Attributes:
        name: The client's name.
        server: The host and port of the server.
        key: The client's private key.
        authority: The certificate by which it checks the server's.
        state: The folder for its state.
        policy: The file with its own rules; None: it has none.
        home: The folder with Flower's files.
        port: The port on 127.0.0.1 by which the SuperNode and its apps communicate.
        config: Further entries of the node's configuration.
    """

    name: str
    server: str
    key: Path
    authority: Path
    state: Path
    policy: Path | None
    home: Path
    port: int
    config: dict[str, Any]


def read_sites(path: Path) -> tuple[ServerPlan, list[SitePlan]]:
    """Return the server and the clients of sites.toml.

    Raises:
        FedpdError: If the file breaks a rule; the message names the place.
    """
    found = _read(path, "Give a TOML file with [server] and [[sites]]")
    for name in found:
        if name not in ("server", "sites"):
            refuse(f"{path}: {name}", found[name], "there is no such table", nearest(name, ("server", "sites")))
    sites = found.get("sites", [])
    if not isinstance(sites, list) or not sites:
        refuse(f"{path}: sites", sites, "must have at least one table", 'Write [[sites]] and name = "..."')
    server = _call(_server, found.get("server", {}), f"{path}: [server]")
    plans = [_call(_site, site, f"{path}: [[sites]] number {i}") for i, site in enumerate(sites, 1)]
    plans = [plan._replace(key=plan.key and path.parent / plan.key) for plan in plans]
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1 or name == "server":
            refuse(f"{path}: name", name, "must be the name of one site only, and not server", "Rename a site")
    return server, plans


def read_site(path: Path) -> Site:
    """Return the settings of a client from its kit; `path` is the file, or the kit's folder.

    Raises:
        FedpdError: If the file breaks a rule.
    """
    path = path / "site.toml" if path.is_dir() else path
    found = _read(path, "Give the folder of a client's kit, or its site.toml")
    return _call(_kit, found, str(path))(path.absolute().parent)


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(path).decode())
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: brackets within brackets
        raise FedpdError(f"{path} cannot be read ({error}). {remedy}.") from None


def _call(function: Callable[..., T], table: Any, place: str) -> T:
    """Return function(**table), after a check of the names in the table."""
    parameters = inspect.signature(function).parameters
    if not isinstance(table, Mapping):
        refuse(place, table, "must be a table", "Write name = value in it")
    known = [name.replace("_", "-") for name in parameters]
    for name in table:
        if name not in known:
            refuse(f"{place}: {name}", table[name], "there is no such entry", nearest(name, known))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name.replace("_", "-") not in table:
            raise FedpdError(f"{place}: {name.replace('_', '-')} is missing. Add it.")
    try:
        return function(**{name.replace("-", "_"): value for name, value in table.items()})
    except FedpdError as error:
        raise FedpdError(f"{place}: {error}") from None


@typed
def _server(
    host: str,
    port: int = 8443,
    link_port: int = 8000,
    folder: str = "/srv/fedpd",
    user: str = "fedpd",
    days: int = 365,
    also: list[str] = [],  # noqa: B006  # it is not changed
) -> ServerPlan:
    for name in (host, *also):
        if not HOSTNAME.fullmatch(name):
            refuse("host", name, "must be a host name or an address", 'Write host = "fl.example.org"')
    for what, number in (("port", port), ("link-port", link_port)):
        if not 0 < number < 2**16:
            refuse(what, number, "must be a port", "Give a number from 1 to 65535")
    if port == link_port:
        refuse("port", port, "must differ from link-port", "Choose another one")
    if not re.fullmatch(r"/[A-Za-z0-9_./-]*", folder):
        refuse("folder", folder, "must be an absolute path without spaces", 'Write folder = "/srv/fedpd"')
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", user):
        refuse("user", user, "must be the name of a user", 'Write user = "fedpd"')
    at_most("days", count("days", days, "Give a number of days"), MOST_DAYS, "Give a number of days, e.g. 365")
    return ServerPlan(host, port, link_port, folder.rstrip("/"), user, days, list(also))


@typed
def _site(
    name: str,
    config: dict[str, Any] = {},  # noqa: B006  # it is not changed
    policy: dict[str, Any] = {},  # noqa: B006
    key: str = "",
) -> SitePlan:
    if not NAME.fullmatch(name):
        refuse("name", name, "must have letters, digits, '.', '_' and '-' only", 'Write name = "hospital-1"')
    for entry, value in config.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", entry) or not isinstance(value, Entry):
            refuse(f"config: {entry}", value, "must be a text, a number, true or false", "Give one value per entry")
    return SitePlan(name, dict(config), dict(policy), Path(key) if key else None)


@typed
def _kit(
    name: str,
    server: str,
    key: str = "client.key",
    authority: str = "ca.crt",
    state: str = "state",
    policy: str = "",
    home: str = "flwr",
    port: int = 9094,
    config: dict[str, Any] = {},  # noqa: B006  # it is not changed
) -> Callable[[Path], Site]:
    """Return a function from the kit's folder to its settings."""
    if not re.fullmatch(r".+:[0-9]+", server):
        refuse("server", server, "must be a host and a port", 'Write server = "fl.example.org:8443"')

    def at(folder: Path) -> Site:
        rules = folder / policy if policy else None
        paths = (folder / key, folder / authority, folder / state)
        return Site(name, server, *paths, rules, folder / home, port, dict(config))

    return at
