"""Masks of secure aggregation: ChaCha20 by the vectors of RFC 8439, HKDF by an independent calculation."""

import hashlib
import hmac

import numpy as np

from fedpd.flower.carry.masks import MODULUS, PURPOSE, keystream, mask

# RFC 8439, appendix A.1, test vectors 1 and 2: key 0, nonce 0, block counters 0 and 1
FIRST = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
SECOND = (
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_keystream_is_that_of_rfc_8439() -> None:
    assert keystream(bytes(32), 128).hex() == FIRST + SECOND


def test_mask_is_the_keystream_of_a_key_from_the_whole_seed() -> None:
    seed = bytes(range(44))
    extracted = hmac.new(bytes(32), seed, hashlib.sha256).digest()  # RFC 5869, without a salt
    key = hmac.new(extracted, PURPOSE + b"\x01", hashlib.sha256).digest()
    numbers = np.frombuffer(keystream(key, 4 * 7), "<u4")
    weight, matrix = mask(seed, [(1,), (2, 3)])
    np.testing.assert_array_equal(np.concatenate([weight, matrix.ravel()]), numbers)
    assert matrix.shape == (2, 3)
    assert matrix.dtype == np.int64


def test_every_bit_of_a_seed_matters_and_masks_fill_the_range() -> None:
    seeds = [bytes(32), bytes(31) + b"\x01", b"\x01" + bytes(31), b"\x01\0\0\0\x01" + bytes(27)]
    masks = [
        mask(seed, [(4000,)])[0] for seed in seeds
    ]  # the last is seed 0 for Flower, which adds words without carry
    assert len({tuple(one[:8]) for one in masks}) == len(seeds)
    assert 0 <= masks[0].min() < 0.01 * MODULUS < 0.99 * MODULUS < masks[0].max() < MODULUS
    assert abs(masks[0].mean() / MODULUS - 0.5) < 0.02
