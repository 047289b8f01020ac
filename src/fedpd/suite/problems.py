"""The problems of the suite: their data, the ways to divide it, their losses, the list of all, and known answers.

`PROBLEMS` says how each problem is made, whether it is convex, and where it comes from. The data are scikit-learn's own
small data sets, or generated here.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd import data
from fedpd.base.checks import FedpdError, choice
from fedpd.core import UNKNOWN, Answer, Array, Problem, Tree
from fedpd.problems import from_losses, penalized_logistic, quadratic
from fedpd.problems.logistic import gram_eigenvalue


class Table(NamedTuple):
    """A data set: features (n, D) and labels or targets (n,)."""

    x: np.ndarray
    y: np.ndarray


def bundled_module() -> Any:
    """Return scikit-learn's module of data sets.

    Raises:
        FedpdError: scikit-learn cannot be imported.
    """
    try:
        return import_module("sklearn.datasets")
    except ImportError as error:
        raise FedpdError(
            f"most problems of the suite use data of scikit-learn, which cannot be imported: {error}. "
            "pip install 'fedpd[bench]', or choose problems that are generated."
        ) from None


def bundled(name: str, **options: Any) -> Table:
    """Return one of the data sets that scikit-learn brings along, as it is.

    Raises:
        FedpdError: scikit-learn cannot be imported.
    """
    found = getattr(bundled_module(), f"load_{name}")(**options)
    return Table(np.asarray(found.data, float), np.asarray(found.target))


def scaled(table: Table) -> Table:
    """Return a table whose features have mean 0 and variance 1; constant features become 0."""
    spread = table.x.std(0)
    return Table((table.x - table.x.mean(0)) / np.where(spread > 0, spread, 1), table.y)


def with_intercept(table: Table) -> Table:
    """Return a table with a last feature that is 1."""
    return Table(np.column_stack([table.x, np.ones(len(table.x))]), table.y)


@cache
def generated(kind: str, samples: int, features: int) -> Table:
    """Return correlated Gaussian features and a response to a random linear function of them.

    The features' covariance has eigenvalues that fall from 1 to 1/100, so that the problem is not well-conditioned.

    Args:
        kind: "regression" (the linear function plus noise), "outliers" (one in ten is off by 10), "binary" (its sign,
            which noise flips), or "counts" (Poisson with its exponential as the mean).
    """
    rng = np.random.default_rng(0)
    basis = _basis(rng, features)
    x = (rng.standard_normal((samples, features)) * np.logspace(0, -1, features)) @ basis.T
    clean = x @ rng.standard_normal(features)
    noisy = clean + 0.1 * rng.standard_normal(samples)
    if kind == "outliers":
        noisy = noisy + 10 * rng.choice([-1, 0, 1], samples, p=[0.05, 0.9, 0.05])
    if kind == "counts":
        return Table(x, rng.poisson(np.exp(np.clip(clean, -3, 3))).astype(float))
    return Table(x, np.where(noisy > 0, 1.0, 0.0) if kind == "binary" else noisy)


def _basis(rng: np.random.Generator, dimension: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]


Rows = list[np.ndarray]  # the row numbers of each agent


def by_label(labels: np.ndarray, agents: int) -> Rows:
    """Return rows sorted by label (or target) and cut into equal parts, so that an agent has few labels."""
    return np.array_split(np.argsort(labels, kind="stable"), agents)


def at_random(samples: int, agents: int) -> Rows:
    """Return shuffled rows in equal parts."""
    return np.array_split(np.random.default_rng(0).permutation(samples), agents)


def by_size(samples: int, agents: int, least: int = 2) -> Rows:
    """Return shuffled rows in parts of at least `least`, whose sizes fall like 1/i: few agents are large."""
    share = 1 / np.arange(1, agents + 1)
    ends = least * np.arange(1, agents) + np.round((samples - least * agents) * np.cumsum(share / share.sum()))[:-1]
    return np.split(np.random.default_rng(0).permutation(samples), ends.astype(int))


def by_dirichlet(labels: np.ndarray, agents: int, alpha: float) -> Rows:
    """Return rows of which each label is divided among agents in shares drawn from a Dirichlet distribution.

    The smaller alpha, the more the agents differ. Each agent gets one row of any label first, so that none is empty.
    """
    rng = np.random.default_rng(0)
    first, rest = np.split(rng.permutation(len(labels)), [agents])
    parts = [[row] for row in first]
    for label in np.unique(labels):
        own = rest[labels[rest] == label]
        ends = np.round(len(own) * np.cumsum(rng.dirichlet(np.full(agents, alpha)))[:-1]).astype(int)
        for part, more in zip(parts, np.split(own, ends), strict=True):
            part.extend(more)
    return [np.array(part) for part in parts]


AGENTS, DIMENSION = 20, 30  # of most quadratics


def _made(hessians: np.ndarray, rng: np.random.Generator) -> Problem:
    """Return the problem of these Hessians, with linear terms from the standard normal distribution."""
    return quadratic((hessians + hessians.swapaxes(1, 2)) / 2, rng.standard_normal(hessians.shape[:2]))


def _eigenvalues(condition: float, dimension: int) -> np.ndarray:
    return np.logspace(-np.log10(condition), 0, dimension)


def quadratic_equal(condition: float) -> Problem:
    """Return quadratics that all have the same Hessian; agents differ in their minimisers."""
    rng = np.random.default_rng(0)
    basis = _basis(rng, DIMENSION)
    hessian = (basis * _eigenvalues(condition, DIMENSION)) @ basis.T
    return _made(np.repeat(hessian[None], AGENTS, axis=0), rng)


def quadratic_rotated(condition: float, agents: int = AGENTS, dimension: int = DIMENSION) -> Problem:
    """Return quadratics with the same eigenvalues and eigenvectors of their own; their mean is better conditioned."""
    rng = np.random.default_rng(0)
    bases = [_basis(rng, dimension) for _ in range(agents)]
    eigenvalues = _eigenvalues(condition, dimension)
    return _made(np.array([(basis * eigenvalues) @ basis.T for basis in bases]), rng)


def quadratic_aligned(condition: float) -> Problem:
    """Return quadratics with the same eigenvectors, and eigenvalues that differ by up to a factor of 4 between agents.

    The mean has about the condition number of the eigenvalues before they are perturbed.
    """
    rng = np.random.default_rng(0)
    basis, eigenvalues = _basis(rng, DIMENSION), _eigenvalues(condition, DIMENSION)
    own = eigenvalues * 2 ** rng.uniform(-1, 1, (AGENTS, DIMENSION))
    return _made(np.array([(basis * each) @ basis.T for each in own]), rng)


def quadratic_one_steep(factor: float) -> Problem:
    """Return rotated quadratics of which the first agent's is so many times steeper."""
    data = quadratic_rotated(10).data
    hessians, linear = data["hessian"][:, 0].copy(), data["linear"][:, 0]
    hessians[0] *= factor
    return quadratic(hessians, linear)


