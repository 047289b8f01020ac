"""The models at which fedpd measures a supremum over all x: the start, given models, and random models near them."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, count, positive, refuse
from fedpd.base.typed import explained
from fedpd.core import Problem, Tree

Progress = Callable[[int, int], None]  # (done, total)


class Places(NamedTuple):
    """The models at which a constant is measured."""

    models: list[Tree]
    words: str  # a description of the models
    given: int  # how many of them are not random; they come first


@explained
def region(
    problem: Problem, radius: float, samples: int, seed: int = 0, *, centres: Iterable[Tree] | None = None
) -> list[Tree]:
    """Return random models within a distance of the start, or of the given centres.

    The direction is uniform over the whole model, and the distance is uniform in [0, radius). Points uniform in volume
    would have the mean distance radius d/(d+1) in d dimensions, so that nearly all would lie close to the boundary.

    Args:
        problem: The problem.
        radius: The largest distance.
        samples: The number of models to draw.
        seed: The seed of the random models.
        centres: Models around which to draw, chosen at random; None: the start.
    """
    positive("radius", radius, "Give the largest distance from the start, e.g. 1.0")
    count("samples", samples, "Give the number of models to draw", least=0, bits=20)
    count("seed", seed, "Give the seed of the random models, e.g. 0", least=0)
    around = [problem.start] if centres is None else _models(problem, centres)
    rng = np.random.default_rng(seed)

    def draw() -> Tree:
        centre = around[int(rng.integers(len(around)))]
        move = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), centre)
        length = np.sqrt(sum(float(np.sum(leaf * leaf)) for leaf in jax.tree.leaves(move)))
        factor = radius * rng.random() / length
        return jax.tree.map(lambda leaf, part: np.asarray(leaf + factor * part, leaf.dtype), centre, move)

    return [draw() for _ in range(samples)]


def places(problem: Problem, points: Iterable[Tree] | None, radius: float, samples: int, seed: int) -> Places:
    """Return the given models (None: the start), and `samples` random models within `radius` of them."""
    centres = [problem.start] if points is None else _models(problem, points)
    count("samples", samples, "Give the number of random models to add, or 0", least=0)
    drawn = region(problem, radius, samples, seed, centres=centres) if samples else []
    given = "the start" if points is None else f"{len(centres)} given"
    if not drawn:
        words = f"at {given}" if points is None else f"at the {_points(len(centres), 'given ')}"
        return Places(centres, words, len(centres))
    near = "it" if len(centres) == 1 else "them"
    total = _points(len(centres) + len(drawn))
    words = f"at {total} ({given} and {len(drawn)} random within {radius:g} of {near})"
    return Places(centres + drawn, words, len(centres))


def check_finite(values: Any, what: str, point: int) -> None:
    """Check that the values at a point are finite, since NaN and infinity give no lower bound of a supremum."""
    if not np.isfinite(values).all():
        raise FedpdError(f"point {point}: {what} is not finite. Leave diverged models out, or lower the radius.")


def _points(number: int, word: str = "") -> str:
    """Return "1 point", "2 points" and so on."""
    return f"{number} {word}point{'' if number == 1 else 's'}"


def _models(problem: Problem, points: Iterable[Tree]) -> list[Tree]:
    """Return the given models in the problem's precision; refuse an empty list."""
    models = [as_model(problem, point, f"points[{i}]") for i, point in enumerate(points)]
    if not models:
        refuse("points", [], "must hold at least one model", "Leave it out to measure at the start")
    return models


def as_model(problem: Problem, point: Tree, name: str) -> Tree:
    """Return `point` in the problem's precision; refuse it if it is not a model of the problem."""
    tree: Tree = point.tree if isinstance(point, Vector) else point
    structure: Any = jax.tree.structure(problem.start)
    if jax.tree.structure(tree) != structure or jax.tree.map(np.shape, tree) != jax.tree.map(np.shape, problem.start):
        shapes = jax.tree.map(np.shape, problem.start)
        refuse(name, jax.tree.map(np.shape, tree), f"must have the start's shapes, {shapes}", "Give models")
    arrays = jax.tree.map(lambda leaf: as_array(leaf, name, "Give models"), tree)
    model = jax.tree.map(lambda leaf, start: leaf.astype(start.dtype), arrays, problem.start)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model)):
        raise FedpdError(f"{name} holds NaN or infinity. Leave diverged models out.")
    return model
