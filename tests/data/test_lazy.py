"""Lazy data: loaders and their mistakes, and readers of files that equal the same data in memory."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError, problems
from fedpd.base.identity import fingerprint
from fedpd.data import from_rows, hub, lazy, leaf, merge, parquet, ragged, split, standardise, take
from tests.data.test_ragged import DATA, ROWS, SIZES, same

HELD = ragged(ROWS, SIZES)


def load(agent: int) -> Any:
    return HELD[agent]


def test_lazy_data_equal_the_same_data_in_memory() -> None:
    data = lazy(load, SIZES)
    assert len(data) == 4
    assert repr(data) == "Lazy(4 agents, 10 samples of float64[2], int64[])"
    for own, other in zip(data, HELD, strict=True):
        np.testing.assert_array_equal(own["x"], other["x"])
    rows = data.rows_of(np.array([3, 0, 3]))
    np.testing.assert_array_equal(rows["y"], np.concatenate([HELD[3]["y"], HELD[0]["y"], HELD[3]["y"]]))
    np.testing.assert_array_equal(data.in_memory().rows["x"], ROWS["x"])
    with pytest.raises(IndexError, match="agent 4 is not one of the 4 agents"):
        data[4]


def test_lazy_federated_data() -> None:
    data = from_rows(lazy(load, SIZES), classes=3)
    same(data, DATA)
    same(data.in_memory(), DATA)
    same(take(data, [2, 0]), take(DATA, [2, 0]))
    same(merge(data, [(3, 0), (1, 2)]), merge(DATA, [(3, 0), (1, 2)]))
    scaled, used = standardise(DATA)
    same(standardise(data, used)[0], scaled)
    with pytest.raises(FedpdError, match=r"its statistics need all samples. Give scaling="):
        standardise(data)
    with pytest.raises(FedpdError, match=r"its samples cannot be divided. .* split\(d.in_memory\(\)\)"):
        split(data)


def other(agent: int, **changes: Any) -> Any:
    return HELD[agent] | (changes if agent == 2 else {})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": np.zeros((3, 2))}, r"shapes of load\(2\) = .*: must be arrays with 2 rows, as sizes\[2\] says"),
        ({"x": np.zeros((2, 5))}, r"samples of agent 2: shape = \(2, 5\): must be \(2, 2\)"),
        ({"x": np.zeros((2, 2), np.float32)}, "samples of agent 2: type = 'float32': must be float64"),
        ({"z": np.zeros(2)}, "samples of agent 2: structure = .* Return the same keys for all agents"),
        ({"x": np.full((2, 2), np.inf)}, "data of agent 2 holds NaN or infinity"),
    ],
)
def test_a_loader_that_returns_something_else_names_the_agent(changed: Any, sentence: str) -> None:
    data = lazy(lambda i: other(i, **changed), SIZES)
    data.rows_of(np.array([0, 1, 3]))
    with pytest.raises(FedpdError, match=sentence):
        data.rows_of(np.array([1, 2]))


def test_a_loader_that_fails_for_one_of_many_names_the_agent() -> None:
    def fails(agent: int) -> Any:
        if agent == 7_654:
            raise OSError("no such file: 7654.npy")
        return np.zeros((2, 1))

    data = lazy(fails, np.full(10_000, 2))
    sentence = r"load\(7654\) failed with OSError: no such file: 7654.npy. Correct the source of agent 7654, or leave"
    with pytest.raises(FedpdError, match=sentence):
        data.in_memory()
    assert len(data.rows_of(np.array([7_653, 7_655]))) == 4


def test_what_lazy_refuses() -> None:
    with pytest.raises(FedpdError, match="load = 3: must be a function of an agent's number"):
        lazy(3, [1])  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match="must be at least 0"):
        lazy(load, [1, -1])
    with pytest.raises(FedpdError, match="classes = None: must be given for lazy data"):
        from_rows(lazy(load, SIZES))
    data = from_rows(lazy(load, SIZES), classes=2)
    with pytest.raises(FedpdError, match="train data: label = 2: must be one of the 2 classes"):
        list(data.train)


def test_many_threads_load_the_same() -> None:
    data = lazy(load, SIZES)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(data.rows_of, [np.array([i % 4, 1]) for i in range(40)]))
    for i, rows in enumerate(found):
        np.testing.assert_array_equal(rows["x"], np.concatenate([HELD[i % 4]["x"], HELD[1]["x"]]))


@pytest.fixture
def table() -> pa.Table:
    rng, n = np.random.default_rng(0), 50
    columns: dict[str, Any] = {
        "w": [f"c{i}" for i in rng.integers(0, 6, n)],
        "x": pa.array(list(rng.standard_normal((n, 3)).astype(np.float32))),
        "label": rng.integers(0, 3, n),
        "split": rng.choice(["train", "test"], n),
    }
    return pa.table(columns)


@pytest.mark.parametrize("settings", [{}, {"split": "split"}, {"shape": (3, 1)}, {"dtype": np.float64}])
def test_parquet_by_row_groups(tmp_path: Path, table: pa.Table, settings: Any) -> None:
    pq.write_table(table.slice(0, 20), tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(20), tmp_path / "b.parquet", row_group_size=11)
    options: dict[str, Any] = {"client": "w", "features": "x", "label": "label", **settings}
    data = parquet(tmp_path, lazy=True, **options)
    same(data, parquet(tmp_path, **options))
    again = parquet(tmp_path, lazy=True, **options)
    assert fingerprint(data.train.load) == fingerprint(again.train.load)  # type: ignore[union-attr]


def test_many_clients_in_parquet_are_rows(tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    options: dict[str, Any] = {"client": "w", "features": "x", "label": "label", "split": "split"}
    listed = parquet(tmp_path / "a.parquet", **options)
    monkeypatch.setattr("fedpd.data.indexed.MANY_CLIENTS", 5)
    rows = parquet(tmp_path / "a.parquet", **options)
    assert isinstance(listed.train, list)
    assert not isinstance(rows.train, list)
    same(rows, listed)


def test_hugging_face_data_stay_in_their_files(tmp_path: Path, table: pa.Table) -> None:
    module = pytest.importorskip("datasets", reason="fedpd[data] is not installed: no Hugging Face data sets")
    module.disable_progress_bars()
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(table.slice(0, 30), folder / "train.parquet")
    pq.write_table(table.slice(30), folder / "test.parquet")
    options: dict[str, Any] = {"client": "w", "features": "x", "label": "label", "cache": tmp_path / "cache"}
    data = hub(folder, lazy=True, **options)
    same(data, hub(folder, **options))
    again = hub(folder, lazy=True, **options)
    assert fingerprint(data.train.load) == fingerprint(again.train.load)  # type: ignore[union-attr]


USERS = {"é": {"x": [[0.5, 1], [1, 2]], "y": [0, 1]}, "b": {"x": [[3, 4.5]], "y": [2]}}


def write(folder: Path) -> None:
    content: dict[str, Any] = {"users": ["b", "é"], "num_samples": [1, 2], "user_data": USERS}
    (folder / "a.json").write_text(json.dumps(content, ensure_ascii=False))
    content = {"users": ["ü"], "user_data": {"ü": {"y": [1], "x": [[7.0, 8]]}}, "hierarchies": []}
    (folder / "b.json").write_text(json.dumps(content, indent=1))


def test_leaf_reads_users_one_by_one(tmp_path: Path) -> None:
    write(tmp_path)
    same(leaf(tmp_path, lazy=True), leaf(tmp_path))
    both = tmp_path, tmp_path / "b.json"
    same(leaf(*both, shape=(2, 1), lazy=True), leaf(*both, shape=(2, 1)))
    texts = {
        "users": ["u", "v"],
        "user_data": {"u": {"x": ["ab", "cd"], "y": ["c", "e"]}, "v": {"x": ["xy"], "y": ["z"]}},
    }
    (tmp_path / "b.json").write_text(json.dumps(texts))
    same(leaf(tmp_path / "b.json", lazy=True), leaf(tmp_path / "b.json"))


def test_leaf_files_that_cannot_be_read_one_by_one(tmp_path: Path) -> None:
    import gzip

    write(tmp_path)
    (tmp_path / "c.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    with pytest.raises(FedpdError, match=r"c.json.gz is compressed.* Unpack it for lazy=True"):
        leaf(tmp_path / "c.json.gz", lazy=True)
    (tmp_path / "c.json.gz").rename(tmp_path / "c.json.gz.old")
    (tmp_path / "d.json").write_text((tmp_path / "b.json").read_text())
    with pytest.raises(FedpdError, match=r"user = 'ü': is in .*b.json as well"):
        leaf(tmp_path, lazy=True)
    (tmp_path / "d.json").write_text(json.dumps({"users": ["n"], "user_data": {"n": {"x": [], "y": []}}}))
    with pytest.raises(FedpdError, match="user = 'n': has no training or test samples"):
        leaf(tmp_path, lazy=True)
    assert leaf(tmp_path, lazy=True, drop_empty=True).agents == 3


def test_a_problem_is_built_without_loading_everyone() -> None:
    asked: list[int] = []

    def load(agent: int) -> np.ndarray:
        asked.append(agent)
        return np.zeros((2, 3))

    problems.from_losses(lambda x, rows: (rows @ x) ** 2, lazy(load, [2] * 1000), np.zeros(3))
    assert len(asked) <= 2