def quadratic_low_rank(rank: int) -> Problem:
    """Return quadratics whose Hessians have a low rank, while their mean is positive definite: rank * N >= d.

    The linear terms lie in the range of the Hessians, so that each f_i is bounded below.
    """
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((AGENTS, DIMENSION, rank)) / np.sqrt(rank)
    hessians = factors @ factors.swapaxes(1, 2)
    return quadratic(hessians, np.einsum("nij,nj->ni", hessians, rng.standard_normal((AGENTS, DIMENSION))))


def _agents(table: Table, rows: Rows) -> list[Tree]:
    return [{"x": table.x[own], "y": table.y[own]} for own in rows]


def _curvature(table: Table, rows: Rows, second: float, l2: float) -> Answer:
    """Return L of losses that depend on a sample by x^T a only, with a second derivative in [-second, second]."""
    return Answer(smoothness=second * max(gram_eigenvalue(table.x[own]) / len(own) for own in rows) + l2)


def _linear(
    losses: Callable[[Array, Tree], Array],
    samples: list[Tree],
    table: Table,
    rows: Rows,
    l2: float,
    second: float | None,
) -> Problem:
    """Return the problem of a loss of x^T a plus (l2/2) ||x||^2; its L is known if `second` bounds the loss's |''|."""
    answer = UNKNOWN if second is None else _curvature(table, rows, second, l2)
    start = np.zeros(table.x.shape[1])
    return from_losses(losses, samples, start, penalty=lambda x: l2 / 2 * (x @ x), answer=answer)


