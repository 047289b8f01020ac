"""The problems of the suite in one list: how each is made, whether it is convex, and where it comes from."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fedpd import data
from fedpd.base.checks import choice
from fedpd.core import Problem
from fedpd.problems import penalized_logistic
from fedpd.suite import nonconvex, quadratics, regressions
from fedpd.suite.splits import at_random, by_dirichlet, by_label, by_size
from fedpd.suite.tables import Table, bundled, generated, scaled, with_intercept


class Entry(NamedTuple):
    """A problem of the suite.

    Attributes:
        name: Its name in tables, files and on the command line.
        make: Makes it.
        convex: Whether f is convex.
        source: Where its data comes from, and how it is split.
        bundled: Whether its data is part of scikit-learn (the extra `bench`).
    """

    name: str
    make: Callable[[], Problem]
    convex: bool
    source: str
    bundled: bool = False


def _features(name: str) -> Table:
    """Return a bundled data set with scaled features and an intercept."""
    return with_intercept(scaled(bundled(name)))


def _ridge_diabetes(raw: bool) -> Problem:
    table = bundled("diabetes", scaled=False) if raw else scaled(bundled("diabetes"))
    table = with_intercept(Table(table.x, (table.y - table.y.mean()) / table.y.std()))
    return regressions.ridge(table, by_label(table.y, 10), l2=1e-3)


def _ridge_by_size() -> Problem:
    table = generated("regression", 3000, 40)
    return regressions.ridge(table, by_size(3000, 50), l2=1e-4)


def _huber_diabetes() -> Problem:
    table = _features("diabetes")
    table = Table(table.x, (table.y - table.y.mean()) / table.y.std())
    return regressions.huber(table, at_random(len(table.y), 5), width=0.5, l2=1e-3)


def _huber_outliers() -> Problem:
    return regressions.huber(generated("outliers", 2000, 20), by_size(2000, 30), width=1.0, l2=1e-3)


def _poisson_counts() -> Problem:
    return regressions.poisson(generated("counts", 2000, 15), by_size(2000, 40, least=5), l2=1e-3)


def _poisson_diabetes() -> Problem:
    table = _features("diabetes")
    counts = Table(table.x, np.round(table.y / 25))
    return regressions.poisson(counts, by_label(counts.y, 8), l2=1e-3)


def _cancer(split: str, raw: bool = False) -> Problem:
    table = with_intercept(bundled("breast_cancer")) if raw else _features("breast_cancer")
    rows = by_label(table.y, 10) if split == "label" else at_random(len(table.y), 20)
    return regressions.logistic(Table(table.x, table.y.astype(float)), rows, l2=1e-3)


def _odd_digits() -> Problem:
    table = _features("digits")
    odd = Table(table.x, (table.y % 2).astype(float))
    return regressions.logistic(odd, by_size(len(odd.y), 25, least=10), l2=1e-2)


def _logistic_many() -> Problem:
    return regressions.logistic(generated("binary", 4000, 25), at_random(4000, 200), l2=1e-4)


def _wine(raw: bool = False) -> Problem:
    table = with_intercept(bundled("wine")) if raw else _features("wine")
    return regressions.softmax(table, by_label(table.y, 6), l2=1e-2)


def _digits(dirichlet: bool) -> Problem:
    table = with_intercept(Table(bundled("digits").x / 16, bundled("digits").y))
    rows = by_dirichlet(table.y, 30, alpha=0.3) if dirichlet else by_label(table.y, 10)
    return regressions.softmax(table, rows, l2=1e-3)


def _wine_pair() -> Problem:
    table = _features("wine")
    return regressions.softmax(table, by_label(table.y, 2), l2=1e-3)


def _tanh(name: str, agents: int) -> Problem:
    table = _features(name)
    binary = Table(table.x, (table.y > np.median(table.y)).astype(float) if name == "diabetes" else table.y)
    return nonconvex.tanh_loss(binary, by_label(binary.y, agents), l2=1e-2)


def _penalised_digits() -> Problem:
    table = with_intercept(Table(bundled("digits").x / 16, bundled("digits").y))
    signs = np.where(table.y >= 5, 1.0, -1.0)
    rows = by_label(table.y, 20)
    return penalized_logistic([table.x[own] for own in rows], [signs[own] for own in rows], alpha=1.0, beta=0.01)


def _paper(strong: bool) -> Problem:
    return penalized_logistic(*(data.strongly_noniid if strong else data.weakly_noniid)(), alpha=1.0, beta=0.1)


def _network(name: str, agents: int, width: int) -> Problem:
    table = scaled(bundled(name)) if name == "wine" else Table(bundled(name).x / 16, bundled(name).y)
    return nonconvex.small_network(table, by_label(table.y, agents), width=width, l2=1e-2)


MADE = "generated; eigenvalues geometric, minimisers normal"
_ALL = (
    Entry("quadratic-identity", partial(quadratics.equal, 1), True, f"{MADE}; all Hessians are the identity"),
    Entry("quadratic-equal-1e2", partial(quadratics.equal, 1e2), True, f"{MADE}; equal Hessians"),
    Entry("quadratic-equal-1e4", partial(quadratics.equal, 1e4), True, f"{MADE}; equal Hessians"),
    Entry("quadratic-rotated-1e1", partial(quadratics.rotated, 1e1), True, f"{MADE}; own eigenvectors"),
    Entry("quadratic-rotated-1e2", partial(quadratics.rotated, 1e2), True, f"{MADE}; own eigenvectors"),
    Entry("quadratic-rotated-1e4", partial(quadratics.rotated, 1e4), True, f"{MADE}; own eigenvectors"),
    Entry("quadratic-aligned-1e3", partial(quadratics.aligned, 1e3), True, f"{MADE}; own eigenvalues"),
    Entry("quadratic-aligned-1e6", partial(quadratics.aligned, 1e6), True, f"{MADE}; own eigenvalues"),
    Entry("quadratic-one-steep", partial(quadratics.one_steep, 100), True, f"{MADE}; one agent 100 times steeper"),
    Entry("quadratic-low-rank", partial(quadratics.low_rank, 3), True, "generated; Hessians of rank 3, d = 30"),
    Entry("quadratic-two-agents", partial(quadratics.rotated, 1e3, 2, 20), True, f"{MADE}; own eigenvectors"),
    Entry("quadratic-500-agents", partial(quadratics.rotated, 1e2, 500, 10), True, f"{MADE}; own eigenvectors"),
    Entry("ridge-diabetes", partial(_ridge_diabetes, False), True, "diabetes, scaled; split by target", True),
    Entry("ridge-diabetes-raw", partial(_ridge_diabetes, True), True, "diabetes, not scaled; by target", True),
    Entry("ridge-by-size", _ridge_by_size, True, "generated, correlated features; sizes fall like 1/i"),
    Entry("huber-diabetes", _huber_diabetes, True, "diabetes, scaled; at random", True),
    Entry("huber-outliers", _huber_outliers, True, "generated, one in ten an outlier; sizes fall like 1/i"),
    Entry("poisson-counts", _poisson_counts, True, "generated; sizes fall like 1/i"),
    Entry("poisson-diabetes", _poisson_diabetes, True, "diabetes, scaled, targets/25 as counts; by target", True),
    Entry("logistic-cancer", partial(_cancer, "label"), True, "breast cancer, scaled; by label", True),
    Entry("logistic-cancer-random", partial(_cancer, "random"), True, "breast cancer, scaled; at random", True),
    Entry("logistic-cancer-raw", partial(_cancer, "label", True), True, "breast cancer, not scaled; by label", True),
    Entry("logistic-odd-digits", _odd_digits, True, "digits, odd or even; sizes fall like 1/i", True),
    Entry("logistic-200-agents", _logistic_many, True, "generated, correlated features; at random"),
    Entry("softmax-wine", _wine, True, "wine, scaled; by label", True),
    Entry("softmax-wine-raw", partial(_wine, True), True, "wine, not scaled; by label", True),
    Entry("softmax-wine-pair", _wine_pair, True, "wine, scaled; by label, two agents", True),
    Entry("softmax-digits", partial(_digits, False), True, "digits; by label", True),
    Entry("softmax-digits-dirichlet", partial(_digits, True), True, "digits; Dirichlet 0.3", True),
    Entry("tanh-cancer", partial(_tanh, "breast_cancer", 10), False, "breast cancer, scaled; by label", True),
    Entry("tanh-diabetes", partial(_tanh, "diabetes", 5), False, "diabetes, above the median or not; by label", True),
    Entry("penalised-digits", _penalised_digits, False, "digits, 0-4 against 5-9; by label", True),
    Entry("paper-strong", partial(_paper, True), False, "the paper's strongly non-iid data"),
    Entry("paper-weak", partial(_paper, False), False, "the paper's weakly non-iid data"),
    Entry("factorisation", partial(nonconvex.factorisation, 20, 3, 10), False, "generated; entries at random"),
    Entry("phase-retrieval", partial(nonconvex.phase_retrieval, 20, 800, 20), False, "generated; vectors stretched"),
    Entry("network-wine", partial(_network, "wine", 3, 5), False, "wine, scaled; by label", True),
    Entry("network-digits", partial(_network, "digits", 10, 8), False, "digits; by label", True),
)
PROBLEMS: dict[str, Entry] = {entry.name: entry for entry in _ALL}


def make(name: str) -> Problem:
    """Return the problem of this name, which it also carries.

    Args:
        name: A key of `PROBLEMS`.
    """
    return replace(PROBLEMS[choice("problem", name, PROBLEMS)].make(), name=name)
