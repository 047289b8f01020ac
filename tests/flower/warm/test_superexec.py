"""A server that answers with HTTP 500: Flower's programs ask it again instead of ending."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from flwr.supercore.retry import http_retry

from fedpd.flower.warm.superexec import retry_internal_errors

CODES = [500]  # the first answers; all later ones are 200


class FakeLink(ThreadingHTTPServer):
    """A SuperLink without work, which answers some requests with HTTP 500."""

    asked = 0
    satisfied: threading.Event


class Answer(BaseHTTPRequestHandler):
    """Answers every request with the next code and an empty message."""

    server: FakeLink

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        number, self.server.asked = self.server.asked, self.server.asked + 1
        self.send_response(CODES[number] if number < len(CODES) else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()
        if number > len(CODES):
            self.server.satisfied.set()

    def log_message(self, *_: object) -> None:
        """Write nothing to the terminal."""


@pytest.fixture
def link() -> Iterator[FakeLink]:
    with FakeLink(("127.0.0.1", 0), Answer) as server:
        server.satisfied = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_superexec_survives_errors_of_its_server(link: FakeLink, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedpd.flower.warm.superexec", "--insecure"]
    address = f"127.0.0.1:{link.server_address[1]}"
    log = tmp_path / "log"
    with log.open("wb") as file:
        words, quick = [*command, "--runtime-api-address", address], {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}
        running = subprocess.Popen(words, stdout=file, stderr=file, env=os.environ | quick)
        try:
            assert link.satisfied.wait(60.0), log.read_text()
            assert running.poll() is None, log.read_text()
        finally:
            running.terminate()
            running.wait(10)


def test_flower_retries_the_codes_that_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails if a new version of Flower decides elsewhere what to retry."""
    monkeypatch.setattr(http_retry, "_RETRYABLE_STATUS_CODES", frozenset({503}))
    retry_internal_errors()
    give_up = http_retry.make_simple_http_retry_invoker().should_giveup
    assert give_up is not None
    request = httpx.Request("POST", "http://127.0.0.1")
    answers = {code: httpx.HTTPStatusError("", request=request, response=httpx.Response(code)) for code in (500, 404)}
    assert {code: give_up(error) for code, error in answers.items()} == {500: False, 404: True}
