"""The problems of `fedpd benchmark networks`: small networks on real data, which a laptop trains in seconds to minutes.

Data come from scikit-learn, which brings them along, from Debian's package `dataset-fashion-mnist`, and from a folder
that the user names. The benchmark leaves out a problem whose data are not there.
"""

import gzip
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from fedpd import data, problems
from fedpd.core import Array, Problem
from fedpd.data import Federated
from fedpd.data.partition import divide
from fedpd.problems.networks import GRU, MLP, Conv, Dense, max_pool

FASHION = Path("/usr/share/datasets/fashion-mnist")
TESTS = 2000  # test samples, at most


class Task(NamedTuple):
    """A problem of the benchmark, with the local work that all methods do.

    Attributes:
        words: The data and the network.
        make: (folder of data) -> the problem.
        cohort: K, the agents of a round; None: all.
        iterations: Q, the local steps.
        batch: Samples per step.
        rounds: T.
        needs: Its data: a folder of this machine, or one in the folder of data; None: they come with scikit-learn.
    """

    words: str
    make: Callable[[Path], Problem]
    cohort: int | None
    iterations: int
    batch: int
    rounds: int
    needs: Path | None = None

    def is_here(self, folder: Path) -> bool:
        """Return whether its data are here."""
        return self.needs is None or (folder / self.needs).exists()


class NormalisedCNN(nn.Module):
    """Two 3x3 convolutions with batch normalisation and pooling, and scores."""

    classes: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        x = x[..., None].astype(jnp.float32)
        for channels in (8, 16):
            x = Conv(channels, size=3)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return Dense(self.classes)(x.reshape(len(x), -1))


class CNN(nn.Module):
    """Two 3x3 convolutions with pooling, and scores: 2,000 parameters for digits of 14x14 pixels."""

    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x[None]
        for channels in (8, 16):
            x = nn.relu(max_pool(Conv(channels, size=3, first=True)(x), first=True))
        return Dense(self.classes)(jnp.moveaxis(x, 0, -1).reshape(x.shape[1], -1))


class Transformer(nn.Module):
    """Two layers of attention over characters, and the scores of the next one."""

    classes: int
    width: int = 32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        places = self.param("places", nn.initializers.normal(0.02), (x.shape[1], self.width))
        x = nn.Embed(self.classes, self.width)(x.astype(jnp.int32)) + places
        for _ in range(2):
            y = nn.LayerNorm()(x)
            x = x + nn.SelfAttention(num_heads=2)(y)
            y = nn.LayerNorm()(x)
            x = x + nn.Dense(self.width)(nn.relu(nn.Dense(2 * self.width)(y)))
        return nn.Dense(self.classes)(nn.LayerNorm()(x)[:, -1])


def halved(images: np.ndarray) -> np.ndarray:
    """Return images of 28x28 bytes averaged to 14x14 numbers in [0, 1]."""
    return images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4), dtype=np.float32) / 255


def _fashion(_: Path) -> tuple[np.ndarray, ...]:
    """Return Fashion-MNIST's images and labels, for training and for tests."""

    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(FASHION / f"{name}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    parts = [
        (halved(read(f"{part}-images-idx3", 16).reshape(-1, 28, 28)), read(f"{part}-labels-idx1", 8))
        for part in ("train", "t10k")
    ]
    return *parts[0], parts[1][0][:TESTS], parts[1][1][:TESTS]


