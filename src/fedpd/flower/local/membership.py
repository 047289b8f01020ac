"""Changes of a federation that runs, at the server's kit: a new client, a client that leaves, a new certificate.

No other client has to do anything. The proxy reads its files again when this process sends it a signal, and keeps the
connections that it has.
"""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
from cryptography import x509

from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.carry.directory import read_owners
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import end_of, load_authority, make_server_certificates
from fedpd.flower.local.provision import KEYS, check_keys, describe_sites, register_clients, write_site
from fedpd.flower.local.sites import ServerPlan, SitePlan, check_site, read_sites

PARTITION = "partition-id"


def is_server(kit: Path) -> bool:
    """Return whether a folder is a server's kit."""
    return (kit / "sites.toml").is_file() and (kit / KEYS).is_dir()


def read_server(kit: Path) -> tuple[ServerPlan, list[SitePlan]]:
    """Return the server and the clients of a server's kit.

    Raises:
        FedpdError: If the folder is no server's kit.
    """
    if not is_server(kit):
        refuse("KIT", str(kit), "is not a server's kit", "Give the folder `server` of fedpd provision")
    return read_sites(kit / "sites.toml")


def add_site(kit: Path, name: str, out: Path, passphrase: bytes, key: Path | None = None) -> str:
    """Write the kit of a new client, register its key, and return what is left to do.

    Args:
        kit: The server's kit, whose SuperLink runs.
        name: The new client's name.
        out: The folder in which to write its kit.
        passphrase: That of the authority's key.
        key: The file with its public key, if it has made its own keys; None: this function makes them.

    Raises:
        FedpdError: If the name is taken, or the passphrase is wrong, or the SuperLink does not run.
    """
    server, sites = read_server(kit)
    if name == "server" or any(site.name == name for site in sites):
        rule = "is a name of this federation already"
        refuse("NAME", name, rule, f"Choose another one, or run fedpd remove-site {kit} {name} first")
    if (out / name).exists():
        refuse("--out", str(out / name), "exists already", "Give another folder: new kits have new keys")
    taken = [site.config.get(PARTITION, -1) for site in sites]
    number = 1 + max((place for place in taken if isinstance(place, int)), default=-1)
    config = {PARTITION: number, "num-partitions": max(number, len(sites)) + 1}
    site = check_site(SitePlan(name, config, {}, key), "NAME")
    check_keys([*sites, site])
    authority = load_authority(kit, passphrase)
    try:
        write_site(out / name, kit, server, site, authority)
        describe_sites(kit, server, [*sites, site])
        give_to_owner(kit)
        node = register_clients(kit, server.link_port)[name]
    except BaseException:
        shutil.rmtree(out / name, ignore_errors=True)
        describe_sites(kit, server, sites)
        for path in _files(kit, name):
            path.unlink(missing_ok=True)
        raise
    give_to_owner(kit)
    return f"{name} is node {node}. {_reload(kit)} Copy {out / name} to its machine, and read its README.md there."


def remove_site(kit: Path, name: str) -> str:
    """Remove a client: its node, its name, its key and its certificate; return what happened.

    Raises:
        FedpdError: If there is no such client, or the SuperLink does not run.
    """
    server, sites = read_server(kit)
    left = [site for site in sites if site.name != name]
    if len(left) == len(sites):
        refuse("NAME", name, "is no client of this federation", f"Its clients: {', '.join(s.name for s in sites)}")
    node = read_owners(kit / "clients.json").get(name)
    if node is not None:
        _unregister(kit, server, node)
        others = {one: owner for one, owner in read_owners(kit / "clients.json").items() if one != name}
        with replace_file(kit / "clients.json") as file:
            file.write(json.dumps(others, indent=1).encode() + b"\n")
    describe_sites(kit, server, left)
    for path in _files(kit, name):
        path.unlink(missing_ok=True)
    give_to_owner(kit)
    who = f"{name} was not registered" if node is None else f"{name}, node {node}, is no longer registered"
    return f"{who}. {_reload(kit)} Set agents of the next runs to {len(left)}."


def renew(kit: Path, passphrase: bytes) -> str:
    """Make a new certificate for the server, by the same authority, and return what is left to do."""
    server, _ = read_server(kit)
    files = make_server_certificates(kit, server.names, server.days, load_authority(kit, passphrase))
    give_to_owner(kit)
    return (
        f"The new certificate ends on {end_of(files.certificate):%Y-%m-%d}. Clients need nothing. Use it: systemctl "
        "restart fedpd-superlink fedpd-proxy. Runs continue."
    )


def authority_end(kit: Path) -> str:
    """Return the day on which the authority and all certificates of clients end."""
    certificate = x509.load_pem_x509_certificate((kit / "ca.crt").read_bytes())
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"


def nodes_of(kit: Path, server: ServerPlan) -> dict[str, str]:
    """Return the status of each registered node, as the SuperLink sees it now: "online", "offline" or "registered".

    Raises:
        FedpdError: If the SuperLink does not run.
    """
    if not programs.is_healthy(server.link_port, kit / "ca.crt"):
        raise FedpdError(f"no SuperLink answers at {programs.HOST}:{server.link_port}. Start it: ./start.sh superlink.")
    home = kit.absolute() / "flwr"
    if not (home / "config.toml").is_file():
        raise FedpdError("no client is registered. Run: ./start.sh register.")
    found = programs.flwr(home, "supernode", "list", programs.CONNECTION)["nodes"]
    return {node["node-id"]: node["status"] for node in found if node["status"] != "unregistered"}


def _files(kit: Path, name: str) -> list[Path]:
    return [kit / KEYS / f"{name}.{ending}" for ending in ("pub", "crt")]


def _unregister(kit: Path, server: ServerPlan, node: int) -> None:
    """Unregister a node; one that is not registered any more is no problem."""
    if str(node) in nodes_of(kit, server):
        programs.flwr(kit.absolute() / "flwr", "supernode", "unregister", str(node), programs.CONNECTION)


def _reload(kit: Path) -> str:
    """Let the proxy of a kit read its files again; return a sentence about it."""
    remedy = "When the proxy runs, it knows this."
    with suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int((kit / "nginx.pid").read_text()))
        if "nginx" not in process.name():
            return remedy
        try:
            process.send_signal(signal.SIGHUP)
        except psutil.AccessDenied:
            return "Tell the proxy: sudo systemctl kill --signal=HUP fedpd-proxy."
        return "The proxy knows it."
    return remedy


def give_to_owner(kit: Path) -> None:
    """Give the files of a kit to the user to whom its folder belongs, if root has written them.

    That user could put links to files of others in their place meanwhile, so no link is followed.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    owner = kit.stat()
    for folder in (kit, kit / KEYS, kit / "flwr"):
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # missing, or a link
            continue
        try:
            for name in os.listdir(opened):  # noqa: PTH208 - a folder that is open
                found = os.stat(name, dir_fd=opened, follow_symlinks=False)
                if (found.st_uid, found.st_gid) != (owner.st_uid, owner.st_gid):
                    os.chown(name, owner.st_uid, owner.st_gid, dir_fd=opened, follow_symlinks=False)
        finally:
            os.close(opened)
