"""The log of a SuperNode, as the person who runs it reads it."""

import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from fedpd.flower.warm import supernode
from fedpd.flower.warm.supernode import GRACEFULLY, SuperNodeLog, flower

MESSAGE = (
    "",
    "[RUN 7265480456890124332]",
    "Receiving: train message (ID: 48e8b62276425347d14e2dfea378205d)",
    "Received successfully",
    "",
    "[RUN 7265480456890124332]",
    "Sending: train message (ID: a1b64b6b2ed05d4c1e0d3a3e13b71c62)",
    "Sent successfully",
)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that Flower's logger passes to a handler; its own handlers and filters are as before afterwards."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    before, propagates = flower.filters[:], flower.propagate
    flower.addHandler(handler)
    try:
        yield found
    finally:
        flower.removeHandler(handler)
        flower.filters[:], flower.propagate = before, propagates


def test_a_message_is_one_line(lines: list[str]) -> None:
    times = iter([10.0, 12.5])
    flower.addFilter(SuperNodeLog(lambda: next(times)))
    for line in MESSAGE:
        flower.info(line)
    flower.info("SuperNode ID: 7")
    flower.error("Received successfully is what an error may say")
    assert lines[0] == "Answered a message (train) after 2.5 s"
    assert lines[1:] == ["SuperNode ID: 7", "Received successfully is what an error may say"]


def test_a_root_logger_does_not_write_the_lines_again(
    lines: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line gives the root logger a handler, which wrote every check for work of a SuperExec."""
    monkeypatch.setattr(supernode, "watch_answers", lambda look: None)
    monkeypatch.setattr(supernode, "update_console_handler", lambda **_: None)
    root = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(root)
    try:
        supernode.prepare_log()
        flower.debug("Runtime.AcquireTask")
        flower.info("one")
    finally:
        logging.getLogger().removeHandler(root)
    assert lines == ["Runtime.AcquireTask", "one"]
    assert "AcquireTask" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("status", "seconds", "said"),
    [
        (401, 42.5, "This machine's clock is 4[23] s ahead of the server's.*Set it, e.g. by NTP"),
        (401, -399.5, "This machine's clock is (399|400) s behind the server's"),
        (401, 0.0, "The server does not accept the signature of this client's key"),
        (200, 42.0, None),
    ],
)
def test_a_refusal_is_a_sentence_with_the_remedy(
    lines: list[str], status: int, seconds: float, said: str | None
) -> None:
    own = SuperNodeLog()
    flower.addFilter(own)
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=seconds))
    own.explain(httpx.Response(status, headers={"date": date}))
    flower.info(GRACEFULLY)
    if said is None:
        assert lines == [GRACEFULLY]
    else:
        assert re.match(said, lines[0])
        assert lines[1:] == ["The SuperNode ends, because the server refuses it."]
