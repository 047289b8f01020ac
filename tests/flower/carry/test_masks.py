"""The arithmetic of masks: shares, the graph of neighbours and fixed point, each against what it promises."""

import math
import random
from itertools import combinations

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from fedpd.flower.carry import masks
from fedpd.flower.carry.masks import (
    COMPLETE,
    MESSAGES,
    NUMBERS,
    Neighbourhood,
    circle,
    combine_shares,
    common,
    fixed_number,
    neighbourhood,
    neighbours,
    new_keys,
    number_of,
    public,
    quantized,
    seal,
    split_secret,
    unseal,
)


def test_any_threshold_of_shares_reveals_the_secret_and_fewer_do_not() -> None:
    secret = bytes(range(32))
    shares = list(enumerate(split_secret(secret, 5, 9), 1))
    for _ in range(20):
        assert combine_shares(random.sample(shares, 5)) == secret
    assert combine_shares(shares[:4]) != secret


def test_two_clients_have_one_secret_and_what_is_sealed_is_bound_to_its_use() -> None:
    one, other = new_keys(), new_keys()
    assert common(one.masking, [public(other.masking)]) == common(other.masking, [public(one.masking)])
    sealed = seal(one.sealing, b"share", b"a to b")
    assert unseal(one.sealing, sealed, b"a to b") == b"share"
    with pytest.raises(InvalidTag):
        unseal(one.sealing, sealed, b"a to c")


@pytest.mark.parametrize("clients", [17, 40, 100])
def test_a_coalition_of_a_fifth_and_the_loss_of_a_third_break_no_neighbourhood(clients: int) -> None:
    """Counted over drawn coalitions and drop-outs: the bounds allow one failure in 2^20 at most."""
    size = neighbourhood(clients)
    names, rng = [str(i) for i in range(clients)], random.Random(0)
    for trial in range(30):
        order = circle(names, bytes([trial]))
        bad = set(rng.sample(names, clients // 5))
        gone = set(rng.sample(names, clients - (2 * clients // 3 + 1)))
        around = {name: neighbours(order, name, size.neighbours) for name in names}
        for name in names:
            assert len(set(around[name])) == size.neighbours + 1
            assert all(name in around[other] for other in around[name])  # a pair has one mask
            assert len(bad.intersection(around[name][1:])) < size.threshold
            assert len(set(around[name][1:]) - gone) >= size.threshold
        assert _is_connected(around, set(names) - bad - gone)


def _is_connected(around: dict[str, list[str]], left: set[str]) -> bool:
    found, ahead = set[str](), [next(iter(left))]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += [other for other in around[name] if other in left]
    return found == left


def test_small_federations_are_complete_and_neighbourhoods_grow_slowly() -> None:
    assert [neighbourhood(n) for n in (3, COMPLETE)] == [Neighbourhood(2, 3), Neighbourhood(15, 11)]
    sizes = {n: neighbourhood(n).neighbours for n in (40, 100, 1000, 5000)}
    assert sizes == {40: 22, 100: 50, 1000: 158, 5000: 198}
    assert sizes[5000] / sizes[1000] < math.log(5000) / math.log(1000) * 1.1


def test_the_probabilities_are_those_of_draws_without_replacement() -> None:
    ways = [sum(one < 4 for one in draw) for draw in _draws(10, 3)]
    assert masks._tail(10, 4, 3, 2) == pytest.approx(sum(number >= 2 for number in ways) / len(ways))
    assert masks._all_in(10, 4, 3) == pytest.approx(sum(number == 3 for number in ways) / len(ways))


def _draws(total: int, number: int) -> list[tuple[int, ...]]:
    return list(combinations(range(total), number))


def test_fixed_point_is_unbiased_and_within_a_level() -> None:
    values, levels, rng = np.full(20_000, 0.3), 2**4, np.random.default_rng(0)
    found = quantized(values, 1.0, levels, rng).astype(float) * 2 / levels - 1
    assert np.abs(found - values).max() < 2 / levels
    assert found.mean() == pytest.approx(0.3, abs=4 * (2 / levels) / 20_000**0.5)
    assert quantized(np.array([-1.0, 1.0]), 1.0, 2**30, rng).tolist() == [0, 2**30]


def test_numbers_of_evaluations_keep_the_precision_of_float64() -> None:
    values = [0.1, -2.5e-3, 1e9, 123456.789, 0.0]
    total = sum(fixed_number(value, 5) or 0 for value in values) % 2**NUMBERS.bits
    assert number_of(total) == pytest.approx(math.fsum(values), rel=1e-15)
    assert fixed_number(math.inf, 3) is None
    assert fixed_number(1e19, 3) is None


@pytest.mark.parametrize("ring", [MESSAGES, NUMBERS])
def test_a_mask_is_removed_by_its_seed(ring: masks.Ring) -> None:
    vector = np.array([5, 7, 2**31], np.uint32 if ring.bits == 32 else object)
    masked = ring.add(vector.copy(), ring.mask(bytes(32), 3))
    assert masked.tolist() != vector.tolist()
    there = ring.read(ring.write(masked)).copy()
    assert ring.add(there, ring.mask(bytes(32), 3), -1).tolist() == vector.tolist()
