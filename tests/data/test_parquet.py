"""Parquet with a column of clients: the kinds of columns, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError
from fedpd.data import DIGITS_AND_LETTERS, Federated, describe, leaf, parquet, take
from tests.data.real import real

COLUMNS: dict[str, Any] = {
    "writer": pa.array(["v", "u", "v", "w"]).dictionary_encode(),
    "label": pa.array([0, 1, 2, 1], pa.uint8()),
    "word": ["no", "yes", "maybe", "yes"],
    "split": pa.array(["train", "train", "test", "test"]).dictionary_encode(),
    "image": pa.array([bytes(range(i, i + 6)) for i in range(4)], pa.binary(6)),
    "blob": [bytes([i] * 6) for i in range(4)],
    "list": pa.array([[float(i), 0.5] for i in range(4)], pa.list_(pa.float32())),
    "nested": [[[i, 1], [2, 3], [4, 5]] for i in range(4)],
    "fixed": pa.array([[i, 1] for i in range(4)], pa.list_(pa.int64(), 2)),
    "a": pa.array([1, 2, 3, 4], pa.int8()),
    "b": pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()),
    "client": [7, 3, 7, 3],
    "ragged": [[1], [1, 2], [1], [1]],
    "holes": [1.0, None, 3.0, 4.0],
    "inner holes": [[1.0], [None], [3.0], [4.0]],
    "nan": [1.0, 2.0, float("nan"), 4.0],
    "time": pa.array([1, 2, 3, 4], pa.timestamp("s")),
    "nobody": ["u", None, "u", "u"],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.table(COLUMNS), tmp_path / "some.parquet", row_group_size=3)
    return tmp_path / "some.parquet"


def load(path: Path, **options: Any) -> Federated:
    return parquet(path, **{"client": "writer", "features": "image", "label": "label"} | options)


def test_images_by_writer_and_split(path: Path) -> None:
    data = load(path, split="split", shape=(2, 3))
    assert data.name == "some"
    assert data.names == ("v", "u", "w")
    assert data.sizes.tolist() == [1, 1, 0]
    assert data.test_sizes.tolist() == [1, 0, 1]
    assert data.train[0]["x"].dtype == np.uint8
    assert data.train[1]["x"].tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert data.test[0]["y"].tolist() == [2]


def test_without_a_split_all_is_train(path: Path) -> None:
    data = load(path)
    assert data.sizes.tolist() == [2, 1, 1]
    assert data.train[0]["x"][:, 0].tolist() == [0, 2]
    assert data.train[0]["y"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("features", "dtype", "first"),
    [
        ("blob", np.uint8, [[0] * 6, [2] * 6]),
        ("list", np.float32, [[0, 0.5], [2, 0.5]]),
        ("nested", np.int32, [[[0, 1], [2, 3], [4, 5]], [[2, 1], [2, 3], [4, 5]]]),
        ("fixed", np.int32, [[0, 1], [2, 1]]),
        ("a", np.int32, [1, 3]),
        (["a"], np.int32, [[1], [3]]),
        (("a", "b"), np.float32, [[1, np.float32(0.1)], [3, np.float32(0.3)]]),
    ],
)
def test_kinds_of_features(path: Path, features: Any, dtype: Any, first: Any) -> None:
    x = load(path, features=features).train[0]["x"]
    assert x.dtype == dtype
    assert x.tolist() == first


def test_large_whole_numbers_never_wrap(path: Path) -> None:
    pq.write_table(pa.table(COLUMNS | {"a": [3_000_000_000, 2**40, 1, 2], "c": [1, 2, 3, 4]}), path)
    with pytest.raises(FedpdError, match=r"range of x = .*: do not fit into int32\. Give dtype="):
        load(path, features=["a", "c"])
    assert load(path, features=["a", "c"], dtype=np.float64).train[0]["x"][0].tolist() == [3e9, 1.0]


def test_labels_in_words_and_clients_in_numbers(path: Path) -> None:
    data = load(path, label="word", client="client")
    assert data.names == ("7", "3")
    assert data.label_names == ("maybe", "no", "yes")
    assert [samples["y"].tolist() for samples in data.train] == [[1, 0], [2, 2]]


def test_a_folder_of_files(path: Path) -> None:
    pq.write_table(pa.table(COLUMNS).slice(0, 1), path.with_name("more.parquet"))
    data = load(path.parent)
    assert data.sizes.tolist() == [3, 1, 1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"client": "writr"}, "column = 'writr': there is no such column. Did you mean 'writer'"),
        ({"features": ["a", "c"]}, "column = 'c': there is no such column"),
        ({"shape": (28, 28)}, r"shape = \(28, 28\): must hold the 6 numbers of a sample"),
        ({"shape": (-1, 3)}, r"shape = \(-1, 3\): must hold the 6 numbers"),
        ({"features": "ragged"}, r"column 'ragged': lengths of its rows = \(1, 2\): must be equal"),
        ({"features": "holes"}, "column 'holes': row 1 is null"),
        ({"features": "inner holes"}, "column 'inner holes': some of its lists hold null"),
        ({"features": "nan"}, "train data of agent 'v': sample 1 holds NaN or infinity"),
        ({"features": "time"}, r"column 'time': type = 'timestamp\[ms\]': must be numbers"),
        ({"features": "word"}, "agent 'v': x must be an array of real numbers, not of text"),
        ({"features": ["a", "list"]}, r"shape of column 'list' = \(4, 2\): must be one number per row"),
        ({"features": []}, "features = .*must name at least one column"),
        ({"client": "nobody"}, "column 'nobody': row 1 is null"),
        ({"split": "word"}, r"column 'word' = \['maybe', 'no', 'yes'\]: must hold \"train\" and \"test\" only"),
        ({"classes": 2}, "train data of agent 'v': label of sample 1 = 2: must be one of the 2 classes"),
    ],
)
def test_what_is_refused(path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        load(path, **options)


def test_bad_files(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="nowhere: there is no such file or folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedpdError, match=r"there is no \.parquet in this folder"):
        load(tmp_path / "empty")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FedpdError, match=r"cut.parquet cannot be read as Parquet: .*[^.]\. Check that the file"):
        load(cut)
    pq.write_table(pa.table(COLUMNS).slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(FedpdError, match=r"none.parquet has no rows"):
        load(tmp_path / "none.parquet")
    cut.unlink()
    pq.write_table(pa.table(COLUMNS | {"label": ["a"] * 4}), tmp_path / "other.parquet")
    with pytest.raises(FedpdError, match="its files have columns of different types"):
        load(tmp_path)


# --- real data ------------------------------------------------------------------------------------------------------


def test_unipen62_is_the_same_as_parquet_and_as_json() -> None:
    folder = real("unipen62")
    data = load(folder / "unipen62_100w.parquet", split="split", shape=(28, 28), label_names=DIGITS_AND_LETTERS)
    summary = describe(data)
    assert (summary.agents, summary.train, summary.test) == (100, 25_523, 2835)
    assert (summary.classes, summary.missing, summary.dtype) == (62, 0, "uint8")
    words = load(folder / "unipen62_100w.parquet", split="split", label="char")
    assert words.label_names == data.label_names
    other = leaf(folder / "unipen62_100w_test.leaf.json.gz")
    assert other.names == data.names
    for samples, written, word in zip(data.test, other.train, words.test, strict=True):
        np.testing.assert_array_equal(samples["y"], written["y"])
        np.testing.assert_array_equal(samples["y"], word["y"])
        np.testing.assert_allclose(1 - samples["x"].reshape(-1, 784) / 255, written["x"], atol=1e-3)


def test_mnist_s_writers_are_others_in_test() -> None:
    data = load(real("mnist_by_writer/mnist_by_writer.parquet"), split="split", shape=(28, 28))
    assert (data.agents, data.samples) == (836, 70_000)
    trained = take(data, data.sizes > 0)
    assert (trained.agents, trained.samples) == (539, 60_000)
    assert not trained.test_sizes.any()
