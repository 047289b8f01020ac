"""The functions of a problem without its arrays, as compiled programs use them."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.identity import drop_stale_programs
from fedpd.core import Losses, Penalty, Problem, RandomLosses, Statistics, Tree
from fedpd.core.frozen import WithFrozen
from fedpd.core.problem import NamedMetrics

BLOCK = 64  # number of samples that a full gradient of a large model takes at a time
LARGE_GRADIENT = 2**23  # a model is large if parameters times samples of the largest agent reach this number


class Functions(NamedTuple):
    """The functions of a problem, without its arrays. It is hashable.

    Attributes:
        losses: F of training samples.
        penalty: The part of F that does not depend on a sample.
        correct: Whether the model classifies a sample correctly; None: there are no test samples, or it is unknown.
        block: The number of samples that a full gradient takes at a time; None: all of them.
        test_losses: F of test samples; None: `losses`.
        statistics: The statistics that normalise a batch; None: the model has none.
        random: F of training samples with random layers, drawn from a key; None: the model has none.
        metrics: What else is measured on test samples.
    """

    losses: Losses
    penalty: Penalty | None
    correct: Losses | None = None
    block: int | None = None
    test_losses: Losses | None = None
    statistics: Statistics | None = None
    random: RandomLosses | None = None
    metrics: NamedMetrics = ()

    @staticmethod
    def of(problem: Problem) -> "Functions":
        """Return the functions of a problem, as they are now: their globals may have changed since the last call."""
        large = problem.dimension * int(problem.sizes.max()) > LARGE_GRADIENT
        flat = problem.offsets is not None or problem.load is not None
        block = problem.block or (BLOCK if large else block_for(problem.sizes) if flat else None)
        evaluation = problem.evaluation
        correct, test_losses = (None, None) if evaluation is None else (evaluation.correct, evaluation.losses)
        metrics = () if evaluation is None else evaluation.measured(problem.losses)
        rest = problem.statistics, problem.random, metrics
        functions = Functions(problem.losses, problem.penalty, correct, block, test_losses, *rest)
        drop_stale_programs(functions.without_frozen()[0])
        return functions

    def without_frozen(self) -> tuple["Functions", Tree | None]:
        """Return the functions with the frozen arrays as their first argument, and these arrays; None: there are none.

        Compiled programs take the arrays as an argument: as constants, each program would hold a copy of them.
        """
        if not isinstance(self.losses, WithFrozen):
            return self, None
        functions = Functions(*(_bare(one) for one in self))
        metrics = tuple((name, metric._replace(values=_bare(metric.values))) for name, metric in self.metrics)
        return functions._replace(metrics=metrics), self.losses.frozen

    def with_frozen(self, frozen: Tree | None) -> "Functions":
        """Return functions of `without_frozen` with these arrays, which may be traced."""
        if frozen is None:
            return self
        own = self._replace(penalty=None, block=None, metrics=())
        parts: list[Any] = [partial(one, frozen) if callable(one) else None for one in own]
        bound = Functions(*parts)
        metrics = tuple((name, metric._replace(values=partial(metric.values, frozen))) for name, metric in self.metrics)
        return bound._replace(penalty=self.penalty, block=self.block, metrics=metrics)


def _bare(function: Any) -> Any:
    return function.function if isinstance(function, WithFrozen) else function


def block_for(sizes: np.ndarray) -> int:
    """Return the number of samples that a full gradient of flat rows takes at a time: few if most agents have few.

    The 8 samples that a block costs beside its own are a guess. One noisy measurement supports small blocks: with 1,000
    agents that have 1 to 5,000 samples and 20 parameters, a round of 4 full gradients took 15 ms in blocks of 16, 36 ms
    in blocks of 32, and 32 ms in blocks of 64.
    """
    costs = {block: int((-(-sizes // block)).sum(dtype=np.int64)) * (block + 8) for block in (16, 32, 64)}
    return min(costs, key=costs.__getitem__)
