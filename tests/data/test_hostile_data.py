"""Data that crashed a loader or was taken for something else: each is refused with a sentence."""

import gzip
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError, data, problems

SAMPLES = {"x": np.ones((2, 2)), "y": [0, 1]}
MASKED = np.ma.masked_array(np.ones((2, 2)), [[True, False], [False, False]])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"x": None, "y": [0]}, "must hold the lists x and y"),
        ("a/b", "must hold the lists x and y"),
        ({"x": [1, "a"], "y": [0, 1]}, "x must be an array of real numbers"),
        ({"x": [[1], [2]], "y": [0, "x"]}, "label = 0: stands among texts"),
        ({"x": [[1, None]], "y": [0]}, "holds null"),
    ],
)
def test_leaf(samples: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"users": ["a"], "user_data": {"a": samples}}))
    with pytest.raises(FedpdError, match=message):
        data.leaf(path)


def test_users_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    users = {name: {"x": [[1.0]], "y": [0]} for name in ("text", "reason", "x")}
    path.write_text(json.dumps({"users": list(users), "user_data": users}))
    assert data.leaf(path).names == ("text", "reason", "x")


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not an argument of data.leaf, which protects those who do not know that they need it.
    monkeypatch.setattr(import_module("fedpd.data.leaf"), "MOST_UNPACKED", 2**20)
    path = tmp_path / "all.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**21))
    assert path.stat().st_size < 10_000
    with pytest.raises(FedpdError, match=r"unpacks to more than .* GB\. Unpack it"):
        data.leaf(path)


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ([["a", "b"], [1.0, 2.0], [0, 1], [3.0, 4.0]], ["c", "x", "l", "x"], "'x': is the name of several columns"),
        ([[["a"], ["b"]], [1.0, 2.0], [0, 1]], ["c", "x", "l"], "type of column 'c' = 'list.*cannot name clients"),
        ([["a", None], [1.0, 2.0], [0, 1]], ["c", "x", "l"], "column 'c': row 1 is null"),
    ],
)  # fmt: skip
def test_parquet(columns: list[Any], names: list[str], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in columns], names=names), tmp_path / "r.parquet")
    with pytest.raises(FedpdError, match=message):
        data.parquet(tmp_path / "r.parquet", client="c", features="x", label="l")


def test_csv_with_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("c,x,l,x\na,1,0,3\n")
    with pytest.raises(FedpdError, match="column = 'x': is the name of several columns"):
        data.csv(tmp_path / "r.csv", client="c", label="l")


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ({"x": MASKED, "y": [0, 1]}, {}, "x must not be masked"),
        ({"x": np.ones((2, 2)), "y": np.ma.masked_array([0, 1], [True, False])}, {}, "y must not be masked"),
        ({"x": np.ones((2, 2)) * 1j, "y": [0, 1]}, {}, "x must be an array of real numbers, not of complex128"),
        ({"x": np.ones((2, 2)), "y": ["a", 1]}, {}, "label = 1: stands among texts"),
        (SAMPLES, {"classes": [0.5, 1]}, "classes.*0.5"),
        (SAMPLES, {"classes": np.array([0.5, 1])}, "classes: label of sample 0 = 0.5: must be a whole number"),
        (SAMPLES, {"classes": "ten"}, "classes = 'ten': must be an array of real numbers, not of str"),
        (SAMPLES, {"classes": 10**12}, "must be at most 100000"),
        (SAMPLES, {"classes": [0, 2**40]}, "must be a whole number of 32 bits"),
    ],
)
def test_arrays(samples: Any, options: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        data.from_arrays({"a": samples}, **options)


def test_masked_data_of_problems() -> None:
    with pytest.raises(FedpdError, match="data must not be masked"):
        problems.from_losses(lambda x, rows: rows @ x, [MASKED], np.zeros(2))
    with pytest.raises(FedpdError, match=r"features of agent 0 must not be masked: .*Fill or drop masked entries"):
        problems.penalized_logistic([MASKED], [np.array([1, -1])])
    with pytest.raises(FedpdError, match="must be an array of real numbers, not of complex128"):
        problems.quadratic([[[1j]]], [[1.0]])  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"c": [1.5, float("nan")]}, {}, "column 'c': row 1 is NaN and names no client"),
        ({}, {"features": ["x", "y"]}, r"features = 'y': is the column of label= as well.* Leave it out of features="),
        ({}, {"features": "c"}, r"features = 'c': is the column of client= as well"),
    ],
)
def test_columns_that_cannot_be_meant(columns: Any, options: Any, message: str, tmp_path: Path) -> None:
    table = {"c": ["a", "b"], "x": [1.0, 2.0], "y": [0, 1]} | columns
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(FedpdError, match=message):
        data.parquet(tmp_path / "t.parquet", client="c", label="y", **options)


@pytest.mark.parametrize("load", [data.csv, data.parquet])
def test_a_pipe_is_refused_at_once(load: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(FedpdError, match=r"pipe\.csv: is a pipe or a device, which may never end"):
        load(tmp_path / "pipe.csv", client="c", label="y")


def test_a_small_file_of_very_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"c": ["a"] * 1000, "x": [1.0] * 1000, "y": [0] * 1000}), path)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)  # a machine with 10 kB of memory
    with pytest.raises(FedpdError, match=r"1,000 rows of 3 columns: needs .* GB of memory"):
        data.parquet(path, client="c", label="y")


def test_features_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(FedpdError, match="Scale the features"):
        problems.penalized_logistic(np.full((1, 2, 2), 1e300), np.array([[1, -1]]))
