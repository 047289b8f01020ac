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

`fedpd provision` writes the kits from sites.toml. Paths in site.toml start at the folder of the kit. `run_client` runs
the SuperNode of a client from its kit.

It runs only the apps on its client's list, by their SHA-256 hashes. Flower's own `--trusted-entities` admits only apps
that were published and signed on Flower Hub. Here the client lists the hashes itself (`apps` in its policy). The
SuperNode computes the hash of the app that it has received, before it unpacks or runs anything of it. For another app
it replies with an error that names the client, the hash and the rule.
"""

import hashlib
import os
import re
import ssl
import sys
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Error, Message

from fedpd.base.checks import FedpdError, at_most, count, refuse
from fedpd.flower.clients.site_policy import KEY as POLICY
from fedpd.flower.clients.site_policy import SitePolicy, read_policy
from fedpd.flower.clients.store import FOLDER as STATE
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import AUTHORITY_DAYS, make_server_certificates
from fedpd.flower.private import ErrorCode, Pull, build_fab_from_disk, replace_pull, send_reply
from fedpd.flower.tables import check_keys, read_table, read_toml
from fedpd.flower.warm import supernode
from fedpd.flower.warm.program import write_programs
from fedpd.flower.warm.supernode import connect_with

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")  # it becomes the name of a folder and of a systemd unit
HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
MOST_DAYS = 36_500
RUNTIME = "runtime"  # the folder below `home` with the certificate between a SuperNode and its own programs
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
    port: int = 8443
    link_port: int = 8000
    folder: str = "/srv/fedpd"
    user: str = "fedpd"
    days: int = 365
    also: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names and addresses in the certificate."""
        return list(dict.fromkeys([self.host, *self.also, "localhost", programs.HOST]))


class SitePlan(NamedTuple):
    """A client of a federation.

    Attributes:
        name: The client's permanent name.
        config: Further entries of its node's configuration.
        policy: The client's own rules.
        key: The file with its public key, if it has made its own keys; None: `provision` makes them.
    """

    name: str
    config: dict[str, Any] = {}  # noqa: RUF012  # it is not changed
    policy: dict[str, Any] = {}  # noqa: RUF012
    key: Path | None = None


class Site(NamedTuple):
    """A client's own settings, from site.toml in its kit. Paths are absolute.

    Attributes:
        name: The client's name.
        server: The host and port of the server.
        key: The client's private key.
        certificate: Its certificate, by which the server's proxy knows it; None: it has none.
        authority: The certificate by which it checks the server's.
        state: The folder for its state.
        policy: The file with its own rules; None: it has none.
        home: The folder with Flower's files.
        port: The port on 127.0.0.1 by which the SuperNode and its apps communicate.
        config: Further entries of the node's configuration.
    """

    name: str
    server: str
    key: Path = Path("client.key")
    certificate: Path | None = None
    authority: Path = Path("ca.crt")
    state: Path = Path("state")
    policy: Path | None = None
    home: Path = Path("flwr")
    port: int = 9094
    config: dict[str, Any] = {}  # noqa: RUF012  # it is not changed


def read_sites(path: Path) -> tuple[ServerPlan, list[SitePlan]]:
    """Return the server and the clients of sites.toml.

    Raises:
        FedpdError: If the file breaks a rule; the message names the place.
    """
    found = read_toml(path, "Give a TOML file with [server] and [[sites]]")
    check_keys(found, ("server", "sites"), f"{path}: ", "table")
    sites = found.get("sites", [])
    if not isinstance(sites, list) or not sites:
        refuse(f"{path}: sites", sites, "must have at least one table", 'Write [[sites]] and name = "..."')
    place = f"{path}: [server]"
    server = _check_server(read_table(ServerPlan, found.get("server", {}), place), place)
    plans = []
    for i, table in enumerate(sites, 1):
        place = f"{path}: [[sites]] number {i}"
        plans.append(check_site(read_table(SitePlan, table, place, folder=path.parent), place))
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
    found = read_toml(path, "Give the folder of a client's kit, or its site.toml")
    site = read_table(Site, found, str(path), folder=path.absolute().parent)
    if not re.fullmatch(r".+:[0-9]+", site.server):
        rule = "must be a host and a port"
        refuse(f"{path}: server", site.server, rule, 'Write server = "fl.example.org:8443"')
    return site


def _check_server(server: ServerPlan, place: str) -> ServerPlan:
    for name in (server.host, *server.also):
        if not HOSTNAME.fullmatch(name):
            refuse(f"{place}: host", name, "must be a host name or an address", 'Write host = "fl.example.org"')
    for what, number in (("port", server.port), ("link-port", server.link_port)):
        if not 0 < number < 2**16:
            refuse(f"{place}: {what}", number, "must be a port", "Give a number from 1 to 65535")
    if server.port == server.link_port:
        refuse(f"{place}: port", server.port, "must differ from link-port", "Choose another one")
    if not re.fullmatch(r"/[A-Za-z0-9_./-]*", server.folder):
        rule = "must be an absolute path without spaces"
        refuse(f"{place}: folder", server.folder, rule, 'Write folder = "/srv/fedpd"')
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", server.user):
        refuse(f"{place}: user", server.user, "must be the name of a user", 'Write user = "fedpd"')
    days = count(f"{place}: days", server.days, "Give a number of days")
    at_most(f"{place}: days", days, MOST_DAYS, "Give a number of days, e.g. 365")
    return server._replace(folder=server.folder.rstrip("/"))


