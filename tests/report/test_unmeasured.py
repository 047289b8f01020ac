"""Rows that were not measured are no rows: a federation evaluates its model only in some of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from fedpd import FedpdError, algorithms, oracles, problems, simulate
from fedpd.engine.run import Run
from fedpd.engine.views.entries import Entry
from fedpd.experiments.recorded import read
from fedpd.report import comparison_figure, comparison_table, figure, target_table, watch
from fedpd.report.pages import page_data, page_of
from fedpd.report.reach import reach
from fedpd.report.watch import view
from tests.report.recordings import record, sparse

MEASURED = [0, 5, 10, 15, 20]


@pytest.fixture(scope="module")
def run() -> Run:
    """A run of 20 rounds, in which the quantities of rounds 0, 5, 10, ... only are known."""
    problem = problems.random_quadratic(4, 3)
    whole = simulate(algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 8)), problem, rounds=20)
    known = np.isin(whole.history["round"], MEASURED)
    gaps = {name: np.where(known, whole.history[name], np.nan) for name in ("loss", "stationarity")}
    return replace(whole, history=whole.history | gaps)


def text(shown: object) -> str:
    console = Console(width=110)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def row(table: Table, label: str) -> list[str]:
    return next(line for line in text(table).splitlines() if label in line).replace("│", " ").split()


def test_a_page_has_the_points_that_were_measured_and_counts_to_them() -> None:
    one = sparse("Flower")
    data = page_data([one], {"stationarity": 1e-10})
    (shown,) = data["entries"]
    points = list(zip(shown["x"]["communications"], shown["y"]["stationarity"]["mean"], strict=True))
    assert [x for x, y in points if y is not None] == MEASURED
    goal = data["quantities"][0]["chosen"]
    assert shown["reached"]["stationarity"][goal]["costs"][0] == [10, 10, 10]
    html = page_of([record(one)]).html
    assert "nan" not in html.partition("<script")[0]
    assert "connectgaps: true" in html


def test_thinning_a_long_history_keeps_measured_rows() -> None:
    one = sparse("Flower", rate=0.001, every=7, rounds=7000)
    (shown,) = page_data([one])["entries"]
    known = [y for y in shown["y"]["stationarity"]["mean"] if y is not None]
    assert len(known) > 200
    assert shown["x"]["communications"][-1] == 7000


def test_tables_show_the_last_measured_value_and_the_costs_to_it() -> None:
    one = sparse("Flower")
    one.runs[0].history["stationarity"][-1] = np.nan  # a run that is not finished, between two evaluations
    assert row(comparison_table([one]), "Flower")[1] == "1.00e-15"
    assert row(target_table([one], 1e-10), "Flower")[1] == "10"


def test_figures_connect_the_measured_points(run: Run) -> None:
    for drawn in (run.plot(), figure(run), comparison_figure([sparse("Flower")])):
        assert np.asarray(drawn.axes[0].lines[0].get_xdata()).tolist() == MEASURED


def test_a_frame_keeps_the_rows_that_were_not_measured(run: Run) -> None:
    pytest.importorskip("pandas")
    frame = run.frame()
    assert len(frame) == 21
    assert frame["stationarity"].isna().sum() == 16


def test_a_result_ends_with_its_last_measured_value(run: Run) -> None:
    last = run.history["stationarity"][20]
    shorter = replace(run, history=run.history | {"stationarity": np.append(run.history["stationarity"][:-1], np.nan)})
    assert f"stationarity {last:.2e}" in repr(run)
    assert f"stationarity {run.history['stationarity'][15]:.2e}" in repr(shorter)
    assert "nan" not in shorter._repr_html_()
    assert "polyline" in shorter._repr_html_()


def test_a_view_in_the_terminal_draws_them() -> None:
    one = sparse("Flower", rate=0.001, every=7, rounds=7000)
    shown = text(view(record(one), 100))
    assert sum("⠀" < character <= "⣿" for character in shown) > 50
    assert "nan" not in shown


def test_a_run_without_any_evaluation_is_said_to_have_none() -> None:
    one = sparse("Flower")
    for name in ("loss", "stationarity", "test_accuracy"):
        one.runs[0].history[name][:] = np.nan
    with pytest.raises(FedpdError, match=r"Flower: its history has no finite stationarity.*evaluate-every = 0"):
        page_of([record(one)])
    assert "not measured" in text(comparison_table([one]))
    shown = text(view(record(one), 100))
    assert "No stationarity above zero was measured" in shown
    assert "not measured" in shown


def test_the_history_of_a_federation_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tests.flower.federations import FEDPD
    from tests.flower.federations import run as federation

    history = federation(FEDPD, 12, evaluate_every=5, out=tmp_path / "out").history
    known = np.flatnonzero(~np.isnan(history["stationarity"])).tolist()
    assert known == [0, 5, 10, 12], "at the start, every five communications, and at the end"
    (one,) = read(tmp_path / "out").entries
    assert isinstance(one, Entry)
    target = float(history["stationarity"][5])
    met = reach(one, "stationarity", target).costs
    assert met is not None
    assert met["communications"][0] == 5
    now = watch.state(tmp_path / "out")
    (shown,) = now["entries"]
    assert [x for x, y in zip(shown["round"], shown["y"]["loss"]["mean"], strict=True) if y is not None] == known
    drawn = figure(tmp_path / "out").axes[0].lines[0]
    assert np.asarray(drawn.get_xdata()).tolist() == known
