"""Orders out, answers in, by a deadline: sent again where nothing is heard, never waiting without end.

An order may be sent twice, to a client that came back on another node, after an error, or because nothing was heard:
clients answer a repetition without carrying it out again. The first answer that is in order counts.
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
from fedpd.flower.carry.directory import Roll, push
from fedpd.flower.carry.records import serialised_bytes

log = logging.getLogger(f"flwr.{__name__}")

OWN_FAULT = (  # likely to recur
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
)
LOOK = 5.0  # seconds between two looks at who is there
Read = Callable[[str, RecordDict], Any]  # (name, content) -> answer; another RecordDict: ask again with that


class Patience(NamedTuple):
    deadline: float  # seconds
    resend: float
    poll: float
    attempts: int = 3  # at an order in which a ClientApp fails by its own fault


class Collected(NamedTuple):
    answers: dict[str, Any]
    refused: dict[str, str]  # why an answer cannot be used
    missing: dict[str, str]  # no answer by the deadline, and what was last heard
    bytes_up: int  # as serialised
    bytes_down: int


class Open(NamedTuple):
    """An order that is not answered yet."""

    content: RecordDict
    again: float  # when to send it again
    pause: float  # and how long to wait after that
    errors: int = 0
    faults: int = 0  # those that are the ClientApp's own
    heard: str = "nothing"


def collect(
    grid: Grid, roll: Roll, contents: Mapping[str, RecordDict], kind: str, patience: Patience, read: Read
) -> Collected:
    """Send every client its content, and read the answers."""
    began = time.monotonic()
    desk = _Collection(grid, roll, contents, kind, patience, read, began)
    while desk.open:
        desk.look()
        desk.send()
        desk.hear()
        if desk.open and time.monotonic() >= began + patience.deadline:
            break
        if desk.open:
            time.sleep(patience.poll)
    late = {
        name: f"no answer in {patience.deadline:g} s, last heard: {order.heard}" for name, order in desk.open.items()
    }
    return Collected(desk.answers, desk.refused, late, desk.up, desk.down)


class _Collection:
    """Orders under way."""

    def __init__(
        self,
        grid: Grid,
        roll: Roll,
        contents: Mapping[str, RecordDict],
        kind: str,
        patience: Patience,
        read: Read,
        now: float,
    ) -> None:
        self.grid, self.roll, self.kind, self.patience, self.read = grid, roll, kind, patience, read
        self.open = {name: Open(content, now, patience.resend) for name, content in contents.items()}
        self.sent: dict[str, str] = {}  # message -> name
        self.answers: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.up = self.down = 0
        self.looked = now

    def look(self) -> None:
        """Whether anyone who owes an answer is on another node now."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        for name in self.roll.look():
            if name in self.open:
                self.open[name] = self.open[name]._replace(again=now)

    def send(self) -> None:
        """What is due."""
        now = time.monotonic()
        for name, order in self.open.items():
            if now >= order.again:
                message = Message(order.content, self.roll.nodes[name], self.kind, ttl=self.patience.deadline + 60)
                self.down += serialised_bytes(order.content)
                if taken := push(self.grid, message):
                    self.sent |= dict.fromkeys(taken, name)
                    self.open[name] = order._replace(again=now + order.pause, pause=2 * order.pause)
                else:
                    self._postpone(name, "the SuperLink did not take the order")

    def hear(self) -> None:
        for reply in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            name = self.sent.pop(reply.metadata.reply_to_message_id, "")
            self.up += serialised_bytes(reply.content) if reply.has_content() else 0
            if name in self.open and reply.has_error():
                self._fail(name, reply.error)
            elif name in self.open:
                self._read(name, reply.content)
        for name in (*self.answers, *self.refused):
            self.open.pop(name, None)

    def _fail(self, name: str, error: Error) -> None:
        """An error of Flower, or of the ClientApp, which has so many chances."""
        reason = reason_of(error)
        log.warning("Client %r: %s", name, reason)
        self._postpone(name, reason)
        faults = self.open[name].faults + (error.code in OWN_FAULT)
        self.open[name] = self.open[name]._replace(faults=faults)
        if faults == self.patience.attempts:
            self.refused[name] = f"failed at attempt {faults}: {reason}"

    def _postpone(self, name: str, reason: str) -> None:
        """The order is sent again, ever later."""
        order = self.open[name]
        again = time.monotonic() + min(2.0 ** (order.errors + 1), self.patience.resend)
        self.open[name] = order._replace(errors=order.errors + 1, heard=reason, again=again)

    def _read(self, name: str, content: RecordDict) -> None:
        try:
            answer = self.read(name, content)
        except FedpdError as error:
            self.refused[name] = str(error)
            return
        if isinstance(answer, RecordDict):
            self.open[name] = self.open[name]._replace(content=answer, again=time.monotonic())
        else:
            self.answers[name] = answer


def reason_of(error: Error) -> str:
    """The line of a traceback that says what went wrong; JAX ends its own with remarks about frames."""
    lines = (error.reason or f"error {error.code}").strip().splitlines()
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    return named[-1] if named else lines[-1]
