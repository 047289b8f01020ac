"""No headline over unequal local work without saying so: batches of one sample against full gradients."""

import re

import pytest
from rich.console import Console
from rich.table import Table

from fedpd import algorithms, data, oracles, problems, simulate, sweep, tune
from fedpd.experiments.runner import Result
from fedpd.report import comparison_figure, comparison_table, figure, target_table
from fedpd.report.advice import sensitivity_figure, tuning_table
from fedpd.search.tuned import Tuned

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(4, 30, 5, seed=2))  # 4 agents of 30 samples
# 8 local steps: 4 x 8 samples per communication with a batch of 1, and 4 x 8 x 30 with full gradients
UNEQUAL = "Unequal local work, from 32 (FedAvg-SGD) to 960 (FedPD-GD) sample gradients per communication"


@pytest.fixture(scope="module")
def tuned() -> list[Tuned]:
    return tune(PROBLEM, methods=["FedAvg-SGD", "FedPD-GD"], target=1e-3, rounds=30, scales=[1.0, 4.0])


@pytest.fixture(scope="module")
def results() -> list[Result]:
    one = simulate(algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8)), PROBLEM, rounds=10)
    full = simulate(algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=8)), PROBLEM, rounds=10)
    return [Result("FedAvg-SGD", (one,)), Result("FedPD-GD", (full,))]


def text(table: Table) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_tuning_says_it_in_its_table_and_its_figure(tuned: list[Tuned]) -> None:
    shown = text(tuning_table(tuned, 1e-3))
    assert UNEQUAL in " ".join(shown.split())
    _, first, second = re.split("│ (?=Fed)", shown)
    assert " 32 │" in first
    assert " 960 │" in second
    assert "32 sample gradients each" in repr(tuned[0]) or "not reached" in repr(tuned[0])
    assert "with 960 sample gradients each" in repr(tuned[1])
    drawn = sensitivity_figure(tuned, 1e-3, 30)
    assert UNEQUAL in drawn.get_suptitle().replace("\n", " ")


def test_tuning_methods_of_equal_work_says_nothing_of_it(tuned: list[Tuned]) -> None:
    (alone,) = (one for one in tuned if one.label == "FedPD-GD")
    assert "local work" not in text(tuning_table([alone], 1e-3))
    assert sensitivity_figure([alone]).get_suptitle() == ""


def test_tables_and_titles_of_a_comparison_say_it(results: list[Result]) -> None:
    for table in (comparison_table(results), target_table(results, 1e-3)):
        assert f"{UNEQUAL}." in " ".join(text(table).split())
    for drawn in (figure(results), comparison_figure(results)):
        assert drawn.get_suptitle().replace("\n", " ").startswith(f"{UNEQUAL}: ")
    equal = [results[1], Result("FedPD again", results[1].runs)]
    assert "local work" not in text(comparison_table(equal))
    assert "local work" not in figure(equal).get_suptitle()


def test_a_sweep_says_it_beside_its_best_point() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=8))
    tried = sweep(algorithm, PROBLEM, {"oracle.iterations": [2, 8]}, rounds=5)
    expected = "Unequal local work, from 240 (oracle.iterations=2) to 960 (oracle.iterations=8) sample gradients"
    assert expected in repr(tried)
    assert expected in tried._repr_html_()
    assert "local work" not in repr(sweep(algorithm, PROBLEM, {"eta": [0.5, 1.0]}, rounds=5))
