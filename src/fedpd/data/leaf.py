"""LEAF's json: {"users": [u, ...], "num_samples": [n, ...], "user_data": {u: {"x": [...], "y": [...]}}}.

x holds numbers in nested lists of any shape, or texts of one length (Shakespeare: 80 characters and the next one),
which become positions in a vocabulary, int32. y holds whole numbers, also as [1] and [-1], or texts. Json does not say
how precise its numbers are: those with a decimal point become float32, unless `dtype` sets another type.

fedpd reads the files one after another, and turns the lists of a user into arrays as soon as they are parsed.
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, refuse, shown
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options, Place, Samples, as_dtype, assemble, checked_dtype, common_dtype
from fedpd.data.indexed import SourceFile, nothing, source_file
from fedpd.data.labels import Classes, check_not_mixed, encode
from fedpd.data.lazy import Lazy, one_by_one
from fedpd.data.tables import Shape, reshape

SPACE = " \t\n\r"
DECODER = json.JSONDecoder()


class Span(NamedTuple):
    """Where the samples of a user are: a file and the positions of their first byte and of the byte after them."""

    file: SourceFile
    first: int
    end: int


class Found(NamedTuple):
    """A user of an index."""

    place: Span  # where the samples are
    labels: np.ndarray  # (n,) the labels
    shape: tuple[int, ...]  # the shape of a sample, () if there are none
    dtype: np.dtype  # the type of the features
    text: bool  # whether the features were text


@dataclass(frozen=True)
class LeafRows:
    """Loads one agent's samples from LEAF's files."""

    places: Sequence[Span | None]  # where the samples of each agent are
    labels: np.ndarray  # (M, ...) agent after agent
    offsets: np.ndarray  # (N,) the first label of each agent
    parse: Any  # (x) -> the features as an array, from the list in the file
    shape: Shape | None  # the shape of a sample; None: as stored
    dtype: np.dtype  # the type of the features

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
            everyone[user] = Found(Span(source, *where[user]), samples["y"], shape, x.dtype, samples["text"])
    return everyone


def federated(parts: dict[str, dict[str, Found]], parse: Any, shape: Shape | None, options: Options) -> Federated:
    """Return lazy federated data from the users of the training and the test files."""
    names = tuple(dict.fromkeys(user for users in parts.values() for user in users))
    held = {(part, user): found for part, users in parts.items() for user, found in users.items() if len(found.labels)}
    for user in names:
        if not any((part, user) in held for part in parts):
            refuse("user", user, "has no training or test samples", "Leave the user out, or give drop_empty=True")
    shapes = {found.shape for found in held.values()}
    if len(shapes) > 1:
        refuse("shapes of samples", sorted(shapes), "must be equal", "Bring all samples to one shape")

    def place(user: str, part: str) -> str:
        return f"{parts[part][user].place.file.path}: user {user!r}"

    labels, values, called = encode(
        {key: found.labels for key, found in held.items()}, place, options.classes, options.label_names
    )
    unlabelled = next(iter(labels.values()))[:0]
    dtype = checked_dtype(options.dtype) or common_dtype({found.dtype for found in held.values()})
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
    return Federated(names, lazy["train"], lazy.get("test") or nothing(lazy["train"]), values, called, options.name)


SHAKESPEARE = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 characters
)
SUFFIXES = (".json", ".json.gz")
MOST_UNPACKED = 2**30  # bytes of a compressed file; a small file may unpack to more than the memory holds

Users = dict[str, dict[str, Any]]  # {user: {"x", "y"}}


@explained
def leaf(
    train: str | Path,
    test: str | Path | None = None,
    *,
    shape: Shape | None = None,
    vocabulary: str = SHAKESPEARE,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    drop_empty: bool = False,
    name: str | None = None,
    lazy: bool = False,
) -> Federated:
    """Return federated data from LEAF's files; agents are its users, in the order of the files.

    `classes` and `label_names` are as for `from_arrays`.

    Args:
        train: A file (.json or .json.gz) or a folder of such files. A folder with the folders `train` and `test`, as
            LEAF makes it, holds both parts.
        test: The file or folder of the test samples; None: there are none, or `train` holds them.
        shape: The shape of a sample, for example (28, 28) for FEMNIST, whose images are lists of 784 numbers.
        vocabulary: The characters that texts consist of, in the order of their numbers.
        dtype: The dtype of the features; None: float32 for numbers with a decimal point, int32 for others.
        drop_empty: Whether to leave out users without any samples, instead of refusing them.
        name: The name of the data in tables and figures; None: the name of the file or folder.
        lazy: Whether the features stay in the files and are read when a round needs them, for data larger than memory.
            fedpd parses every file once and notes where each user begins; the files must not be compressed.

    Raises:
        FedpdError: If a file is damaged, incomplete, or not of LEAF's form. The message names the file and the user.
    """
    train = Path(train)
    if test is None and (train / "train").is_dir():
        name, train, test = name or train.name, train / "train", train / "test" if (train / "test").is_dir() else None
    places: dict[tuple[str, str], Path] = {}
    given = {"train": train} if test is None else {"train": train, "test": Path(test)}
    if lazy:
        found = {
            part: index_part(_files(path), partial(_read, dtype=dtype, vocabulary=vocabulary))
            for part, path in given.items()
        }
        if drop_empty:
            found = {part: {u: f for u, f in users.items() if len(f.labels)} for part, users in found.items()}
        texts = any(f.text and f.labels.dtype.kind == "U" for users in found.values() for f in users.values())
        label_names = vocabulary if texts and label_names is None else label_names
        parse = partial(_parsed, _floating(dtype), vocabulary)
        return federated(found, parse, shape, Options(classes, label_names, dtype, name or _stem(train)))
    parts = {part: _read_all(path, part, places, dtype, vocabulary) for part, path in given.items()}
    learn, check = parts["train"], parts.get("test", {})
    if drop_empty:
        learn, check = ({u: d for u, d in users.items() if len(d["y"])} for users in (learn, check))
    if any(d["text"] and d["y"].dtype.kind == "U" for users in (learn, check) for d in users.values()):
        label_names = vocabulary if label_names is None else label_names

    def place(user: str, part: str) -> str:
        return f"{places.get((part, user)) or places['test', user]}: user {user!r}"

    if shape is not None:
        learn, check = (_shaped(users, part, place, shape) for part, users in (("train", learn), ("test", check)))
    return assemble(learn, check, place, Options(classes, label_names, dtype, name or _stem(train)))


def _shaped(users: Users, part: str, place: Place, shape: Shape) -> Users:
    """Return users whose samples have the given shape; a user without samples of this part gets an empty array."""
    return {
        user: d
        | {"x": reshape(d["x"], shape, place(user, part)) if len(d["y"]) else np.empty((0, *shape), d["x"].dtype)}
        for user, d in users.items()
    }


def _stem(path: Path) -> str:
    """Return a file's name without its suffixes."""
    return path.name.split(".")[0]


