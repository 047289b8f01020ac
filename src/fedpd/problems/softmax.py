"""Softmax regression: logistic regression for any number of classes, on federated data."""

from dataclasses import replace
from operator import itemgetter

import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Array, Problem, Tree
from fedpd.data.federated import Federated, map_samples
from fedpd.data.lazy import Lazy
from fedpd.problems.build import Weights
from fedpd.problems.classification import classification
from fedpd.problems.logistic import largest_gram


@explained
def softmax_regression(data: Federated, *, l2: float = 0.0, weights: Weights = None) -> Problem:
    """Return softmax regression on federated data: a linear model with a bias, started at 0.

    F(x; (a, y)) is the cross entropy of softmax(W^T a + b) against y, plus (l2/2) (||W||^2 + ||b||^2). With two classes
    this is logistic regression. f is convex, and strongly convex for l2 > 0. Its answer holds an upper bound of L,
    max_i ||[A_i, 1]||^2/(2 n_i) + l2, times the largest weight if `weights` are given. For lazy data it is unknown.

    Args:
        data: Features of any shape are flattened to D numbers; uint8 becomes [0, 1]. Call `data.standardise`
            first if features differ widely in size: gradient methods need many more rounds otherwise.
        l2: The weight of the squared norm.
        weights: As for `from_losses`: None for the plain mean of the agents, "samples" for the mean over all samples.

    Returns:
        A problem whose model is {"weights": (D, K), "bias": (K,)}, in float64 if the features are, else in float32.

    Examples:
        >>> from fedpd import problems
        >>> from fedpd.data import from_arrays
        >>> left, right = {"x": [[0.0], [1.0]], "y": [0, 1]}, {"x": [[0.2], [0.9]], "y": [0, 1]}
        >>> problem = problems.softmax_regression(from_arrays({"left": left, "right": right}), l2=0.1)
        >>> problem.start["weights"].shape, round(problem.answer.smoothness, 3)
        ((1, 2), 0.767)
    """
    kind = data.dtype
    if len(data.classes) < 2:
        refuse(
            "classes", data.classes.tolist(), "must be two or more", "Check the labels, or give classes= to the loader"
        )
    dtype = np.float64 if kind == np.float64 else np.float32
    width, classes = int(np.prod(data.shape)), len(data.classes)
    start = {"weights": np.zeros((width, classes), dtype), "bias": np.zeros(classes, dtype)}

    def scores(model: Tree, x: Array) -> Array:
        return jnp.reshape(x, (len(x), -1)).astype(dtype) @ model["weights"] + model["bias"]

    problem = classification(scores, data, start, l2=l2, weights=weights, check=False)
    if isinstance(data.train, Lazy):
        return problem
    features, divisor = map_samples(data.train, itemgetter("x")), 255 if kind == np.uint8 else 1
    # The Hessian of the cross entropy in the scores is at most 1/2.
    largest = largest_gram(features, problem.scale, divisor, constant=1) / 2
    return replace(problem, answer=Answer(smoothness=largest + l2 * float(problem.scale.max())))
