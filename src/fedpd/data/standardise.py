"""Scale features by statistics that all agents share, computed from sums over the agents.

Every feature becomes (x - mean)/scale, where mean and scale are those of all training samples together. An agent
contributes only a count and two sums (`moments`), so a federation can compute the same statistics in two rounds:

    1. Every client sends moments(x). The server adds them up: mean = total/count.
    2. Every client sends moments(x, mean). The server adds them up and calls scaling_from(sum, mean).

The second round sums squares of distances from the mean. Squares of the features themselves would lose all digits where
the mean is large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedpd.base.arrays import as_array, check_finite
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Samples, common_dtype, map_samples
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged

T = TypeVar("T", Federated, np.ndarray, list)
CONSTANT = 64 * np.finfo(np.float64).eps  # if scale/|mean| is at most this, the feature is constant up to rounding
FORMS = "Give Federated data, an array (N, n, ...), or a list with the features (n_i, ...) of each agent"


class Moments(NamedTuple):
    """Sums over samples, which add up over agents.

    Attributes:
        count: The number of samples.
        total: The sum of x - shift, in the shape of a sample, float64.
        squares: The sum of (x - shift)^2, in the shape of a sample, float64.
    """

    count: int  # type: ignore[assignment]  # it hides tuple.count, which fedpd does not use
    total: np.ndarray
    squares: np.ndarray

    def plus(self, other: "Moments") -> "Moments":
        """Return the sums over the samples of both."""
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)


class Scaling(NamedTuple):
    """The statistics that features are scaled by.

    Attributes:
        mean: The mean of each feature, float64.
        scale: The standard deviation of each feature, float64; 1 where the feature is constant.
    """

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, x: Any) -> np.ndarray:
        """Return (x - mean)/scale: features of test samples or of a new client, scaled like the training samples.

        Args:
            x: Features, (n, ...), or (...) of one sample.

        Returns:
            An array of the same shape, float64 if `x` is, otherwise float32.
        """
        x = check_finite(as_array(x, "x", FORMS), "x", "Clean or drop those samples")
        if x.shape[x.ndim - self.mean.ndim :] != self.mean.shape:
            rule = f"must end in {self.mean.shape}, the shape of a sample"
            refuse("shape of x", x.shape, rule, "Give the same features in the same order")
        dtype = common_dtype([x.dtype, np.dtype(np.float32)])
        return ((x - self.mean) / self.scale).astype(dtype)  # mean is float64, so nothing is lost before the division


@explained
def moments(x: Any, shift: Any = 0.0) -> Moments:
    """Return the number of samples, the sum of x - shift and the sum of its squares, in float64.

    Args:
        x: Features of one agent, (n, ...).
        shift: A number, or one per feature in the shape of a sample.

    Examples:
        >>> from fedpd import data
        >>> data.moments([[1.0, 5.0], [3.0, 5.0]], shift=[2.0, 5.0])
        Moments(count=2, total=array([0., 0.]), squares=array([2., 0.]))
    """
    x = check_finite(_numbers(x, "x"), "x", "Clean or drop those samples")
    away = x - _shift(shift, x.shape[1:])
    return Moments(len(x), away.sum(axis=0), (away * away).sum(axis=0))


@explained
def scaling_from(summed: Moments, shift: Any = 0.0) -> Scaling:
    """Return mean and scale from the sums of all agents.

    Args:
        summed: The sum of all agents' `moments(x, shift)`.
        shift: The shift that they were computed with; the mean from a first round of sums keeps all digits.

    Examples:
        >>> from fedpd import data
        >>> data.scaling_from(data.moments([[1.0, 5.0], [3.0, 5.0]]))
        Scaling(mean=array([2., 5.]), scale=array([1., 1.]))
    """
    if not summed.count:
        refuse("count", summed.count, "there are no samples to compute statistics of", "Sum over agents with samples")
    offset = summed.total / summed.count
    mean = offset + _shift(shift, offset.shape)
    deviation = np.sqrt(np.maximum(summed.squares / summed.count - offset * offset, 0))
    return Scaling(mean, np.where(deviation <= CONSTANT * np.abs(mean), 1.0, deviation))


@explained
def standardise(data: T, scaling: Scaling | None = None) -> tuple[T, Scaling]:
    """Return data whose features have mean 0 and standard deviation 1 over all agents, and the statistics.

    All agents are scaled by the same numbers, so their data differ as before. A constant feature becomes 0: add a
    column of ones afterwards if the model needs one. Labels stay as they are.

    Args:
        data: `Federated` data, an array (N, n, ...), or a list with the features (n_i, ...) of each agent.
        scaling: Statistics from an earlier call, for test data or new agents; None: those of these training samples.

    Returns:
        Data of the same form, float64 if the features are and otherwise float32, and the statistics. The test samples
        of `Federated` data are scaled by the statistics of the training samples.

    Raises:
        FedpdError: The data hold no samples, samples of different shapes, or numbers that are not finite.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> scaled, scaling = data.standardise([np.array([[1.0], [3.0]]), np.array([[5.0], [7.0]])])
        >>> scaling.mean, scaling.scale**2
        (array([4.]), array([5.]))
        >>> scaling.apply([[4.0]])
        array([[0.]])
    """
    if scaling is not None and not isinstance(scaling, Scaling):
        refuse("scaling", type(scaling).__name__, "must be a Scaling", "Give the second result of an earlier call")
    if isinstance(data, Federated):
        used = _federated_scaling(data) if scaling is None else scaling
        train, test = (map_samples(part, partial(_scaled, used)) for part in (data.train, data.test))
        return replace(data, train=train, test=test), used
    if isinstance(data, Mapping) or not isinstance(data, np.ndarray | Sequence) or isinstance(data, str):
        refuse("data", type(data).__name__, "must be data by agent", FORMS)
    if isinstance(data, np.ndarray) and data.ndim < 3:
        rule = "must have the axes of agents, samples and features"
        refuse("shape of data", data.shape, rule, "Give (N, n, D), or [x] for the samples x of one agent")
    features = [_numbers(x, f"data of agent {i}") for i, x in enumerate(data)]
    used = _scaling(features, range(len(features))) if scaling is None else scaling
    scaled = [used.apply(x) for x in features]
    return (np.stack(scaled) if isinstance(data, np.ndarray) else scaled), used


def _federated_scaling(data: Federated) -> Scaling:
    """Return the statistics of the training samples; ragged samples count as those of one agent."""
    if isinstance(data.train, Ragged):
        return _scaling([data.train.rows["x"]], ["all"])
    if isinstance(data.train, Lazy):
        remedy = "Give scaling= from standardise(data.take(d, range(1000)).in_memory()), or call d.in_memory()"
        refuse("data", data.name, "is not in memory, and its statistics need all samples", remedy)
    return _scaling([samples["x"] for samples in data.train], list(data.names))


def _scaled(scaling: Scaling, samples: Samples) -> Samples:
    return {"x": scaling.apply(samples["x"]), "y": samples["y"]}


def _numbers(x: Any, where: str) -> np.ndarray:
    x = as_array(x, where, FORMS)
    if x.ndim == 0:
        refuse(f"shape of {where}", x.shape, "must have an axis of samples", FORMS)
    return x


def _shift(shift: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a shift as float64, of one number or in the shape of a sample."""
    numbers = check_finite(as_array(shift, "shift", "Give one number per feature").astype(np.float64), "shift")
    if numbers.shape not in ((), shape):
        refuse("shape of shift", numbers.shape, f"must be (), or {shape} as a sample", "Give one number per feature")
    return numbers


def _scaling(features: Sequence[np.ndarray], agents: Sequence[Any]) -> Scaling:
    """Return the statistics of all agents' samples by two rounds of sums."""
    held = [(agent, x) for agent, x in zip(agents, features, strict=True) if len(x)]
    if not held:
        refuse("samples", 0, "there are no samples to compute statistics of", FORMS)
    first, shape = held[0][0], held[0][1].shape[1:]
    for agent, x in held:
        if x.shape[1:] != shape:
            rule = f"must be {shape}, as for agent {first!r}"
            refuse(f"shape of a sample of agent {agent!r}", x.shape[1:], rule, "Bring all samples to one shape")
        if not np.isfinite(x).all():
            raise FedpdError(f"data of agent {agent!r} holds NaN or infinity. Clean or drop those samples.")
    summed = reduce(Moments.plus, [moments(x) for _, x in held])
    mean = summed.total / summed.count
    return scaling_from(reduce(Moments.plus, [moments(x, mean) for _, x in held]), mean)
