"""Orders out, answers in, by a deadline: sent again where nothing is heard, never waiting without end.

An order may be sent twice, to a client that came back on another node, after an error, or because nothing was heard:
clients answer a repetition without carrying it out again. The first answer that is in order counts.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedpd.checks import FedpdError
from fedpd.flower.records import serialised_bytes
from fedpd.flower.roll import Roll

log = logging.getLogger(f"flwr.{__name__}")

OWN_FAULT = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # likely to recur
ATTEMPTS = 3  # at an order in which a ClientApp fails by its own fault
LOOK = 5.0  # seconds between two looks at who is there
Read = Callable[[str, RecordDict], Any]  # (name, content) -> answer; another RecordDict: ask again with that


class Patience(NamedTuple):
    deadline: float  # seconds
    resend: float
    poll: float


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
    faults: int
    heard: str


def collect(
    grid: Grid, roll: Roll, contents: Mapping[str, RecordDict], kind: str, patience: Patience, read: Read
) -> Collected:
    """Send every client its content, and read the answers."""
    began = looked = time.monotonic()
    open_ = {name: Open(content, began, patience.resend, 0, "nothing") for name, content in contents.items()}
    sent: dict[str, str] = {}
    answers: dict[str, Any] = {}
    refused: dict[str, str] = {}
    up = down = 0

    def deal(name: str, reply: Message) -> None:
        order = open_[name]
        if reply.has_error():
            reason = (reply.error.reason or f"error {reply.error.code}").strip().splitlines()[-1]
            log.warning("Client %r: %s", name, reason)
            faults = order.faults + (reply.error.code in OWN_FAULT)
            open_[name] = order._replace(
                faults=faults, heard=reason, again=time.monotonic() + min(order.pause, 1 + faults)
            )
            if faults == ATTEMPTS:
                refused[name] = f"failed {ATTEMPTS} times: {reason}"
            return
        try:
            answer = read(name, reply.content)
        except FedpdError as error:
            refused[name] = str(error)
            return
        if isinstance(answer, RecordDict):
            open_[name] = order._replace(content=answer, again=time.monotonic())
        else:
            answers[name] = answer

    while open_:
        now = time.monotonic()
        if now - looked >= LOOK:
            looked = now
            for name in roll.look():
                if name in open_:
                    log.warning("Client %r is back on another node: its order is sent again.", name)
                    open_[name] = open_[name]._replace(again=now)
        for name, order in open_.items():
            if now >= order.again and name in roll.nodes:
                message = Message(order.content, roll.nodes[name], kind, ttl=patience.deadline + 60)
                down += serialised_bytes(order.content)
                sent |= {identity: name for identity in grid.push_messages([message]) if identity}
                open_[name] = order._replace(again=now + order.pause, pause=2 * order.pause)
        for reply in grid.pull_messages(list(sent)) if sent else ():
            name = sent.pop(reply.metadata.reply_to_message_id, "")
            up += serialised_bytes(reply.content) if reply.has_content() else 0
            if name in open_:
                deal(name, reply)
        for name in (*answers, *refused):
            open_.pop(name, None)
        if not open_ or time.monotonic() >= began + patience.deadline:
            break
        time.sleep(patience.poll)
    missing = {name: f"no answer in {patience.deadline:g} s, last heard: {o.heard}" for name, o in open_.items()}
    return Collected(answers, refused, missing, up, down)
