"""Tuning: each method with its best step size, the one with the fewest communications."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, data, problems, simulate, tune
from fedpd.algorithms import variants
from fedpd.core import Spec
from fedpd.experiments.calls import build_algorithm
from fedpd.search.sweep import first_below
from fedpd.search.tune import METHODS

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
    assert local.stationarity[local.best] == local.stationarity.min()


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
        ({"methods": ["FedPD"]}, "methods = 'FedPD': there is no such choice. Did you mean"),
        ({"target": 0}, "target = 0"),
        ({"scales": []}, "must hold at least one factor"),
        ({"scales": [-1.0]}, "scales = -1"),
        ({"rounds": -5}, "rounds = -5"),
    ],
)
def test_wrong_requests_are_refused(settings: dict[str, Any], answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        tune(PROBLEM, **settings)


def test_a_diminishing_step_is_tuned_too() -> None:
    problem = problems.random_quadratic(3, 2)
    (one,) = tune(problem, methods=["FedAvg-SGD"], rounds=3, scales=(0.5, 1.0))
    assert one.table["oracle"]["step"]["name"] == "inverse_sqrt"
    assert np.isfinite(one.stationarity).all()
