"""The node of each client. Flower's nodes come and go and get new numbers, while clients keep their names.

Agent i of the method is the i-th name in order ("2" before "10"), so a run does not depend on which client came first.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedpd.base.checks import FedpdError
from fedpd.flower.carry.protocol import HELLO, PREFIX

log = logging.getLogger(f"flwr.{__name__}")


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
    """The names of nodes. It asks every node once for its name.

    Attributes:
        grid: Flower's grid.
        nodes: The newest node of every name.
        online: The nodes that Flower reports as online.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.nodes: dict[str, int] = {}
        self.online: set[int] = set()
        self._known: set[int] = set()
        self._asked: dict[str, int] = {}

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
            if node not in self._known:
                asked = push(self.grid, Message(RecordDict({"config": ConfigRecord({})}), node, HELLO))
                self._known |= {node for _ in asked}
                self._asked |= dict.fromkeys(asked, node)
        moved = []
        for reply in self.grid.pull_messages(list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            name = None if reply.has_error() else _name(reply)
            if name is None:
                log.warning("Node %d did not send its name%s.", node, f": {reply.error}" if reply.has_error() else "")
                self._known.discard(node)  # ask it again
            elif self.nodes.get(name) != node:
                if name in self.nodes:
                    log.warning("Client %r is now on node %d, no longer on node %d.", name, node, self.nodes[name])
                self.nodes[name] = node
                moved.append(name)
        return moved


def _name(reply: Message) -> str | None:
    config: Any = reply.content.config_records.get("config", {})
    name = config.get(PREFIX + "name")
    return name if isinstance(name, str) and name else None


def wait_for_clients(
    grid: Grid, agents: int, deadline: float, poll: float, names: Sequence[str] | None = None
) -> ClientDirectory:
    """Wait until all clients are connected, and return the node of each client.

    Args:
        grid: Flower's grid.
        agents: The number of clients.
        deadline: The largest number of seconds to wait.
        poll: The seconds between two checks.
        names: The clients of a run that is resumed; None: any.

    Raises:
        FederationError: If there are too many clients, or too few at the deadline.
    """
    directory, until = ClientDirectory(grid), time.monotonic() + deadline
    while True:
        directory.refresh()
        here = set(directory.nodes)
        if names is not None and here >= set(names):
            directory.nodes = {name: directory.nodes[name] for name in names}
            return directory
        if names is None and len(here) > agents:
            raise FederationError(f"agents = {agents}: {len(here)} clients are connected, {_list(here)}. Set agents.")
        if names is None and len(here) == agents:
            return directory
        if time.monotonic() >= until:
            wanted = f"{agents} clients" if names is None else f"the clients {_list(names)}"
            raise FederationError(
                f"the server waited {deadline:g} s for {wanted}; {len(here)} are connected: {_list(here) or 'none'}. "
                "Start the others (in Flower's simulation: num-supernodes), give every client its own name, or set "
                "agents to the number of clients."
            )
        time.sleep(poll)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted_names(names))
