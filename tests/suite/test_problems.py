"""The problems of the suite are what their names say, and their answers are right."""

import jax
import numpy as np
import pytest
from tools.suite_answers import find

from fedpd import FedpdError, theory
from fedpd.suite import PROBLEMS
from fedpd.suite.problems import at_random, by_dirichlet, by_label, by_size, known_answers, make

GENERATED = [name for name, entry in PROBLEMS.items() if not entry.bundled]


def test_the_suite_covers_what_it_promises() -> None:
    facts = known_answers()
    assert list(facts) == list(PROBLEMS)
    assert len(PROBLEMS) >= 24
    assert min(fact.agents for fact in facts.values()) == 2
    assert max(fact.agents for fact in facts.values()) == 500
    conditions = [fact.condition for fact in facts.values() if np.isfinite(fact.condition)]
    assert min(conditions) == pytest.approx(1)
    assert max(conditions) > 1e6
    assert sum(not entry.convex for entry in PROBLEMS.values()) >= 8
    assert all(fact.stationarity < 1e-20 for fact in facts.values())  # far below the target of 1e-10
    assert all(facts[name].negative > -1e-12 for name, entry in PROBLEMS.items() if entry.convex)


@pytest.mark.parametrize("name", GENERATED)
def test_a_problem_has_the_size_of_its_facts(name: str) -> None:
    problem, fact = make(name), known_answers()[name]
    assert (problem.agents, problem.dimension, problem.samples) == (fact.agents, fact.dimension, fact.samples)
    assert problem.name == name
    assert problem.double


@pytest.mark.parametrize("name", ["quadratic-aligned-1e3", "phase-retrieval"])
def test_answers_can_be_computed_anew(name: str) -> None:
    found, fact = find(make(name)), known_answers()[name]
    np.testing.assert_allclose(found.value, fact.value, rtol=1e-8, atol=1e-20)
    np.testing.assert_allclose(found.condition, fact.condition, rtol=1e-4)


def test_the_value_of_a_quadratic_is_that_of_its_minimiser() -> None:
    problem = make("quadratic-equal-1e2")
    assert theory.objective(problem, problem.answer.minimiser) == pytest.approx(known_answers()[problem.name].value)


def test_a_problem_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(FedpdError, match="Did you mean 'ridge-by-size'"):
        make("ridge-by-sise")


def test_bundled_data_gives_what_the_facts_say() -> None:
    pytest.importorskip("sklearn")
    problem, fact = make("softmax-wine"), known_answers()["softmax-wine"]
    assert (problem.agents, problem.dimension, problem.samples) == (fact.agents, fact.dimension, fact.samples)
    labels = [np.unique(problem.data["y"][i, : problem.sizes[i]]) for i in range(problem.agents)]
    assert max(map(len, labels)) <= 2  # split by label


def test_every_row_goes_to_one_agent() -> None:
    labels = np.repeat(np.arange(4), 25)
    for rows in (by_label(labels, 7), at_random(100, 7), by_size(100, 7, least=3), by_dirichlet(labels, 7, 0.3)):
        assert len(rows) == 7
        assert sorted(np.concatenate(rows).tolist()) == list(range(100))
    sizes = [len(own) for own in by_size(100, 7, least=3)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= 3
    assert jax.tree.leaves(make("factorisation").start)[0].shape == (20, 3)
