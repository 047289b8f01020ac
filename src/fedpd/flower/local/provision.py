"""The start-up kits of a federation, one folder for the server and one for each client: writes and registers them.

A kit is all that its machine needs besides Python: a wheel of fedpd, keys, certificates, settings, scripts that install
and start it, systemd units, a compose file and half a page of instructions. Scripts find their files by their own
place, so a kit also runs in another folder; only the systemd units contain the folder of sites.toml. `register_clients`
registers the clients' public keys at the SuperLink, and writes which node owns which client's name.

The wheel has the files of the installed package, so a kit needs no index for it: on an index, a stranger could take its
name.

`add_site`, `remove_site` and `renew` change a federation that runs, at the server's kit, which therefore also holds the
federation's description and its authority, encrypted. No other client has to do anything. The proxy reads its files
again when this process sends it a signal, and keeps the connections that it has.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import signal
import time
import zipfile
from base64 import urlsafe_b64encode
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import psutil
import tomlkit
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

import fedpd
from fedpd import __version__
from fedpd.base.atomic import read_file, replace_file
from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.carry.directory import read_owners, save_owners
from fedpd.flower.clients.site_policy import read_policy
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import (
    AUTHORITY_DAYS,
    Authority,
    ServerCertificates,
    end_of,
    load_authority,
    make_node_keys,
    make_server_certificates,
    new_authority,
    save_authority,
    serial_of,
    sign_client,
    write_secret,
)
from fedpd.flower.local.programs import HOST
from fedpd.flower.local.proxy import SITES, proxy_config
from fedpd.flower.local.sites import ServerPlan, SitePlan, check_site, read_sites

KEY_REMEDY = 'Make it at the client: ssh-keygen -t ecdsa -b 384 -N "" -f client.key, and give client.key.pub'
SECONDS = 120.0  # that the SuperLink may take to start
KEYS, PASSPHRASE = "keys", "passphrase"
PARTS = ("superlink", "superexec", "proxy", "register")  # the processes of the server
LEFT_OUT = ("__pycache__",)
DATE = (2020, 1, 1, 0, 0, 0)  # the same files make the same wheel
TAG = "Wheel-Version: 1.0\nGenerator: fedpd\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PARTITION = "partition-id"


class _Text(Template):
    """A template whose names start with "@", because "$" belongs to the shell."""

    delimiter = "@"


def provision(path: Path, out: Path) -> list[Path]:
    """Write the kits of the federation that a file describes, and return their folders.

    The file `passphrase` in `out` opens the authority's key in the server's kit.

    Args:
        path: sites.toml.
        out: A new or empty folder for the kits.

    Raises:
        FedpdError: If the file breaks a rule, or the folder is not empty.
    """
    server, plans = read_sites(path)
    check_keys(plans)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        refuse("--out", str(out), "exists already and is not empty", "Give a new folder: new kits have new keys")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    parts = [{"partition-id": i, "num-partitions": len(plans)} for i in range(len(plans))]
    sites = [plan._replace(config=part | plan.config) for plan, part in zip(plans, parts, strict=True)]
    kits = [out / "server", *(out / site.name for site in sites)]
    passphrase = secrets.token_urlsafe(24).encode()
    try:
        authority = new_authority(max(AUTHORITY_DAYS, server.days) + 1)
        _write_server(kits[0], server, authority, passphrase)
        for site, kit in zip(sites, kits[1:], strict=True):
            write_site(kit, kits[0], server, site, authority)
        describe_sites(kits[0], server, sites)
        write_secret(out / PASSPHRASE, passphrase + b"\n")
    except BaseException:
        for kit in kits:
            shutil.rmtree(kit, ignore_errors=True)  # so that the same command works once the file is right
        raise
    return kits


def check_keys(sites: list[SitePlan]) -> None:
    """Refuse a file that is not the public key of a client, or that two clients share."""
    found: dict[bytes, str] = {}
    for site in sites:
        if site.key is None:
            continue
        try:
            content = read_file(site.key)
            key = load_ssh_public_key(content)
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            refuse(f"key of {site.name}", str(site.key), f"cannot be read ({error})", KEY_REMEDY)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            refuse(f"key of {site.name}", str(site.key), "must be a key on a NIST curve", KEY_REMEDY)
        plain = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        if plain in found:
            refuse(f"key of {site.name}", str(site.key), f"is the key of {found[plain]} too", "Make a key per client")
        found[plain] = site.name


def _write_server(kit: Path, server: ServerPlan, authority: Authority, passphrase: bytes) -> None:
    """Write the server's kit, without its clients."""
    for folder in (kit, kit / "units", kit / KEYS):
        folder.mkdir(mode=0o700)
    certificates = make_server_certificates(kit, server.names, server.days, authority)
    save_authority(authority, kit, passphrase)
    write_secret(kit / "superexec.secret", secrets.token_bytes(32))
    names = ServerCertificates(*(Path(path.name) for path in certificates))
    address = f"[::]:{server.port} ipv6only=off" if ":" in server.host else f"0.0.0.0:{server.port}"
    _write(kit / "nginx.conf", proxy_config(address, f"{HOST}:{server.link_port}", names, sites=Path(SITES)))
    words = server._asdict() | _wheel(kit)
    for name in ("start.sh", "install.sh", "README.md", "compose.yaml"):
        _write(kit / name, _fill(f"server/{name}", words))
    for part in PARTS:
        _write(kit / "units" / f"fedpd-{part}.service", _fill("server/unit.service", words | _unit(part)))


