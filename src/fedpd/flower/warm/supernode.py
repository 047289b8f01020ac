"""Flower's `flower-supernode` with shorter pauses, which survives errors and keeps its work from other users.

Flower's SuperNode sleeps 3 s when there is no message and 0.5 s while its ClientApp works, and has no setting for it.
Here the first pauses after a message are short and double up to 3 s: the next order usually comes soon after a reply,
and a SuperNode without work asks the SuperLink as rarely as before. FEDPD_WARM=0 restores Flower's pauses.

It asks again after HTTP 500 (see `superexec`) and after every failure of the connection, with pauses; Flower's gives
up after an error of TLS, and its heartbeats end with the first that fails. It shows the server the certificate of its
kit, which belongs to the key with which it signs. If its loop ends all the same, it ends what it has started and starts
again, as the same process: Flower's own process would live on without its loop.

Its log is for the person who runs it: one line per message, with its time, and reasons as sentences. Flower writes
eight lines per message. The root logger of a program, if it has a handler, writes all of Flower's lines a second time,
and those for debugging too: one for every check for work, up to five per second.
"""

import logging
import os
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import httpx
import psutil
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_ssh_private_key

from fedpd.flower.private import (
    FleetHttpClient,
    HeartbeatFailure,
    HeartbeatSender,
    flower_supernode,
    make_simple_http_retry_invoker,
    protect_runtime,
    replace_in_connection,
    replace_pauses,
    update_console_handler,
    watch_answers,
)
from fedpd.flower.warm.superexec import new_secret, retry_internal_errors

WORKING = 0.1  # seconds between two checks whether the ClientApp has replied
FIRST = 0.25  # seconds until the first check for the next order
PAUSE = "FEDPD_RESTART_PAUSE"  # in the environment of a process that starts again: the seconds to wait before that
SHORTEST, LONGEST = 1.0, 60.0
GRACE = 7.0  # seconds for the SuperExec and its programs to end
log = logging.getLogger(f"flwr.{__name__}")
AHEAD, BEHIND = 5.0, 300.0  # the seconds by which Flower lets a client's clock differ
NOISE = re.compile(r"\s*|\[RUN .*\]|Received successfully|FastAPI lifespan.*")
RECEIVED, SENT = re.compile(r"Receiving: (\S+) message.*"), re.compile(r"Sending: (\S+) message.*")
GRACEFULLY = "SuperNode terminated gracefully."
flower = logging.getLogger("flwr")


class NotAdmittedError(Exception):
    """The server does not admit this SuperNode."""


def tls_context(authority: Path, certificate: Path | None, key: Path) -> ssl.SSLContext:
    """Return the context of a client's connections to its server.

    Args:
        authority: The certificate by which the client checks the server's.
        certificate: The client's certificate; None: it shows none.
        key: The client's private key, in OpenSSH's format.
    """
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        private = load_ssh_private_key(key.read_bytes(), None)
        with tempfile.NamedTemporaryFile() as file:  # only its owner can read it; ssl reads keys from files alone
            file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            context.load_cert_chain(certificate, file.name)
    return context


def connect_with(context: ssl.SSLContext) -> None:
    """Let the SuperNode of this process connect with this context."""

    class KnownClient(FleetHttpClient):
        """A client of the fleet API that shows its certificate."""

        @classmethod
        def from_server_address(
            cls, server_address: str, insecure: bool, root_certificates: Any, interceptors: Any, **options: Any
        ) -> Self:
            return cls(f"https://{server_address}", interceptors=interceptors, verify=context, **options)

    replace_in_connection(FleetHttpClient=KnownClient)


def patient_invoker() -> Any:
    """Return Flower's rule for what is tried again, with errors of TLS, and without ending this process after 401."""
    invoker = make_simple_http_retry_invoker()
    gives_up = invoker.should_giveup
    assert gives_up is not None

    def should_giveup(error: Exception) -> bool:
        if not isinstance(error, httpx.HTTPStatusError):
            return False
        return error.response.status_code == httpx.codes.UNAUTHORIZED or gives_up(error)

    invoker.should_giveup = should_giveup
    return invoker


class PatientHeartbeat(HeartbeatSender):
    """Flower's heartbeats, which go on after an error of any kind."""

    def _heartbeat(self) -> None:
        try:
            super()._heartbeat()
        except HeartbeatFailure:
            raise
        except Exception as error:
            log.warning("A heartbeat failed (%s). It is sent again.", error)
            raise HeartbeatFailure from error


def not_admitted(code: int, message: str | None = None, *_: Any) -> NoReturn:
    """Stand for Flower's exit of a SuperNode that is not admitted.

    Raises:
        NotAdmittedError: Always; `supernode.run` then starts again after a pause.
    """
    raise NotAdmittedError(message)


def persist() -> None:
    """Change how the SuperNode of this process connects: it tries again, as this module says."""
    replace_in_connection(
        make_simple_http_retry_invoker=patient_invoker, HeartbeatSender=PatientHeartbeat, flwr_exit=not_admitted
    )


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


def prepare_log() -> None:
    """Change the log of Flower's SuperNode in this process."""
    own = SuperNodeLog()
    flower.propagate = False  # the root logger would write each line again, and those for debugging
    flower.addFilter(own)
    update_console_handler(timestamps=True, colored=sys.stderr.isatty())
    watch_answers(own.explain)


class Pauses:
    """Stands for the module `time` in Flower's loop, which only sleeps."""

    def __init__(self) -> None:
        self.pause = FIRST

    def sleep(self, seconds: float) -> None:
        """Sleep for at most the time that Flower asks for; Flower asks for less than 1 s only while there is work."""
        if seconds < 1.0:
            self.pause = FIRST
            time.sleep(min(seconds, WORKING))
        else:
            time.sleep(min(seconds, self.pause))
            self.pause = min(2 * self.pause, seconds)


def prepare() -> None:
    """Change Flower's SuperNode in this process: its log, retries, a secret, and shorter pauses unless FEDPD_WARM=0."""
    prepare_log()
    retry_internal_errors()
    persist()
    protect_runtime(new_secret())
    if os.environ.get("FEDPD_WARM", "") != "0":
        replace_pauses(Pauses())


def run(loop: Callable[[], object] | None = None) -> NoReturn:
    """Run a SuperNode's loop, and start this program again when the loop has ended by itself.

    A signal ends the process, as Flower does it.

    Args:
        loop: Runs until it fails; None: Flower's SuperNode.
    """
    loop = loop or flower_supernode
    pause = float(os.environ.pop(PAUSE, 0.0))
    time.sleep(pause)
    began = time.monotonic()
    try:
        loop()
        log.error("The SuperNode's loop has ended.")
    except NotAdmittedError as error:
        log.error("Failed to activate SuperNode. %s", error)
    pause = SHORTEST if time.monotonic() - began > LONGEST else min(max(2 * pause, SHORTEST), LONGEST)
    log.error("It starts again in %g s.", pause)
    start_again(pause)


def start_again(pause: float) -> NoReturn:
    """End what this process has started, and replace it by the same program, which waits before it begins."""
    started = psutil.Process().children(recursive=True)
    for child in started:
        try:
            child.terminate()
        except psutil.NoSuchProcess:
            continue
    for child in psutil.wait_procs(started, timeout=GRACE)[1]:
        child.kill()
    os.environ[PAUSE] = f"{pause:g}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Run `flower-supernode`."""
    prepare()
    run()


if __name__ == "__main__":
    main()
