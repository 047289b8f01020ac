"""The paper's synthetic data: shapes, signs, seeds, and how much the agents differ."""

from collections.abc import Callable

import numpy as np
import pytest

from fedpd import FedpdError, theory
from fedpd.data import program_strongly_noniid, strongly_noniid, weakly_noniid
from fedpd.problems import penalized_logistic

Generator = Callable[..., tuple[np.ndarray, np.ndarray]]
generators = pytest.mark.parametrize("generate", [weakly_noniid, strongly_noniid, program_strongly_noniid])


@generators
def test_features_are_normal_with_a_constant_and_labels_are_signs(generate: Generator) -> None:
    features, labels = generate(agents=20, samples=300, dimension=6)
    assert features.shape == (20, 300, 6)
    assert labels.shape == (20, 300)
    assert features.dtype == labels.dtype == np.float64
    assert (features[..., -1] == 1).all()
    assert features[..., :-1].mean() == pytest.approx(0, abs=0.03)  # five standard deviations of 30 000 draws
    assert features[..., :-1].std() == pytest.approx(1, abs=0.03)
    assert set(np.unique(labels)) == {-1.0, 1.0}


@generators
def test_a_seed_is_reproducible_and_seeds_differ(generate: Generator) -> None:
    one, again, other = (generate(agents=2, samples=50, dimension=3, seed=seed) for seed in (1, 1, 2))
    for first, second, third in zip(one, again, other, strict=True):
        np.testing.assert_array_equal(first, second)
        assert (first != third).any()


@generators
def test_the_defaults_are_the_paper_s(generate: Generator) -> None:
    assert generate()[0].shape == (100, 400, 20)


def test_weak_labels_are_fair_coins_for_every_agent() -> None:
    features, labels = weakly_noniid(agents=10, samples=4000, dimension=5)
    assert np.abs(labels.mean(1)).max() < 0.08  # five standard deviations
    slopes = np.einsum("nsd,ns->nd", features, labels) / 4000
    assert np.abs(slopes).max() < 0.08


def test_strong_labels_follow_a_model_of_each_agent_s_own() -> None:
    features, labels = strongly_noniid(agents=4, samples=2000, dimension=5)
    for i in range(4):
        models = [np.linalg.lstsq(features[j], labels[j])[0] for j in range(4)]
        agreement = [np.mean(np.sign(features[i] @ model) == labels[i]) for model in models]
        assert agreement[i] > 0.9
        assert max(agreement[:i] + agreement[i + 1 :]) < 0.85


def test_only_the_text_s_strong_kind_is_more_heterogeneous_than_the_weak_one() -> None:
    def delta(generate: Generator) -> float:
        return theory.heterogeneity(penalized_logistic(*generate(agents=30, samples=200, dimension=10, seed=0)))

    weak, strong, program = delta(weakly_noniid), delta(strongly_noniid), delta(program_strongly_noniid)
    assert strong > 1.5 * weak
    assert program < 1.2 * weak


@generators
@pytest.mark.parametrize("name", ["agents", "samples", "dimension"])
def test_sizes_are_counts(generate: Generator, name: str) -> None:
    with pytest.raises(FedpdError, match=rf"{name} = 0: must be an integer of at least 1\. Give"):
        generate(**{name: 0})