def _wheel(kit: Path) -> dict[str, str]:
    """Write what installs fedpd in a kit, and return its words."""
    words = {"version": __version__, "wheel": wheel_name()}
    _write(kit / "SHA256SUMS", f"{write_wheel(kit)}  {wheel_name()}\n")
    _write(kit / "Dockerfile", _fill("Dockerfile", words))
    _write(kit / ".dockerignore", f"*\n!{wheel_name()}\n")
    return words


def _unit(part: str) -> dict[str, str]:
    """Return the words of a systemd unit: registration runs once, the other parts always."""
    once = part == "register"
    return {
        "part": part,
        "after": "" if part == "superlink" else "fedpd-superlink.service",
        "type": "oneshot" if once else "simple",
        "restart": "Restart=on-failure\nRestartSec=15" if once else "Restart=always\nRestartSec=5",
        "capabilities": "AmbientCapabilities=CAP_NET_BIND_SERVICE\n" if part == "proxy" else "",
    }


def write_site(kit: Path, home: Path, server: ServerPlan, site: SitePlan, authority: Authority) -> None:
    """Write a client's kit into a new folder, and what the server's kit `home` needs to know of it.

    Raises:
        FedpdError: If a rule of the client's policy does not exist.
    """
    kit.mkdir(mode=0o700, parents=True)
    words: dict[str, Any] = server._asdict() | {"name": site.name} | _wheel(kit)
    words["config"], words["rules"] = (tomlkit.dumps(table).strip() for table in (site.config, site.policy))
    words["secret"] = "This folder holds the client's private key: copy it over a secure channel, and keep it"
    if site.key is not None:
        words["secret"] = "Copy the private key that you have made into this folder as `client.key`, and keep it"
    for name in ("start.sh", "install.sh", "README.md", "compose.yaml", "site.toml", "policy.toml"):
        _write(kit / name, _fill(f"site/{name}", words))
    _write(kit / f"fedpd-{site.name}.service", _fill("site/unit.service", words))
    (kit / "ca.crt").write_bytes((home / "ca.crt").read_bytes())
    read_policy(kit / "policy.toml")  # a mistake in `policy` of sites.toml shows now, not at the client
    public = home / KEYS / f"{site.name}.pub"
    if site.key is None:
        make_node_keys(kit, "client.key").public.rename(public)
    else:
        public.write_bytes(read_file(site.key))
    key = load_ssh_public_key(public.read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    sign_client(authority, site.name, key, public.with_suffix(".crt"))
    (kit / "client.crt").write_bytes(public.with_suffix(".crt").read_bytes())


def describe_sites(kit: Path, server: ServerPlan, sites: list[SitePlan]) -> None:
    """Write into the server's kit who takes part: for later commands, and for the proxy."""
    entries = {name.replace("_", "-"): value for name, value in server._asdict().items()}
    tables = [
        {"name": site.name, "config": site.config, "policy": site.policy, "key": f"{KEYS}/{site.name}.pub"}
        for site in sites
    ]
    with replace_file(kit / "sites.toml") as file:
        file.write(tomlkit.dumps({"server": entries | {"also": list(server.also)}, "sites": tables}).encode())
    known = [f'"{serial_of(kit / KEYS / f"{site.name}.crt")}" "{site.name}";\n' for site in sites]
    with replace_file(kit / SITES) as file:
        file.write("".join(known).encode())


def _fill(name: str, words: dict[str, Any]) -> str:
    template = files("fedpd.flower.local").joinpath("templates", "kits", f"{name}.tmpl").read_text(encoding="utf-8")
    return _Text(template).substitute(words)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700 if path.suffix == ".sh" else 0o600)


