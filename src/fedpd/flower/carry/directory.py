"""Who is there: Flower's nodes come and go under ever new numbers, clients have names. The roll maps one to the other.

Agent i of the method is the i-th name in order ("2" before "10"), so that a run does not depend on who came first.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedpd.base.checks import FedpdError
from fedpd.flower.carry.protocol import HELLO, PREFIX

log = logging.getLogger(f"flwr.{__name__}")


class FederationError(FedpdError):
    """Why a federation cannot go on, by the clients' names, and what to do."""


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, with numbers in names by their value."""

    def parts(name: str) -> list[tuple[int, int | str]]:
        return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]+)", name) if part]

    return sorted(names, key=lambda name: (parts(name), name))


def push(grid: Grid, message: Message) -> list[str]:
    """Flower's identity of the message; none where the SuperLink did not take it, as when it dies meanwhile."""
    try:
        return [identity for identity in grid.push_messages([message]) if identity]
    except ObjectPushError as error:
        log.warning("A message to node %d was not taken: %s", message.metadata.dst_node_id, error)
        return []


class Roll:
    """The names of nodes, learned by asking every node once. `nodes` has the newest node of every name."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.nodes: dict[str, int] = {}
        self._known: set[int] = set()
        self._asked: dict[str, int] = {}

    def look(self) -> list[str]:
        """Ask new nodes for their names and hear those asked before; returns who is on another node than before."""
        for node in self.grid.get_node_ids():
            if node not in self._known:
                asked = push(self.grid, Message(RecordDict({"config": ConfigRecord({})}), node, HELLO))
                self._known |= {node for _ in asked}
                self._asked |= dict.fromkeys(asked, node)
        moved = []
        for reply in self.grid.pull_messages(list(self._asked)) if self._asked else ():
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            name = None if reply.has_error() else _name(reply)
            if name is None:
                log.warning("Node %d does not say its name%s.", node, f": {reply.error}" if reply.has_error() else "")
                self._known.discard(node)  # it is asked again
            elif self.nodes.get(name) != node:
                if name in self.nodes:
                    log.warning("Client %r is now on node %d, and no longer on %d.", name, node, self.nodes[name])
                self.nodes[name] = node
                moved.append(name)
        return moved


def _name(reply: Message) -> str | None:
    config: Any = reply.content.config_records.get("config", {})
    name = config.get(PREFIX + "name")
    return name if isinstance(name, str) and name else None


def call_roll(grid: Grid, agents: int, deadline: float, poll: float, names: Sequence[str] | None = None) -> Roll:
    """Wait until all clients are there (where a run is resumed, those of `names`), but not beyond the deadline."""
    roll, until = Roll(grid), time.monotonic() + deadline
    while True:
        roll.look()
        here = set(roll.nodes)
        if names is not None and here >= set(names):
            roll.nodes = {name: roll.nodes[name] for name in names}
            return roll
        if names is None and len(here) > agents:
            raise FederationError(f"{len(here)} clients are there ({_list(here)}), and agents = {agents}. Set agents.")
        if names is None and len(here) == agents:
            return roll
        if time.monotonic() >= until:
            wanted = f"{agents} clients" if names is None else f"the clients {_list(names)}"
            raise FederationError(
                f"{wanted} were waited for {deadline:g} s, and there are {len(here)}: {_list(here) or 'none'}. Start "
                "the others (in Flower's simulation: num-supernodes), name every client differently, or set agents to "
                "how many there are."
            )
        time.sleep(poll)


def _list(names: Iterable[str]) -> str:
    return ", ".join(in_order(names))
