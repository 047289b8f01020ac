"""The two tasks: a library's overhead dominates a round of the first, and arithmetic a round of the second."""

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from benchmarks.peers.task import Task
from benchmarks.workloads import AGENTS, DIMENSION, SAMPLES
from fedpd import data, networks

WRITERS, IMAGES, CLASSES = 24, 100, 62


def linear() -> Task:
    """Return penalised logistic regression of `make bench`'s size, with 10 steps of 40 samples and learnable labels."""
    features, labels = data.program_strongly_noniid(AGENTS, SAMPLES, DIMENSION)
    start = {"w": np.zeros(DIMENSION, np.float32)}
    arrays = (features.astype(np.float32), labels.astype(np.float32), start)
    return Task("linear", *arrays, batch=40, step=0.05, rounds=21, rounding=1e-6)


def cnn() -> Task:
    """Return the small network with 10 steps of 10 images: one pattern per class, and noise.

    Max-pooling has kinks, at which a rounding error becomes another gradient. Starts that differ by 3e-8 led to losses
    8e-6 apart after 5 rounds with this step size. With 0.1, one agent that crossed a kink moved all others one round
    later.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, (WRITERS, IMAGES))
    patterns = rng.random((CLASSES, 28, 28), np.float32)
    images = (patterns[labels] + rng.random((WRITERS, IMAGES, 28, 28), np.float32)) / 2
    variables = networks.SmallCNN(CLASSES).init(jax.random.key(0), images[0, :1])
    leaves, _ = tree_flatten_with_path(variables["params"])
    start = {keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
    return Task("cnn", images, labels, start, batch=10, step=0.01, rounds=7, rounding=3e-5)
