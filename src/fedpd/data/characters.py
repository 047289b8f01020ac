"""Generated characters: a stand-in for handwriting by writer, for when no such data is at hand.

A class is a stroke through four random points. Each writer draws it with its own slant, scale, shift and thickness, and
draws every character a little differently. So all writers share the classes, and no two share the pixels, which is the
kind of heterogeneity that FEMNIST has. Nothing measured on this data is a result for FEMNIST.
"""

import numpy as np

from fedpd.base.checks import below, check_room, count, positive
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Samples, from_arrays

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
    strokes = (_stroke(shaken) - 0.5) @ hand.T + 0.5 + shift  # (samples, POINTS, 2)
    grid = (np.arange(size) + 0.5) / size
    pixels = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    images = np.empty((samples, size, size), np.float32)
    for image, stroke in zip(images, strokes, strict=True):
        nearest = ((pixels - stroke) ** 2).sum(-1).min(1)
        image[:] = np.exp(-nearest / thickness**2).reshape(size, size)
    return {"x": images, "y": labels.astype(np.int32)}


def _stroke(corners: np.ndarray) -> np.ndarray:
    """Return points on the cubic Bezier curves with these four corners, (samples, 4, 2) -> (samples, POINTS, 2)."""
    t = np.linspace(0, 1, POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return np.einsum("pc,scd->spd", weights, corners)