def _digits(_: Path) -> tuple[np.ndarray, ...]:
    """Return scikit-learn's 1,797 digits of 8x8 pixels, a fifth of them for tests."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8), labels[order]
    return x[360:], y[360:], x[:360], y[:360]


def by_label(
    read: Callable[[Path], tuple[np.ndarray, ...]],
    module: nn.Module,
    agents: int,
    samples: int,
    alpha: float,
    folder: Path,
) -> Problem:
    """Return a network on images that are dealt to agents by label: Dirichlet(alpha), `samples` for each agent."""
    x, y, test_x, test_y = read(folder)
    rng = np.random.default_rng(0)
    some = rng.permutation(len(y))[: agents * samples]
    parts = divide(y[some], int(y.max()) + 1, agents, alpha, rng)
    train = {str(i): {"x": x[some[rows]], "y": y[some[rows]]} for i, rows in enumerate(parts)}
    return problems.network(module, _with_tests(train, test_x, test_y))


def _with_tests(train: dict[str, Any], x: np.ndarray, y: np.ndarray) -> Federated:
    """Return federated data whose test samples are common to all agents: they are dealt out in turn."""
    names = list(train)
    tests = {name: {"x": x[i :: len(names)], "y": y[i :: len(names)]} for i, name in enumerate(names)}
    return data.from_arrays(train, {name: one for name, one in tests.items() if len(one["y"])})


def _texts(_: Path) -> dict[str, str]:
    """Return the documentation of scikit-learn's modules: one author, many subjects."""
    import sklearn

    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(sklearn.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"sklearn.{info.name}")
        parts = [inspect.getdoc(value) or "" for _, value in sorted(inspect.getmembers(module, callable))]
        text = " ".join(" ".join(parts).split())
        if len(text) >= 4000:
            found[info.name] = text[:30_000]
    return found


def _plays(folder: Path) -> dict[str, str]:
    """Return the speeches of each speaker of `shakespeare/input.txt` who has enough text."""
    text = (folder / "shakespeare" / "input.txt").read_text()
    said: dict[str, list[str]] = {}
    for speech in text.split("\n\n"):
        name, colon, words = speech.partition(":\n")
        if colon:
            said.setdefault(name, []).append(words)
    return {name: text for name, parts in said.items() if len(text := "\n".join(parts)) >= 2000}


