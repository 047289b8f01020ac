"""The type of a problem: the agents' losses and data, and the known facts about its solution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedpd.base import checkpoint
from fedpd.base.arrays import as_array
from fedpd.base.checks import below, positive, refuse
from fedpd.core.rows import Load, first_rows, flat_rows, stored
from fedpd.core.vectors import Array, Losses, Penalty, RandomLosses, Statistics, Tree

LossOfAgent = Callable[[Tree, Tree, Array], Array]  # (model, samples (n, ...), mask (n,)) -> scalar


class Answer(NamedTuple):
    """The known facts about a problem, for tests and theory: a minimiser of f, smoothness L, heterogeneity delta."""

    minimiser: Tree | None = None
    smoothness: float | None = None
    heterogeneity: float | None = None


UNKNOWN = Answer()


Over = Literal["samples", "agents"]


class Metric(NamedTuple):
    """A number to measure on test samples: a mean over samples, its root or exponential, or another function of them.

    Attributes:
        values: Returns one number per sample, (B,), or one per part of a sample, (B, ...), for example per token. The
            mean is over all of them. NaN does not count, for example the error of a missing target. The arguments are
            (outputs, targets) where a problem is built, and (model, batch) inside of a problem and of a Flower client.
        of_mean: "exp" for the exponential of the mean (perplexity), "sqrt" for its root (RMSE), or "" for the mean.
        better: Whether "less" or "more" is better.
        words: The label of an axis; "": the metric's name.
        of_sum: Returns the metric from the sum of the values over the samples, for example from counts by class, in
            place of a mean. It has the shape of one sample's values.
        of_all: Returns the metric from the values of all samples, (n, ...), and which of them are samples, (n,) of
            bool, in place of a mean: a rank statistic, for example.
        over: "samples": the metric of the test samples of all agents together. "agents": the mean of the agents' own
            metrics. Agents for which it is NaN are left out, such as the AUC of an agent with one class only.
    """

    values: Losses
    of_mean: Literal["", "exp", "sqrt"] = ""
    better: Literal["less", "more"] = "less"
    words: str = ""
    of_sum: Callable[[Array], Array] | None = None
    of_all: Callable[[Array, Array], Array] | None = None
    over: Over = "samples"


NamedMetrics = tuple[tuple[str, Metric], ...]  # the name of each metric, and the metric


class Evaluation(NamedTuple):
    """The test samples of a problem, and the functions that are measured on them."""

    correct: Losses | None  # (model, batch) -> (B,), 1 where the model is right and 0 where it is wrong; None: unknown
    data: Tree  # (N, m, ...) test samples; agents with fewer are padded with their own, or, if they have none, others'
    sizes: np.ndarray  # (N,), 0 for an agent without test samples
    losses: Losses | None = None  # F of test samples; None: the problem's own losses
    offsets: np.ndarray | None = None  # (N,) as `Problem.offsets`, for leaves (M, ...) of `data`
    load: Load | None = None  # as `Problem.load`
    metrics: NamedMetrics = ()  # of (model, batch)

    def measured(self, losses: Losses) -> NamedMetrics:
        """Return all metrics: the test loss, unless the accuracies include it, and the user's own.

        Args:
            losses: The problem's own losses.
        """
        own = (("test_loss", Metric(self.losses or losses)),) if self.correct is None else ()
        return own + self.metrics


class Judge(NamedTuple):
    """The functions that measure a model on samples that belong to no agent, such as a central test set."""

    # (the samples as the user has them) -> the samples as the problem holds them, with labels as numbers of the
    # classes, for example. It refuses names and labels that the problem does not have
    hold: Callable[[Tree], Tree]
    correct: Losses | None = None  # as in `Evaluation`
    losses: Losses | None = None  # F of these samples; None: the problem's own losses
    metrics: NamedMetrics = ()  # as in `Evaluation`
    asked: bool = False  # whether the user gave the metrics, so that a run without any test samples is refused


@dataclass(frozen=True, eq=False)
class Problem:
    """min_x f(x) = (1/N) sum_i f_i(x),  f_i(x) = w_i sum_{xi in D_i} F(x; xi),  F(x; xi) = losses + penalty.

    data:   pytree of NumPy arrays (N, n, ...), n the largest |D_i|; smaller agents are padded with their own samples.
            With `offsets`: (M, ...), agent after agent, without padding. With `load`: (0, ...), the shape of a sample.
    sizes:  (N,) the |D_i|.
    scale:  (N,) w_i |D_i|: 1 for the default w_i = 1/|D_i|, which makes f_i a mean and f their plain average.
    start:  the model x^0.
    double: whether fedpd computes in float64.
    block:  the size of the batches that f_i consists of, if a sample's loss depends on its batch (batch
            normalisation, dropout, contrastive losses): the agent's samples in order. The first samples fill up the
            last batch, and are not summed again. None: F depends on its own sample only.
    statistics: returns the statistics that normalise a batch. The functions of `evaluation` then receive (model, the
            mean of the statistics over the agent's own batches) in place of the model. None: they receive the model.
    offsets: (N,) the row of `data` where each agent's samples begin. None: `data` has an axis of agents.
    load:   returns the samples of some agents, which are not in memory. None: `data` holds them.
    random: the losses of local steps of a model with dropout, drawn from a key; `losses` are without dropout.
    names:  (N,) the names of the agents, e.g. hospitals, which reports show. None: the data have none.
    judge:  the functions that measure samples of nobody, see `simulate(test=...)`. None: only their losses.
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
    offsets: np.ndarray | None = None
    load: Load | None = None
    random: RandomLosses | None = None
    names: Sequence[str] | np.ndarray | None = None
    judge: Judge | None = None

    @property
    def agents(self) -> int:
        return len(self.sizes)

    @property
    def samples(self) -> int:
        """M, the number of samples of all agents."""
        return int(self.sizes.sum())

    @property
    def lazy(self) -> bool:
        """Whether training or test samples are not in memory."""
        return self.load is not None or (self.evaluation is not None and self.evaluation.load is not None)

    @cached_property
    def data_hash(self) -> str:
        """The hash of the samples in memory and their weights, computed once, at 1.8 GB per second."""
        return checkpoint.fingerprint(self.data, self.sizes, self.scale)

    @cached_property
    def tests_hash(self) -> str:
        """The hash of the test samples in memory."""
        tests = () if self.evaluation is None else (self.evaluation.data, self.evaluation.sizes)
        return checkpoint.fingerprint(*tests)

    @property
    def depends_on_batch(self) -> bool:
        """Whether the loss of a sample depends on the other samples of its batch (batch normalisation, `block=`).

        A model with dropout alone has blocks for another reason.
        """
        return self.statistics is not None or (self.block is not None and self.random is None)

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
        kept = as_array(agents, "agents", f"Give numbers from 0 to {self.agents - 1}")
        numbers = kept.ndim == 1 and kept.size > 0 and kept.dtype.kind in "iu"
        if not numbers or kept.min() < 0 or kept.max() >= self.agents:
            rule = f"must be a list of numbers from 0 to {self.agents - 1}"
            refuse("agents", kept.tolist(), rule, "Give e.g. [0, 1]")
        data, offsets, load = _subset(self.data, self.sizes, self.offsets, self.load, kept)
        return replace(
            self,
            data=data,
            sizes=self.sizes[kept],
            scale=self.scale[kept],
            answer=self.answer if np.array_equal(np.sort(kept), np.arange(self.agents)) else UNKNOWN,
            evaluation=None if self.evaluation is None else _subset_of_tests(self.evaluation, kept),
            offsets=offsets,
            load=load,
            names=None if self.names is None else np.asarray(self.names)[kept],
        )

    def hold_out(self, share: float, seed: int = 0) -> tuple["Problem", "Problem"]:
        """Return the problem without a share of each agent's samples, and the problem of these samples.

        Args:
            share: The share of the samples of each agent, rounded to a whole number. An agent keeps at least one.
            seed: Which samples they are.

        Returns:
            The problem to train on, with the test samples of this one; and the problem of the other samples, without
            test samples, whose agents are those that have any. Both have this one's losses, penalty and weights.

        Raises:
            FedpdError: The share leaves nothing, or the samples are not in memory.
        """
        remedy = "Give a share of the samples between 0 and 1, e.g. 0.1"
        below("share", positive("share", share, remedy), 1, remedy)
        if self.lazy:
            refuse("share", share, "needs the samples in memory", "Give problem.in_memory()")
        numbers = np.minimum(np.rint(share * self.sizes).astype(int), self.sizes - 1)
        if not numbers.any():
            refuse("share", share, f"holds out no sample: the largest agent has {self.sizes.max()}", remedy)
        rows, firsts = self.rows_of(np.arange(self.agents))
        orders = [first + np.random.default_rng((seed, i)).permutation(self.sizes[i]) for i, first in enumerate(firsts)]
        kept = np.concatenate([np.sort(order[number:]) for order, number in zip(orders, numbers, strict=True)])
        held = np.concatenate([np.sort(order[:number]) for order, number in zip(orders, numbers, strict=True)])
        some = numbers > 0
        rest = self._with_rows(jax.tree.map(lambda leaf: leaf[kept], rows), self.sizes - numbers, self.scale)
        out = self._with_rows(jax.tree.map(lambda leaf: leaf[held], rows), numbers[some], self.scale[some])
        return rest, replace(out, evaluation=None, names=None if self.names is None else np.asarray(self.names)[some])

    def _with_rows(self, rows: Tree, sizes: np.ndarray, scale: np.ndarray) -> "Problem":
        """Return the problem with other samples, agent after agent."""
        data, offsets = stored(rows, sizes)
        return replace(self, data=data, offsets=offsets, sizes=sizes, scale=scale, answer=UNKNOWN)

    def rows_of(self, agents: Sequence[int] | np.ndarray) -> tuple[Tree, np.ndarray]:
        """Return the training samples of some agents, from memory or from the loader of `data.lazy`.

        Args:
            agents: (k,) the numbers of the agents.

        Returns:
            Their samples one after another, leaves (sum of their n_i, ...), and (k,) the first row of each agent.
        """
        chosen = np.asarray(agents)
        rows = flat_rows(self.data, self.sizes, self.offsets, chosen) if self.load is None else self.load(chosen)
        return rows, first_rows(self.sizes[chosen])

    def test_rows_of(self, agents: Sequence[int] | np.ndarray) -> tuple[Tree, np.ndarray]:
        """Return the test samples of some agents as `rows_of` does; the problem must have an evaluation."""
        chosen, tests = np.asarray(agents), self.evaluation
        assert tests is not None  # callers check that there are test samples
        rows = flat_rows(tests.data, tests.sizes, tests.offsets, chosen) if tests.load is None else tests.load(chosen)
        return rows, first_rows(tests.sizes[chosen])

    def in_memory(self) -> "Problem":
        """Return the problem with all samples in memory; a problem of `data.lazy` loads them, another is unchanged."""
        problem, everyone, tests = self, np.arange(self.agents), self.evaluation
        if tests is not None and tests.load is not None:
            data, offsets = stored(self.test_rows_of(everyone)[0], tests.sizes)
            problem = replace(problem, evaluation=tests._replace(data=data, offsets=offsets, load=None))
        if self.load is not None:
            data, offsets = stored(self.rows_of(everyone)[0], self.sizes)
            problem = replace(problem, data=data, offsets=offsets, load=None)
        return problem

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


def _subset(
    data: Tree, sizes: np.ndarray, offsets: np.ndarray | None, load: Load | None, kept: np.ndarray
) -> tuple[Tree, np.ndarray | None, Load | None]:
    """Return the data, the offsets and the loader of some of the agents."""
    if load is not None:
        return data, None, partial(_load_kept, load, kept)
    if offsets is None:
        return jax.tree.map(lambda leaf: leaf[kept], data), None, None
    return flat_rows(data, sizes, offsets, kept), first_rows(sizes[kept]), None


def _subset_of_tests(tests: Evaluation, kept: np.ndarray) -> Evaluation:
    """Return the evaluation on the test samples of some of the agents."""
    data, offsets, load = _subset(tests.data, tests.sizes, tests.offsets, tests.load, kept)
    return tests._replace(data=data, sizes=tests.sizes[kept], offsets=offsets, load=load)


def _load_kept(load: Load, kept: np.ndarray, agents: np.ndarray) -> Tree:
    """Return the samples of some of the kept agents."""
    return load(kept[agents])


def _known(answer: Answer) -> str:
    words = [] if answer.minimiser is None else ["a minimiser"]
    words += [] if answer.smoothness is None else [f"smoothness L = {answer.smoothness:.3g}"]
    words += [] if answer.heterogeneity is None else [f"heterogeneity delta = {answer.heterogeneity:.3g}"]
    return ", ".join(words) or "nothing"


@dataclass(frozen=True)
class AgentLoss:
    """The `losses` of a problem that has one loss per agent in place of one per sample."""

    loss: LossOfAgent  # (model, samples, mask) -> scalar; the mask is 1 for samples and 0 for padding

    def __call__(self, model: Tree, batch: tuple[Tree, Array]) -> Array:
        samples, mask = batch
        return self.loss(model, samples, mask)


@dataclass(frozen=True, eq=False)
class WithFrozen:
    """A function of a problem whose first argument is the frozen arrays. It is called without them.

    A function that captured the arrays would copy them into every compiled program. The engine takes `function` and
    `frozen` apart instead, and gives the arrays to its programs as an argument: they are in memory once.
    """

    function: Callable[..., Any]  # (frozen, ...) -> the value, such as (frozen, model, batch) -> losses
    frozen: Tree  # the frozen arrays

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.frozen, *arguments)
