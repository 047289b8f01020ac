"""LEAF's files as lazy data: fedpd notes where each user's samples begin in the file, and reads them when needed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.data.arrow import Shape, reshape
from fedpd.data.federated import Federated, Samples, as_dtype, common_dtype
from fedpd.data.indexed import nothing
from fedpd.data.labels import Classes, encode
from fedpd.data.lazy import Lazy, one_by_one
from fedpd.data.source_file import SourceFile, source_file

SPACE = " \t\n\r"
DECODER = json.JSONDecoder()


class Place(NamedTuple):
    """Where the samples of a user are: a file and the positions of their first byte and of the byte after them."""

    file: SourceFile
    first: int
    end: int


class Found(NamedTuple):
    """A user of an index.

    Attributes:
        place: Where the samples are.
        labels: (n,) the labels.
        shape: The shape of a sample, () if there are none.
        dtype: The type of the features.
        text: Whether the features were text.
    """

    place: Place
    labels: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    text: bool


@dataclass(frozen=True)
class LeafRows:
    """Loads one agent's samples from LEAF's files.

    Attributes:
        places: Where the samples of each agent are.
        labels: (M, ...) agent after agent.
        offsets: (N,) the first label of each agent.
        parse: (x) -> the features as an array, from the list in the file.
        shape: The shape of a sample; None: as stored.
        dtype: The type of the features.
    """

    places: Sequence[Place | None]
    labels: np.ndarray
    offsets: np.ndarray
    parse: Any
    shape: Shape | None
    dtype: np.dtype

    def __call__(self, agent: int) -> Samples:
        place = self.places[agent]
        assert place is not None  # it has samples
        with place.file.unchanged() as path, path.open("rb") as stream:
            stream.seek(place.first)
            content = json.loads(stream.read(place.end - place.first))
        where = f"{path}: agent {agent}"
        x = as_dtype(reshape(self.parse(content["x"]), self.shape, where), self.dtype, where)
        first = int(self.offsets[agent])
        return {"x": x, "y": self.labels[first : first + len(x)]}


def spans(text: bytes) -> dict[str, tuple[int, int]]:
    """Return where the samples of each user of a file are: {user: (first byte, the byte after the last)}."""
    decoded = text.decode("latin-1")  # one character per byte, so that positions are positions of bytes
    found: dict[str, tuple[int, int]] = {}

    def skip_user(user: str, at: int) -> int:
        found[user] = (at, DECODER.raw_decode(decoded, at)[1])
        return found[user][1]

    def skip_entry(key: str, at: int) -> int:
        return _entries(decoded, at, skip_user) if key == "user_data" else DECODER.raw_decode(decoded, at)[1]

    _entries(decoded, _skip(decoded, 0), skip_entry)
    return found


def _entries(text: str, at: int, skip: Callable[[str, int], int]) -> int:
    """Return the end of the object at a position; skip(key, position) returns the end of each of its values."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        first, at = at, DECODER.raw_decode(text, at)[1]
        key = json.loads(text[first:at].encode("latin-1"))
        at = _skip(text, skip(key, _skip(text, _skip(text, at) + 1)))
        at = _skip(text, at + 1) if text[at] == "," else at
    return at + 1


def _skip(text: str, at: int) -> int:
    """Return the position of the next character that is not white space."""
    while text[at] in SPACE:
        at += 1
    return at


def index_part(files: list[Path], read: Any) -> dict[str, Found]:
    """Return the users of some files; `read` returns a file's users with their arrays, as `leaf` reads them."""
    everyone: dict[str, Found] = {}
    for file in files:
        if file.name.endswith(".gz"):
            raise FedpdError(f"{file} is compressed, so that users cannot be read one by one. Unpack it for lazy=True.")
        source = source_file(file)  # before it is read, to notice a change meanwhile
        users = read(file)
        where = spans(file.read_bytes())
        for user, samples in users.items():
            if user in everyone:
                rule = f"is in {everyone[user].place.file.path} as well"
                refuse(f"{file}: user", user, rule, "Keep one, or give train= and test= separately")
            x = samples["x"]
            shape = x.shape[1:] if len(x) else ()
            everyone[user] = Found(Place(source, *where[user]), samples["y"], shape, x.dtype, samples["text"])
    return everyone


def federated(
    parts: dict[str, dict[str, Found]],
    parse: Any,
    shape: Shape | None,
    wanted: np.dtype | None,
    classes: Classes,
    label_names: Sequence[str] | None,
    name: str,
) -> Federated:
    """Return lazy federated data from the users of the training and the test files."""
    names = tuple(dict.fromkeys(user for users in parts.values() for user in users))
    held = {(part, user): found for part, users in parts.items() for user, found in users.items() if len(found.labels)}
    for user in names:
        if not any((part, user) in held for part in parts):
            rule = "has no training or test samples"
            refuse("user", user, rule, "Leave the user out, or give drop_empty=True")
    shapes = {found.shape for found in held.values()}
    if len(shapes) > 1:
        refuse("shapes of samples", sorted(shapes), "must be equal", "Bring all samples to one shape")

    def place(user: str, part: str) -> str:
        return f"{parts[part][user].place.file.path}: user {user!r}"

    labels, values, called = encode({key: found.labels for key, found in held.items()}, place, classes, label_names)
    unlabelled = next(iter(labels.values()))[:0]
    dtype = wanted or common_dtype({found.dtype for found in held.values()})
    lazy = {}
    for part in parts:
        own = [held.get((part, user)) for user in names]
        sizes = np.array([0 if found is None else len(found.labels) for found in own], np.int32)
        every = [labels[part, user] for user in names if (part, user) in held]
        y = np.concatenate([unlabelled, *every])
        places = tuple(None if found is None else found.place for found in own)
        offsets = np.cumsum(sizes) - sizes
        load = LeafRows(places, y, offsets, parse, shape, dtype)
        kept = next(iter(shapes)) if shape is None else shape
        sample = {"x": np.zeros((0, *kept), dtype), "y": unlabelled}
        lazy[part] = Lazy(partial(one_by_one, load, sizes, sample), sizes, sample)
    return Federated(names, lazy["train"], lazy.get("test") or nothing(lazy["train"]), values, called, name)
