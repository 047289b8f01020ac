"""The node of each client. Clients choose their names, and a name belongs to the first node that claims it.

A SuperNode with a registered key keeps its node id, whenever it starts again, so the node id stands for the key. If a
second node claims a name, the server does not send it orders.

FEDPD_CLIENTS names a file of the server that keeps the owners of names for all runs: {"hospital-1": 1234, ...}.
`fedpd register` writes it for provisioned clients. If there is no such file, the first run writes the names that it
sees. Once it has names, only these may take part, and a node has one name. Its path
is in the environment of the ServerApp, not in the run's configuration, because the person who starts a run must not be
able to give a client's name to another node.

Agent i of the method is the i-th name in order ("2" before "10"), so a run does not depend on which client came first.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedpd.base.atomic import read_file, replace_file
from fedpd.base.checks import FedpdError
from fedpd.flower.carry.protocol import HELLO, PREFIX, new_nonce
from fedpd.flower.carry.records import one_line, reason_of
from fedpd.flower.private import ErrorCode, ObjectPushError
from fedpd.flower.warm.limits import OWNERS

log = logging.getLogger(f"flwr.{__name__}")
T = TypeVar("T")

ASK_AGAIN_SECONDS = 20.0
LONGEST_NAME = 100  # characters
ATTEMPTS = 3  # errors of a client's app after which the server gives up
APP_ERRORS = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)


class FederationError(FedpdError):
    """A federation cannot continue. The message names the clients, the reason and the remedy."""


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return the names in order; numbers in names are compared by value."""

    def parts(name: str) -> list[tuple[int, int | str]]:
        return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]+)", name) if part]

    return sorted(names, key=lambda name: (parts(name), name))


def push(grid: Grid, message: Message) -> list[str]:
    """Send a message; return Flower's identity of it, or an empty list if the SuperLink did not accept it."""
    try:
        return [identity for identity in grid.push_messages([message]) if identity]
    except (ObjectPushError, httpx.HTTPError) as error:
        if not is_temporary(error):
            raise
        log.warning("The SuperLink did not accept a message to node %d: %s", message.metadata.dst_node_id, error)
        return []


def is_temporary(error: Exception) -> bool:
    """Return whether a request to the SuperLink may succeed later, e.g. because its database was locked."""
    return (
        not isinstance(error, httpx.HTTPStatusError) or error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    )


