"""The two tasks: one where a library's overhead is most of a round, and one where arithmetic is."""

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from benchmarks.peers.task import Task
from benchmarks.workloads import AGENTS, DIMENSION, SAMPLES
from fedpd import data, networks

WRITERS, IMAGES, CLASSES = 24, 100, 62


def linear() -> Task:
    """Penalised logistic regression of `make bench`'s size, 10 steps of 40 samples; labels that can be learnt."""
    features, labels = data.program_strongly_noniid(AGENTS, SAMPLES, DIMENSION)
    start = {"w": np.zeros(DIMENSION, np.float32)}
    return Task("linear", features.astype(np.float32), labels.astype(np.float32), start, batch=40, step=0.05, rounds=21)


def cnn() -> Task:
    """The small network, 10 steps of 10 images: a pattern a class, and noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, (WRITERS, IMAGES))
    patterns = rng.random((CLASSES, 28, 28), np.float32)
    images = (patterns[labels] + rng.random((WRITERS, IMAGES, 28, 28), np.float32)) / 2
    variables = networks.SmallCNN(CLASSES).init(jax.random.key(0), images[0, :1])
    leaves, _ = tree_flatten_with_path(variables["params"])
    start = {keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
    return Task("cnn", images, labels, start, batch=10, step=0.1, rounds=7)
