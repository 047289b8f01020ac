"""The masks of secure aggregation, from a cryptographic generator with 256-bit keys.

Flower reduces a seed to 32 bits and gives it to a generator that is not cryptographic, so that a server can find the
masks by search. Here HKDF makes a key of 256 bits from the whole seed, and ChaCha20 (RFC 8439) expands it. The numbers
are uniform modulo 2^32, so a masked number says nothing. A seed is used once: every attempt has new seeds.
"""

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MODULUS = 2**32
PURPOSE = b"fedpd: mask of secure aggregation"
START = bytes(16)  # the block counter and the nonce of ChaCha20


def keystream(key: bytes, length: int) -> bytes:
    """Return the first bytes that ChaCha20 makes from a key of 256 bits.

    Examples:
        >>> keystream(bytes(32), 4).hex()  # RFC 8439, appendix A.1, test vector 1
        '76b8e0ad'
    """
    return Cipher(ChaCha20(key, START), mode=None).encryptor().update(bytes(length))


def mask(seed: bytes, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return an array of numbers below 2^32, in int64, for each shape."""
    key = HKDF(SHA256(), length=32, salt=None, info=PURPOSE).derive(seed)
    sizes = [math.prod(shape) for shape in shapes]
    numbers = np.frombuffer(keystream(key, 4 * sum(sizes)), "<u4").astype(np.int64)
    parts = np.split(numbers, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
