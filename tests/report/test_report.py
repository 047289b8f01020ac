"""Tables and figures of a comparison, and the table of methods."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.engine.measure.history import first_row
from fedpd.engine.run import Ensemble, Run
from fedpd.engine.views.entries import short_number
from fedpd.experiments.runner import Result
from fedpd.report import comparison_figure, comparison_table, figure, page, paper_figure, save_figure, target_table
from fedpd.report.advice import tuning_table
from fedpd.report.tables import example_methods, measure_sizes
from fedpd.search.tune import tune

PROBLEM = problems.random_quadratic(4, 3)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    good = simulate(algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 8)), PROBLEM, rounds=60, seed=[0, 1])
    bad = simulate(algorithms.fedavg(oracle=oracles.gd(9.0, 8)), PROBLEM, rounds=60)
    return [Result("FedPD [exact]", good.runs), Result("FedAvg", (bad,))]


def text(table: Table) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_table_names_costs_spread_and_divergence(results: list[Result]) -> None:
    shown = text(comparison_table(results))
    assert "FedPD [exact]" in shown
    assert "±" not in shown, "both seeds of a method without randomness are equal"
    assert "diverged at" in shown
    assert "1.92 k" in shown  # samples: 60 rounds x 8 steps x 4 agents of one sample each
    assert "11.5 kB" in shown  # 60 rounds x 4 agents x 24 bytes, up and down


def test_the_target_table_counts_until_the_target(results: list[Result]) -> None:
    shown = text(target_table(results, 1e-6))
    row = next(line for line in shown.splitlines() if "FedPD" in line)
    stationarity = results[0].runs[0].history["stationarity"]
    assert f" {first_row(stationarity, 1e-6)} " in row
    assert "no: best" in shown


def test_large_numbers_are_readable() -> None:
    assert [short_number(n) for n in (0, 5, 999, 1000, 192e6)] == ["0", "5", "999", "1 k", "192 M"]
    assert short_number(9.6e6, "B") == "9.6 MB"


def test_figures_are_drawn_with_seeds_and_without_what_is_not_finite(results: list[Result], tmp_path: Path) -> None:
    figure = comparison_figure(results, "a title")
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["FedPD [exact]", "FedAvg (diverged)"]
    assert all(np.isfinite(line.get_ydata()).all() for line in (*left.lines, *right.lines))
    assert len(left.collections) == 2, "the band over the seeds, and a cross where the other diverged"
    assert left.get_yscale() == right.get_yscale() == right.get_xscale() == "log"
    assert all(path.stat().st_size > 1000 for path in save_figure(figure, tmp_path, "comparison"))


def test_tables_and_figures_take_what_a_page_takes(results: list[Result]) -> None:
    good, bad = results
    runs: dict[str, Run | Ensemble] = {
        good.label: simulate(algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 8)), PROBLEM, rounds=60, seed=[0, 1]),
        bad.label: bad.runs[0],
    }
    lines = [line.rpartition(" s ")[0] for line in text(comparison_table(runs)).splitlines()]  # but for the time
    assert [line[:60] for line in lines] == [
        line.rpartition(" s ")[0][:60] for line in text(comparison_table(results)).splitlines()
    ]
    assert text(target_table(runs, 1e-6)) == text(target_table(results, 1e-6))
    for drawn in (comparison_figure(runs), paper_figure(runs, "samples")):
        assert [line.get_label() for line in drawn.axes[0].lines] == ["FedPD [exact]", "FedAvg (diverged)"]
    assert page(results).finding == page(runs).finding
    for function in (comparison_figure, comparison_table, page):
        with pytest.raises(FedpdError, match="must hold at least one run"):
            function({})


def test_quantities_and_costs_that_there_are_not(results: list[Result]) -> None:
    with pytest.raises(FedpdError, match=r"quantity = 'test_accuracy': there is no such choice"):
        comparison_figure(results, quantity="test_accuracy")
    with pytest.raises(FedpdError, match=r"cost = 'time': there is no such choice"):
        paper_figure(results, "time")


def test_axes_are_those_of_the_column(results: list[Result]) -> None:
    figure = comparison_figure(results[:1], quantity="consensus")
    assert figure.axes[0].get_ylabel() == "consensus gap"
    assert figure.axes[0].get_yscale() == "linear"  # it is zero everywhere
    assert paper_figure(results, "seconds").axes[0].get_yscale() == "log"
    assert paper_figure(results, "seconds", "loss").axes[0].get_xscale() == "linear"


def test_forty_curves_look_different(results: list[Result]) -> None:
    many = [Result(str(number), results[1].runs) for number in range(40)]
    lines = figure(many).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in lines}) == 40  # type: ignore[attr-defined]


def test_many_methods_are_a_sorted_row_of_dots_and_five_curves(results: list[Result]) -> None:
    many = [Result(str(number), results[number % 2].runs) for number in range(14)]
    drawn = comparison_figure(many)
    dots, curves = drawn.axes
    names = [tick.get_text() for tick in dots.get_yticklabels()]
    assert sorted(names, key=int) == [str(number) for number in range(14)]
    assert len(curves.lines) <= 5 + 1, "five curves and the target"
    assert {text.get_text().split(":")[0] for text in dots.texts} >= {"no"}, "those that diverged did not reach it"


def test_sizes_are_counted_in_models() -> None:
    methods = dict(example_methods())
    assert measure_sizes(methods["FedPD-GD"]) == (1, 1, 3, 1)
    assert measure_sizes(methods["SCAFFOLD"]) == (2, 2, 5, 2)


def test_accuracies_are_shown_where_there_are_any() -> None:
    agents = {i: {"x": np.eye(2), "y": np.array([0, 1])} for i in range(2)}
    problem = problems.classification(lambda model, x: x @ model, data.from_arrays(agents, agents), np.zeros((2, 2)))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=1.0, iterations=2)), problem, rounds=3)
    results = [Result("FedAvg", (run,))]
    columns = comparison_table(results).columns
    assert [column.header for column in columns][1:3] == ["stationarity", "accuracy"]
    assert list(columns[2].cells) == ["100.0%"]
    figure = comparison_figure(results, quantity="test_accuracy")
    assert figure.axes[0].get_ylabel() == "accuracy on all test samples"
    assert figure.axes[0].get_yscale() == "linear"
    assert len(figure.axes[0].lines[0].get_xdata()) == 4  # type: ignore[arg-type]


def test_tuning_shows_the_oracles_step_of_cooperative_sgd() -> None:
    (one,) = tune(PROBLEM, methods=["Cooperative SGD"], target=0.1, rounds=200, scales=[1.0, 4.0])
    shown = text(tuning_table([one], 0.1))
    assert f"step = {one.table['oracle']['step']:.3g}" in shown
    assert "alpha" not in shown
    row = first_row(one.runs[0].history["stationarity"], 0.1)
    assert row is not None
    assert short_number(one.runs[0].history["samples"][row]) in shown
