"""Certificates and keys of a federation: an authority, the server's certificate, an EC key for every SuperNode.

fedpd creates new ones for each federation, so that two federations share nothing. Only their owner can read private
keys. The key of a SuperNode signs its requests (Flower) and also belongs to a certificate (TLS), by which the proxy
knows a client before it reads anything of a request. The authority can be kept, encrypted, to sign later certificates.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError

DAYS = 90  # enough for a trial federation; sites.toml says for how long a server's certificate is valid
AUTHORITY_DAYS = 3650  # of the authority and of clients' certificates, so that a renewal changes the server alone
AUTHORITY_KEY = "authority.key"
LONGEST_NAME = 64  # characters of a name in a certificate; clients check the alternative names, which are whole
CLOCK_SKEW = timedelta(minutes=5)


class ServerCertificates(NamedTuple):
    """The files of the SuperLink's certificate.

    Attributes:
        authority: The certificate of the authority, by which others check the SuperLink's.
        certificate: The SuperLink's certificate.
        key: The SuperLink's private key.
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def within(cls, folder: Path) -> Self:
        """Return the files in a folder, whether they exist or not."""
        return cls(folder / "ca.crt", folder / "server.pem", folder / "server.key")


class NodeKeys(NamedTuple):
    """The files of a SuperNode's keys. It signs with the private key; the SuperLink registers the public key."""

    private: Path
    public: Path

    @classmethod
    def within(cls, folder: Path, name: str) -> Self:
        """Return the files in a folder, whether they exist or not."""
        return cls(folder / name, folder / f"{name}.pub")


class Authority(NamedTuple):
    """An authority: its certificate, and the key with which it signs others."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_authority(days: int = DAYS) -> Authority:
    """Return a new authority, which is nowhere on disk."""
    key, name = ec.generate_private_key(ec.SECP384R1()), _name("fedpd federation authority")
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Authority(certificate, key)


def save_authority(authority: Authority, folder: Path, passphrase: bytes) -> None:
    """Write an authority's key, encrypted with a passphrase."""
    encrypted = authority.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
    write_secret(folder / AUTHORITY_KEY, encrypted)


def load_authority(folder: Path, passphrase: bytes) -> Authority:
    """Return the authority whose key `save_authority` wrote.

    Raises:
        FedpdError: If a file is missing, or the passphrase is another.
    """
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), passphrase)
    except (OSError, ValueError, TypeError) as error:
        remedy = "Give the passphrase that fedpd provision wrote, and put authority.key of the server's kit back"
        raise FedpdError(f"{folder / AUTHORITY_KEY} cannot be opened ({error}). {remedy}.") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Authority(certificate, key)


def make_server_certificates(
    folder: Path, hosts: list[str], days: int = DAYS, authority: Authority | None = None
) -> ServerCertificates:
    """Create a certificate for a server, replace the files of an earlier one, and return the files.

    Args:
        folder: The folder for the files.
        hosts: The names and addresses of the server.
        days: The number of days for which the certificate is valid.
        authority: The authority that signs; None: a new one, whose key is used once and never saved, so nobody can
            sign a second certificate with it.
    """
    authority, key = authority or new_authority(days + 1), ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _signed(authority, _name(hosts[0][:LONGEST_NAME]), key.public_key(), days, ExtendedKeyUsageOID.SERVER_AUTH)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    files, new = ServerCertificates.within(folder), folder / ".server.key.new"
    new.unlink(missing_ok=True)
    write_secret(new, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    new.replace(files.key)
    for path, signed in ((files.authority, authority.certificate), (files.certificate, certificate)):
        with replace_file(path) as file:
            file.write(signed.public_bytes(Encoding.PEM))
    return files


def sign_client(authority: Authority, name: str, key: ec.EllipticCurvePublicKey, path: Path) -> None:
    """Write a client's certificate for TLS, which belongs to the key with which the client signs its requests."""
    certificate = _signed(authority, _name(name), key, AUTHORITY_DAYS, ExtendedKeyUsageOID.CLIENT_AUTH).sign(
        authority.key, hashes.SHA384()
    )
    with replace_file(path) as file:
        file.write(certificate.public_bytes(Encoding.PEM))


def serial_of(path: Path) -> str:
    """Return the serial number of a certificate as nginx writes it."""
    serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
    digits = f"{serial:X}"
    return digits if len(digits) % 2 == 0 else f"0{digits}"


def end_of(path: Path) -> datetime:
    """Return when a certificate ends."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def make_node_keys(folder: Path, name: str) -> NodeKeys:
    """Create a key pair on a NIST curve in OpenSSH's format, as `flwr supernode register` needs; return the files."""
    key = ec.generate_private_key(ec.SECP384R1())
    files = NodeKeys.within(folder, name)
    write_secret(files.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    files.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return files


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from the moment it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _signed(
    authority: Authority, name: x509.Name, key: ec.EllipticCurvePublicKey, days: int, purpose: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    """Return a certificate of a server or a client, to be signed by the authority, with which it ends at the latest."""
    issuer = authority.certificate
    left = (issuer.not_valid_after_utc - datetime.now(UTC)) // timedelta(days=1)
    return (
        _builder(name, issuer.subject, key, min(days, max(left, 1)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
