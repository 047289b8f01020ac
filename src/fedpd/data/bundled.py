"""Data that fedpd brings along: the paper's synthetic data, generated characters, and scikit-learn's digits in groups.

Of the paper: penalised logistic regression with features (N, n, D) and labels (N, n) in {-1, +1}. Features are standard
normal; the last one is the constant 1. The paper distinguishes weakly and strongly non-iid data. Its text and its
authors' program generate the strong kind differently, so both are here by name.

Characters: a stand-in for handwriting by writer, for when no such data is at hand. A class is a stroke through four
random points. Each writer draws it with its own slant, scale, shift and thickness, and draws every character a little
differently. So all writers share the classes, and no two share the pixels, which is the kind of heterogeneity that
FEMNIST has. Nothing measured on this data is a result for FEMNIST.

Digits: scikit-learn's, in groups that stand for writers: real data by client that needs no download. The 1,797 digits
are of 13 people, whom the file does not name. That its order follows them is a guess. In favour: a linear classifier
(scikit-learn's RidgeClassifier) finds the group of an image among 13 contiguous ones in 26 % of the cases in cross-
validation, and in 19 % if it is trained on the first half of each group and tested on the second; among random groups 8
%. Against: 13 groups of equal size cannot be the 13 people exactly, and the order can follow something else, such as
the day of the scan. The labels hardly differ between groups.
"""

import numpy as np

from fedpd.base.checks import below, check_room, count, positive
from fedpd.base.errors import extra
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Samples, from_arrays

FEWER = "Give fewer agents or samples, or a smaller dimension"
Data = tuple[np.ndarray, np.ndarray]


@explained
def weakly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the weakly non-iid data: labels are fair coins, independent of the features.

    The paper's text and its authors' program agree on it.

    Args:
        agents: N.
        samples: n, the samples per agent.
        dimension: D, the constant feature included.
        seed: The seed of all draws.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    return features, rng.choice((-1.0, 1.0), (agents, samples))


@explained
def strongly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the strongly non-iid data of the paper's text.

    Agent i has a model x_i uniform in [-10, 10]^D, and its labels are sign(a^T x_i + U[-1, 1]). The arguments are those
    of `weakly_noniid`.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    models = rng.uniform(-10, 10, (agents, dimension))
    margins = np.einsum("nsd,nd->ns", features, models) + rng.uniform(-1, 1, (agents, samples))
    return features, np.where(margins > 0, 1.0, -1.0)


@explained
def program_strongly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the strongly non-iid data of the authors' program.

    The models have entries of mean 20, and labels are flipped where |a^T x_i| is below a large noise: x_i has entries
    U[0, 40] + an integer in -10..10; with m = a^T x_i and t = max(all m) * N(0, 1), the label is sign(m) where |m| > t
    and -sign(m) elsewhere. The common mean and the noise make this data no more heterogeneous than the weakly non-iid
    data, despite its name. The arguments are those of `weakly_noniid`.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    models = rng.uniform(0, 40, (agents, dimension)) + rng.integers(-10, 11, (agents, dimension))
    margins = np.einsum("nsd,nd->ns", features, models)
    kept = np.abs(margins) > margins.max() * rng.standard_normal(margins.shape)
    return features, np.where((margins > 0) == kept, 1.0, -1.0)


def _features(agents: int, samples: int, dimension: int, seed: int) -> tuple[np.random.Generator, np.ndarray]:
    """Return the generator and the features, (N, n, D)."""
    count("agents", agents, "Give N")
    count("samples", samples, "Give the samples of an agent")
    count("dimension", dimension, "Give D, the constant feature included")
    count("seed", seed, "Give the seed of all draws, an integer", least=0)
    check_room(f"{agents} agents with {samples} samples of {dimension} numbers", agents * samples * dimension, FEWER)
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((agents, samples, dimension))
    features[..., -1] = 1.0
    return rng, features


POINTS = 24  # on a stroke
THICKNESS = (0.05, 0.10)  # as parts of the image


