"""Send orders and collect the replies until a deadline; send an order again if no reply comes.

The server may send an order twice: to a client that came back on another node, after an error, or because no reply
came. A client replies to a repeated order without carrying it out again. The server uses the first valid reply.

The SuperLink may answer a request with an error, e.g. because its database is locked. The server then waits and asks
again until the deadline.
"""

import gc
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedpd.base.checks import FedpdError
from fedpd.flower.carry.directory import ClientDirectory, is_temporary, push
from fedpd.flower.carry.records import LARGE, one_line, reason_of, serialised_bytes
from fedpd.flower.private import ErrorCode

log = logging.getLogger(f"flwr.{__name__}")

CLIENT_APP_ERRORS = (  # likely to recur
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
)
REFRESH_SECONDS = 5.0  # between two updates of the list of clients and their nodes
LONGEST_PAUSE = 10.0  # seconds between two requests to a SuperLink that answers with errors
Read = Callable[[str, RecordDict], Any]  # (name, content) -> reply, or a RecordDict to send to the client instead


class Timeouts(NamedTuple):
    """How long to wait for replies.

    Attributes:
        deadline: Seconds until all replies must be there.
        resend: Seconds after which an unanswered order is sent again.
        poll: Seconds between two checks for replies.
        attempts: The number of errors of the ClientApp itself after which the server gives up an order.
        quorum: The number of replies after which the server does not wait for clients whose nodes are gone; None: it
            waits for all clients until the deadline.
    """

    deadline: float
    resend: float
    poll: float
    attempts: int = 3
    quorum: int | None = None


class Collected(NamedTuple):
    """The replies of the clients, by name.

    Attributes:
        answers: The valid replies, as `read` returned them.
        refused: The reasons why other replies cannot be used.
        missing: The last event for each client that did not reply until the deadline.
        bytes_up: Bytes received, as Flower serialises them.
        bytes_down: Bytes sent, as Flower serialises them.
    """

    answers: dict[str, Any]
    refused: dict[str, str]
    missing: dict[str, str]
    bytes_up: int
    bytes_down: int


class PendingOrder(NamedTuple):
    """An order without a reply.

    Attributes:
        content: The content to send in place of the usual one; None: the usual one.
        due: When to send it (again).
        pause: Seconds between that time and the next.
        errors: The number of errors in sending it or carrying it out.
        faults: The number of errors of the ClientApp itself.
        last_event: The last event that the server knows of.
    """

    content: RecordDict | None
    due: float
    pause: float
    errors: int = 0
    faults: int = 0
    last_event: str = "nothing"


def collect(
    grid: Grid,
    directory: ClientDirectory,
    contents: Mapping[str, RecordDict],
    kind: str,
    timeouts: Timeouts,
    read: Read,
) -> Collected:
    """Send every client its content, and return the replies.

    Args:
        grid: Flower's grid.
        directory: The node of each client.
        contents: The content for each client, by the client's name. It is asked for whenever the server sends, and
            not kept, so it may make large contents anew.
        kind: Flower's type of the message.
        timeouts: How long to wait.
        read: Checks a reply. If it returns a RecordDict, the server sends that to the client instead.
    """
    began = time.monotonic()
    collection = _Collection(grid, directory, contents, kind, timeouts, read, began)
    while collection.pending:
        collection.find_moved_clients()
        collection.send()
        collection.receive()
        collection.leave_out_gone_clients()
        if collection.pending and time.monotonic() >= began + timeouts.deadline:
            break
        if collection.pending:
            time.sleep(timeouts.poll)
    late = {
        name: f"no reply in {timeouts.deadline:g} s, last event: {order.last_event}"
        for name, order in collection.pending.items()
    }
    missing = collection.gone | late
    return Collected(collection.answers, collection.refused, missing, collection.bytes_up, collection.bytes_down)


