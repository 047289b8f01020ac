"""Properties of each transform: exact bytes, identity at full rate, contraction, unbiasedness."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tree_math import Vector

from fedpd import FedpdError, algorithms, oracles, transforms
from fedpd.base.precision import scope
from fedpd.core import Packed, opened
from fedpd.transforms._compress import pack_integers, pack_positions, unpack_integers, unpack_positions
from fedpd.transforms._ways import pack_values, pack_vector, unpack_values

KEY = jax.random.key(7, impl="threefry2x32")
VALUES = np.random.default_rng(0).standard_normal(1000) ** 3


def received(values: Any, *chain: transforms.Transform, key: Any = KEY) -> tuple[np.ndarray, int]:
    """Return what arrives of the values, and the bytes that travel."""
    with scope(double=True):
        values = jnp.asarray(values)
        arrays = pack_values(chain, values, key)
        size = sum(array.size * array.dtype.itemsize for array in arrays.values())
        return np.asarray(unpack_values(chain, arrays, jax.ShapeDtypeStruct(values.shape, values.dtype))), size


@pytest.mark.parametrize(("number", "size"), [(1, 1), (1, 1000), (10, 1000), (333, 1000), (999, 1000), (7, 8), (5, 65)])
def test_positions_come_back(number: int, size: int) -> None:
    positions = np.sort(np.random.default_rng(number).choice(size, number, replace=False))
    packed = pack_positions(jnp.asarray(positions, jnp.int32), size)
    assert unpack_positions(packed, number, size).tolist() == positions.tolist()
    assert packed.nbytes <= -(-size // 8)  # never longer than a bitmap
    assert packed.nbytes <= number * (math.log2(size / number) + 3) / 8 + 3


@pytest.mark.parametrize("bits", [1, 3, 8, 11, 16])
def test_integers_come_back(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 2**bits, 77)
    packed = pack_integers(jnp.asarray(numbers, jnp.uint32), bits)
    assert packed.nbytes == -(-77 * bits // 8)
    assert unpack_integers(packed, 77, bits).tolist() == numbers.tolist()


@pytest.mark.slow
def test_bytes_by_hand() -> None:
    # top 1 % of 1,000: 10 positions with 6 low bits and 10 + 15 high bits
    positions = -(-10 * 6 // 8) + -(-25 // 8)
    assert received(VALUES, transforms.top_k(0.01))[1] == positions + 10 * 8
    assert received(VALUES, transforms.top_k(0.01), transforms.quantize(8))[1] == positions + 10 + 4
    assert received(VALUES, transforms.top_k(0.5))[1] == 125 + 500 * 8  # a bitmap is shorter
    assert received(VALUES, transforms.random_k(0.01))[1] == 8 + 10 * 8
    assert received(VALUES, transforms.quantize(3))[1] == 375 + 4
    assert received(VALUES, transforms.sign())[1] == 125 + 4
    assert received(VALUES, transforms.clip(1.0))[1] == 8000


@pytest.mark.parametrize("one", [transforms.top_k(1.0), transforms.random_k(1.0), transforms.clip(1e9)])
def test_identity_at_full_rate(one: transforms.Transform) -> None:
    found, size = received(VALUES, one)
    assert found.tolist() == VALUES.tolist()
    assert size == VALUES.nbytes


CHAINS = {
    "top_k": (transforms.top_k(0.1),),
    "random_k": (transforms.random_k(0.1),),
    "8 bits": (transforms.quantize(8),),
    "2 bits": (transforms.quantize(2),),
    "1 bit": (transforms.quantize(1),),
    "sign": (transforms.sign(),),
    "clip": (transforms.clip(1.0),),
    "both": (transforms.top_k(0.1), transforms.quantize(4)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_arrives_is_closer_than_nothing(name: str) -> None:
    """||v - C(v)|| < ||v||, and 0 comes back as 0."""
    found, _ = received(VALUES, *CHAINS[name])
    assert np.linalg.norm(VALUES - found) < np.linalg.norm(VALUES)
    assert not received(np.zeros(5), *CHAINS[name])[0].any()


def test_top_k_sends_the_largest() -> None:
    found, _ = received([0.5, -3.0, 1.0, 2.0, -0.1], transforms.top_k(0.4))
    assert found.tolist() == [0, -3, 0, 2, 0]


def test_rounding_is_unbiased_and_within_a_level() -> None:
    values, one = np.array([0.3, -1.0, 0.05, 0.77]), transforms.quantize(2)

    def rounded(key: Any) -> Any:
        arrays, _ = one.pack(jnp.asarray(values), key)
        return one.unpack(arrays, None, jax.ShapeDtypeStruct((4,), jnp.float64))

    with scope(double=True):
        found = np.asarray(jax.vmap(rounded)(jax.random.split(KEY, 20_000)))
    assert abs(found - values).max() <= 2 / 3
    np.testing.assert_allclose(found.mean(0), values, atol=5 * (2 / 3) / 2 / math.sqrt(20_000))


def test_an_unbiased_chain_arrives_right_on_average() -> None:
    chain = transforms.random_k(0.5, unbiased=True), transforms.quantize(3, unbiased=True)
    values = np.array([0.3, -1.0, 0.05, 0.77])

    def arrived(key: Any) -> Any:
        arrays = pack_values(chain, jnp.asarray(values), key)
        return unpack_values(chain, arrays, jax.ShapeDtypeStruct((4,), jnp.float64))

    with scope(double=True):
        found = np.asarray(jax.vmap(arrived)(jax.random.split(KEY, 20_000)))
    np.testing.assert_allclose(found.mean(0), values, atol=5 * 1.1 / math.sqrt(20_000))


def test_a_model_of_several_arrays_is_one_vector() -> None:
    model = {"w": np.arange(6.0).reshape(2, 3), "b": np.array(-9.0)}
    with scope(double=True):
        packed = pack_vector((transforms.top_k(0.2),), Vector(jax.tree.map(jnp.asarray, model)), KEY)
        assert isinstance(packed, Packed)
        found = jax.device_get(opened((packed,))[0].tree)
    assert found["b"] == -9
    assert found["w"].tolist() == [[0, 0, 0], [0, 0, 5]]


def test_refusals() -> None:
    wrap: Any = transforms.wrap  # called with wrong types on purpose
    plain = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    for call, sentence in (
        (lambda: transforms.top_k(0.0), "share = 0.0: must be positive"),
        (lambda: transforms.top_k(1.5), "share = 1.5: must be at most 1"),
        (lambda: transforms.quantize(17), "bits = 17: must be at most 16"),
        (lambda: transforms.clip(-1.0), "norm = -1.0: must be positive"),
        (lambda: wrap(plain, up="top_k"), "up = 'top_k': must be transforms"),
        (lambda: wrap(plain, mean=transforms.top_k(0.1)), "must be rules of the server"),
        (lambda: wrap(plain, up=[transforms.sign(), transforms.top_k(0.1)]), "Put it last"),
    ):
        with pytest.raises(FedpdError, match=sentence):
            call()
