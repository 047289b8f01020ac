"""Uniform indices are in range, unbiased and redrawn after a rejection, and do not depend on other draws."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd.base.precision import scope
from fedpd.core.sampling import multiply_words, shuffle, uniform
from tests.slow_cases import slow_but

WORDS = 2**32
OFTEN_REJECTED = 3 * 2**29  # 2^32 mod size = 2^30: a quarter of all words is drawn again
MANY, FEW = (30_000,), (32, 2)  # two shapes, so that little is compiled
uint32 = st.integers(0, WORDS - 1)
multiply = jax.jit(multiply_words)
draw = jax.jit(uniform, static_argnums=4)


def drawn(seed: int, size: int, shape: tuple[int, ...]) -> np.ndarray:
    zero = jnp.int32(0)
    return np.asarray(draw(jax.random.key(seed), zero, zero, jnp.int32(size), shape))


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@settings(deadline=None)
@given(a=uint32, b=uint32)
def test_the_product_of_two_words_is_exact(a: int, b: int) -> None:
    high, low = multiply(jnp.uint32(a), jnp.uint32(b))
    assert (int(high), int(low)) == divmod(a * b, WORDS)


@settings(deadline=None)
@given(size=st.integers(2**24, 2**31 - 1), share=st.floats(0, 1, exclude_max=True))
def test_every_index_has_equally_many_accepted_words(size: int, share: float) -> None:
    index = int(share * size)
    first = -(-index * WORDS // size)  # the least word whose high word is the index
    words = first - 1 + np.arange(260)  # 2^32/size <= 256, and a word to spare on both sides
    high, low = (np.asarray(part) for part in multiply((words % WORDS).astype(np.uint32), jnp.uint32(size)))
    accepted = (high == index) & (low >= WORDS % size)
    assert accepted.sum() == WORDS // size


@pytest.mark.parametrize("size", [1, 2, 3, 400, 65537, 2**31 - 1])
def test_indices_are_in_range_and_reach_all_of_it(size: int) -> None:
    indices = drawn(0, size, MANY)
    assert indices.dtype == np.int32
    assert indices.shape == MANY
    assert indices.min() >= 0
    assert indices.max() < size
    assert len(np.unique(indices)) >= min(size, 20_000)
    assert indices.max() > 0.999 * (size - 1) - 1


def test_frequencies_are_equal() -> None:
    counts = np.bincount(drawn(1, 7, MANY), minlength=7)
    assert len(counts) == 7
    assert chi_square(counts) < 22.46  # the 99.9 % quantile of 6 degrees of freedom


def test_rejected_words_are_drawn_again_until_they_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    # With size 3 * 2^29 a word w gives the index 3 w // 8, and is rejected where w mod 8 is 0 or 3.
    scripted = [[0, 6, 3], [3, 0, 4], [9, 0, 0], [7, 7, 7]]
    calls = iter(scripted)
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(next(calls), jnp.uint32))
    zero = jnp.int32(0)
    with jax.disable_jit():
        indices = uniform(jax.random.key(2), zero, zero, jnp.int32(OFTEN_REJECTED), (3,))
    assert indices.tolist() == [27 // 8, 18 // 8, 12 // 8]
    assert list(calls) == scripted[3:]


def test_rejection_removes_the_bias_of_the_plain_product() -> None:
    size = OFTEN_REJECTED
    words = np.random.default_rng(3).integers(0, WORDS, MANY, np.uint32)
    plain = np.asarray(multiply(words, jnp.uint32(size))[0])
    biased = np.bincount(plain % 3, minlength=3) / len(plain)  # 8 words make 3 indices: 3 + 3 + 2
    np.testing.assert_allclose(biased, [3 / 8, 3 / 8, 2 / 8], atol=0.01)
    indices = drawn(3, size, MANY)
    assert chi_square(np.bincount(indices % 3, minlength=3)) < 13.82  # 99.9 %, 2 degrees of freedom
    assert chi_square(np.bincount(indices // (size // 2), minlength=2)) < 10.83  # 1 degree of freedom


def test_an_agent_draws_the_same_alone_as_among_others() -> None:
    sizes = [1, 3, 400, OFTEN_REJECTED, 2**31 - 1]
    keys, zero = jax.random.split(jax.random.key(4), len(sizes)), jnp.int32(0)
    among = jax.jit(jax.vmap(lambda key, size: uniform(key, zero, zero, size, FEW)))
    together = among(keys, jnp.asarray(sizes, jnp.int32))
    alone = [draw(key, zero, zero, jnp.int32(size), FEW) for key, size in zip(keys, sizes, strict=True)]
    np.testing.assert_array_equal(together, alone)


def test_draws_depend_on_the_key_and_not_on_the_precision() -> None:
    single = drawn(5, 400, FEW)
    with scope(True):
        np.testing.assert_array_equal(drawn(5, 400, FEW), single)
    assert (drawn(6, 400, FEW) != single).any()


# --- shuffles -------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=1)
def shuffles(seeds: Any, length: int, size: Any) -> Any:
    """Return the first `length` entries of the permutations with these seeds."""
    places = jnp.minimum(jnp.arange(length), size - 1)
    return jax.vmap(lambda seed: shuffle(jax.random.key(seed, impl="threefry2x32"), size)(places))(seeds)


@jax.jit
def shuffled(seed: Any, size: Any, places: Any) -> Any:
    return shuffle(jax.random.key(seed), jnp.int32(size))(places)


@settings(deadline=None)
@given(size=st.integers(1, 2000), seed=st.integers(0, 2**31 - 1))
def test_a_shuffle_is_a_permutation_of_every_size(size: int, seed: int) -> None:
    (found,) = np.asarray(shuffles(jnp.array([seed]), 2000, jnp.int32(size)))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(np.sort(found[:size]), np.arange(size))


@settings(deadline=None)
@given(size=st.integers(2, 2**31 - 1), seed=st.integers(0, 2**31 - 1), first=st.integers(0, 2**31))
def test_places_of_a_large_shuffle_differ_and_are_in_range(size: int, seed: int, first: int) -> None:
    length = 64 if size >= 64 else 2  # two shapes, so two programs
    places = first % (size - length + 1) + np.arange(length)
    found = np.asarray(shuffled(seed, size, jnp.asarray(places, jnp.int32)))
    assert found.min() >= 0
    assert found.max() < size
    assert len(np.unique(found)) == length


QUANTILES = [(2, 10.83), (3, 20.52), (4, 49.73), (5, 173.6)]


@pytest.mark.parametrize(("size", "quantile"), slow_but([(3, 20.52)], QUANTILES))
def test_all_permutations_of_few_samples_are_equally_likely(size: int, quantile: float) -> None:
    """The quantiles are those of 99.9 % of chi-square with size! - 1 degrees of freedom."""
    found = np.asarray(shuffles(10**6 + jnp.arange(120_000), size, jnp.int32(size)))
    counts = np.unique(found @ size ** np.arange(size), return_counts=True)[1]
    assert len(counts) == math.factorial(size)
    assert chi_square(counts) < quantile


def test_every_sample_is_equally_likely_at_every_place_and_beside_every_other() -> None:
    size = 37
    found = np.asarray(shuffles(jnp.arange(40_000), size, jnp.int32(size)))
    for place in (0, 1, 17, 36):
        assert chi_square(np.bincount(found[:, place], minlength=size)) < 67.99  # 99.9 %, 36 degrees of freedom
    beside = (found[:, 1:] - found[:, :-1]) % size
    counts = np.bincount(beside.ravel(), minlength=size)
    assert counts[0] == 0
    assert chi_square(counts[1:]) < 66.62  # 35 degrees of freedom
    assert abs((found == np.arange(size)).sum(axis=1).mean() - 1) < 0.02  # fixed points of a random permutation


def test_a_shuffle_depends_on_the_key_and_not_on_the_precision_or_the_places() -> None:
    key, size = jax.random.key(7), jnp.int32(400)
    single = np.asarray(shuffle(key, size)(jnp.arange(400)))
    with scope(True):
        np.testing.assert_array_equal(shuffle(key, size)(jnp.arange(400)), single)
    np.testing.assert_array_equal(shuffle(key, size)(jnp.array([[399, 5]])), [[single[399], single[5]]])
    assert (np.asarray(shuffle(jax.random.key(8), size)(jnp.arange(400))) != single).mean() > 0.9