class _Collection:
    """The orders of one call of `collect`, and the replies so far."""

    def __init__(
        self,
        grid: Grid,
        directory: ClientDirectory,
        contents: Mapping[str, RecordDict],
        kind: str,
        timeouts: Timeouts,
        read: Read,
        now: float,
    ) -> None:
        self.grid, self.directory, self.kind, self.timeouts, self.read = grid, directory, kind, timeouts, read
        self.contents, self.lifetime = contents, timeouts.deadline + 60
        self.pending = {name: PendingOrder(None, now, timeouts.resend) for name in contents}
        self.sent: dict[str, tuple[str, int]] = {}  # Flower's identity of a message -> the client's name and node
        self.answers: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.gone: dict[str, str] = {}  # clients that the server does not wait for
        self.bytes_up = self.bytes_down = 0
        self.failures = 0  # requests in a row that the SuperLink answered with an error
        self.refreshed = now
        self.one_by_one = False
        self.measured: tuple[RecordDict | None, int] = (None, 0)  # the newest small content, and its bytes
        if timeouts.quorum is not None:
            self.directory.refresh()

    def find_moved_clients(self) -> None:
        """Mark the orders of clients that are now on another node as due."""
        now = time.monotonic()
        if now - self.refreshed < REFRESH_SECONDS:
            return
        self.refreshed = now
        for name in self.directory.refresh():
            if name in self.pending:
                self.pending[name] = self.pending[name]._replace(due=now)

    def leave_out_gone_clients(self) -> None:
        """Stop waiting for clients whose nodes are gone, if enough clients have replied and all others are gone."""
        if self.timeouts.quorum is None or len(self.answers) < self.timeouts.quorum:
            return
        if not any(self.directory.is_online(name) for name in self.pending):
            self.gone = dict.fromkeys(self.pending, "Flower reports its node as gone")
            self.pending.clear()

    def send(self) -> None:
        """Send the orders that are due."""
        now = time.monotonic()
        for name, order in self.pending.items():
            waits = self.timeouts.quorum is not None and not self.directory.is_online(name)
            if now >= order.due and not waits:
                content = self.contents[name] if order.content is None else order.content
                node = self.directory.nodes[name]
                size = self._measure(content)
                taken = push(self.grid, Message(content, node, self.kind, ttl=self.lifetime))
                del content
                if size > LARGE:  # Flower's messages refer to themselves, so they would stay in memory for a while
                    gc.collect()
                self.bytes_down += size
                self.one_by_one |= size > LARGE
                if taken:
                    self.sent |= dict.fromkeys(taken, (name, node))
                    self.pending[name] = order._replace(due=now + order.pause, pause=2 * order.pause)
                else:
                    self._postpone(name, "the SuperLink did not accept the order")

    def _measure(self, content: RecordDict) -> int:
        """Return the bytes of a content. Clients that get the same content follow each other."""
        if content is not self.measured[0]:
            size = serialised_bytes(content)
            if size > LARGE:
                return size
            self.measured = content, size
        return self.measured[1]

    def receive(self) -> None:
        """Read the replies that have arrived. Large ones are fetched one by one, so that one is in memory at a time."""
        for identities in [[one] for one in self.sent] if self.one_by_one else [list(self.sent)]:
            replies = self._pull(identities) if identities else []
            garbage = self.one_by_one and bool(replies)
            while replies:
                self._accept(replies.pop(0))
            if garbage:  # see `send`
                gc.collect()
        for name in (*self.answers, *self.refused):
            self.pending.pop(name, None)

    def _accept(self, reply: Message) -> None:
        name, node = self.sent.pop(reply.metadata.reply_to_message_id, ("", 0))
        self.bytes_up += serialised_bytes(reply.content) if reply.has_content() else 0
        if name in self.pending and reply.has_error():
            self._count_error(name, reply.error)
        elif name in self.pending and reply.metadata.src_node_id != node:
            log.warning("A reply for client %r came from node %d, not %d.", name, reply.metadata.src_node_id, node)
        elif name in self.pending:
            self._read(name, reply.content)

    def _pull(self, identities: list[str]) -> list[Message]:
        """Return the replies that the SuperLink has; none, after a pause, if it answers with an error."""
        found = pull(self.grid, identities)
        if found is not None:
            self.failures = 0
            return found
        soon = time.monotonic() + REFRESH_SECONDS  # send the orders again: replies may be lost with the request
        self.pending = {name: order._replace(due=min(order.due, soon)) for name, order in self.pending.items()}
        time.sleep(min(self.timeouts.poll * 2.0**self.failures, LONGEST_PAUSE))
        self.failures += 1
        return []

    def _count_error(self, name: str, error: Error) -> None:
        """Send again after an error of Flower; after errors of the ClientApp, at most `attempts` times."""
        reason = reason_of(error)
        log.warning("Client %r: %s", name, reason)
        self._postpone(name, reason)
        faults = self.pending[name].faults + (error.code in CLIENT_APP_ERRORS)
        self.pending[name] = self.pending[name]._replace(faults=faults)
        if faults == self.timeouts.attempts:
            self.refused[name] = f"failed at attempt {faults}: {reason}"

    def _postpone(self, name: str, reason: str) -> None:
        """Schedule the order for later, with pauses that double."""
        order = self.pending[name]
        due = time.monotonic() + min(2.0 ** (order.errors + 1), self.timeouts.resend)
        self.pending[name] = order._replace(errors=order.errors + 1, last_event=reason, due=due)

    def _read(self, name: str, content: RecordDict) -> None:
        try:
            answer = self.read(name, content)
        except FedpdError as error:
            self.refused[name] = one_line(str(error))
            return
        except Exception as error:  # the content comes from elsewhere, so any error is possible: it costs its sender
            log.warning("The reply of client %r cannot be read.", name, exc_info=True)
            self.refused[name] = f"its reply cannot be read ({type(error).__name__}). Check that it runs the same app."
            return
        if isinstance(answer, RecordDict):
            self.pending[name] = self.pending[name]._replace(content=answer, due=time.monotonic())
        else:
            self.answers[name] = answer


def pull(grid: Grid, identities: list[str]) -> list[Message] | None:
    """Return the replies that the SuperLink has; None if it answers with an error that may pass."""
    try:
        return list(grid.pull_messages(identities))
    except httpx.HTTPError as error:
        if not is_temporary(error):
            raise
        log.warning("The SuperLink did not answer (%s). The server asks again.", error)
        return None
