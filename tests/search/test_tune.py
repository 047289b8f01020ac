"""Tuning: each method with its best step size, the one with the fewest communications."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, data, problems, simulate, tune
from fedpd.algorithms import variants
from fedpd.core import Spec
from fedpd.experiments.calls import build_algorithm
from fedpd.problems import networks
from fedpd.search.sweep import first_below
from fedpd.search.tune import METHODS, usable

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(8, 60, 5, seed=2))


def test_the_best_of_the_tries_is_found_and_can_be_run() -> None:
    told: list[tuple[str, int, int]] = []
    scales = [0.25, 1.0, 4.0, 64.0]
    fedpd, local = tune(
        PROBLEM,
        methods=["FedPD-GD", "Local GD"],
        target=1e-8,
        rounds=40,
        scales=scales,
        progress=lambda *report: told.append(report),
    )
    assert {what for what, _, _ in told} == {"FedPD-GD", "Local GD"}
    reached = fedpd.communications[~np.isnan(fedpd.communications)]
    assert fedpd.communications[fedpd.best] == reached.min()
    assert fedpd.scales[fedpd.best] == 4.0  # eta near 1.1/L
    arguments = {key: value for key, value in fedpd.table.items() if key != "label"}
    again = simulate(build_algorithm(arguments, 40), PROBLEM, rounds=40)
    assert first_below(again, 1e-8) == fedpd.communications[fedpd.best]
    assert np.isnan(local.communications).all()  # it stops at its floor, whatever the step
    assert local.values[local.best] == local.values.min()


def test_scale_is_a_factor_on_the_step() -> None:
    own, twice = (variants()["SCAFFOLD"].rule(0.5, 8, scale).spec for scale in (1.0, 2.0))
    assert isinstance(own, Spec)
    assert isinstance(twice, Spec)
    assert twice["step"] == 2 * own["step"]
    prox: Any = variants()["FedProx"].rule(0.5, 8, 2.0).spec
    assert (prox["rho"], prox["oracle"]["step"]) == (0.25, 1 / 0.75)


def test_the_usual_methods_exist() -> None:
    assert set(METHODS) <= set(variants())


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"methods": ["FedPB"]}, "methods = 'FedPB': there is no such method. Did you mean"),
        ({"methods": ["FedPD-GD"], "grid": {"oracle.step": [1.0]}, "batch": 4}, "grid = .* belongs to the rules"),
        ({"target": 0}, "target = 0"),
        ({"scales": []}, "must hold at least one factor"),
        ({"scales": [-1.0]}, "scales = -1"),
        ({"rounds": -5}, "rounds = -5"),
        ({"methods": "FedPD-GD"}, "methods = 'FedPD-GD': must be a list of labels. Give e.g. \\['FedPD-GD'\\]"),
        (
            {"criterion": "test_accuracy", "target": 0.9},
            "criterion = 'test_accuracy': needs a problem with test samples",
        ),
        (
            {"criterion": "los"},
            "criterion = 'los': must be a column of which less or more is better. Did you mean 'loss'",
        ),
        ({"criterion": "round"}, "criterion = 'round': must be a column of which less or more is better"),
        ({"criterion": "loss", "target": "low"}, "target = 'low': must be a number"),
        ({"participation": 0}, "participation = 0: must be positive"),
        (
            {"grid": {"oracle.bach": [1]}, "methods": ["FedAvg-SGD"]},
            "setting = 'oracle.bach': sgd has no setting 'bach'",
        ),
        ({"methods": ["FedPD-GD p=auto"], "participation": 0.5}, "needs all agents in every communication"),
    ],
)
def test_wrong_requests_are_refused(settings: dict[str, Any], answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        tune(PROBLEM, **settings)


def test_a_diminishing_step_is_tuned_too() -> None:
    problem = problems.random_quadratic(3, 2)
    (one,) = tune(problem, methods=["FedAvg-SGD"], rounds=3, scales=(0.5, 1.0))
    assert one.table["oracle"]["step"]["name"] == "inverse_sqrt"
    assert np.isfinite(one.values).all()


@pytest.mark.slow
def test_the_criterion_can_be_test_accuracy_and_validation_samples_judge_it() -> None:
    problem = problems.network(networks.MLP(classes=3, hidden=(4,)), data.characters(3, 20, 3, size=4))
    options: dict[str, Any] = {"methods": ["FedPD-GD"], "criterion": "test_accuracy", "rounds": 20}
    (one,) = tune(problem, target=0.4, scales=[0.01, 1, 4], **options)
    assert (one.criterion, one.target) == ("test_accuracy", 0.4)
    assert one.reached
    again = simulate(build_algorithm({k: v for k, v in one.table.items() if k != "label"}, 20), problem, rounds=20)
    np.testing.assert_array_equal(one.runs[0].history["test_accuracy"], again.history["test_accuracy"])
    (judged,) = tune(problem, target=0.4, scales=[0.01, 1, 4], validation=0, **options)
    assert judged.values[judged.best] == pytest.approx(judged.runs[0].history["test_accuracy"][-5:].mean())
    assert judged.values.tolist() != one.values.tolist()


def test_a_column_that_is_recorded_for_it() -> None:
    (one,) = tune(PROBLEM, methods=["Local GD"], criterion="heterogeneity", target=1e-9, rounds=2, scales=[1.0, 2.0])
    assert one.values[one.best] == one.values.min() == one.runs[0].history["heterogeneity"][1:].mean()


@pytest.mark.slow
def test_batch_sizes_and_participation_are_tuned_too() -> None:
    grid: dict[str, Any] = {"oracle.batch": [1, 20], "participation": [0.5, 0.7]}
    tuned = tune(PROBLEM, methods=["FedAvg-SGD"], target=0.03, rounds=6, scales=[1.0, 4.0], grid=grid)
    assert [one.label for one in tuned] == [
        "FedAvg-SGD, oracle.batch=1, participation=0.5",
        "FedAvg-SGD, oracle.batch=1, participation=0.7",
        "FedAvg-SGD, oracle.batch=20, participation=0.5",
        "FedAvg-SGD, oracle.batch=20, participation=0.7",
    ]
    assert {one.method for one in tuned} == {"FedAvg-SGD"}
    last = tuned[2]
    assert last.settings == {"oracle.batch": 20, "participation": 0.5}
    assert last.table["oracle"]["batch"] == 20
    arguments = {key: value for key, value in last.table.items() if key != "label"}
    again = simulate(build_algorithm(arguments, 6), PROBLEM, rounds=6, participation=0.5)
    np.testing.assert_allclose(last.runs[0].history["stationarity"], again.history["stationarity"], rtol=1e-9)


def test_methods_that_need_everyone_are_left_out_where_some_are_away() -> None:
    assert usable(METHODS, 1.0) == list(METHODS)
    assert set(METHODS) - set(usable(METHODS, 0.5)) == {"FedPD-GD p=auto"}
    assert usable(["FedPD-GD p=auto"], [1.0, 1.0]) == ["FedPD-GD p=auto"]  # a probability per agent


def test_no_method_runs_if_one_of_them_cannot() -> None:
    told: list[str] = []
    with pytest.raises(FedpdError, match=r"FedPD-GD p=auto: algorithm = .*needs all agents"):
        tune(
            problems.random_quadratic(3, 2),
            methods=["Local GD", "FedPD-GD p=auto"],
            participation=0.5,
            progress=lambda what, done, total: told.append(what),
        )
    assert not told
