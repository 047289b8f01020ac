"""The data of the suite: scikit-learn's own small data sets, and data that is generated here."""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import FedpdError


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

    Args:
        name: "breast_cancer", "diabetes", "digits" or "wine".
        **options: As of scikit-learn's function, e.g. scaled=False for diabetes.

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
def generated(kind: str, samples: int, features: int, noise: float = 0.1, seed: int = 0) -> Table:
    """Return correlated Gaussian features and a response to a random linear function of them.

    The features' covariance has eigenvalues that fall from 1 to 1/100, so that the problem is not well-conditioned.

    Args:
        kind: "regression" (the linear function plus noise), "outliers" (one in ten is off by 10), "binary" (its sign,
            which noise flips), or "counts" (Poisson with its exponential as the mean).
        samples: n.
        features: D.
        noise: The spread of the noise.
        seed: The seed of all draws.
    """
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((features, features)))
    x = (rng.standard_normal((samples, features)) * np.logspace(0, -1, features)) @ basis.T
    clean = x @ rng.standard_normal(features)
    noisy = clean + noise * rng.standard_normal(samples)
    if kind == "outliers":
        noisy = noisy + 10 * rng.choice([-1, 0, 1], samples, p=[0.05, 0.9, 0.05])
    if kind == "counts":
        return Table(x, rng.poisson(np.exp(np.clip(clean, -3, 3))).astype(float))
    return Table(x, np.where(noisy > 0, 1.0, 0.0) if kind == "binary" else noisy)
