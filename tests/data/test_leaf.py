"""LEAF's json: its forms, its folders, and what is wrong with bad files."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import SHAKESPEARE, describe, leaf, merge, paper_groups, split
from tests.data.real import real


def content(**users: dict[str, Any]) -> dict[str, Any]:
    return {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


A: dict[str, Any] = {"x": [[0.5, 1], [2, 3]], "y": [0, 2]}
B: dict[str, Any] = {"x": [[4, 5]], "y": [1]}


@pytest.mark.parametrize("name", ["some.json", "some.leaf.json.gz"])
def test_a_file_plain_or_compressed(tmp_path: Path, name: str) -> None:
    data = leaf(write(tmp_path / name, content(b=B, a=A)))
    assert data.names == ("b", "a")  # the file's order
    assert data.name == "some"
    assert [samples["x"].tolist() for samples in data.train] == [[[4, 5]], [[0.5, 1], [2, 3]]]
    assert {samples["x"].dtype for samples in data.train} == {np.dtype(np.float32)}
    assert data.train[1]["y"].tolist() == [0, 2]
    assert data.test_sizes.tolist() == [0, 0]


def test_leaf_s_folders_of_train_and_test(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train" / "all_data_1_train_9.json", content(b=B))
    write(tmp_path / "set" / "train" / "all_data_0_train_9.json", content(a=A))
    write(tmp_path / "set" / "train" / "notes.txt", "not data")
    write(tmp_path / "set" / "test" / "all_data_0_test_9.json.gz", content(b=B, new=B))
    data = leaf(tmp_path / "set")
    assert data.name == "set"
    assert data.names == ("a", "b", "new")
    assert data.sizes.tolist() == [2, 1, 0]
    assert data.test_sizes.tolist() == [0, 1, 1]
    apart = leaf(tmp_path / "set" / "train", tmp_path / "set" / "test")
    assert apart.names == data.names
    assert leaf(tmp_path / "set" / "train").names == ("a", "b")


def test_lists_become_images(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write(folder / "train" / "a.json", content(a={"x": [[1, 2, 3, 4]], "y": [0]}))
    write(folder / "test" / "a.json", content(b={"x": [[5, 6, 7, 8]], "y": [1]}))
    data = leaf(folder, shape=(2, 2))
    assert data.shape == (2, 2)
    assert data.train[0]["x"].tolist() == [[[1, 2], [3, 4]]]
    with pytest.raises(FedpdError, match=r"must hold the 4 numbers of a sample of .*a\.json: user 'a'"):
        leaf(folder, shape=(3, 2))


def test_samples_of_any_shape_and_labels_in_lists(tmp_path: Path) -> None:
    images = {"x": np.arange(12).reshape(2, 2, 3).tolist(), "y": [[1], [-1]]}
    data = leaf(write(tmp_path / "a.json", content(x=images, y=images)))  # users may be called x and y
    assert data.names == ("x", "y")
    assert data.shape == (2, 3)
    assert data.train[0]["x"].dtype == np.int32
    assert data.train[0]["y"].tolist() == [1, -1]
    assert data.classes.tolist() == [-1, 1]


def test_float64_if_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", content(a={"x": [[0.1], [1e300]], "y": [0, 1]}))
    assert leaf(path, dtype=np.float64).train[0]["x"].tolist() == [[0.1], [1e300]]
    with pytest.raises(FedpdError, match=r"user 'a': x holds numbers up to 1e\+300: they do not fit into float32"):
        leaf(path)


def test_text_is_numbered_by_leaf_s_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", content(ROMEO={"x": ["to be", "o be,"], "y": [",", " "]}))
    data = leaf(path)
    assert data.train[0]["x"].dtype == np.int32
    assert ["".join(SHAKESPEARE[i] for i in row) for row in data.train[0]["x"]] == ["to be", "o be,"]
    assert [SHAKESPEARE[i] for i in data.train[0]["y"]] == [",", " "]
    assert len(data.classes) == 80
    assert data.label_names == tuple(SHAKESPEARE)
    assert leaf(path, vocabulary="bet o,").train[0]["x"][0].tolist() == [2, 4, 3, 0, 1]


def test_labels_may_be_words(tmp_path: Path) -> None:
    data = leaf(write(tmp_path / "a.json", content(a={"x": [[1], [2]], "y": ["up", "down"]})))
    assert data.label_names == ("down", "up")
    assert data.train[0]["y"].tolist() == [1, 0]


def test_empty_users_are_refused_or_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", content(a=A, none={"x": [], "y": []}))
    with pytest.raises(FedpdError, match=r"a.json: user 'none': there are no training or test samples"):
        leaf(path)
    assert leaf(path, drop_empty=True).names == ("a",)
    tested = write(tmp_path / "test.json", content(none=B))
    assert leaf(path, tested).sizes.tolist() == [2, 0]


def test_num_samples_may_be_missing(tmp_path: Path) -> None:
    assert leaf(write(tmp_path / "a.json", {"users": ["a"], "user_data": {"a": A}})).samples == 2


WHOLE = json.dumps(content(a=A, b=B))
TWICE = '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [1], "y": [0]}, "a": {"x": [2], "y": [1]}}}'


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("", "is empty. Make the file again"),
        (" \n", "is empty. Make the file again"),
        (WHOLE[:-20], "is not json: .* Check that the file is complete"),
        ("PAR1 something", "is not json"),
        ("[" * 100_000, "is not json"),
        ([1, 2], "its keys = 'list': must be users, num_samples and user_data"),
        ({"users": ["a"], "num_samples": [2]}, r"its keys = \['num_samples', 'users'\]: must be users"),
        ({"users": "a", "user_data": {"a": A}}, "users must be a list"),
        (content(a=A) | {"users": ["a", "a"]}, "user = 'a': is in users twice"),
        (TWICE, "key = 'a': is in one object twice"),
        (content(a=A) | {"users": ["a", "b"]}, "user = 'b': is not in user_data"),
        (content(a=A, b=B) | {"users": ["a"]}, "user = 'b': is not in users"),
        (content(a=A) | {"num_samples": [3]}, "samples of user 'a' = 2: must be 3, as num_samples says"),
        (content(a=A) | {"num_samples": [2, 2]}, "num_samples must be a list of 1 numbers"),
        ({"users": ["a"], "user_data": {"a": {"y": [1]}}}, "user 'a': must hold the lists x and y"),
        ({"users": ["a"], "user_data": {"a": "A"}}, "user 'a': "),
        ({"users": ["a"], "user_data": {"a": {"x": [[1]], "y": 1}}}, "user 'a': y = 1: must be a list"),
        (content(a=A, b={"x": [[1, 2], [3]], "y": [0, 1]}), "user 'b': its samples are not of one shape"),
        (content(a=A, b={"x": [[1, 2, 3]], "y": [0]}), r"user 'b': shape of a sample = \(3,\): must be \(2,\), as for"),
        (content(a=A, b={"x": [[1, 2]] * 2, "y": [0]}), "user 'b': shape of x = .*a row for each of the 1 labels"),
        (content(a=A, b={"x": [[1, None]], "y": [0]}), "user 'b': x holds null"),
        (content(a=A, b={"x": [[1, float("nan")]], "y": [0]}), "user 'b': sample 0 holds NaN or infinity"),
        (content(a=A, b={"x": [[1, 2]], "y": [3]}), "user 'b': label of sample 0 = 3: must be one of the 3 classes"),
        (content(a=A, b={"x": [[1, 2]], "y": [-1]}), "user 'b': label of sample 0 = -1: must be one of the 3"),
        (content(a=A, b={"x": [[1, 2]], "y": [0.5]}), "user 'b': label of sample 0 = 0.5: must be a whole number"),
        (content(a=A, b={"x": [[1, 2]], "y": [[0, 1]]}), r"user 'b': shape of y = \(1, 2\)"),
        (content(b={"x": ["abc", "ab"], "y": ["a", "b"]}), "user 'b': its texts differ in length"),
        (content(b={"x": ["", ""], "y": ["a", "b"]}), "user 'b': its texts are empty"),
        (content(b={"x": ["ab\u00e9"], "y": ["a"]}), "user 'b': character '\u00e9' is not in the vocabulary"),
        (content(b={"x": ["abc"], "y": ["\u00e9"]}), "user 'b': label = '\u00e9': must be one of label_names"),
        (content(b={"x": [["a tweet", "b"]], "y": [1]}), "user 'b': x must be an array of real numbers, not of text"),
    ],
)
@pytest.mark.parametrize("name", ["bad.json", "bad.json.gz"])
def test_bad_files_are_refused_with_file_user_and_reason(tmp_path: Path, name: str, value: Any, sentence: str) -> None:
    path = write(tmp_path / name, value)
    with pytest.raises(FedpdError, match=sentence) as caught:
        leaf(path, classes=80 if "texts" in sentence or "character" in sentence or "names" in sentence else 3)
    assert str(path) in str(caught.value)


def test_files_that_are_not_what_they_are_called(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json.gz"
    plain.write_text(WHOLE)
    with pytest.raises(FedpdError, match=r"plain.json.gz is not gzip: .*Name it .json"):
        leaf(plain)
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(WHOLE.encode()))
    with pytest.raises(FedpdError, match=r"packed.json is not text: .*Name it .json.gz"):
        leaf(packed)
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(WHOLE.encode())[:-12])
    with pytest.raises(FedpdError, match=r"cut.json.gz is a damaged gzip file: .*Copy it again"):
        leaf(cut)
    turned = bytearray(gzip.compress(WHOLE.encode()))
    turned[15:30] = b"\xff" * 15
    (tmp_path / "turned.json.gz").write_bytes(turned)
    with pytest.raises(FedpdError, match=r"turned.json.gz is a damaged gzip file"):
        leaf(tmp_path / "turned.json.gz")


def test_an_empty_gzip_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"")
    with pytest.raises(FedpdError, match=r"a.json.gz is empty"):
        leaf(tmp_path / "a.json.gz")


def test_a_user_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.json", content(a=A))
    write(tmp_path / "2.json", content(b=B, a=A))
    with pytest.raises(FedpdError, match=r"2.json: user = 'a': is in .*1.json as well\. Keep one"):
        leaf(tmp_path)


def test_an_error_in_the_test_data_names_the_test_file(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", content(a=A))
    test = write(tmp_path / "test.json", content(a={"x": [[1]], "y": [0]}))
    with pytest.raises(FedpdError, match=r"test.json: user 'a': shape of a sample"):
        leaf(train, test)


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="nowhere: there is no such file or folder"):
        leaf(tmp_path / "nowhere")
    with pytest.raises(FedpdError, match=r"there is no \.json or \.json\.gz in this folder"):
        leaf(tmp_path)


# --- real data ------------------------------------------------------------------------------------------------------


def test_vehicle23() -> None:
    data = leaf(real("vehicle23/vehicle23_train.leaf.json.gz"))
    summary = describe(data)
    assert (summary.agents, summary.samples, summary.shape) == (23, 1860, (100,))
    assert (summary.sizes.least, summary.sizes.most) == (7, 534)
    assert data.classes.tolist() == [-1, 1]
    parts = split(data, 0.2)
    assert (parts.test_sizes > 0).all()
    assert parts.samples == data.samples


def test_unipen62_s_test_file_merges_into_the_paper_s_agents() -> None:
    data = leaf(real("unipen62/unipen62_100w_test.leaf.json.gz"), classes=62)
    assert (data.agents, data.samples, data.shape) == (100, 2835, (784,))
    merged = merge(data, paper_groups(100, 90))
    assert (merged.agents, merged.samples) == (90, 2835)
