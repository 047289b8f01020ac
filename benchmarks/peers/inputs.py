"""The tasks. In the first two all agents take part in every round; in the others a few of many agents do.

A library's overhead dominates a round of the linear models, and arithmetic a round of the networks.
"""

import jax
import numpy as np
from flax import linen
from jax.tree_util import keystr, tree_flatten_with_path

from benchmarks.peers import models
from benchmarks.peers.task import Task
from benchmarks.workloads import AGENTS, DIMENSION, SAMPLES
from fedpd import data, networks
from fedpd.engine.participation import draw

WRITERS, IMAGES, CLASSES = 24, 100, 62
USERS, WORDS, LENGTH, TAGS = 342_477, 10_000, 20, 500


def linear() -> Task:
    """Return penalised logistic regression of `make bench`'s size, with 10 steps of 40 samples and learnable labels."""
    features, labels = data.program_strongly_noniid(AGENTS, SAMPLES, DIMENSION)
    arrays = (features.reshape(-1, DIMENSION).astype(np.float32), labels.ravel().astype(np.float32))
    return Task(
        "linear",
        "100 linear models, all in every round",
        *arrays,
        sizes=np.full(AGENTS, SAMPLES),
        cohorts=np.tile(np.arange(AGENTS), (21, 1)),
        start={"w": np.zeros(DIMENSION, np.float32)},
        batch=40,
        steps=10,
        step=0.05,
        rounding=1e-6,
    )


def cnn() -> Task:
    """Return the small network with 10 steps of 10 images: one pattern per class, and noise.

    Max-pooling has kinks, at which a rounding error becomes another gradient. Starts that differ by 3e-8 led to losses
    8e-6 apart after 5 rounds with this step size. With 0.1, one agent that crossed a kink moved all others one round
    later.
    """
    images, labels = _patterns((28, 28), CLASSES, WRITERS * IMAGES)
    return Task(
        "cnn",
        "24 small CNNs, all in every round",
        images,
        labels,
        sizes=np.full(WRITERS, IMAGES),
        cohorts=np.tile(np.arange(WRITERS), (7, 1)),
        start=_start(networks.SmallCNN(CLASSES), images[:1]),
        batch=10,
        steps=10,
        step=0.01,
        rounding=3e-5,
    )


def flute() -> Task:
    """Return FLUTE's logistic regression: 10 of 1,000 agents per round, one epoch of 60 samples in batches of 10."""
    features, labels = _patterns((784,), 10, 60_000)
    return Task(
        "softmax",
        "FLUTE's logistic regression, 10 of 1,000 agents per round",
        features,
        labels,
        sizes=np.full(1000, 60),
        cohorts=draw(0, range(100), 1000, 10),
        start=_start(models.Softmax(10), features[:1]),
        batch=10,
        steps=6,
        step=0.01,
        rounding=1e-5,
    )


def cifar() -> Task:
    """Return pfl-research's CIFAR-10 network and shapes, with images of patterns and noise.

    Kinks amplify rounding errors, as in `cnn`: starts that differ by 3e-8 led to losses 1.2e-4 apart after 5 rounds.
    """
    images, labels = _patterns((32, 32, 3), 10, 50_000)
    return Task(
        "cifar",
        "pfl-research's CIFAR-10 shape, 50 of 1,000 agents per round",
        images,
        labels,
        sizes=np.full(1000, 50),
        cohorts=draw(0, range(5), 1000, 50),
        start=_start(models.Cifar(10), images[:1]),
        batch=10,
        steps=5,
        step=0.01,
        rounding=3e-4,
    )


def stackoverflow() -> Task:
    """Return a task of StackOverflow's shape: sizes follow a power law, and an embedding predicts a post's tag.

    The sizes are 4 (1-u)^(-2/3) for uniform u, rounded down, and at most 1,000. A post of tag t has words
    whose numbers are t modulo the number of tags, and as many random words.
    """
    rng = np.random.default_rng(0)
    sizes = np.minimum(4 * (1 - rng.random(USERS)) ** (-2 / 3), 1000).astype(np.int32)
    labels = rng.integers(0, TAGS, int(sizes.sum()), dtype=np.int32)
    noise = rng.integers(0, WORDS, (len(labels), LENGTH), dtype=np.int32)
    words = np.where(rng.random(noise.shape, np.float32) < 0.5, labels[:, None] + TAGS * (noise // TAGS), noise)
    return Task(
        "tags",
        "StackOverflow's shape, 400 of 342,477 agents per round",
        words.astype(np.int32),
        labels,
        sizes=sizes,
        cohorts=draw(0, range(11), USERS, 400),
        start=_start(models.Tags(TAGS, WORDS, 16), words[:1]),
        batch=8,
        steps=4,
        step=0.5,
        rounding=1e-5,
    )


def _patterns(shape: tuple[int, ...], classes: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return learnable samples, (number, *shape), and their classes: one pattern per class, and noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, number)
    patterns = rng.random((classes, *shape), np.float32)
    return (patterns[labels] + rng.random((number, *shape), np.float32)) / 2, labels


def _start(module: linen.Module, example: np.ndarray) -> dict[str, np.ndarray]:
    leaves, _ = tree_flatten_with_path(module.init(jax.random.key(0), example)["params"])
    return {keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