def _read_all(
    path: Path, part: str, places: dict[tuple[str, str], Path], dtype: DTypeLike | None, vocabulary: str
) -> Users:
    """Return the users of all files of one part, and note in `places` which file each comes from."""
    everyone: Users = {}
    for file in _files(path):
        for user, samples in _read(file, dtype, vocabulary).items():
            if user in everyone:
                rule = f"is in {places[part, user]} as well"
                refuse(f"{file}: user", user, rule, "Keep one, or give train= and test= separately")
            everyone[user] = samples
            places[part, user] = file
    return everyone


def _files(path: Path) -> list[Path]:
    """Return the json files at a path, sorted by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FedpdError(f"{path}: there is no such file or folder. Give LEAF's json, or the folder it is in.")
    files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise FedpdError(f"{path}: there is no .json or .json.gz in this folder. Give the folder with the files.")
    return files


def _read(file: Path, dtype: DTypeLike | None, vocabulary: str) -> Users:
    """Return the users of one file, checked against its own lists."""
    floating = _floating(dtype)

    def parsed(pairs: list[tuple[str, Any]]) -> Any:
        """Return an object of the file as a dict; for a user, arrays, or the reason why there are none."""
        content = dict(pairs)
        if len(content) < len(pairs):
            repeated = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
            refuse("key", repeated[0], "is in one object twice", "Keep one of them")
        if "y" in content and isinstance(content.get("x"), list):
            return _arrays(content["x"], content["y"], floating, vocabulary)
        return {
            key: value for key, value in content.items() if key not in ("text", "reason") or isinstance(value, dict)
        }

    text = _text(file)
    if not text.strip():
        raise FedpdError(f"{file} is empty. Make the file again; perhaps the program that wrote it was interrupted.")
    try:
        content = json.loads(text, object_pairs_hook=parsed)
    except FedpdError as error:
        raise FedpdError(f"{file}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise FedpdError(f"{file} is not json: {error}. Check that the file is complete, or copy it again.") from None
    return _users(file, content)


def _floating(dtype: DTypeLike | None) -> np.dtype:
    """Return the type of numbers with a decimal point."""
    return np.dtype(np.float64 if checked_dtype(dtype) == np.float64 else np.float32)


def _parsed(floating: np.dtype, vocabulary: str, x: list[Any]) -> np.ndarray:
    """Return the features of a user as an array."""
    arrays = _arrays(x, [0] * len(x), floating, vocabulary)
    if isinstance(arrays, str):
        raise FedpdError(arrays)
    return arrays["x"]


def _text(file: Path) -> str:
    """Return the text of a file, after decompression if it is gzip."""
    try:
        if file.name.endswith(".gz"):
            with gzip.open(file) as stream:
                content = stream.read(MOST_UNPACKED + 1)
            if len(content) > MOST_UNPACKED:
                rule = f"unpacks to more than {MOST_UNPACKED / 2**30:g} GB"
                raise FedpdError(f"{file} {rule}. Unpack it, and divide it into several files.")
            return content.decode()
        return file.read_bytes().decode()
    except gzip.BadGzipFile as error:
        raise FedpdError(f"{file} is not gzip: {error}. Name it .json if it is plain text, or copy it again.") from None
    except (EOFError, zlib.error) as error:
        raise FedpdError(f"{file} is a damaged gzip file: {error}. Copy it again.") from None
    except UnicodeDecodeError as error:
        raise FedpdError(f"{file} is not text: {error}. Name it .json.gz if it is compressed.") from None
    except OSError as error:
        raise FedpdError(f"{file} cannot be read: {error}. Check the file.") from None


def _users(file: Path, content: Any) -> Users:
    """Return {user: arrays} in the order of `users`, after checking that it, `num_samples` and `user_data` agree."""
    if not isinstance(content, dict) or not {"users", "user_data"} <= set(content):
        held = sorted(content)[:5] if isinstance(content, dict) else type(content).__name__
        refuse(f"{file}: its keys", held, "must be users, num_samples and user_data", "Give a file as LEAF makes it")
    users, data = content["users"], content["user_data"]
    if not isinstance(users, list) or not isinstance(data, Mapping):
        raise FedpdError(f"{file}: users must be a list and user_data an object. Give a file as LEAF makes it.")
    users = [str(user) for user in users]
    repeated = [user for user, times in Counter(users).items() if times > 1]
    if repeated:
        refuse(f"{file}: user", repeated[0], "is in users twice", "Keep one of them")
    for user in sorted(set(users) ^ set(data)):
        missing = "user_data" if user in users else "users"
        refuse(f"{file}: user", user, f"is not in {missing}", "Name every user in both")
    for user in users:
        if not isinstance(data[user], dict) or "text" not in data[user]:
            found = data[user] if isinstance(data[user], dict) else {}
            reason = found.get("reason", "must hold the lists x and y, one entry per sample.")
            raise FedpdError(f"{file}: user {shown(user)}: {reason}")
    _check_sizes(file, users, [len(data[user]["y"]) for user in users], content.get("num_samples"))
    return {user: data[user] for user in users}


def _check_sizes(file: Path, users: list[str], sizes: list[int], stated: Any) -> None:
    """Refuse a file whose num_samples differ from the samples that it holds."""
    if stated is None:
        return
    if not isinstance(stated, list) or len(stated) != len(users):
        raise FedpdError(f"{file}: num_samples must be a list of {len(users)} numbers, one per user. Correct it.")
    for user, size, number in zip(users, sizes, stated, strict=True):
        if size != number:
            rule = f"must be {number!r}, as num_samples says"
            refuse(f"{file}: samples of user {user!r}", size, rule, "Check that the file is complete, or make it again")


def _arrays(x: list[Any], y: Any, floating: np.dtype, vocabulary: str) -> dict[str, Any]:
    """Return {"x", "y", "text": whether x was text} of a user, or {"reason": why there are none}."""
    text = bool(x) and isinstance(x[0], str)
    try:
        labels = np.asarray(y)
        check_not_mixed(y, labels, "y")
        features = _characters(x, vocabulary) if text else np.asarray(x)
    except FedpdError as error:
        return {"reason": str(error)}
    except (ValueError, OverflowError):
        return {"reason": "its samples are not of one shape. Bring all samples to one shape."}
    if features.dtype == object:
        return {"reason": "x holds null or another value that is not a number. Clean or drop those samples."}
    if labels.ndim == 0:
        return {"reason": f"y = {shown(y)}: must be a list, one label per sample. Give as many labels as samples."}
    if features.dtype.kind == "f":
        largest = np.abs(features[np.isfinite(features)]).max(initial=0)
        if largest > np.finfo(floating).max:
            rule = f"they do not fit into {floating}. Give dtype=numpy.float64."
            return {"reason": f"x holds numbers up to {largest:g}: {rule}"}
        features = features.astype(floating)
    return {"x": features, "y": labels, "text": text}


def _characters(texts: list[Any], vocabulary: str) -> np.ndarray:
    """Return the positions in `vocabulary` of the characters of texts of one length, (n, length) int32."""
    lengths = {len(text) if isinstance(text, str) else None for text in texts}
    if len(lengths) > 1:
        raise FedpdError("its texts differ in length. Bring all to one length, e.g. LEAF's 80 characters.")
    if lengths == {0}:
        raise FedpdError("its texts are empty. Drop those samples.")
    codes = np.array(texts)[:, None].view(np.uint32)
    known = np.array([ord(character) for character in vocabulary], np.uint32)
    order = np.argsort(known)
    places = order[np.searchsorted(known, codes, sorter=order).clip(max=len(known) - 1)].astype(np.int32)
    unknown = codes[known[places] != codes]
    if unknown.size:
        raise FedpdError(
            f"character {chr(unknown[0])!r} is not in the vocabulary. Give vocabulary= with all characters."
        )
    return places
