"""Rows without padding: offsets, rows of some agents, parts per device."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpd.core.rows import first_rows, flat_rows, row_numbers, rows_by_device, stored

sizes = st.lists(st.integers(0, 5), min_size=1, max_size=8).map(lambda drawn: np.array(drawn, np.int32))


@given(sizes, st.data())
def test_rows_of_some_agents_are_those_of_a_loop(numbers: np.ndarray, data: st.DataObject) -> None:
    agents = np.array(data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=6)), np.int64)
    offsets, rows = first_rows(numbers), np.arange(numbers.sum())
    wanted = [row for i in agents for row in range(offsets[i], offsets[i] + numbers[i])]
    assert row_numbers(offsets[agents], numbers[agents]).tolist() == wanted
    assert flat_rows(rows, numbers, offsets, agents).tolist() == wanted


@given(sizes)
def test_padded_and_flat_rows_are_the_same(numbers: np.ndarray) -> None:
    offsets, every = first_rows(numbers), np.arange(max(1, numbers.max()))
    padded = offsets[:, None] + every  # the rest of a row is padding
    everyone = np.arange(len(numbers))
    assert flat_rows(padded, numbers, None, everyone).tolist() == list(range(numbers.sum()))


@given(sizes, st.integers(1, 3))
def test_each_device_has_the_rows_of_its_own_agents(numbers: np.ndarray, devices: int) -> None:
    numbers = np.resize(numbers, len(numbers) * devices)
    rows = np.arange(numbers.sum()) if numbers.sum() else np.zeros(1, int)
    placed, offsets = rows_by_device(rows, first_rows(numbers), numbers, devices)
    parts, own = placed.reshape(devices, -1), offsets.reshape(devices, -1)
    held = [
        parts[d][o : o + n] for d in range(devices) for o, n in zip(own[d], np.split(numbers, devices)[d], strict=True)
    ]
    assert np.concatenate(held).tolist() == list(range(numbers.sum()))


def test_equal_sizes_are_a_view() -> None:
    rows = np.arange(6)
    data, offsets = stored(rows, np.array([2, 2, 2]))
    assert offsets is None
    assert np.shares_memory(data, rows)
    assert data.tolist() == [[0, 1], [2, 3], [4, 5]]
    data, offsets = stored(rows, np.array([1, 3, 2]))
    assert data is rows
    assert offsets is not None
    assert offsets.tolist() == [0, 1, 4]