def ridge(table: Table, rows: Rows, l2: float) -> Problem:
    """Return least squares (x^T a - y)^2/2 plus (l2/2) ||x||^2."""

    def losses(x: Array, batch: Tree) -> Array:
        return (batch["x"] @ x - batch["y"]) ** 2 / 2

    return _linear(losses, _agents(table, rows), table, rows, l2, 1.0)


def huber(table: Table, rows: Rows, width: float, l2: float) -> Problem:
    """Return Huber regression: squares for residuals up to `width`, linear beyond."""

    def losses(x: Array, batch: Tree) -> Array:
        residual = jnp.abs(batch["x"] @ x - batch["y"])
        return jnp.where(residual <= width, residual**2 / 2, width * (residual - width / 2))

    return _linear(losses, _agents(table, rows), table, rows, l2, 1.0)


def poisson(table: Table, rows: Rows, l2: float) -> Problem:
    """Return Poisson regression exp(x^T a) - y x^T a: its smoothness is not bounded."""

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        return jnp.exp(scores) - batch["y"] * scores

    return _linear(losses, _agents(table, rows), table, rows, l2, None)


def logistic(table: Table, rows: Rows, l2: float) -> Problem:
    """Return logistic regression with labels 0 and 1."""

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        return jnp.logaddexp(scores, 0) - batch["y"] * scores

    return _linear(losses, _agents(table, rows), table, rows, l2, 0.25)


def softmax(table: Table, rows: Rows, l2: float) -> Problem:
    """Return softmax regression with labels 0 to K - 1; the model is a matrix (D, K)."""

    def losses(x: Array, batch: Tree) -> Array:
        scores = batch["x"] @ x
        own = jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own

    answer = _curvature(table, rows, 0.5, l2)
    start = np.zeros((table.x.shape[1], int(table.y.max()) + 1))
    return from_losses(losses, _agents(table, rows), start, penalty=lambda x: l2 / 2 * jnp.sum(x * x), answer=answer)


def tanh_loss(table: Table, rows: Rows, l2: float) -> Problem:
    """Return classification by the smooth, bounded loss 1 - tanh(b x^T a), with b = -1 or +1 for the labels 0 and 1."""
    agents = [table.x[own] * (2 * table.y[own, None] - 1) for own in rows]

    def losses(x: Array, signed: Array) -> Array:
        return 1 - jnp.tanh(signed @ x)

    steepest = 4 / (3 * np.sqrt(3))  # the largest |tanh''|
    return _linear(losses, agents, table, rows, l2, steepest)


def factorisation(size: int, rank: int, agents: int) -> Problem:
    """Return the factorisation A = U V^T of a low-rank matrix whose entries are divided among agents at random.

    The loss of an entry is (u_a^T v_b - A_ab)^2/2 plus (0.01/2)(||U||^2 + ||V||^2)/size, where `size` is the
    number of rows and of columns of A.
    """
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, size, rank))
    places = np.array([(a, b) for a in range(size) for b in range(size)])
    values = (left @ right.T)[places[:, 0], places[:, 1]]
    data = [{"place": places[own], "value": values[own]} for own in at_random(size * size, agents)]

    def losses(model: Tree, batch: Tree) -> Array:
        a, b = batch["place"][:, 0], batch["place"][:, 1]
        return (jnp.sum(model["left"][a] * model["right"][b], axis=1) - batch["value"]) ** 2 / 2

    def penalty(model: Tree) -> Array:
        return 0.01 / (2 * size) * (jnp.sum(model["left"] ** 2) + jnp.sum(model["right"] ** 2))

    start = {"left": left + rng.standard_normal(left.shape), "right": right + rng.standard_normal(right.shape)}
    return from_losses(losses, data, start, penalty=penalty)


