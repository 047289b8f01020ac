"""The central test set: samples that belong to no agent, on which the server measures its model."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base import checkpoint
from fedpd.base.arrays import as_array, check_finite, owned
from fedpd.base.checks import refuse
from fedpd.base.identity import fingerprint
from fedpd.base.precision import as_numpy
from fedpd.core import Metric, Problem, Tree
from fedpd.core.problem import Judge, NamedMetrics
from fedpd.data.partition import read_npz
from fedpd.engine.measure.columns import CENTRAL_ACCURACY, CENTRAL_LOSS

LAYOUT = 'Give samples in the form of one agent\'s, e.g. {"x": x_test, "y": y_test}'


class CentralTest(NamedTuple):
    """A central test set as the problem holds samples, and what is measured on it."""

    rows: Tree  # the samples, leaves (m, ...)
    metrics: NamedMetrics  # what is measured, by the names of the columns

    def identity(self) -> dict[str, str]:
        """Return hashes of the samples and of the functions. A run resumes with the same ones only."""
        return {"samples": checkpoint.fingerprint(self.rows), "functions": fingerprint(self.metrics)}


def central_test(problem: Problem, test: Any) -> CentralTest:
    """Return the central test set of a run.

    Raises:
        FedpdError: The samples do not have the names, shapes, types or labels of the problem's own.
    """
    judge = problem.judge or Judge(hold=lambda samples: samples)
    rows = judge.hold(read_npz(test) if isinstance(test, str | Path) else test)
    return CentralTest(_fitted(problem, rows), _metrics(problem, judge))


def _metrics(problem: Problem, judge: Judge) -> NamedMetrics:
    """Return what is measured: the accuracy if the problem knows what is correct, the loss, and its metrics."""
    right = () if judge.correct is None else ((CENTRAL_ACCURACY, Metric(judge.correct, better="more")),)
    own = tuple((f"central_{name}", metric) for name, metric in judge.metrics)
    return (*right, (CENTRAL_LOSS, Metric(judge.losses or problem.losses)), *own)


def _fitted(problem: Problem, rows: Tree) -> Tree:
    """Return the samples in the precision of the problem; refuse those of another form than its own."""
    axes = 2 if problem.offsets is None and problem.load is None else 1
    like, structure = jax.tree_util.tree_flatten_with_path(problem.data)
    names = [jax.tree_util.keystr(path) or "samples" for path, _ in like]
    found = [jax.tree_util.keystr(path) or "samples" for path, _ in jax.tree_util.tree_flatten_with_path(rows)[0]]
    given: Any = jax.tree.structure(rows)
    if given != structure:
        refuse("test", ", ".join(found), f"must have the problem's own arrays: {', '.join(names)}", LAYOUT)
    leaves = []
    for name, (_, own), leaf in zip(names, like, jax.tree.leaves(rows), strict=True):
        array = as_array(leaf, f"test{name}")
        wanted, text = own.shape[axes:], f"{array.dtype}{list(array.shape)}"
        if array.ndim < 1 or array.shape[1:] != wanted:
            rule = f"must have the shape (m, {', '.join(map(str, wanted))}) of m samples".replace("(m, )", "(m,)")
            refuse(f"test{name}", text, rule, LAYOUT)
        if array.dtype.kind.replace("u", "i") != own.dtype.kind.replace("u", "i") or (
            np.uint8 in (array.dtype, own.dtype) and array.dtype != own.dtype  # pixels, which a model may scale
        ):
            rule = f"must be {own.dtype} as the agents' samples are"
            refuse(f"test{name}", text, rule, "Prepare both in the same way")
        array = owned(as_numpy(array, problem.double, f"test{name}").astype(own.dtype, copy=False))
        leaves.append(check_finite(array, f"test{name}", "Clean or drop those samples"))
    if len({len(leaf) for leaf in leaves}) > 1 or not len(leaves[0]):
        sizes = {name: len(leaf) for name, leaf in zip(names, leaves, strict=True)}
        refuse("numbers of samples in test", sizes, "must be equal, and at least 1", LAYOUT)
    return jax.tree.unflatten(structure, leaves)
