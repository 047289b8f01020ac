"""The arithmetic of secure aggregation: masks, shares of secrets, keys of pairs, and the graph of neighbours.

The masks come from ChaCha20 (RFC 8439) with keys of 256 bits, which HKDF makes from a seed or from the X25519 secret of
two clients. Their numbers are uniform modulo 2^b, so a masked number says nothing. A seed is used once: every attempt
has new ones. b is 32 for messages and 128 for the few numbers of an evaluation, which keep the precision of float64.

In a large federation, a client shares masks and secrets with k neighbours only (Bell, Bonawitz, Gascon, Lepoint,
Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020). The graph is a circle of all clients
in a random order, in which the k/2 clients on each side are neighbours. The order is a hash of all public keys.
"""

import hashlib
import math
import os
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PURPOSE = b"fedpd: mask of secure aggregation"
SEALING = b"fedpd: share of secure aggregation"
START = bytes(16)  # the block counter and the nonce of ChaCha20
PRIME = 2**521 - 1  # the field of the shares, larger than any secret of 32 bytes
SECRET, SHARE, NONCE = 32, 66, 12  # bytes
COMPLETE = 16  # clients up to which all are neighbours of all
COALITION = 5  # one of this many clients may work with the server
LEAK, FAILURE = 2.0**-40, 2.0**-20  # probabilities: that a coalition learns a message, that an attempt fails


def keystream(key: bytes, length: int) -> bytes:
    """Return the first bytes that ChaCha20 makes from a key of 256 bits.

    Examples:
        >>> from fedpd.flower.carry.masks import keystream
        >>> keystream(bytes(32), 4).hex()  # RFC 8439, appendix A.1, test vector 1
        '76b8e0ad'
    """
    return Cipher(ChaCha20(key, START), mode=None).encryptor().update(bytes(length))


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 256 bits from a secret, by HKDF."""
    return HKDF(SHA256(), length=32, salt=None, info=purpose).derive(secret)


class Ring(NamedTuple):
    """Vectors of integers modulo 2^bits: uint32 arrays, or arrays of Python integers for 128 bits."""

    bits: int

    def mask(self, seed: bytes, size: int, purpose: bytes = PURPOSE) -> np.ndarray:
        """Return uniform numbers that follow from a seed."""
        return self.read(keystream(derived(seed, purpose), size * self.bits // 8))

    def add(self, total: np.ndarray, other: np.ndarray, sign: int = 1) -> np.ndarray:
        """Return total + other or, for sign -1, total - other; it may reuse the memory of `total`."""
        if self.bits == 32:
            return np.add(total, other, out=total) if sign > 0 else np.subtract(total, other, out=total)
        return (total + sign * other) % 2**self.bits

    def read(self, content: bytes) -> np.ndarray:
        """Return the vector that `write` turned into bytes."""
        if self.bits == 32:
            return np.frombuffer(content, "<u4")
        width = self.bits // 8
        parts = [content[i : i + width] for i in range(0, len(content), width)]
        return np.array([int.from_bytes(part, "little") for part in parts], object)

    def write(self, vector: np.ndarray) -> bytes:
        """Return a vector as bytes."""
        if self.bits == 32:
            return np.ascontiguousarray(vector, "<u4").tobytes()
        return b"".join(int(one).to_bytes(self.bits // 8, "little") for one in vector)


MESSAGES, NUMBERS = Ring(32), Ring(128)


class Keys(NamedTuple):
    """The secret keys of a client for one attempt: for its masks, to seal shares, and to sign the set of a sum."""

    masking: bytes
    sealing: bytes
    signing: bytes

    def public(self) -> list[bytes]:
        """Return the public keys."""
        signer = Ed25519PrivateKey.from_private_bytes(self.signing).public_key()
        return [public(self.masking), public(self.sealing), signer.public_bytes_raw()]


def new_keys() -> Keys:
    """Return new secret keys."""
    return Keys(os.urandom(SECRET), os.urandom(SECRET), os.urandom(SECRET))


def public(secret: bytes) -> bytes:
    """Return the public key of a secret key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def common(secret: bytes, others: Iterable[bytes]) -> list[bytes]:
    """Return the secrets that the owner of a secret key has in common with the owners of public keys."""
    own = X25519PrivateKey.from_private_bytes(secret)  # as slow as an exchange
    return [own.exchange(X25519PublicKey.from_public_bytes(other)) for other in others]


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Return an encrypted text, which `about` is bound to."""
    nonce = os.urandom(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Return the text; raise an error if it, or `about`, is not what was sealed."""
    return ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)


def sign(secret: bytes, text: bytes) -> bytes:
    """Return the signature of a text."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(text)


def is_signed(key: bytes, text: bytes, signature: bytes) -> bool:
    """Return whether the owner of a public key has signed a text."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def split_secret(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Return shares of a secret, of which `threshold` reveal it and fewer say nothing (Shamir, 1979)."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, number + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def combine_shares(shares: Sequence[tuple[int, bytes]]) -> bytes | None:
    """Return the secret of shares and their places (1, 2, ...); None: they do not belong together."""
    secret, places = 0, [place for place, _ in shares]
    for x, share in shares:
        top = bottom = 1
        for other in places:
            if other != x:
                top, bottom = top * other % PRIME, bottom * (other - x) % PRIME
        secret = (secret + int.from_bytes(share, "big") * top * pow(bottom, -1, PRIME)) % PRIME
    return secret.to_bytes(SECRET, "big") if secret < 2 ** (8 * SECRET) else None


