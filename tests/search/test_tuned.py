"""Judging settings: kept targets, validation samples, and a search within a budget."""

import math
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, Method, Problem, algorithms, data, oracles, problems
from fedpd.engine.measure.columns import column_of
from fedpd.problems.networks import MLP
from fedpd.search.candidates import Axis, Candidate
from fedpd.search.tuned import Criterion, Searched, Try, kept_row, search, with_validation

ACCURACY = Criterion(column_of("test_accuracy"), None)


def two_classes() -> Problem:
    """Return two classes, divided by a line, at six agents of unequal sizes; the last one is too small to hold out."""
    rng = np.random.default_rng(0)

    def samples(number: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(number, 3)).astype(np.float32)
        return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(int)}

    train = {str(i): samples(number) for i, number in enumerate((14, 20, 20, 20, 20, 2))}
    tests = {str(i): samples(10) for i in range(6)}
    return problems.network(MLP(2, hidden=()), data.from_arrays(train, tests), check=False)


def test_a_target_counts_from_the_first_row_from_which_the_mean_of_three_is_at_it() -> None:
    accuracy = np.array([0.1, 0.9, 0.2, 0.7, 0.8, 0.9])
    assert kept_row(accuracy, 0.1) == 1  # the first model does not count
    assert kept_row(accuracy, 0.6) == 1  # (0.9 + 0.2 + 0.7)/3
    assert kept_row(accuracy, 0.8) == 3
    assert kept_row(accuracy, 0.81) is None  # the last row alone is not enough
    assert kept_row(accuracy[:2], 0.1) is None


def test_validation_samples_are_not_trained_on_and_are_those_that_are_missing() -> None:
    problem = two_classes()
    tuning = with_validation(problem, 0.15, 0)
    assert tuning.evaluation is not None
    assert tuning.evaluation.sizes.tolist() == [2, 3, 3, 3, 3, 0]
    for agent in range(problem.agents):
        rows = [one.rows_of([agent])[0]["x"] for one in (problem, tuning)]
        held = tuning.test_rows_of([agent])[0]["x"]
        assert sorted(map(tuple, rows[0])) == sorted(map(tuple, np.concatenate([rows[1], held])))
    assert not np.array_equal(tuning.rows_of([1])[0]["x"], with_validation(problem, 0.15, 1).rows_of([1])[0]["x"])


def test_a_share_that_holds_out_nothing_and_a_problem_without_tests_are_refused() -> None:
    with pytest.raises(FedpdError, match=r"validation = 1\.5: must be below 1"):
        with_validation(two_classes(), 1.5, 0)
    with pytest.raises(FedpdError, match=r"validation = 0\.1: needs a problem that has test samples"):
        with_validation(problems.random_quadratic(3, 2), 0.1, 0)


def _searched(score: Any, axes: dict[str, Axis], budget: int) -> Searched:
    """Search with a score of the point in place of runs; a larger one is better."""
    method = algorithms.fedavg(oracle=oracles.gd(0.1, 1))

    def build(**_: Any) -> Method:
        return method

    def judged(point: dict[str, Any], _: Method) -> Try:
        return Try(point, "", math.nan, score(**point), 1.0)

    return search(Candidate("one", build, axes), judged, ACCURACY, budget)


def test_a_search_leaves_its_first_value_as_far_as_tries_get_better() -> None:
    found = _searched(lambda step: -abs(math.log2(step) - 7.5), {"step": Axis(0.1)}, 30)
    assert found.tries[found.best].point["step"] == pytest.approx(2**7.5, rel=0.2)
    assert found.edges == ()
    assert len(found.tries) < 14  # 11 octaves away


def test_a_search_of_two_settings_finds_the_best_pair_within_its_budget() -> None:
    def score(step: float, penalty: float) -> float:
        return -abs(math.log2(step) + 1) - abs(math.log2(penalty / step) - 3)  # they depend on each other

    found = _searched(score, {"step": Axis(0.1), "penalty": Axis(5.0)}, 40)
    assert found.tries[found.best].value > -1.1
    few = _searched(score, {"step": Axis(0.1), "penalty": Axis(5.0)}, 3)
    assert len(few.tries) == 3


def test_a_budget_that_ends_on_the_way_says_so() -> None:
    found = _searched(lambda step: step, {"step": Axis(0.1)}, 4)
    assert [one.point["step"] for one in found.tries] == pytest.approx([0.1, 0.4, 1.6, 6.4])
    assert (found.best, found.edges) == (3, ("step",))


def test_lists_have_ends_and_words_have_no_order() -> None:
    listed = Axis(2.0, (1.0, 2.0, 3.0))
    found = _searched(
        lambda step, start: step + (start == "server"),
        {"step": listed, "start": Axis("local", ("local", "server"))},
        20,
    )
    assert found.tries[found.best].point == {"step": 3.0, "start": "server"}
    assert found.edges == ("step",)
    assert _searched(lambda step: 1.0, {"step": Axis(2.0, (2.0,))}, 5).edges == ()


def test_momentum_is_searched_by_its_distance_to_one() -> None:
    axis = Axis(0.9, below_one=True)
    assert [axis.value(place) for place in (-2, 0, 2)] == pytest.approx([0.8, 0.9, 0.95])
    assert not axis.has(-8)  # it would be negative


def test_ties_go_to_the_smaller_cost_and_nan_is_the_worst() -> None:
    rule = Criterion(column_of("loss"), 0.1)
    tries = [Try({}, "", 10, 0.2, 5.0), Try({}, "", 10, 0.2, 4.0), Try({}, "", math.nan, 0.0, 1.0)]
    assert min(range(3), key=lambda i: tries[i].rank(rule)) == 1
