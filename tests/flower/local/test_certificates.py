"""Which connections a federation's certificates and keys accept, and which they refuse."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedpd.flower.local.certificates import ServerCertificates, make_node_keys, make_server_certificates


def handshake(server: ServerCertificates, authority: Path, host: str) -> None:
    """Whether a client that trusts `authority` believes that the server is `host`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    ours, theirs, back, forth = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    listening = context.wrap_bio(ours, theirs, server_side=True)
    client = ssl.create_default_context(cafile=authority).wrap_bio(back, forth, server_hostname=host)
    for _ in range(4):
        for side in (client, listening):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            ours.write(forth.read())
            back.write(theirs.read())
    client.do_handshake()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_is_believed_by_its_own_federation(tmp_path: Path, host: str) -> None:
    made = make_server_certificates(tmp_path, ["localhost", "127.0.0.1"])
    handshake(made, made.authority, host)


def test_neither_by_another_federation_nor_for_another_host(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    one, other = (make_server_certificates(folder, ["localhost"]) for folder in folders)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature failure|unable to get local issuer|self-signed"):
        handshake(one, other.authority, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(one, one.authority, "example.org")


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    server, node = make_server_certificates(tmp_path, ["localhost"]), make_node_keys(tmp_path, "node-0")
    for path in (server.key, node.private):
        assert path.stat().st_mode & 0o777 == 0o600


def test_node_keys_are_a_pair_in_opensshs_format(tmp_path: Path) -> None:
    keys = make_node_keys(tmp_path, "node-0")
    private, public = (
        load_ssh_private_key(keys.private.read_bytes(), None),
        load_ssh_public_key(keys.public.read_bytes()),
    )
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
