"""Hugging Face's data sets from folders, without any network."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedpd import FedpdError
from fedpd.data import Federated, hub, partition

COLUMNS: dict[str, Any] = {
    "writer": ["v", "u", "v"],
    "label": [0, 1, 2],
    "x": [[0.5, 1.5], [2.0, 3.0], [4.0, 5.0]],
    "a": [1, 2, 3],
}


def load(source: Path, **options: Any) -> Federated:
    defaults: dict[str, Any] = {"client": "writer", "features": "x", "label": "label", "cache": source.parent / "cache"}
    return hub(source, **defaults | options)


@pytest.fixture
def datasets() -> Any:
    module = pytest.importorskip("datasets", reason="fedpd[data] is not installed: no Hugging Face data sets")
    module.disable_progress_bars()
    return module


@pytest.fixture
def folder(datasets: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.table(COLUMNS), folder / "train.parquet")
    pq.write_table(pa.table(COLUMNS).slice(1), folder / "test.parquet")
    return folder


def test_a_folder_of_parquet(folder: Path) -> None:
    data = load(folder)
    assert data.name == "set"
    assert data.names == ("v", "u")
    assert data.sizes.tolist() == [2, 1]
    assert data.test_sizes.tolist() == [1, 1]
    assert data.train[0]["x"].tolist() == [[0.5, 1.5], [4, 5]]
    assert load(folder, features=["a", "label"]).train[0]["x"].tolist() == [[1, 0], [3, 2]]


def test_splits_by_name(folder: Path) -> None:
    only = load(folder, split="test")
    assert (only.sizes.sum(), only.test_sizes.sum()) == (2, 0)
    turned = load(folder, split=("test", "train"))
    assert (turned.sizes.sum(), turned.test_sizes.sum()) == (2, 3)
    with pytest.raises(FedpdError, match=r"split = 'tset': there is no such split. Did you mean 'test'"):
        load(folder, split="tset")
    with pytest.raises(FedpdError, match="must be one split, or two"):
        load(folder, split=())


def test_a_folder_of_json(datasets: Any, tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load(folder, dtype=np.float32)
    assert data.sizes.tolist() == [2, 1]
    assert data.train[0]["x"].dtype == np.float32


def test_images_class_names_and_a_folder_saved_to_disk(datasets: Any, tmp_path: Path) -> None:
    images = [np.full((4, 5), 10 * i, np.uint8) for i in range(3)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "writer": datasets.Value("int64"),
        }
    )
    made = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 1], "writer": [5, 9, 5]}, features=features)
    made.save_to_disk(str(tmp_path / "saved"))
    data = load(tmp_path / "saved", features="image")
    assert data.names == ("5", "9")
    assert data.label_names == ("no", "yes")
    assert data.shape == (4, 5)
    assert data.train[0]["x"].dtype == np.uint8
    assert data.train[0]["x"][:, 0, 0].tolist() == [0, 20]
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "both"))
    assert load(tmp_path / "both", features="image", shape=(20,)).test[1]["x"].tolist() == [[10] * 20]


def test_images_of_different_sizes_are_refused(datasets: Any, tmp_path: Path) -> None:
    images = [np.zeros((4, 5), np.uint8), np.zeros((4, 4), np.uint8)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64"), "writer": datasets.Value("int64")}
    )
    made = datasets.Dataset.from_dict({"image": images, "label": [0, 1], "writer": [5, 9]}, features=features)
    made.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(FedpdError, match=r"column 'image': .*All images must be whole and of one size"):
        load(tmp_path / "saved", features="image")


def test_a_fixed_shape_column_keeps_its_shape(datasets: Any, tmp_path: Path) -> None:
    features = datasets.Features(
        {"x": datasets.Array2D((2, 2), "uint8"), "label": datasets.Value("int64"), "writer": datasets.Value("string")}
    )
    columns = {"x": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "label": [0, 1], "writer": ["u", "u"]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "saved"))
    data = load(tmp_path / "saved")
    assert data.train[0]["x"].dtype == np.uint8
    assert data.train[0]["x"].tolist() == columns["x"]


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(FedpdError, match=r"column = 'witer': there is no such column. Did you mean 'writer'"):
        load(folder, client="witer")
    with pytest.raises(FedpdError, match="set: train data of agent 'v': label of sample 1 = 2: must be one of"):
        load(folder, classes=2)
    (folder / "train.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(FedpdError, match="set cannot be loaded: "):
        load(folder, cache=folder.parent / "other")
    with pytest.raises(FedpdError, match=r"nowhere cannot be loaded: .*Check its name or folder"):
        load(folder / "nowhere")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedpdError, match=r'needs datasets, which is not installed. Run: pip install "fedpd\[data\]"'):
        load(tmp_path)
    with pytest.raises(FedpdError, match=r'needs datasets, which is not installed. Run: pip install "fedpd\[data\]"'):
        partition(np.zeros((1, 1)), np.zeros(1), None)
