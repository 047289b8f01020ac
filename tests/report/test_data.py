"""A data file by its name alone."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError
from fedpd.report.data import load, summary_table


def write(folder: Path) -> Path:
    table = {
        "who": ["ann", "bob", "ann", "bob"],
        "image": [bytes([0, 255]), bytes([9, 8]), bytes([7, 6]), bytes([5, 4])],
        "label": [0, 1, 1, 2],
        "split": ["train", "train", "train", "test"],
        "weight": [1.0, 2.0, 3.0, 4.0],
        "height": [5.0, 6.0, 7.0, 8.0],
    }
    path = folder / "people.parquet"
    pq.write_table(pa.table(table), path)
    return path


def test_parquet_with_the_usual_names(tmp_path: Path) -> None:
    data = load(write(tmp_path), client="who")
    assert data.names == ("ann", "bob")
    assert data.sizes.tolist() == [2, 1]
    assert data.test_sizes.tolist() == [0, 1]  # the column `split` is found
    assert data.train[0]["x"].tolist() == [[0, 255], [7, 6]]


def test_parquet_with_named_columns(tmp_path: Path) -> None:
    data = load(write(tmp_path), client="who", features="weight, height")
    assert data.train[1]["x"].tolist() == [[2.0, 6.0]]


def test_csv_takes_all_other_columns(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("who,weight,label,height\nann,1,0,5\nbob,2,1,6.5\n")
    data = load(tmp_path / "people.csv", client="who")
    assert data.train[1]["x"].tolist() == [[2.0, 6.5]]
    assert load(tmp_path, client="who").names == ("ann", "bob")


def test_leaf(tmp_path: Path) -> None:
    user = {"x": [[1.0, 2.0]], "y": [1]}
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"users": ["u"], "num_samples": [1], "user_data": {"u": user}}))
    np.testing.assert_array_equal(load(path).train[0]["x"], [[1, 2]])


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(FedpdError, match=r"--client is missing.*'who', 'image'"):
        load(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(FedpdError, match="cannot be read as Parquet"):
        load(path, client="who")
    with pytest.raises(FedpdError, match="does not exist"):
        load(tmp_path / "nothing")


def test_the_summary_has_delta_of_a_linear_classifier(tmp_path: Path) -> None:
    """At 0 all classes have probability 1/K: grad f_i = mean_a (1/K - onehot(y)) a^T."""
    x, y = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([0, 1])
    path = tmp_path / "all.json"
    users = {name: {"x": x[i : i + 1].tolist(), "y": [int(y[i])]} for i, name in enumerate("ab")}
    path.write_text(json.dumps({"users": ["a", "b"], "num_samples": [1, 1], "user_data": users}))
    gradients = [np.outer(x[i], 0.5 - np.eye(2)[y[i]]) for i in range(2)]
    delta = np.linalg.norm(gradients[0] - gradients[1]) / 2
    cells = [list(column.cells) for column in summary_table(load(path)).columns]
    assert str(cells[1][-1]).startswith(f"{delta:.3g}, max")
