"""Files of lazy data that change after they were indexed: refused, because clients would get the rows of others."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.base.identity import fingerprint
from fedpd.data.indexed import WHOLE, source_file


def write_parquet(folder: Path, clients: str) -> Path:
    x = np.arange(4.0)
    table = pa.table({"client": list(clients), "x": x, "y": [0, 1, 0, 1]})
    pq.write_table(table, folder / "data.parquet")
    return folder / "data.parquet"


def write_leaf(folder: Path, clients: str) -> Path:
    found: dict[str, Any] = {name: {"x": [], "y": []} for name in dict.fromkeys(clients)}
    for number, name in enumerate(clients):
        found[name]["x"].append([float(number)])
        found[name]["y"].append(number % 2)
    sizes = [len(one["y"]) for one in found.values()]
    (folder / "data.json").write_text(json.dumps({"users": list(found), "num_samples": sizes, "user_data": found}))
    return folder / "data.json"


def read_parquet(path: Path) -> data.Federated:
    return data.parquet(path, client="client", features="x", label="y", lazy=True)


def read_leaf(path: Path) -> data.Federated:
    return data.leaf(path, lazy=True)


FORMATS = [(write_parquet, read_parquet), (write_leaf, read_leaf)]
Write = Callable[[Path, str], Path]
Read = Callable[[Path], data.Federated]


@pytest.mark.parametrize(("write", "read"), FORMATS)
def test_a_file_that_was_rewritten_is_refused(write: Write, read: Read, tmp_path: Path) -> None:
    federated = read(write(tmp_path, "aabb"))
    assert federated.train[0]["x"].ravel().tolist() == [0.0, 1.0]
    path = write(tmp_path, "bbaa")  # the same number of rows, and of bytes, for other clients
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(FedpdError, match=r"changed after fedpd read which rows belong to which client.*again"):
        federated.train[0]
    assert read(path).train[0]["x"].ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("write", "read"), FORMATS)
def test_a_file_that_is_gone_is_refused_and_a_copy_is_the_same(write: Write, read: Read, tmp_path: Path) -> None:
    path = write(tmp_path, "aabb")
    federated = read(path)
    shutil.copy(path, tmp_path / "copy")
    path.unlink()
    with pytest.raises(FedpdError, match="cannot be read any more: No such file or directory"):
        federated.train[0]
    shutil.move(tmp_path / "copy", path)
    os.utime(path, ns=(0, 0))
    assert federated.train[0]["x"].ravel().tolist() == [0.0, 1.0]
    first, second = federated.train, read(path).train
    assert isinstance(first, data.Lazy)
    assert isinstance(second, data.Lazy)
    assert fingerprint(first.load) == fingerprint(second.load)


@pytest.mark.parametrize(("write", "read"), FORMATS)
def test_a_run_does_not_resume_on_other_content(write: Write, read: Read, tmp_path: Path) -> None:
    def run(path: Path, rounds: int) -> Any:
        problem = problems.softmax_regression(read(path))
        method = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1))
        return simulate(method, problem, rounds=rounds, cohort=1, checkpoints=tmp_path / "run")

    (tmp_path / "data").mkdir()
    run(write(tmp_path / "data", "aabb"), 2)
    with pytest.raises(FedpdError, match=r"its problem\.(loaders|data)"):
        run(write(tmp_path / "data", "abab"), 4)


def test_a_large_file_is_hashed_in_parts(tmp_path: Path) -> None:
    path, size = tmp_path / "large", WHOLE + 1000
    with path.open("wb") as file:
        file.truncate(size)  # a file of zeros, which takes no room on the disk
    found = source_file(path)
    for place in (0, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"1")
        assert source_file(path).content != found.content
    with pytest.raises(FedpdError, match="changed after"), found.unchanged():
        pass