@explained
def characters(
    writers: int = 30,
    samples: int = 60,
    classes: int = 62,
    *,
    size: int = 14,
    test_share: float = 0.2,
    seed: int = 0,
) -> Federated:
    """Return generated characters by writer, an image of a stroke each.

    Args:
        writers: N, the number of writers. Each is an agent.
        samples: Characters per writer, train and test together.
        classes: K, the number of different characters.
        size: Pixels per side. Features are (size, size), float32 in [0, 1].
        test_share: The share of each writer's characters that is set aside for tests, in (0, 1).
        seed: The seed of all draws.

    Returns:
        Data of `writers` agents, named "writer 0", "writer 1" and so on.

    Examples:
        >>> from fedpd import data
        >>> data.characters(writers=3, samples=10, classes=5, size=8)
        Federated 'generated characters'
          agents   3
          samples  24 train (8 per agent), 6 test (2 per agent)
          features (8, 8) float32
          classes  5
    """
    count("writers", writers, "Give the writers, each an agent", bits=24)
    count("samples", samples, "Give the characters of a writer", least=2)
    count("classes", classes, "Give the different characters, e.g. 62", least=2)
    count("size", size, "Give the pixels of a side, e.g. 14", least=4)
    positive("test_share", test_share, "Give the part of a writer's characters that is for tests, e.g. 0.2")
    below("test_share", test_share, 1, "Leave some to train on")
    count("seed", seed, "Give the seed of all draws, an integer", least=0)
    numbers = writers * samples * size**2 + 8 * classes
    check_room(f"{writers} writers with {samples} images and {classes} classes", numbers, "Give smaller numbers")
    check_room(f"an image of {size} x {size} pixels", 2 * POINTS * size**2, "Give a smaller size")
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0.15, 0.85, (classes, 4, 2))
    train, test = {}, {}
    held = min(max(1, round(samples * test_share)), samples - 1)
    for writer in range(writers):
        one = _written(rng, corners, samples, size)
        train[f"writer {writer}"] = {"x": one["x"][held:], "y": one["y"][held:]}
        test[f"writer {writer}"] = {"x": one["x"][:held], "y": one["y"][:held]}
    return from_arrays(train, test, classes=classes, name="generated characters")


def _written(rng: np.random.Generator, corners: np.ndarray, samples: int, size: int) -> Samples:
    """Draw one writer's characters: the classes' strokes under the writer's own map of the page, with some noise."""
    hand = np.eye(2) + rng.normal(0, 0.2, (2, 2))
    shift, thickness = rng.normal(0, 0.05, 2), rng.uniform(*THICKNESS)
    labels = rng.integers(len(corners), size=samples)
    shaken = corners[labels] + rng.normal(0, 0.03, (samples, 4, 2))
    t = np.linspace(0, 1, POINTS)
    bezier = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    # Points on the cubic Bezier curves with these corners, on the writer's page, (samples, POINTS, 2).
    strokes = (np.einsum("pc,scd->spd", bezier, shaken) - 0.5) @ hand.T + 0.5 + shift
    grid = (np.arange(size) + 0.5) / size
    pixels = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    images = np.empty((samples, size, size), np.float32)
    for image, stroke in zip(images, strokes, strict=True):
        nearest = ((pixels - stroke) ** 2).sum(-1).min(1)
        image[:] = np.exp(-nearest / thickness**2).reshape(size, size)
    return {"x": images, "y": labels.astype(np.int32)}


@explained
def digits(groups: int = 13, *, test_share: float = 0.25, seed: int = 0) -> Federated:
    """Return scikit-learn's digits in contiguous groups, which stand for their writers.

    The file does not say who wrote which digit, so the groups are not the writers: a linear classifier finds an
    image's group more often than by chance (26 %, not 8 %). Labels hardly differ between groups.

    It needs `pip install 'fedpd[bench]'`, and no network.

    Args:
        groups: N, the number of groups. Each is an agent.
        test_share: The share of each group's digits that is set aside for tests, in (0, 1).
        seed: The seed that chooses them.

    Returns:
        Data of N agents, named "group 0" and so on. Features are (8, 8), float32 in [0, 1].

    Examples:
        >>> from fedpd import data
        >>> data.digits(groups=13).agents
        13
    """
    count("groups", groups, "Give the groups, each an agent, e.g. 13", least=1)
    below("groups", groups, 899, "Leave at least two digits for each")
    positive("test_share", test_share, "Give the part of a group's digits that is for tests, e.g. 0.25")
    below("test_share", test_share, 1, "Leave some to train on")
    count("seed", seed, "Give the seed, an integer", least=0)
    with extra("bench", "data.digits"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int32)
    rng, train, test = np.random.default_rng(seed), {}, {}
    for number, rows in enumerate(np.array_split(np.arange(len(y)), groups)):
        held = min(max(1, round(len(rows) * test_share)), len(rows) - 1)
        mixed = rng.permutation(rows)
        test[f"group {number}"], train[f"group {number}"] = (
            {"x": x[part], "y": y[part]} for part in (mixed[:held], mixed[held:])
        )
    return from_arrays(train, test, classes=10, name="digits")
