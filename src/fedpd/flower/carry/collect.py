"""Send orders and collect the answers by a deadline: send again where no answer comes, and never wait without end.

An order may be sent twice: to a client that came back on another node, after an error, or because no answer came.
Clients answer a repetition without carrying it out again. The first answer that fits its order counts.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedpd.base.checks import FedpdError
from fedpd.flower.carry.directory import ClientDirectory, push
from fedpd.flower.carry.records import serialised_bytes

log = logging.getLogger(f"flwr.{__name__}")

CLIENT_APP_ERRORS = (  # likely to recur
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
)
REFRESH_SECONDS = 5.0  # between two looks at which node each client is on
Read = Callable[[str, RecordDict], Any]  # (name, content) -> answer; another RecordDict: ask again with that


class Timeouts(NamedTuple):
    """How long to wait for answers.

    Attributes:
        deadline: Seconds for all answers.
        resend: Seconds after which an order without an answer is sent again.
        poll: Seconds between two looks for answers.
        attempts: How often an order may fail by an error of the ClientApp itself.
    """

    deadline: float
    resend: float
    poll: float
    attempts: int = 3


class Collected(NamedTuple):
    """The answers of the clients, by name.

    Attributes:
        answers: What `read` made of the answers that can be used.
        refused: Why an answer cannot be used.
        missing: What happened last to a client that did not answer by the deadline.
        bytes_up: Bytes received, as Flower serialises them.
        bytes_down: Bytes sent, likewise.
    """

    answers: dict[str, Any]
    refused: dict[str, str]
    missing: dict[str, str]
    bytes_up: int
    bytes_down: int


class PendingOrder(NamedTuple):
    """An order without an answer.

    Attributes:
        content: What is sent.
        due: When to send it (again).
        pause: Seconds from that sending to the next.
        errors: How often sending or carrying out failed.
        faults: How often the ClientApp itself failed.
        last_event: What the server last learned of it.
    """

    content: RecordDict
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
    """Send every client its content, and read the answers.

    Args:
        grid: Flower's grid.
        directory: Which node each client is on.
        contents: What to send, by the client's name.
        kind: Flower's type of the message.
        timeouts: How long to wait.
        read: Checks an answer; a RecordDict that it returns is sent to the client instead.
    """
    began = time.monotonic()
    collection = _Collection(grid, directory, contents, kind, timeouts, read, began)
    while collection.pending:
        collection.find_moved_clients()
        collection.send()
        collection.receive()
        if collection.pending and time.monotonic() >= began + timeouts.deadline:
            break
        if collection.pending:
            time.sleep(timeouts.poll)
    late = {
        name: f"no answer in {timeouts.deadline:g} s, last heard: {order.last_event}"
        for name, order in collection.pending.items()
    }
    return Collected(collection.answers, collection.refused, late, collection.bytes_up, collection.bytes_down)


class _Collection:
    """The orders of one call of `collect`, and the answers so far."""

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
        self.pending = {name: PendingOrder(content, now, timeouts.resend) for name, content in contents.items()}
        self.sent: dict[str, str] = {}  # Flower's identity of a message -> the client's name
        self.answers: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.bytes_up = self.bytes_down = 0
        self.refreshed = now

    def find_moved_clients(self) -> None:
        """Send again at once to a client that is on another node now."""
        now = time.monotonic()
        if now - self.refreshed < REFRESH_SECONDS:
            return
        self.refreshed = now
        for name in self.directory.refresh():
            if name in self.pending:
                self.pending[name] = self.pending[name]._replace(due=now)

    def send(self) -> None:
        """Send the orders that are due."""
        now = time.monotonic()
        for name, order in self.pending.items():
            if now >= order.due:
                message = Message(order.content, self.directory.nodes[name], self.kind, ttl=self.timeouts.deadline + 60)
                self.bytes_down += serialised_bytes(order.content)
                if taken := push(self.grid, message):
                    self.sent |= dict.fromkeys(taken, name)
                    self.pending[name] = order._replace(due=now + order.pause, pause=2 * order.pause)
                else:
                    self._postpone(name, "the SuperLink did not take the order")

    def receive(self) -> None:
        """Read the answers that have arrived."""
        for reply in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            name = self.sent.pop(reply.metadata.reply_to_message_id, "")
            self.bytes_up += serialised_bytes(reply.content) if reply.has_content() else 0
            if name in self.pending and reply.has_error():
                self._count_error(name, reply.error)
            elif name in self.pending:
                self._read(name, reply.content)
        for name in (*self.answers, *self.refused):
            self.pending.pop(name, None)

    def _count_error(self, name: str, error: Error) -> None:
        """Send again after an error of Flower; after one of the ClientApp, so many times."""
        reason = reason_of(error)
        log.warning("Client %r: %s", name, reason)
        self._postpone(name, reason)
        faults = self.pending[name].faults + (error.code in CLIENT_APP_ERRORS)
        self.pending[name] = self.pending[name]._replace(faults=faults)
        if faults == self.timeouts.attempts:
            self.refused[name] = f"failed at attempt {faults}: {reason}"

    def _postpone(self, name: str, reason: str) -> None:
        """Send the order again later, with growing pauses."""
        order = self.pending[name]
        due = time.monotonic() + min(2.0 ** (order.errors + 1), self.timeouts.resend)
        self.pending[name] = order._replace(errors=order.errors + 1, last_event=reason, due=due)

    def _read(self, name: str, content: RecordDict) -> None:
        try:
            answer = self.read(name, content)
        except FedpdError as error:
            self.refused[name] = str(error)
            return
        if isinstance(answer, RecordDict):
            self.pending[name] = self.pending[name]._replace(content=answer, due=time.monotonic())
        else:
            self.answers[name] = answer


def reason_of(error: Error) -> str:
    """Return the line of a traceback that says what went wrong; JAX ends its own with remarks about frames."""
    lines = (error.reason or f"error {error.code}").strip().splitlines()
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    return named[-1] if named else lines[-1]
