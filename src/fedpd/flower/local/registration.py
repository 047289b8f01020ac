"""Registers the clients' public keys at the SuperLink, and writes which node owns which client's name."""

import time
from pathlib import Path

from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.carry.directory import read_owners, save_owners
from fedpd.flower.local import programs
from fedpd.flower.local.certificates import ServerCertificates

SECONDS = 120.0  # that the SuperLink may take to start


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
    keys = sorted((kit / "keys").glob("*.pub"))
    if not keys:
        refuse("KIT", str(kit), "has no public keys in its folder keys", "Give the server's kit of fedpd provision")
    certificates = ServerCertificates(kit / "ca.crt", kit / "server.pem", kit / "server.key")
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