def phase_retrieval(dimension: int, samples: int, agents: int) -> Problem:
    """Return phase retrieval ((a^T x)^2 - y)^2/4 from noiseless squares y = (a^T z)^2: f* = 0 at x = z and x = -z.

    Args:
        samples: All samples; agents have equal parts, whose vectors a are stretched along one axis of each agent's own.
    """
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal(dimension) / np.sqrt(dimension)
    vectors = rng.standard_normal((agents, samples // agents, dimension))
    vectors[np.arange(agents), :, np.arange(agents) % dimension] *= 2
    data = {"vector": vectors, "square": (vectors @ hidden) ** 2}

    def losses(x: Array, batch: Tree) -> Array:
        return ((batch["vector"] @ x) ** 2 - batch["square"]) ** 2 / 4

    return from_losses(losses, data, hidden + 0.5 * rng.standard_normal(dimension) / np.sqrt(dimension))


def small_network(table: Table, rows: Rows, width: int, l2: float) -> Problem:
    """Return a network with one hidden layer of tanh units and softmax cross entropy, with full gradients."""
    rng, features, classes = np.random.default_rng(0), table.x.shape[1], int(table.y.max()) + 1
    start = {
        "inner": rng.standard_normal((features, width)) / np.sqrt(features),
        "bias": np.zeros(width),
        "outer": rng.standard_normal((width, classes)) / np.sqrt(width),
    }

    def losses(model: Tree, batch: Tree) -> Array:
        scores = jnp.tanh(batch["x"] @ model["inner"] + model["bias"]) @ model["outer"]
        own = jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own

    def penalty(model: Tree) -> Array:
        return l2 / 2 * sum((jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(model)), jnp.zeros(()))

    return from_losses(losses, _agents(table, rows), start, penalty=penalty)


class SuiteProblem(NamedTuple):
    """A problem of the suite."""

    name: str  # its name in tables, files and on the command line
    make: Callable[[], Problem]  # makes it
    convex: bool  # whether f is convex
    source: str  # where its data comes from, and how it is split
    bundled: bool = False  # whether its data is part of scikit-learn (the extra `bench`)


def _features(name: str) -> Table:
    """Return a bundled data set with scaled features and an intercept."""
    return with_intercept(scaled(bundled(name)))


def _ridge_diabetes(raw: bool) -> Problem:
    table = bundled("diabetes", scaled=False) if raw else scaled(bundled("diabetes"))
    table = with_intercept(Table(table.x, (table.y - table.y.mean()) / table.y.std()))
    return ridge(table, by_label(table.y, 10), l2=1e-3)


def _huber_diabetes() -> Problem:
    table = _features("diabetes")
    table = Table(table.x, (table.y - table.y.mean()) / table.y.std())
    return huber(table, at_random(len(table.y), 5), width=0.5, l2=1e-3)


def _poisson_diabetes() -> Problem:
    table = _features("diabetes")
    counts = Table(table.x, np.round(table.y / 25))
    return poisson(counts, by_label(counts.y, 8), l2=1e-3)


def _cancer(split: str, raw: bool = False) -> Problem:
    table = with_intercept(bundled("breast_cancer")) if raw else _features("breast_cancer")
    rows = by_label(table.y, 10) if split == "label" else at_random(len(table.y), 20)
    return logistic(Table(table.x, table.y.astype(float)), rows, l2=1e-3)


def _odd_digits() -> Problem:
    table = _features("digits")
    odd = Table(table.x, (table.y % 2).astype(float))
    return logistic(odd, by_size(len(odd.y), 25, least=10), l2=1e-2)


def _wine(raw: bool = False, agents: int = 6, l2: float = 1e-2) -> Problem:
    table = with_intercept(bundled("wine")) if raw else _features("wine")
    return softmax(table, by_label(table.y, agents), l2)


def _digits(dirichlet: bool) -> Problem:
    table = with_intercept(Table(bundled("digits").x / 16, bundled("digits").y))
    rows = by_dirichlet(table.y, 30, alpha=0.3) if dirichlet else by_label(table.y, 10)
    return softmax(table, rows, l2=1e-3)


def _tanh(name: str, agents: int) -> Problem:
    table = _features(name)
    binary = Table(table.x, (table.y > np.median(table.y)).astype(float) if name == "diabetes" else table.y)
    return tanh_loss(binary, by_label(binary.y, agents), l2=1e-2)


def _penalised_digits() -> Problem:
    table = with_intercept(Table(bundled("digits").x / 16, bundled("digits").y))
    signs = np.where(table.y >= 5, 1.0, -1.0)
    rows = by_label(table.y, 20)
    return penalized_logistic([table.x[own] for own in rows], [signs[own] for own in rows], alpha=1.0, beta=0.01)


def _paper(strong: bool) -> Problem:
    return penalized_logistic(*(data.strongly_noniid if strong else data.weakly_noniid)(), alpha=1.0, beta=0.1)


def _network(name: str, agents: int, width: int) -> Problem:
    table = scaled(bundled(name)) if name == "wine" else Table(bundled(name).x / 16, bundled(name).y)
    return small_network(table, by_label(table.y, agents), width=width, l2=1e-2)


MADE = "generated; eigenvalues geometric, minimisers normal"
_ALL = (
    SuiteProblem("quadratic-identity", partial(quadratic_equal, 1), True, f"{MADE}; all Hessians are the identity"),
    SuiteProblem("quadratic-equal-1e2", partial(quadratic_equal, 1e2), True, f"{MADE}; equal Hessians"),
    SuiteProblem("quadratic-equal-1e4", partial(quadratic_equal, 1e4), True, f"{MADE}; equal Hessians"),
    SuiteProblem("quadratic-rotated-1e1", partial(quadratic_rotated, 1e1), True, f"{MADE}; own eigenvectors"),
    SuiteProblem("quadratic-rotated-1e2", partial(quadratic_rotated, 1e2), True, f"{MADE}; own eigenvectors"),
    SuiteProblem("quadratic-rotated-1e4", partial(quadratic_rotated, 1e4), True, f"{MADE}; own eigenvectors"),
    SuiteProblem("quadratic-aligned-1e3", partial(quadratic_aligned, 1e3), True, f"{MADE}; own eigenvalues"),
    SuiteProblem("quadratic-aligned-1e6", partial(quadratic_aligned, 1e6), True, f"{MADE}; own eigenvalues"),
    SuiteProblem(
        "quadratic-one-steep", partial(quadratic_one_steep, 100), True, f"{MADE}; one agent 100 times steeper"
    ),
    SuiteProblem("quadratic-low-rank", partial(quadratic_low_rank, 3), True, "generated; Hessians of rank 3, d = 30"),
    SuiteProblem("quadratic-two-agents", partial(quadratic_rotated, 1e3, 2, 20), True, f"{MADE}; own eigenvectors"),
    SuiteProblem("quadratic-500-agents", partial(quadratic_rotated, 1e2, 500, 10), True, f"{MADE}; own eigenvectors"),
    SuiteProblem("ridge-diabetes", partial(_ridge_diabetes, False), True, "diabetes, scaled; split by target", True),
    SuiteProblem("ridge-diabetes-raw", partial(_ridge_diabetes, True), True, "diabetes, not scaled; by target", True),
    SuiteProblem(
        "ridge-by-size",
        lambda: ridge(generated("regression", 3000, 40), by_size(3000, 50), l2=1e-4),
        True,
        "generated, correlated features; sizes fall like 1/i",
    ),
    SuiteProblem("huber-diabetes", _huber_diabetes, True, "diabetes, scaled; at random", True),
    SuiteProblem(
        "huber-outliers",
        lambda: huber(generated("outliers", 2000, 20), by_size(2000, 30), width=1.0, l2=1e-3),
        True,
        "generated, one in ten an outlier; sizes fall like 1/i",
    ),
    SuiteProblem(
        "poisson-counts",
        lambda: poisson(generated("counts", 2000, 15), by_size(2000, 40, least=5), l2=1e-3),
        True,
        "generated; sizes fall like 1/i",
    ),
    SuiteProblem(
        "poisson-diabetes", _poisson_diabetes, True, "diabetes, scaled, targets/25 as counts; by target", True
    ),
    SuiteProblem("logistic-cancer", partial(_cancer, "label"), True, "breast cancer, scaled; by label", True),
    SuiteProblem("logistic-cancer-random", partial(_cancer, "random"), True, "breast cancer, scaled; at random", True),
    SuiteProblem(
        "logistic-cancer-raw", partial(_cancer, "label", True), True, "breast cancer, not scaled; by label", True
    ),
    SuiteProblem("logistic-odd-digits", _odd_digits, True, "digits, odd or even; sizes fall like 1/i", True),
    SuiteProblem(
        "logistic-200-agents",
        lambda: logistic(generated("binary", 4000, 25), at_random(4000, 200), l2=1e-4),
        True,
        "generated, correlated features; at random",
    ),
    SuiteProblem("softmax-wine", _wine, True, "wine, scaled; by label", True),
    SuiteProblem("softmax-wine-raw", partial(_wine, True), True, "wine, not scaled; by label", True),
    SuiteProblem("softmax-wine-pair", partial(_wine, False, 2, 1e-3), True, "wine, scaled; by label, two agents", True),
    SuiteProblem("softmax-digits", partial(_digits, False), True, "digits; by label", True),
    SuiteProblem("softmax-digits-dirichlet", partial(_digits, True), True, "digits; Dirichlet 0.3", True),
    SuiteProblem("tanh-cancer", partial(_tanh, "breast_cancer", 10), False, "breast cancer, scaled; by label", True),
    SuiteProblem(
        "tanh-diabetes", partial(_tanh, "diabetes", 5), False, "diabetes, above the median or not; by label", True
    ),
    SuiteProblem("penalised-digits", _penalised_digits, False, "digits, 0-4 against 5-9; by label", True),
    SuiteProblem("paper-strong", partial(_paper, True), False, "the paper's strongly non-iid data"),
    SuiteProblem("paper-weak", partial(_paper, False), False, "the paper's weakly non-iid data"),
    SuiteProblem("factorisation", partial(factorisation, 20, 3, 10), False, "generated; entries at random"),
    SuiteProblem("phase-retrieval", partial(phase_retrieval, 20, 800, 20), False, "generated; vectors stretched"),
    SuiteProblem("network-wine", partial(_network, "wine", 3, 5), False, "wine, scaled; by label", True),
    SuiteProblem("network-digits", partial(_network, "digits", 10, 8), False, "digits; by label", True),
)
PROBLEMS: dict[str, SuiteProblem] = {entry.name: entry for entry in _ALL}


def make(name: str) -> Problem:
    """Return the problem of this name, which it also carries."""
    return replace(PROBLEMS[choice("problem", name, PROBLEMS)].make(), name=name)


FILE = "answers.json"  # f* and the curvature at each minimum, which `python -m tools.suite_answers` computes


class KnownAnswer(NamedTuple):
    """Known facts about a problem of the suite."""

    agents: int  # N
    dimension: int  # d
    samples: int  # M, all samples
    value: float  # f*, the value at the minimum
    stationarity: float  # ||grad f||^2 at the minimum that was found, relative to the start's
    smallest: float  # the smallest eigenvalue of the mean Hessian at the minimum
    largest: float  # the largest eigenvalue there
    dissimilarity: float  # max_i ||H_i - H|| there, relative to the largest eigenvalue
    negative: float  # the smallest eigenvalue of any H_i at the start or at the minimum, if it is negative; 0 otherwise

    @property
    def condition(self) -> float:
        """The condition number of the mean Hessian at the minimum; infinite where minima are not isolated."""
        return self.largest / self.smallest if self.smallest > 1e-12 * self.largest else np.inf


@cache
def known_answers() -> dict[str, KnownAnswer]:
    """Return the facts of all problems, from the file."""
    read = json.loads(files("fedpd.suite").joinpath(FILE).read_text(encoding="utf-8"))
    return {name: KnownAnswer(**facts) for name, facts in read.items()}
