"""Certificates and keys of a federation: an authority, the SuperLink's certificate, an EC key for every SuperNode.

fedpd creates new ones for each federation, so that two federations share nothing. Only their owner can read private
keys.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 90  # enough for a trial federation; the docs say how to make certificates for longer
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


def make_server_certificates(folder: Path, hosts: list[str], days: int = DAYS) -> ServerCertificates:
    """Create an authority and a certificate signed by it, and return the files.

    The authority's key is used once and never saved, so nobody can sign a second certificate with it.

    Args:
        folder: The folder for the files.
        hosts: The names and addresses of the SuperLink.
        days: The number of days for which the certificate is valid.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name, name = _name("fedpd federation authority"), _name(hosts[0][:LONGEST_NAME])
    authority = (
        _builder(authority_name, authority_name, authority_key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    certificate = (
        _builder(name, authority_name, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    files = ServerCertificates.within(folder)
    files.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    write_secret(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
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