class Neighbourhood(NamedTuple):
    """How many neighbours a client has, and how many shares reveal a secret of it."""

    neighbours: int
    threshold: int


@lru_cache(maxsize=64)
def neighbourhood(clients: int) -> Neighbourhood:
    """Return the smallest neighbourhoods that keep secrets and survive drop-outs.

    Up to 16 clients, all are neighbours, and two thirds of all plus one reveal a secret. Otherwise the server may work
    with a fifth of the clients, and a third may drop out. With a probability of at least 1 - 2^-40, no honest client
    then has so many members of the coalition around it that they hold enough shares, and the honest clients that are
    left are connected by masks. With a probability of at least 1 - 2^-20, enough shares of every secret are left.

    Examples:
        >>> from fedpd.flower.carry.masks import neighbourhood
        >>> neighbourhood(10), neighbourhood(40), neighbourhood(1000)  # doctest: +NORMALIZE_WHITESPACE
        (Neighbourhood(neighbours=9, threshold=7), Neighbourhood(neighbours=22, threshold=9),
         Neighbourhood(neighbours=158, threshold=72))
    """
    if clients <= COMPLETE:
        return Neighbourhood(clients - 1, threshold_of(clients))
    coalition, absent = clients // COALITION, clients - threshold_of(clients)
    for k in range(2, clients, 2):
        if clients**2 / 2 * _all_in(clients, coalition + absent, k) > LEAK:
            continue
        threshold = bisect_left(range(k), -LEAK, key=lambda t: -clients * _tail(clients - 1, coalition, k, t))
        if threshold > 1 and clients * _tail(clients - 1, absent, k, k - threshold + 1) <= FAILURE:
            return Neighbourhood(k, threshold)
    return Neighbourhood(clients - 1, threshold_of(clients))


def threshold_of(everyone: int) -> int:
    """Return two thirds of all clients plus one."""
    return 2 * everyone // 3 + 1


def confirmations(clients: int, least: int) -> int:
    """Return how many clients must sign the set of a sum before anybody reveals a share; 0: no signature is needed.

    None is needed if nobody may drop out, or all are neighbours of all. Otherwise, two sets with this many signatures
    each would have the signature of one honest client in common, as long as the server works with a fifth of the
    clients at most. An honest client signs one set per attempt. The clients that must be left at least, two thirds of
    all plus one, are enough to sign.

    Args:
        clients: The clients with keys.
        least: The least number of clients in the sum.

    Examples:
        >>> from fedpd.flower.carry.masks import confirmations
        >>> confirmations(16, 11), confirmations(40, 40), confirmations(40, 27)
        (0, 0, 25)
    """
    if least >= clients or neighbourhood(clients).neighbours == clients - 1:
        return 0
    return (clients + clients // COALITION) // 2 + 1


def _tail(total: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that a draw without replacement has at least `least` marked ones."""
    ways = math.comb(total, drawn)
    return sum(math.comb(marked, i) * math.comb(total - marked, drawn - i) / ways for i in range(least, drawn + 1))


def _all_in(total: int, marked: int, drawn: int) -> float:
    """Return the probability that all that are drawn are marked: two gaps of k/2 clients cut the circle."""
    return math.comb(marked, drawn) / math.comb(total, drawn)


def transcript(about: str, names: Sequence[str], keys: Sequence[bytes]) -> bytes:
    """Return a hash of all that the clients of an attempt must agree on.

    It is part of every mask of a pair: if the server tells two clients different things, their masks do not cancel.
    """
    parts = [about.encode(), *(name.encode() for name in names), *keys]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def circle(names: Sequence[str], seed: bytes) -> list[str]:
    """Return the names in the random order of a hash."""
    return sorted(names, key=lambda name: hashlib.sha256(seed + name.encode()).digest())


def neighbours(order: Sequence[str], name: str, number: int) -> list[str]:
    """Return the clients that hold the shares of a client, in their order: itself first, then its neighbours."""
    if number >= len(order) - 1:
        return [name, *(other for other in order if other != name)]
    at, half = order.index(name), number // 2
    return [name, *(order[(at + step) % len(order)] for step in (*range(-half, 0), *range(1, half + 1)))]


def quantized(values: np.ndarray, bound: float, levels: int, rng: np.random.Generator) -> np.ndarray:
    """Return values in [-bound, bound] as levels 0, ..., `levels`, rounded at random without bias."""
    scaled = np.add(values, bound, dtype=np.float64)
    scaled *= levels / (2 * bound)
    scaled += rng.random(scaled.shape, np.float32)
    return np.clip(np.floor(scaled, out=scaled), 0, levels, out=scaled).astype(np.uint32)


SCALE = 2**64  # of the numbers of an evaluation


def fixed_number(value: float, clients: int) -> int | None:
    """Return a number as an integer modulo 2^128 with a resolution of 2^-64; None: it is too large for a sum."""
    if not math.isfinite(value) or abs(value) >= 2**62 / clients:
        return None
    top, bottom = value.as_integer_ratio()
    return ((2 * top * SCALE + bottom) // (2 * bottom)) % 2**NUMBERS.bits  # rounded to the nearest


def number_of(total: Any) -> float:
    """Return the number that an integer modulo 2^128 stands for."""
    total = int(total)
    return (total - 2**NUMBERS.bits if total >= 2 ** (NUMBERS.bits - 1) else total) / SCALE