def next_character(
    read: Callable[[Path], dict[str, str]],
    make: Callable[[int], nn.Module],
    context: int,
    most: int,
    folder: Path,
) -> Problem:
    """Return the prediction of the next character: an agent per author, a tenth of its text for tests."""
    texts = read(folder)
    alphabet = sorted({letter for text in texts.values() for letter in text.lower()})
    number = {letter: i for i, letter in enumerate(alphabet)}
    train: dict[str, Any] = {}
    tests: dict[str, Any] = {}
    for name, text in texts.items():
        codes = np.array([number[letter] for letter in text.lower()], np.int32)  # bytes would be read as pixels
        windows = np.lib.stride_tricks.sliding_window_view(codes, context + 1)
        cut = len(windows) * 9 // 10
        rng = np.random.default_rng(len(train))
        some = np.sort(rng.permutation(cut - context)[:most])
        late = cut + np.sort(rng.permutation(len(windows) - cut)[: max(10, TESTS // len(texts))])
        train[name], tests[name] = (
            {"x": windows[rows, :-1], "y": windows[rows, -1].astype(int)} for rows in (some, late)
        )
    return problems.network(make(len(alphabet)), data.from_arrays(train, tests, classes=len(alphabet)))


def _table(_: Path) -> Problem:
    """Return scikit-learn's breast cancer data; the agents are ranges of the tumours' mean radius."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    tested = np.random.default_rng(0).random(len(y)) < 0.25
    order = np.argsort(x[~tested, 0])
    parts = np.array_split(order, 10)
    train = {str(i): {"x": x[~tested][rows], "y": y[~tested][rows]} for i, rows in enumerate(parts)}
    return problems.network(MLP(2, hidden=(16,)), _with_tests(train, x[tested], y[tested]))


def by_writer(name: str, module: nn.Module, writers: int, folder: Path) -> Problem:
    """Return a network on handwriting of a Parquet file, averaged to 14x14 pixels: one agent per writer."""
    (path,) = (folder / name).glob("*.parquet")
    read = data.parquet(path, client="writer", features="image", label="label", split="split", shape=(28, 28))
    return problems.network(module, _small(read, writers))


def _small(read: Federated, writers: int) -> Federated:
    """Return the first writers with training samples, and the tests of everyone, dealt out in turn."""
    train: dict[str, Any] = {}
    for agent, one in zip(read.names, read.train, strict=True):
        if len(train) < writers and len(one["y"]):
            train[agent] = {"x": halved(np.asarray(one["x"])), "y": np.asarray(one["y"])}
    x = np.concatenate([np.asarray(one["x"]) for one in read.test])
    y = np.concatenate([np.asarray(one["y"]) for one in read.test])
    some = np.random.default_rng(0).permutation(len(y))[:TESTS]
    return _with_tests(train, halved(x[some]), y[some])


def _vehicles(folder: Path) -> Problem:
    """Return the 23 sensors of vehicle23, each with a fifth of its samples for tests."""
    path = folder / "vehicle23" / "vehicle23_train.leaf.json.gz"
    with gzip.open(path) as file:
        users = json.load(file)["user_data"]
    rows = {
        name: {"x": np.asarray(one["x"], np.float32), "y": (np.ravel(one["y"]) > 0).astype(int)}
        for name, one in users.items()
    }
    return problems.network(MLP(2, hidden=(32,)), data.split(data.from_arrays(rows), 0.2))


fashion, digits = partial(by_label, _fashion), partial(by_label, _digits)
small_gru = partial(GRU, width=32)
PERCEPTRON, DEEP, LINEAR = MLP(10, hidden=(64,)), MLP(10, hidden=(64, 64, 64)), MLP(10, hidden=())
TASKS: dict[str, Task] = {
    "fashion-skewed": Task(
        "Fashion-MNIST, Dirichlet(0.1), perceptron",
        partial(fashion, PERCEPTRON, 100, 100, 0.1),
        10,
        10,
        20,
        100,
        FASHION,
    ),
    "fashion-silos": Task(
        "Fashion-MNIST, Dirichlet(0.5), perceptron",
        partial(fashion, PERCEPTRON, 10, 600, 0.5),
        None,
        30,
        20,
        40,
        FASHION,
    ),
    "fashion-deep": Task(
        "Fashion-MNIST, Dirichlet(0.1), three layers", partial(fashion, DEEP, 100, 100, 0.1), 5, 10, 20, 100, FASHION
    ),
    "fashion-linear": Task(
        "Fashion-MNIST, Dirichlet(0.1), linear", partial(fashion, LINEAR, 100, 100, 0.1), 10, 10, 20, 100, FASHION
    ),
    "fashion-phones": Task(
        "Fashion-MNIST, Dirichlet(0.3), perceptron",
        partial(fashion, PERCEPTRON, 1000, 20, 0.3),
        10,
        4,
        10,
        150,
        FASHION,
    ),
    "digits-skewed": Task("digits, Dirichlet(0.3), perceptron", partial(digits, PERCEPTRON, 20, 70, 0.3), 4, 7, 10, 80),
    "digits-one": Task("digits, Dirichlet(0.3), perceptron", partial(digits, PERCEPTRON, 20, 70, 0.3), 1, 7, 10, 200),
    "digits-normalised": Task(
        "digits, Dirichlet(0.5), CNN with batch norm",
        partial(digits, NormalisedCNN(10), 10, 140, 0.5),
        3,
        14,
        10,
        60,
    ),
    "table": Task("breast cancer by radius, perceptron", _table, None, 8, 10, 40),
    "documents-gru": Task(
        "scikit-learn's documentation, GRU",
        partial(next_character, _texts, small_gru, 12, 400),
        5,
        20,
        20,
        60,
    ),
    "documents-attention": Task(
        "scikit-learn's documentation, transformer",
        partial(next_character, _texts, Transformer, 12, 400),
        5,
        20,
        20,
        60,
    ),
    "unipen": Task(
        "UNIPEN-62 by writer, perceptron",
        partial(by_writer, "unipen62", MLP(62, hidden=(64,)), 100),
        10,
        30,
        10,
        80,
        Path("unipen62"),
    ),
    "mnist-cnn": Task(
        "MNIST by writer, CNN",
        partial(by_writer, "mnist_by_writer", CNN(10), 300),
        10,
        12,
        10,
        80,
        Path("mnist_by_writer"),
    ),
    "vehicles": Task("vehicle sensors, perceptron", _vehicles, None, 10, 10, 40, Path("vehicle23")),
    "plays": Task(
        "Shakespeare by speaker, GRU",
        partial(next_character, _plays, small_gru, 12, 500),
        10,
        25,
        20,
        80,
        Path("shakespeare"),
    ),
}
