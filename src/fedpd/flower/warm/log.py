"""The log of a SuperNode for the person who runs it: one line per message, with its time, and reasons as sentences.

Flower writes eight lines per message. The root logger of a program, if it has a handler, writes all of Flower's lines a
second time, and those for debugging too: one for every check for work, up to five per second.
"""

import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from fedpd.flower.private import update_console_handler, watch_answers

AHEAD, BEHIND = 5.0, 300.0  # the seconds by which Flower lets a client's clock differ
NOISE = re.compile(r"\s*|\[RUN .*\]|Received successfully|FastAPI lifespan.*")
RECEIVED, SENT = re.compile(r"Receiving: (\S+) message.*"), re.compile(r"Sending: (\S+) message.*")
GRACEFULLY = "SuperNode terminated gracefully."
flower = logging.getLogger("flwr")


class SuperNodeLog:
    """A filter of Flower's logger: it turns the lines about a message into one, and says why a SuperNode ends.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.sending, self.refused = clock, "", False
        self.received: dict[str, float] = {}  # by the type of a message, the time at which the newest one came

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line."""
        text = record.getMessage()
        if found := RECEIVED.fullmatch(text):
            self.received[found[1]] = self.clock()
        elif found := SENT.fullmatch(text):
            self.sending = found[1]
        elif text == "Sent successfully":
            now = self.clock()
            record.msg = "Answered a message (%s) after %.1f s"
            record.args = self.sending, now - self.received.pop(self.sending, now)
            return True
        elif self.refused and text == GRACEFULLY:
            record.msg, record.args = "The SuperNode ends, because the server refuses it.", ()
            return True
        else:
            return record.levelno > logging.INFO or not NOISE.fullmatch(text)
        return False

    def explain(self, answer: httpx.Response) -> None:
        """Write why the server refuses this client's signature: Flower ends the SuperNode and does not tell."""
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return
        self.refused = True
        ahead = _seconds_ahead(answer)
        if -BEHIND < ahead < AHEAD:
            flower.error("The server does not accept the signature of this client's key. Copy client.key from the kit.")
            return
        flower.error(
            "This machine's clock is %.0f s %s the server's, so the server refuses this client. Set it, e.g. by NTP: "
            "timedatectl set-ntp true. Then start the client again.",
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )


def _seconds_ahead(answer: httpx.Response) -> float:
    """Return the seconds by which this clock is ahead of the server's; 0 if the answer has no date."""
    try:
        return (datetime.now(UTC) - parsedate_to_datetime(answer.headers["date"])).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0.0


def prepare() -> None:
    """Change the log of Flower's SuperNode in this process."""
    own = SuperNodeLog()
    flower.propagate = False  # the root logger would write each line again, and those for debugging
    flower.addFilter(own)
    update_console_handler(timestamps=True, colored=sys.stderr.isatty())
    watch_answers(own.explain)