class ClientDirectory:
    """The names of nodes. It asks every node for its name, again and again until it answers.

    A question may be lost with a crash. A SuperNode may also keep an answer until the next message comes: it sends one
    answer per message, and the first may be that of a run that has ended.

    Attributes:
        grid: Flower's grid.
        nodes: The node of every name.
        sizes: The |D_i| of every name, if the hello asks for it.
        owners: The only node that may have a name; other names are free.
        problems: By client, the reason why it cannot take part.
        online: The nodes that Flower reports as online.

        listed: Whether only the names of `owners` may take part.

    Args:
        grid: Flower's grid.
        hello: The record that asks a node for its name. It may describe the run, and clients then check it.
        owners: The names that belong to a node already. If there are any, no others may take part.
        bind: Whether a second node that claims a name is refused. If not, the newest node has the name.
        ask_again: The seconds after which a silent node is asked again; then twice as long, and so on.
        kind: The type of the message that asks. Apps with a mod have no query of fedpd's, but they train.
    """

    def __init__(
        self,
        grid: Grid,
        hello: Mapping[str, Any] | None = None,
        owners: Mapping[str, int] | None = None,
        *,
        bind: bool = True,
        ask_again: float = ASK_AGAIN_SECONDS,
        kind: str = HELLO,
    ) -> None:
        self.kind = kind
        self.grid, self.hello, self.bind, self.ask_again = grid, dict(hello or {}), bind, ask_again
        self.nodes: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.owners, self.listed = dict(owners or {}), bool(owners) and bind
        self.problems: dict[str, str] = {}
        self.online: set[int] = set()
        self._known: set[int] = set()
        self._asked: dict[str, int] = {}
        self._due: dict[int, tuple[float, float]] = {}  # when to ask a silent node again, and the pause after that
        self._errors: dict[int, int] = {}
        self._nonces: dict[int, str] = {}  # by node, the random text that its answer must repeat
        self._names: dict[int, str] = {}  # by node, the first name that it has claimed

    def is_online(self, name: str) -> bool:
        """Return whether Flower reports the node of a client as online."""
        return self.nodes[name] in self.online

    def refresh(self) -> list[str]:
        """Ask new nodes for their names and read earlier replies; return the clients that are now on another node."""
        try:
            return self._refresh()
        except httpx.HTTPError as error:
            if not is_temporary(error):
                raise
            log.warning("The SuperLink did not answer (%s). The server asks again.", error)
            self._known -= set(self._asked.values())  # their replies may be lost
            self._asked.clear()
            return []

    def _refresh(self) -> list[str]:
        self.online = set(self.grid.get_node_ids())
        for node in self.online:
            due, pause = self._due.get(node, (math.inf, self.ask_again))
            if node not in self._known or time.monotonic() >= due:
                record = ConfigRecord({**self.hello, PREFIX + "nonce": self._nonces.setdefault(node, new_nonce())})
                asked = push(self.grid, Message(RecordDict({"config": record}), node, self.kind))
                self._known |= {node for _ in asked}
                self._asked |= dict.fromkeys(asked, node)
                self._due[node] = time.monotonic() + pause, 2 * pause
        moved = []
        for reply in self.grid.pull_messages(list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            self._due.pop(node, None)
            if reply.has_error():
                self._read_error(node, reply.error)
            elif reply.metadata.src_node_id != node or _said(reply, "nonce", str) != self._nonces.get(node):
                log.warning("Node %d sent its name in an answer to another question.", node)
            elif (name := _said(reply, "name", str)) is None:
                log.warning("Node %d did not send its name.", node)
                self._known.discard(node)  # ask it again
            elif self._may_have(name, node) and self.nodes.get(name) != node:
                if name in self.nodes:
                    log.warning("Client %r is now on node %d, no longer on node %d.", name, node, self.nodes[name])
                self.nodes[name] = node
                self.sizes[name] = _said(reply, "samples", int) or 0
                moved.append(name)
                if problem := _said(reply, "problem", str):
                    self.problems[f"client {name!r}"] = one_line(problem)
        return moved

    def _may_have(self, name: str, node: int) -> bool:
        """Return whether a node may have a name; report a node that may not."""
        if len(name) > LONGEST_NAME or not name.isprintable():
            log.warning("Node %d claims the name %r. A name has up to 100 printable characters.", node, name)
            return False
        first = self._names.setdefault(node, name)
        owned = next((one for one, owner in self.owners.items() if owner == node), first)
        if name not in (first, owned) or owned != first:
            log.warning("Node %d claims the name %r, but is client %r. It keeps one name.", node, name, owned)
            return False
        owner = self.owners.get(name)
        if owner is None and self.listed:
            who, remedy = f"node {node} claims the name {name!r}", "Register the client, or unregister the node"
            log.warning("%s, which is not in the file %s. The server refuses it. %s.", who.capitalize(), OWNERS, remedy)
            return False
        if owner is not None and owner != node:
            log.warning(
                "Node %d claims the name %r, which belongs to node %d. The server refuses node %d. Give it a name of "
                "its own, or unregister it. If client %r has a new key, remove its name from %s.",
                *(node, name, owner, node, name, f"the file {OWNERS}"),
            )
            return False
        if owner is None and self.bind and self.nodes.get(name, node) != node:
            claims = f"nodes {self.nodes[name]} and {node} both claim this name. Give every client a name of its own"
            self.problems[f"client {name!r}"] = claims
            return False
        return True

    def _read_error(self, node: int, error: Error) -> None:
        """Ask a node again after an error. If its app fails several times, or the node refuses the app, report it."""
        name = next((name for name, owner in self.owners.items() if owner == node), None)
        who = f"node {node}" if name is None else f"client {name!r}"
        self._errors[node] = self._errors.get(node, 0) + (error.code in APP_ERRORS)
        if error.code == ErrorCode.INVALID_FAB:
            self.problems[who] = reason_of(error).removeprefix(f"{who} ")
        elif self._errors[node] == ATTEMPTS:
            self.problems[who] = f"failed at attempt {ATTEMPTS}: {reason_of(error)}"
        else:
            log.warning("%s did not send its name: %s", who.capitalize(), reason_of(error))
            self._known.discard(node)


def _said(reply: Message, field: str, kind: type[T]) -> T | None:
    """Return an entry of a node's answer; None if it is empty or of another type."""
    config: Any = reply.content.config_records.get("config", {})
    value = config.get(PREFIX + field)
    return value if isinstance(value, kind) and value else None


def wait_for_clients(
    directory: ClientDirectory,
    agents: int,
    deadline: float,
    poll: float,
    names: Sequence[str] | None = None,
    silence: float = 5.0,
) -> ClientDirectory:
    """Wait until all clients are connected and have checked the run; from then on, their names belong to their nodes.

    Args:
        directory: The node of each client, so far.
        agents: The number of clients.
        deadline: The largest number of seconds to wait.
        poll: The seconds between two checks.
        names: The clients of a run that is resumed; None: any.
        silence: The seconds before the log says who is missing; it says so again every minute.

    Raises:
        FederationError: If a client cannot take part, or there are too many clients, or too few at the deadline.
    """
    wanted = f"{agents} clients" if names is None else f"the clients {_list(names)}"
    until, told = time.monotonic() + deadline, time.monotonic() + silence
    while True:
        directory.refresh()
        here = set(directory.nodes)
        connected = f"{len(here)} are connected: {_list(here) or 'none'}"
        if names is None and len(here) > agents:
            raise FederationError(f"agents = {agents}: {len(here)} clients are connected, {_list(here)}. Set agents.")
        if directory.problems:
            reasons = "; ".join(f"{who}: {why.rstrip('.')}" for who, why in directory.problems.items())
            raise FederationError(f"the run cannot start. {reasons}. Repair this and start the run again.")
        if here >= set(names) if names is not None else len(here) == agents:
            directory.nodes = {name: directory.nodes[name] for name in names or directory.nodes}
            directory.owners |= directory.nodes if directory.bind else {}
            return directory
        if time.monotonic() >= until:
            raise FederationError(
                f"the server waited {deadline:g} s for {wanted}; {connected}. "
                "Start the others (in Flower's simulation: num-supernodes), give every client its own name, or set "
                "agents to the number of clients."
            )
        if time.monotonic() >= told:
            log.info("Waiting for %s; %s. The run ends in %.0f s without them.", wanted, connected, until - told)
            told += 60
        time.sleep(poll)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted_names(names))


def owners_file() -> Path | None:
    """Return the path of the file; None if the server has none."""
    path = os.environ.get(OWNERS)
    return Path(path) if path else None


def read_owners(path: Path | None) -> dict[str, int]:
    """Return the node of every name in the file.

    Raises:
        FedpdError: If the file cannot be read. A run without it would accept any node under any name.
    """
    if path is None or not path.exists():
        return {}
    try:
        found = json.loads(read_file(path))
        if not isinstance(found, dict) or not all(isinstance(node, int) for node in found.values()):
            raise ValueError("it must map names to node ids")
    except (OSError, ValueError) as error:
        raise FedpdError(f"{path} cannot be read ({error}). Repair it, or write it anew with fedpd register.") from None
    return found


def save_owners(path: Path | None, owners: Mapping[str, int]) -> None:
    """Add names to the file. A name that is in the file keeps its node."""
    known = read_owners(path)
    if path is not None and not owners.keys() <= known.keys():
        with replace_file(path) as file:
            file.write(json.dumps({**owners, **known}, indent=1).encode() + b"\n")
