"""The one history format: costs counted by hand, Parquet and back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import algorithms, oracles, problems, simulate
from fedpd.engine.measure.columns import column_of
from fedpd.engine.measure.history import (
    COLUMNS,
    Costs,
    History,
    Totals,
    extend,
    first_row,
    mean_and_spread,
    read_parquet,
    start_row,
    write_parquet,
)

COSTS = Costs(bytes_up=(40, 10), bytes_down=(5, 10))  # of two exchanges, which both agents take part in


def rounds(first: int) -> dict[str, np.ndarray]:
    """Three rounds of two agents, of which the second communicates nothing."""
    return {
        "communicated": np.array([True, False, True]),
        "senders": np.array([[2, 2], [0, 0], [2, 2]], np.int32),
        "receivers": np.array([[2, 2], [0, 0], [2, 2]], np.int32),
        "updates": np.array([[8, 3], [1, 2], [5, 5]], np.int32),
        "samples": np.array([[80, 30], [10, 20], [50, 50]], np.int32),
        "loss": first + np.array([0.5, 0.25, 0.125]),
        "stationarity": first + np.array([4.0, 2.0, 1.0]),
        "consensus": np.array([0.0, 7.0, 0.0]),
    }


def three_rounds() -> tuple[History, Totals]:
    return extend(start_row(loss=0.75, stationarity=9.0), {}, COSTS, rounds(0), np.ones(3, bool))


def six_rounds() -> History:
    return extend(*three_rounds(), COSTS, rounds(10), np.ones(3, bool))[0]


def assert_equal(one: History, other: History) -> None:
    assert list(one) == list(other) == list(COLUMNS)
    for name, column in one.items():
        assert column.dtype == other[name].dtype == COLUMNS[name].dtype
        np.testing.assert_array_equal(column, other[name])


def test_row_0_is_the_start_before_any_cost() -> None:
    row = start_row(loss=0.75, stationarity=9.0)
    assert {name: column.tolist() for name, column in row.items()} == {
        "round": [0],
        "communicated": [False],
        "communications": [0],
        "local_updates": [0],
        "samples": [0],
        "bytes_up": [0],
        "bytes_down": [0],
        "loss": [0.75],
        "stationarity": [9.0],
        "consensus": [0.0],
    }
    assert {name: column.dtype for name, column in row.items()} == {name: c.dtype for name, c in COLUMNS.items()}


def test_costs_are_counted_exactly() -> None:
    assert {name: column.tolist() for name, column in three_rounds()[0].items()} == {
        "round": [0, 1, 2, 3],
        "communicated": [False, True, False, True],
        "communications": [0, 2, 2, 4],
        "local_updates": [0, 8, 10, 15],  # the slowest agent's
        "samples": [0, 110, 140, 240],  # of all agents
        "bytes_up": [0, 100, 100, 200],
        "bytes_down": [0, 30, 30, 60],
        "loss": [0.75, 0.5, 0.25, 0.125],
        "stationarity": [9.0, 4.0, 2.0, 1.0],
        "consensus": [0.0, 0.0, 7.0, 0.0],
    }


def test_rounds_without_a_row_are_counted_in_the_next_one() -> None:
    history, totals = extend(*three_rounds(), COSTS, rounds(10), np.array([True, False, False]))
    assert history["round"].tolist() == [0, 1, 2, 3, 4]
    assert totals == {
        "round": 6,
        "communications": 8,
        "local_updates": 30,
        "samples": 480,
        "bytes_up": 400,
        "bytes_down": 120,
    }
    history, _ = extend(history, totals, COSTS, rounds(20), np.array([False, True, False]))
    assert {name: column[-1].item() for name, column in history.items()} == {
        "round": 8,
        "communicated": False,
        "communications": 10,
        "local_updates": 40,
        "samples": 620,
        "bytes_up": 500,
        "bytes_down": 150,
        "loss": 20.25,
        "stationarity": 22.0,
        "consensus": 7.0,
    }
    assert {name: column.dtype for name, column in history.items()} == {name: c.dtype for name, c in COLUMNS.items()}


def test_sums_beyond_32_bits_do_not_wrap() -> None:
    huge = rounds(0) | {"samples": np.full((3, 2), 2**31 - 1, np.int32)}
    history, totals = extend(start_row(loss=0, stationarity=0), {}, COSTS, huge, np.ones(3, bool))
    assert history["samples"][-1] == totals["samples"] == 6 * (2**31 - 1)


@pytest.mark.parametrize("every", [1, 5, 7])
def test_rounds_that_are_not_measured_are_counted(every: int) -> None:
    problem = problems.quadratic(np.ones((3, 1, 1)), np.array([[0.0], [1.0], [2.0]]))
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    history = simulate(algorithm, problem, rounds=23, metrics_every=every).history
    measured = np.unique([*range(0, 23, every), 23])
    assert history["round"].tolist() == measured.tolist()
    assert history["communications"].tolist() == measured.tolist()
    assert history["local_updates"].tolist() == (2 * measured).tolist()
    assert history["samples"].tolist() == (2 * 3 * measured).tolist()
    assert history["bytes_up"].tolist() == (8 * 3 * measured).tolist()
    assert history["bytes_down"].tolist() == (8 * 3 * measured).tolist()
    error = 0.9 ** (2.0 * measured)  # x - 1 after 2r steps from -1
    np.testing.assert_allclose(history["stationarity"], error**2, rtol=1e-12)


def test_parquet_gives_back_every_history_by_label_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "history.parquet"
    short, longer = three_rounds()[0], six_rounds()
    longer["loss"][-1], longer["stationarity"][-1] = np.nan, np.inf  # a run that diverged
    histories = {
        ("FedPD, p = 0.5", 0): short,
        ("FedPD, p = 0.5", 7): longer,
        ("µ", 0): start_row(loss=0.1, stationarity=1e-300),
    }
    write_parquet(path, histories)
    found = read_parquet(path)
    assert list(found) == list(histories)
    for key, history in histories.items():
        assert_equal(found[key], history)
    assert list(path.parent.iterdir()) == [path]


def special_floats() -> np.ndarray:
    """Return numbers that a careless format changes: not a number with a payload, infinities, -0, the smallest."""
    values = np.array([np.nan, np.nan, np.inf, -np.inf, -0.0, 5e-324, 1 / 3])
    values.view(np.int64)[1] += 291
    return values


def test_parquet_keeps_every_bit_and_pyarrow_reads_the_same(tmp_path: Path) -> None:
    history = {name: np.zeros(7, column.dtype) for name, column in COLUMNS.items()} | {
        "round": np.array([0, 1, 2, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]),
        "communicated": np.array([True, False, True, True, False, False, True]),
        "loss": special_floats(),
    }
    path = tmp_path / "history.parquet"
    write_parquet(path, {("a\nb", 3): history})
    found, table = read_parquet(path)["a\nb", 3], pq.read_table(path)
    assert table["label"].to_pylist() == ["a\nb"] * 7
    for name, column in history.items():
        for other in (found[name], table[name].to_numpy()):
            assert other.dtype == column.dtype
            assert other.tobytes() == column.tobytes()


def test_parquet_of_pyarrow_is_read_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    values = np.tile(special_floats(), 1000)
    rows = {"label": ["FedPD"] * 7000, "seed": [0] * 7000, "loss": values, "round": np.arange(7000)}
    pq.write_table(pa.table(rows), path, row_group_size=1024)
    found = read_parquet(path)["FedPD", 0]
    assert found["loss"].tobytes() == values.tobytes()
    assert found["round"].tolist() == list(range(7000))


@pytest.mark.parametrize("damage", ["empty", "cut", "footer", "other"])
def test_a_damaged_file_is_an_oserror(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    write_parquet(path, {("FedPD", 0): six_rounds()})
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")  # of the footer, which describes the columns
    footer = whole[: -8 - size] + b"\xff" * size + whole[-8:]
    path.write_bytes({"empty": b"", "cut": whole[:-50], "footer": footer, "other": b"text" * 9}[damage])
    rule = "it is damaged" if damage == "footer" else "it is not Parquet, or its end is missing"
    with pytest.raises(OSError, match=rule):
        read_parquet(path)


def test_mean_and_spread_over_the_rows_that_all_have() -> None:
    one, other = three_rounds()[0], six_rounds()
    other["loss"] = other["loss"] + 2
    other["communicated"][1] = False
    mean, spread = mean_and_spread([one, other])
    assert set(mean) == set(spread) == set(COLUMNS)
    assert mean["round"].tolist() == [0, 1, 2, 3]
    assert mean["loss"].tolist() == [1.75, 1.5, 1.25, 1.125]
    assert spread["loss"].tolist() == [1, 1, 1, 1]
    assert mean["communicated"].tolist() == [0, 0.5, 0, 1]
    assert spread["communicated"].tolist() == [0, 0.5, 0, 0]
    assert spread["samples"].tolist() == [0, 0, 0, 0]


def test_the_first_row_that_reaches_a_target() -> None:
    values = np.array([3.0, np.nan, -np.inf, 2.0, 1.0, np.inf, 2.0])
    assert first_row(values, 2.0) == 3
    assert first_row(values, 3.0) == 0
    assert first_row(values, 0.5) is None, "minus infinity is not a value that was reached"
    assert first_row(values, 3.0, better="more") == 0
    assert first_row(values, 4.0, better="more") is None
    assert first_row(np.array([0.1, 0.5, 0.9]), 0.5, better="more") == 1
    assert first_row(np.array([0, 5, 7]), 5, better="more") == 1
    assert first_row(np.zeros(0), 1.0) is None


def test_every_changed_byte_of_a_history_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    histories = {("FedPD", 0): {name: np.arange(3).astype(column_of(name).dtype) for name in COLUMNS}}
    write_parquet(path, histories)
    whole = path.read_bytes()
    assert read_parquet(path)["FedPD", 0]["round"].tolist() == [0, 1, 2]
    at = whole.index(b"fedpd-sha256:")
    for place in set(range(4, len(whole) - 4, 97)) - set(range(at, at + 13)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(OSError, match="its checksum does not match"):
            read_parquet(path)


def test_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    from arro3.core import Array, Table
    from arro3.io import write_parquet as write

    write(Table.from_pydict({"label": Array.from_numpy(np.arange(3))}), tmp_path / "other.parquet")
    with pytest.raises(OSError, match="it has no column 'seed'"):
        read_parquet(tmp_path / "other.parquet")