def register_clients(kit: Path, port: int, seconds: float = SECONDS) -> dict[str, int]:
    """Register every key in the folder `keys` of the server's kit that is not registered yet.

    It also writes the settings of `flwr run`, with the absolute path of the certificate.

    Args:
        kit: The folder of the server's kit, in which its SuperLink runs.
        port: The port of the SuperLink.
        seconds: How long to wait for the SuperLink.

    Returns:
        The node of every client, as `clients.json` has it.

    Raises:
        FedpdError: If the SuperLink does not run, or refuses a key.
    """
    kit = kit.absolute()
    keys = sorted((kit / KEYS).glob("*.pub"))
    if not keys:
        refuse("KIT", str(kit), "has no public keys in its folder keys", "Give the server's kit of fedpd provision")
    certificates = ServerCertificates.within(kit)
    home, owners = kit / "flwr", kit / "clients.json"
    home.mkdir(mode=0o700, exist_ok=True)
    programs.write_settings(home, port, certificates)
    until = time.monotonic() + seconds
    while not programs.is_healthy(port, certificates.authority):
        if time.monotonic() > until:
            raise FedpdError(f"no SuperLink answers at {programs.HOST}:{port}. Start it: ./start.sh superlink.")
        time.sleep(0.5)
    for key in keys:
        if key.stem not in read_owners(owners):
            save_owners(owners, {key.stem: _register(home, key)})
    return read_owners(owners)


def _register(home: Path, key: Path) -> int:
    """Register a key, and return the id of its node."""
    try:
        return int(programs.flwr(home, "supernode", "register", str(key), programs.CONNECTION)["node-id"])
    except FedpdError as error:
        remedy = "If the key is registered and only clients.json is lost, unregister its node and run this again"
        raise FedpdError(f"{key.name} was not registered ({str(error).rstrip('.')}). {remedy}.") from None


def wheel_name() -> str:
    """Return the name of the wheel's file."""
    return f"fedpd-{fedpd.__version__}-py3-none-any.whl"


def write_wheel(folder: Path) -> str:
    """Write the wheel into a folder, and return its SHA-256 hash."""
    content = _content()
    (folder / wheel_name()).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


@lru_cache(maxsize=1)
def _content() -> bytes:
    package, about = Path(fedpd.__file__).parent, f"fedpd-{fedpd.__version__}.dist-info"
    files = {
        f"fedpd/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and not set(LEFT_OUT) & set(path.parts)
    }
    installed = distribution("fedpd")
    for name in ("METADATA", "entry_points.txt"):
        files[f"{about}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{about}/WHEEL"] = TAG.encode()
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), content, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def _digest(content: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


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
