"""The paper's synthetic data for penalised logistic regression: features (N, n, D) and labels (N, n) in {-1, +1}.

Features are standard normal; the last one is the constant 1. The paper distinguishes weakly and strongly non-iid data.
Its text and its authors' program generate the strong kind differently, so both are here by name.
"""

import numpy as np

from fedpd.base.checks import check_room, count
from fedpd.base.typed import explained

FEWER = "Give fewer agents or samples, or a smaller dimension"
Data = tuple[np.ndarray, np.ndarray]


@explained
def weakly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the weakly non-iid data: labels are fair coins, independent of the features.

    The paper's text and its authors' program agree on it.

    Args:
        agents: N.
        samples: n, the samples per agent.
        dimension: D, the constant feature included.
        seed: The seed of all draws.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    return features, rng.choice((-1.0, 1.0), (agents, samples))


@explained
def strongly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the strongly non-iid data of the paper's text.

    Agent i has a model x_i uniform in [-10, 10]^D, and its labels are sign(a^T x_i + U[-1, 1]).

    Args:
        agents: N.
        samples: n, the samples per agent.
        dimension: D, the constant feature included.
        seed: The seed of all draws.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    models = rng.uniform(-10, 10, (agents, dimension))
    margins = np.einsum("nsd,nd->ns", features, models) + rng.uniform(-1, 1, (agents, samples))
    return features, np.where(margins > 0, 1.0, -1.0)


@explained
def program_strongly_noniid(agents: int = 100, samples: int = 400, dimension: int = 20, *, seed: int = 0) -> Data:
    """Return the strongly non-iid data of the authors' program.

    The models have entries of mean 20, and labels are flipped where |a^T x_i| is below a large noise: x_i has entries
    U[0, 40] + an integer in -10..10; with m = a^T x_i and t = max(all m) * N(0, 1), the label is sign(m) where |m| > t
    and -sign(m) elsewhere. The common mean and the noise make this data no more heterogeneous than the weakly non-iid
    data, despite its name.

    Args:
        agents: N.
        samples: n, the samples per agent.
        dimension: D, the constant feature included.
        seed: The seed of all draws.

    Returns:
        Features (N, n, D) and labels (N, n) in {-1, +1}, float64.
    """
    rng, features = _features(agents, samples, dimension, seed)
    models = rng.uniform(0, 40, (agents, dimension)) + rng.integers(-10, 11, (agents, dimension))
    margins = np.einsum("nsd,nd->ns", features, models)
    kept = np.abs(margins) > margins.max() * rng.standard_normal(margins.shape)
    return features, np.where((margins > 0) == kept, 1.0, -1.0)


def _features(agents: int, samples: int, dimension: int, seed: int) -> tuple[np.random.Generator, np.ndarray]:
    """Return the generator and the features, (N, n, D)."""
    count("agents", agents, "Give N")
    count("samples", samples, "Give the samples of an agent")
    count("dimension", dimension, "Give D, the constant feature included")
    count("seed", seed, "Give the seed of all draws, an integer", least=0)
    check_room(f"{agents} agents with {samples} samples of {dimension} numbers", agents * samples * dimension, FEWER)
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((agents, samples, dimension))
    features[..., -1] = 1.0
    return rng, features
