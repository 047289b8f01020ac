"""How a SuperNode connects to its server: with its certificate, and again and again when the connection fails.

Flower's SuperNode cannot show a certificate, gives up after an error of TLS, and ends its loop while the process lives
on. Here the certificate of the kit belongs to the key with which the SuperNode signs, every failure of the connection
is tried again with pauses, and a heartbeat that fails does not end the heartbeats.
"""

import logging
import ssl
import tempfile
from pathlib import Path
from typing import Any, NoReturn, Self

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_ssh_private_key

from fedpd.flower.private import (
    FleetHttpClient,
    HeartbeatFailure,
    HeartbeatSender,
    make_simple_http_retry_invoker,
    replace_in_connection,
)

log = logging.getLogger(f"flwr.{__name__}")


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
