"""Data files of LEAF, CSV and Parquet: small valid ones, then damaged in their values, their form or their bytes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from .experiment_files import change, scrambled
from .hostile import TEXTS

JSON = {
    "users": ["a", "b"],
    "num_samples": [2, 1],
    "user_data": {"a": {"x": [[0.5, 1.0], [2.0, 3.0]], "y": [0, 1]}, "b": {"x": [[4.0, 5.0]], "y": [1]}},
}
SHAKESPEARE = {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": ["to be", "or no"], "y": ["b", "e"]}}}
COLUMNS: list[list[Any]] = [
    *([0.5, 1.5, 2.5], [1, 2, 3], ["a", "a", "b"], [True, False, True], [None, 1.0, 2.0], [[1.0], [2.0], [3.0]]),
    *([[1.0], [2.0, 3.0], []], [b"xy", b"zw", b"uv"], [float("nan"), 1.0, float("inf")], [2**62, -1, 0]),
    *(["train", "test", "train"], ["test", "test", "test"], [{"k": 1}, {"k": 2}, None], [0, 1, 1], [0.5, 1.0, 0.0], []),
    ["", None, "x"],
]  # fmt: skip
NAMES = ["client", "label", "x", "y", "split", "image", "x", "", "a,b", "=1", "client"]
CELLS = [
    "",
    "NA",
    "0",
    "1",
    "0.5",
    "-1",
    "nan",
    "inf",
    "1e999",
    "a",
    '"',
    "a,b",
    "=1+1",
    "ß",
    "\0",
    "train",
    "test",
    " ",
]


@st.composite
def leaf_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the name and the bytes of a LEAF file."""
    tree = json.loads(json.dumps(draw(st.sampled_from([JSON, JSON, SHAKESPEARE]))))
    for _ in range(draw(st.integers(0, 3))):
        change(draw, tree)
    try:
        text = json.dumps(tree)
    except (TypeError, ValueError, RecursionError):
        text = "[" * 2000
    content = (scrambled(draw, text) if draw(st.integers(0, 4)) == 0 else text).encode(errors="replace")
    name = draw(st.sampled_from(["all.json", "all.json", "all.json.gz"]))
    packed = gzip.compress(content) if name.endswith(".gz") else content
    return name, damaged(draw, packed) if draw(st.integers(0, 5)) == 0 else packed


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the name and the bytes of a CSV file."""
    head = draw(
        st.sampled_from([["client", "x", "label"], ["client", "x", "label", "split"]])
        | st.lists(st.sampled_from(NAMES))
    )
    good = st.sampled_from([["a", "0.5", "0"], ["b", "1.5", "1"], ["a", "2", "1", "train"], ["b", "3", "0", "test"]])
    rows = draw(st.lists(good | st.lists(st.sampled_from(CELLS), max_size=5), max_size=5))
    text = "\n".join(",".join(row) for row in [head, *rows])
    return "rows.csv", damaged(draw, text.encode()) if draw(st.integers(0, 5)) == 0 else text.encode()


@st.composite
def parquet_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the name and the bytes of a Parquet file."""
    usual = [("client", ["a", "a", "b"]), ("x", [0.5, 1.5, 2.5]), ("label", [0, 1, 1])]
    columns = [(draw(st.sampled_from(NAMES)), draw(st.sampled_from(COLUMNS))) for _ in range(draw(st.integers(0, 2)))]
    chosen = [(n, draw(st.sampled_from(COLUMNS)) if draw(st.integers(0, 5)) == 0 else c) for n, c in usual] + columns
    length = min((len(column) for _, column in chosen), default=0)
    arrays = [pa.array(column[:length]) for _, column in chosen]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, names=[name for name, _ in chosen]), sink)
    content = sink.getvalue().to_pybytes()
    return "rows.parquet", damaged(draw, content) if draw(st.integers(0, 5)) == 0 else content


def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a file with bytes missing, changed or repeated."""
    first = draw(st.integers(0, len(content)))
    return (
        content[:first]
        + draw(st.binary(max_size=4))
        + content[first + draw(st.sampled_from([0, 1, 8, len(content)])) :]
    )


FILES = leaf_files() | csv_files() | parquet_files()
OPTIONS = st.fixed_dictionaries(
    {"client": st.sampled_from(["client", "client", "client", "x", "", None])},
    optional={
        "label": st.sampled_from(["label", "x", "missing"]),
        "features": st.sampled_from(["x", "x,y", "", ",", "client", "label"]) | st.sampled_from(TEXTS),
        "split": st.sampled_from(["split", "label", "missing"]),
    },
)


def write(folder: Path, file: tuple[str, bytes]) -> Path:
    """Write a file into a folder, and return its path."""
    path = folder / file[0]
    path.write_bytes(file[1])
    return path
