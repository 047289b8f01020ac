"""The promises of p="auto" on the two data sets of the recorded runs (all 400 samples), and on equal agents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Problem, advise, algorithms, oracles, problems, simulate, theory
from fedpd.search.sweep import first_below

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.exists(), reason="the recorded runs are not beside this checkout")
both = pytest.mark.parametrize("name", ["text_strong", "code_weak"])


def load(name: str, equal: bool = False) -> Problem:
    arrays = np.load(REFERENCE / f"data_{name}.npz")
    features, labels = arrays["A"], arrays["b"]
    if equal:
        features, labels = np.repeat(features[:1], 10, axis=0), np.repeat(labels[:1], 10, axis=0)
    return problems.penalized_logistic(features, labels)


def communications(problem: Problem, relative_eta: float, rounds: int, p: Any) -> float:
    L = theory.smoothness(problem)
    eta = relative_eta / L
    oracle = oracles.gd(step=1 / (L + 1 / eta), iterations=8)
    return first_below(simulate(algorithms.fedpd(eta=eta, oracle=oracle, p=p), problem, rounds=rounds), 1e-10)


@pytest.mark.slow
@needs_reference
@both
@pytest.mark.parametrize(
    ("relative_eta", "share"),
    [
        (0.02, 1 / 3),
        (0.05, 1 / 3),
        (0.1, 1 / 2),
        (0.28, 1 / 2),
        (0.5, 1.1),
        (1.0, 1.1),
        (1.2, 1.1),
        (1.5, 1.1),
        (2.0, 1.1),
    ],
)
def test_auto_against_every_round(name: str, relative_eta: float, share: float) -> None:
    problem, rounds = load(name), int(60 + 14 / relative_eta)
    assert communications(problem, relative_eta, 2 * rounds, "auto") <= share * communications(
        problem, relative_eta, rounds, 0.0
    )


@pytest.mark.slow
@needs_reference
@pytest.mark.parametrize("relative_eta", [0.05, 0.28, 1.0, 2.0])
def test_auto_where_agents_are_equal(relative_eta: float) -> None:
    problem, rounds = load("text_strong", equal=True), int(100 + 40 / relative_eta)
    always = communications(problem, relative_eta, rounds, 0.0)
    assert communications(problem, relative_eta, 4 * rounds, "auto") <= always / 10


@pytest.mark.slow
@needs_reference
@both
def test_advice_with_nothing_given_needs_few_communications(name: str) -> None:
    recommended = advise(load(name), 1e-10, pilot=30).recommended
    assert recommended is not None
    assert recommended.reached
    assert recommended.communications <= 15
