"""One of three seeds diverged: every view shows the mean of the others, and says that one diverged."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedpd import algorithms, oracles, problems, simulate
from fedpd.engine.measure.columns import column_of
from fedpd.engine.measure.history import Divergence
from fedpd.engine.run import Ensemble, ensemble
from fedpd.engine.views.entries import Entry, end_text
from fedpd.report import comparison_figure, comparison_table, page
from fedpd.report.pages import page_data
from fedpd.report.reach import finding, reach
from fedpd.report.watch import view
from tests.report.recordings import diverging, entry, record

MEAN, NOTE = "5.50e-03", "1 of 3 diverged"


def three() -> Entry:
    """Seeds that end at 0.001, 0.01 and in a divergence."""
    good = entry("FedPD", 0.03, 0.02)
    return good._replace(runs=(*good.runs, *diverging("FedPD").runs))


def of_simulation() -> Ensemble:
    """The same, as `simulate` returns it."""
    method = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=2))
    found = simulate(method, problems.random_quadratic(2, 2), rounds=5, seed=range(3))
    last = replace(found.runs[2], diverged=Divergence(3, "FedPD diverged at round 3."))
    last = replace(last, history={name: column[:4] for name, column in last.history.items()})
    ends = [replace(run, history=run.history | {"stationarity": np.geomspace(1, end, 6)})
            for run, end in zip(found.runs, (0.001, 0.01), strict=False)]  # fmt: skip
    return ensemble((*ends, last))


def test_the_text_is_decided_once() -> None:
    assert end_text(three(), column_of("stationarity")) == f"{MEAN} ± 5e-03, {NOTE}"
    assert end_text(three(), column_of("loss")) == f"{1.0055:.4g} ± 5e-03"
    assert end_text(diverging("FedPD"), column_of("stationarity")) == "diverged at 3"
    every = diverging("FedPD")._replace(runs=diverging("FedPD").runs * 2)
    assert end_text(every, column_of("stationarity")) == "diverged at 3, 2 of 2 diverged"


def test_tables_figures_pages_and_notebooks_agree() -> None:
    runs = of_simulation()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table({"FedPD": runs}))
    pictured = comparison_figure({"FedPD": runs, "again": runs})
    shown = {
        "table": captured.get(),
        "repr": repr(runs),
        "notebook": re.sub("<[^>]*>", " ", runs._repr_html_()),
        "page": page({"FedPD": runs}).html.rpartition("<script")[0],
    }
    for where, text in shown.items():
        assert MEAN in text, where
        assert NOTE in text, where
    assert [line.get_label() for line in pictured.axes[0].lines] == [f"FedPD ({NOTE})", f"again ({NOTE})"]
    assert np.asarray(pictured.axes[0].lines[0].get_ydata())[-1] == pytest.approx(10**-2.5), (
        "the geometric mean of the others"
    )


def test_the_curve_and_the_band_of_a_page_are_those_of_the_others() -> None:
    (found,) = page_data([three()])["entries"]
    curve = found["y"]["stationarity"]
    assert found["divergence"] == NOTE
    assert len(curve["mean"]) == 101, "the seed that diverged had four rows"
    assert (curve["low"][-1], curve["high"][-1]) == pytest.approx((0.001, 0.01))
    assert curve["mean"][-1] == pytest.approx(10**-2.5, rel=1e-4)
    assert found["x"]["communications"][-1] == 100
    json.dumps(found, allow_nan=False)


def test_the_view_in_a_terminal_says_it_too(tmp_path: Path) -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view(record(three()), 100))
    assert f"100, {NOTE}" in captured.get()


def test_a_target_is_reached_only_by_all_seeds() -> None:
    assert reach(three(), "stationarity", 0.1).costs is None
    assert reach(three(), "stationarity", 0.1).seeds == 2


def test_a_curve_that_falls_before_the_first_communication_has_improved() -> None:
    """The live page said that the method did not improve on the start, above a falling curve."""
    quiet = entry("FedPD", 0.1, every=1000)  # it skips its first communications
    found = finding([quiet], "stationarity", 1.0)
    assert "did not improve" not in found
    assert "FedPD came furthest: 1e-10, after 0 communications" in found
    flat = entry("FedAvg", 0.0)
    assert finding([flat], "stationarity", 1.0) == "FedAvg did not improve on the start, where ‖∇f‖² ≤ 1 holds already."


def test_the_figure_has_the_target_of_the_table() -> None:
    entries = [entry("FedPD", 0.09), entry("FedAvg", 0.05)]
    heading = comparison_figure(entries, target=1e-8).get_suptitle()
    assert "≤ 1e-08" in heading
    assert "FedAvg did not reach it" in heading
    assert "≤ 1e-05" in comparison_figure(entries).get_suptitle()
