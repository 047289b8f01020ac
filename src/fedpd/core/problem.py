"""The type of a problem: the agents' losses and data, and the known facts about its solution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np

from fedpd.base.checks import refuse
from fedpd.core.types import Losses, Penalty, Statistics, Tree


class Answer(NamedTuple):
    """The known facts about a problem, for tests and theory: a minimiser of f, smoothness L, heterogeneity delta."""

    minimiser: Tree | None = None
    smoothness: float | None = None
    heterogeneity: float | None = None


UNKNOWN = Answer()


class Evaluation(NamedTuple):
    """The test samples of a problem, and a function that says which of them a model classifies correctly."""

    correct: Losses  # (model, batch) -> (B,), 1 where the model is right and 0 where it is wrong
    data: Tree  # (N, m, ...) test samples; agents with fewer are padded with their own, or, if they have none, others'
    sizes: np.ndarray  # (N,), 0 for an agent without test samples
    losses: Losses | None = None  # F of test samples; None: the problem's own losses


@dataclass(frozen=True, eq=False)
class Problem:
    """min_x f(x) = (1/N) sum_i f_i(x),  f_i(x) = w_i sum_{xi in D_i} F(x; xi),  F(x; xi) = losses + penalty.

    data:   pytree of NumPy arrays (N, n, ...), n the largest |D_i|; smaller agents are padded with their own samples.
    sizes:  (N,) the |D_i|.
    scale:  (N,) w_i |D_i|: 1 for the default w_i = 1/|D_i|, which makes f_i a mean and f their plain average.
    start:  the model x^0.
    double: whether fedpd computes in float64.
    block:  the size of the batches that f_i consists of, if a sample's loss depends on its batch (batch
            normalisation). The batches take the agent's samples in order. The first samples fill up the last batch,
            and their losses are not summed again. None: F depends on its own sample only.
    statistics: returns the statistics that normalise a batch. The functions of `evaluation` then receive (model,
            statistics) in place of the model, with the mean of the statistics over the agent's own batches. None: the
            functions receive the model.
    """

    losses: Losses
    penalty: Penalty | None
    data: Tree
    sizes: np.ndarray
    scale: np.ndarray
    start: Tree
    double: bool
    answer: Answer = UNKNOWN
    name: str = "problem"
    evaluation: Evaluation | None = None
    block: int | None = None
    statistics: Statistics | None = None

    @property
    def agents(self) -> int:
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """M, the number of samples of all agents."""
        return int(self.sizes.sum())

    @property
    def dimension(self) -> int:
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start))

    def subset(self, agents: Sequence[int] | np.ndarray) -> "Problem":
        """Return the problem of some of the agents, in which f is the mean of their f_i.

        Args:
            agents: The numbers of the agents to keep, from 0 to N - 1, in their new order.

        Returns:
            A problem with the samples, weights and test samples of these agents. `answer` is kept if all agents are
            kept, and is unknown otherwise.

        Raises:
            FedpdError: If there is no such agent.
        """
        kept = np.asarray(agents)
        numbers = kept.ndim == 1 and kept.size > 0 and kept.dtype.kind in "iu"
        if not numbers or kept.min() < 0 or kept.max() >= self.agents:
            rule = f"must be a list of numbers from 0 to {self.agents - 1}"
            refuse("agents", kept.tolist(), rule, "Give e.g. [0, 1]")

        def some(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: leaf[kept], tree)

        tests = self.evaluation
        return replace(
            self,
            data=some(self.data),
            sizes=self.sizes[kept],
            scale=self.scale[kept],
            answer=self.answer if np.array_equal(np.sort(kept), np.arange(self.agents)) else UNKNOWN,
            evaluation=tests and tests._replace(data=some(tests.data), sizes=tests.sizes[kept]),
        )

    def __repr__(self) -> str:
        least, most = int(self.sizes.min()), int(self.sizes.max())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        tests = "" if self.evaluation is None else f"; {int(self.evaluation.sizes.sum()):,} test samples"
        return "\n".join(
            (
                f"Problem {self.name!r}",
                f"  agents      {self.agents:,}",
                f"  samples     {self.samples:,}, {each} per agent{tests}",
                f"  parameters  {self.dimension:,}, {'float64' if self.double else 'float32'}",
                f"  known       {_known(self.answer)}",
            )
        )


def _known(answer: Answer) -> str:
    words = [] if answer.minimiser is None else ["a minimiser"]
    words += [] if answer.smoothness is None else [f"smoothness L = {answer.smoothness:.3g}"]
    words += [] if answer.heterogeneity is None else [f"heterogeneity delta = {answer.heterogeneity:.3g}"]
    return ", ".join(words) or "nothing"