def check_site(site: SitePlan, place: str) -> SitePlan:
    """Return the plan of a client if its name and its configuration follow the rules."""
    if not NAME.fullmatch(site.name):
        rule = "must have letters, digits, '.', '_' and '-' only"
        refuse(f"{place}: name", site.name, rule, 'Write name = "hospital-1"')
    for entry, value in site.config.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", entry) or not isinstance(value, Entry):
            rule = "must be a text, a number, true or false"
            refuse(f"{place}: config: {entry}", value, rule, "Give one value per entry")
    return site


def node_config(site: Site) -> dict[str, str | int | float | bool]:
    """Return the configuration of a client's node; `config` cannot change the kit's own entries."""
    rules = {} if site.policy is None else {POLICY: str(site.policy)}
    return {**site.config, **rules, "name": site.name, STATE: str(site.state)}


def supernode_arguments(site: Site) -> list[str]:
    """Return the arguments of the client's SuperNode, except for its own certificate on this machine."""
    return programs.supernode_options(site.server, site.authority, site.key, site.port, node_config(site))


def run_client(site: Site) -> None:
    """Run the SuperNode of a client in this process until it is ended; only its owner can read the files it writes."""
    os.umask(0o077)
    for folder in (site.home, site.state, site.home / RUNTIME):
        folder.mkdir(parents=True, exist_ok=True)
    write_programs(site.home / "bin")
    # Before Flower is imported, which reads FLWR_HOME.
    os.environ.update(programs.environment(site.home, is_node=True))
    from fedpd.flower.local.sites import run_supernode
    from fedpd.flower.warm.supernode import tls_context

    own = make_server_certificates(site.home / RUNTIME, ["localhost", programs.HOST], AUTHORITY_DAYS)
    arguments = [*programs.server_options(own), *supernode_arguments(site)]
    run_supernode(arguments, site.policy, site.name, tls_context(site.authority, site.certificate, site.key))


class UnlistedAppError(FedpdError):
    """The app of a run is not on the client's list; the text is the reply to the server."""


def app_hash(app: Path) -> str:
    """Return the SHA-256 hash of an app as `flwr run` sends it."""
    if not (app / "pyproject.toml").is_file():
        refuse("APP", str(app), "has no pyproject.toml", "Give the folder of a Flower app")
    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()


def check_app(policy: SitePolicy, content: bytes, client: str) -> None:
    """Refuse an app whose hash is not on the list.

    Args:
        policy: The client's rules.
        content: The app as the server sent it.
        client: The client's name, for the reply.

    Raises:
        UnlistedAppError: If there is a list and it lacks the app.
    """
    check_hash(policy, hashlib.sha256(content).hexdigest(), client)


def check_hash(policy: SitePolicy, found: str, client: str) -> None:
    """Refuse an app with this hash if it is not on the list, as `check_app` does."""
    if policy.apps is not None and found not in policy.apps:
        raise UnlistedAppError(
            f"client {client!r} does not run this app: its hash {found} is not in `apps` of the client's policy "
            f"({policy.path}). The client's operator can read the app and add the hash."
        )


def guarded(pull: Pull, policy_path: Path | None, client: str) -> Pull:
    """Return Flower's function that receives a message and its app, with a check of the app.

    Args:
        pull: Flower's function, as `replace_pull` gives it.
        policy_path: The file with the client's rules, which is read for every new app; None: there are no rules.
        client: The client's name.
    """

    def checked(**arguments: Any) -> int | None:
        received: list[Message] = []
        receive, get_fab = arguments["receive"], arguments["get_fab"]

        def remember() -> Any:
            found = receive()
            received.extend([found[0]] if found else [])
            return found

        def get_listed(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            check_app(read_policy(policy_path), fab.content, client)
            return fab

        try:
            return pull(**(arguments | {"receive": remember, "get_fab": get_listed}))
        except FedpdError as reason:  # the app is not listed, or the policy cannot be read
            reply = Message(Error(ErrorCode.INVALID_FAB, str(reason)), reply_to=received[0])
            send_reply(reply, arguments)
            return received[0].metadata.run_id

    return checked


def run_supernode(arguments: list[str], policy_path: Path | None, client: str, context: ssl.SSLContext) -> None:
    """Run Flower's SuperNode in this process until it is ended, with the check of apps and all that `warm` changes.

    Args:
        arguments: The arguments of `flower-supernode`.
        policy_path: The file with the client's rules; None: there are none.
        client: The client's name.
        context: The context of its connections to the server.
    """
    read_policy(policy_path)  # a mistake shows at once
    supernode.prepare()
    connect_with(context)
    replace_pull(lambda pull: guarded(pull, policy_path, client))
    sys.argv = ["flower-supernode", *arguments]
    supernode.run()
