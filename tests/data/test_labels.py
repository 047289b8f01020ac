"""Labels that are numbers to predict: every loader keeps floats, vectors and missing values with classes=False."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, data
from fedpd.data import Federated

X = np.arange(8.0).reshape(4, 2)


def test_arrays_keep_floats_vectors_and_missing_targets() -> None:
    two: Any = {
        "a": {"x": X[:2], "y": np.array([[0.5, 1.5], [np.nan, 2.5]])},
        "b": {"x": X[2:], "y": [[1, 2], [3, 4]]},
    }
    found = data.from_arrays(two, classes=False)
    assert found.target_shape == (2,)
    assert found.classes.shape == (0,)
    assert "targets  (2,) float64" in repr(found)
    np.testing.assert_array_equal(found.train[0]["y"], two["a"]["y"])
    np.testing.assert_array_equal(found.train[1]["y"], two["b"]["y"])
    assert {own["y"].dtype for own in found.train} == {np.dtype(np.float64)}
    assert found.test[0]["y"].shape == (0, 2)
    assert data.describe(found).classes == 0
    assert data.split(found, 0.5).test_sizes.tolist() == [1, 1]


def test_none_is_a_missing_target_and_integers_stay() -> None:
    found = data.from_arrays({"a": {"x": X[:2], "y": [1.5, None]}}, classes=False)
    np.testing.assert_array_equal(found.train[0]["y"], [1.5, np.nan])
    whole = data.from_arrays({"a": {"x": X, "y": [[3], [-1], [4], [1]]}}, classes=False)
    assert whole.train[0]["y"].dtype == np.int32
    assert whole.target_shape == (1,)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.5, np.inf, 0.0, 0.0], "target of sample 1 = 'infinity': must be finite, or NaN if it is missing"),
        (["a", "b", "c", "d"], "must be numbers"),
        (np.full(4, 2**40), "largest target = 1099511627776: must fit 32 bits"),
    ],
)
def test_other_targets_are_refused(y: object, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        data.from_arrays({"a": {"x": X, "y": y}}, classes=False)


def test_the_label_that_pytorch_ignores_is_no_class() -> None:
    agents = {"a": {"x": X, "y": [0, -100, 1, 0]}}
    with pytest.raises(FedpdError, match="label = -100: marks a sample without a label in PyTorch"):
        data.from_arrays(agents)
    assert data.from_arrays(agents, classes=[-100, 0, 1]).classes.tolist() == [-100, 0, 1]


def test_targets_of_different_shapes_are_refused() -> None:
    two: Any = {"a": {"x": X, "y": np.ones((4, 2))}, "b": {"x": X, "y": np.ones(4)}}
    with pytest.raises(FedpdError, match=r"agent 'b': shape of a target = \(\): must be \(2,\), as for agent 'a'"):
        data.from_arrays(two, classes=False)


def test_class_labels_say_how_to_predict_numbers() -> None:
    with pytest.raises(FedpdError, match="or give classes=False to predict numbers"):
        data.from_arrays({"a": {"x": X, "y": [0.5, 1, 1, 0]}})
    with pytest.raises(FedpdError, match="or classes=False to predict vectors"):
        data.from_arrays({"a": {"x": X, "y": np.ones((4, 2), int)}})
    with pytest.raises(FedpdError, match="classes = True: must be a number, the labels, or False"):
        data.from_arrays({"a": {"x": X, "y": [0, 1, 1, 0]}}, classes=True)
    with pytest.raises(FedpdError, match=r"label_names = .*needs classes"):
        data.from_arrays({"a": {"x": X, "y": [0, 1, 1, 0]}}, classes=False, label_names=("no", "yes"))
    found = data.from_arrays({"a": {"x": X, "y": [0.5, 1, 1, 0]}}, classes=False)
    with pytest.raises(FedpdError, match="has no classes, because its labels are numbers to predict"):
        data.label_histogram(found)


def check(found: Federated, missing: bool) -> None:
    """Check the rows of `table`."""
    assert found.names[0] == "s1"
    np.testing.assert_array_equal(found.train[0]["x"][:, 0], [1.0, 2.0])
    np.testing.assert_array_equal(found.train[0]["y"], [[0.5, 7.0], [1.5, np.nan if missing else 9.0]])
    np.testing.assert_array_equal(found.train[1]["y"], [[2.5, 8.0]])


def table(missing: bool) -> str:
    return f"sensor,t,power,heat\ns1,1.0,0.5,7\ns1,2.0,1.5,{'' if missing else 9}\ns2,3.0,2.5,8\n"


def test_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    for missing in (True, False):
        file = tmp_path / "table.csv"
        file.write_text(table(missing))
        columns: dict[str, Any] = {"client": "sensor", "label": ["power", "heat"], "classes": False}
        check(data.csv(file, **columns), missing)
        parquet.write_table(arrow_csv.read_csv(file), tmp_path / "table.parquet")
        check(data.parquet(tmp_path / "table.parquet", **columns), missing)
    lazy = data.parquet(tmp_path / "table.parquet", **columns, lazy=True)
    check(lazy, missing=False)
    assert lazy.target_shape == (2,)
    with pytest.raises(FedpdError, match=r"Several columns are targets: give classes=False as well"):
        data.parquet(tmp_path / "table.parquet", client="sensor", label=["power", "heat"])
    lists = pa.table({"c": ["a", "b"], "x": [1.0, 2.0], "y": [[1.0, 2.0], [3.0, 4.0]]})
    parquet.write_table(lists, tmp_path / "lists.parquet")
    found = data.parquet(tmp_path / "lists.parquet", client="c", label="y", classes=False)
    np.testing.assert_array_equal(found.train[1]["y"], [[3.0, 4.0]])


def test_missing_targets_of_lazy_data_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    (tmp_path / "table.csv").write_text(table(missing=True))
    parquet.write_table(arrow_csv.read_csv(tmp_path / "table.csv"), tmp_path / "table.parquet")
    found = data.parquet(tmp_path / "table.parquet", client="sensor", label=["power", "heat"], classes=False, lazy=True)
    with pytest.raises(FedpdError, match="data of agent 0 holds NaN or infinity"):
        found.in_memory()


def test_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"c": ["a", "b", "a"], "x": [1.0, 2.0, 3.0], "y": [0.5, None, 1.5]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    found = data.hub(tmp_path / "set", client="c", features=["x"], label="y", classes=False)
    np.testing.assert_array_equal(found.train[0]["y"], [0.5, 1.5])
    np.testing.assert_array_equal(found.train[1]["y"], [np.nan])


def test_leaf(tmp_path: Path) -> None:
    own = {"u": {"x": [[1.0], [2.0]], "y": [0.25, None]}, "v": {"x": [[3.0]], "y": [0.75]}}
    (tmp_path / "all.json").write_text(json.dumps({"users": ["u", "v"], "num_samples": [2, 1], "user_data": own}))
    found = data.leaf(tmp_path / "all.json", classes=False)
    np.testing.assert_array_equal(found.train[0]["y"], [0.25, np.nan])
    own["u"]["y"] = [0.25, 0.5]
    (tmp_path / "all.json").write_text(json.dumps({"users": ["u", "v"], "num_samples": [2, 1], "user_data": own}))
    lazy = data.leaf(tmp_path / "all.json", classes=False, lazy=True)
    np.testing.assert_array_equal(lazy.train[0]["y"], [0.25, 0.5])


def test_rows_and_partitions() -> None:
    y = np.array([[0.5, np.nan], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = data.from_rows(data.ragged({"x": X, "y": y}, sizes=[1, 3]), classes=False)
    np.testing.assert_array_equal(found.train[0]["y"], y[:1])
    lazy = data.from_rows(data.lazy(lambda i: {"x": X, "y": X.astype(np.float32)}, sizes=[4, 4]), classes=False)
    assert lazy.train[1]["y"].dtype == np.float32
    assert lazy.target_shape == (2,)
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    parts = data.partition(X, y, partitioner.IidPartitioner(num_partitions=2), classes=False)
    assert parts.sizes.tolist() == [2, 2]
    assert parts.target_shape == (2,)
