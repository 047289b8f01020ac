"""Table 1: the paper's rows, and how they grow."""

import math
from typing import Any

import pytest

from fedpd import FedpdError
from fedpd.theory import complexity

PRINTED = {  # RC, LC, AS of Table 1 at epsilon = 1/100, M = 400, Q = 8, p = 1/4
    "FedAvg SC iid": (10, 100, 100),
    "FedAvg SC BG": (100, 100, 100),
    "Coop-SGD": (100, 1e4, 1e4),
    "MPR-SGD": (1000, 1e4, 1e4),
    "Local-GD": (1000, 1e4, 4e6),
    "FedProx": (100, 1e4, 1e4),
    "F-SVRG": (100, 800, 40_800),
    "VRL-SGD": (100, 1e4, 1e4),
    "FedPD-GD": (75, 100 * math.log(100), 40_000 * math.log(100)),
    "FedPD-SGD": (75, 1e4, 1e4),
    "FedPD-VR": (100, 800, 400 + 2000),
}


def test_the_rows_are_the_paper_s() -> None:
    rows = complexity.table(0.01, samples=400, iterations=8, p=0.25)
    assert [row.method for row in rows] == list(PRINTED) == [row.method for row in complexity.TABLE]
    for method, *orders in rows:
        assert orders == pytest.approx(PRINTED[method])


def test_no_method_of_the_class_needs_fewer_rounds_without_convexity() -> None:
    """Claim 2.1: 1/epsilon rounds at p = 0; only strongly convex rows are below."""
    for row, orders in zip(complexity.TABLE, complexity.table(1e-4), strict=True):
        assert orders.rounds >= 1e4 * (1 - 1e-12) or row.convexity == "SC"


def test_formulas_say_what_they_compute() -> None:
    by_hand = {  # at epsilon = 1/100, M = 400, Q = 8, p = 1/4
        "1/e": 100,
        "1/e^0.5": 10,
        "1/e^1.5": 1000,
        "1/e^2": 1e4,
        "Q/e": 800,
        "(1-p)/e": 75,
        "log(1/e)/e": 100 * math.log(100),
        "M log(1/e)/e": 40_000 * math.log(100),
        "M/e^2": 4e6,
        "M/e + Q/e": 40_800,
        "M + sqrt(M)/e": 2400,
    }
    setting = complexity.Setting(0.01, 400, 8, 0.25)
    orders = {order for row in complexity.TABLE for order in (row.rounds, row.updates, row.samples)}
    assert {order.formula: order.at(setting) for order in orders} == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epsilon": 0.0}, r"epsilon = 0\.0: must be positive and finite\. epsilon is the target"),
        ({"epsilon": 2.0}, r"epsilon = 2\.0: must be below 1\. Orders in 1/epsilon"),
        ({"epsilon": 0.1, "samples": 0}, r"samples = 0: must be an integer of at least 1\. samples is M"),
        ({"epsilon": 0.1, "iterations": 0}, r"iterations = 0: must be an integer of at least 1\. iterations is Q"),
        ({"epsilon": 0.1, "p": 1.0}, r"p = 1\.0: must lie in \[0, 1\)\. p is the probability of skipping"),
    ],
)
def test_the_table_refuses(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        complexity.table(**settings)
