"""The figures of the documentation: the files are current, have a dark form, and show what the methods do."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from tools.figures import networks, recorded, suite
from tools.figures.__main__ import FIGURES
from tools.figures.record import curve, path, three_agents
from tools.figures.svg import SETTINGS, darkened, digest, recorded_digest, save

from fedpd import algorithms, oracles, problems, simulate
from fedpd.algorithms import variants
from fedpd.reproduce.figure_2 import values_at
from fedpd.suite.results import costs_of
from tests.test_docs import DOCS


def line(last: float = 3.0, title: str = "One", size: float = 10.0) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1.0, 2.0, last], color="#0064A0")
    axes.set_title(title, fontsize=size)
    return figure


def test_the_digest_is_of_what_is_shown_and_not_of_how() -> None:
    assert digest(line()) == digest(line(size=14.0)) == digest(line(3.00001))
    assert len({digest(line()), digest(line(3.01)), digest(line(title="Two"))}) == 3


def test_a_figure_is_saved_for_both_grounds(tmp_path: Path) -> None:
    with matplotlib.rc_context(SETTINGS):
        save(line(), tmp_path / "one")
    light, dark = ((tmp_path / name).read_text() for name in ("one.svg", "one-dark.svg"))
    assert recorded_digest(tmp_path / "one") == digest(line())
    assert "#0064a0" in light
    assert "#0064a0" not in dark.lower()
    assert "#4FA3E0" in dark
    assert darkened("fill: #123456") == "fill: #123456"
    assert darkened("<svg height='9'>") == "<svg fill=\"#F2F2F2\" height='9'>", "black fills are not in the text"
    assert recorded_digest(tmp_path / "none") == ""


def test_a_saved_figure_has_only_the_corners_of_a_line(tmp_path: Path) -> None:
    figure = Figure()
    figure.subplots().plot(np.linspace(0, 1, 101), np.abs(np.linspace(-1, 1, 101)), color="#0064A0")
    save(figure, tmp_path / "corner")
    (drawn,) = re.findall(r'<path d="([^"]*)"[^>]*stroke: #0064a0', (tmp_path / "corner.svg").read_text())
    assert drawn.count("L") == 2


def test_no_figure_is_large() -> None:
    sizes = {image.name: image.stat().st_size for image in (DOCS / "images").rglob("*.svg")}
    assert [name for name, size in sizes.items() if size > 110_000] == []


@pytest.mark.parametrize(
    "name", ["demo", "clients", "skip_probability", "reproduction/fig2c", "suite_0", "unipen62_cnn"]
)
def test_files_are_current(name: str) -> None:
    with matplotlib.rc_context(SETTINGS):
        assert recorded_digest(DOCS / "images" / name) == digest(FIGURES[name]())
    assert (DOCS / "images" / f"{name}-dark.svg").exists()


def test_recorded_curves_have_their_seeds_and_their_divergence() -> None:
    found = {entry.label: entry for entry in recorded.entries("fig2b")}
    assert len(found["FedPD-GD p=0"].runs) == 1, "its seeds agree"
    runs: Any = found["FedPD-GD p=0.5"].runs
    assert len(runs) == 3
    assert values_at(runs[0], [100, 200, 280]) == pytest.approx([4e-9, 5e-9, 5e-9], rel=0.9)
    assert [entry.label for entry in recorded.entries("fig3a") if entry.diverged] == ["FedPD-VR (as printed)"]


def test_a_curve_is_recorded_with_few_points_and_digits() -> None:
    problem = problems.random_quadratic(agents=3, dimension=2)
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=1 / 3, iterations=2), p=0.5)
    run = simulate(algorithm, problem, rounds=300, seed=[0, 1], progress=False)
    (entry,) = run.entries()
    found = curve(entry, ("stationarity",), 60, also=[7])
    assert 40 <= len(found["round"]) <= 62
    assert all(7 in seed for seed in found["communications"])
    assert all(len(f"{value:.12e}".partition("e")[0].rstrip("0")) <= 5 for value in found["stationarity"][0])


def test_the_profiles_are_those_of_the_tables() -> None:
    names, methods, spent = costs_of(suite.cells(64), "communications", 64)
    assert (len(names), len(methods)) == spent.shape == (38, 17)
    assert "on 34 of 38 problems" in suite.profile(64).get_suptitle().replace("\n", " ")


def test_accuracies_are_those_of_the_tables() -> None:
    found = networks.accuracies("unipen", "A convolutional network")
    assert found["FedAvg"][0] == (4, 0.433)
    assert found['FedPD, start="local" (diverged)'][-1] == (20, 0.626)
    assert 'FedPD, start="server", p = 0.5, corrected' in networks.accuracies("unipen", "A perceptron")
    assert networks.accuracies("paper_steps", "Figures 4 and 5")["FedPD-SGD, p = 0.75"][-1] == (40, 0.511)


def test_recorded_paths_are_those_of_the_methods() -> None:
    found = json.loads((DOCS / "figures" / "paths.json").read_text(encoding="utf-8"))["FedPD-GD"]
    again = path(variants()["FedPD-GD"].rule(1.0, 3, 1.0))
    assert found["communications"] == again["communications"]
    np.testing.assert_allclose(found["model"], again["model"], rtol=1e-3, atol=1e-6)
    minimiser = three_agents().answer.minimiser
    assert minimiser is not None
    assert np.linalg.norm(np.array(found["model"][-1]) - minimiser) < 1e-3


@pytest.fixture(scope="module")
def pictures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "_build"))
        yield importlib.import_module("pictures")


def test_every_page_of_a_method_has_the_idea_and_a_picture() -> None:
    for page in (DOCS / "methods").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert page.stem == "index" or "## The idea\n" in text, page.name
        assert page.stem == "index" or "\n<!-- picture -->\n" in text, page.name


def test_a_picture_shows_the_path_and_the_error(pictures: ModuleType) -> None:
    drawn = pictures.method_picture("fedprox")
    assert drawn.count("<polyline") == 4, "a path and a curve, of FedProx and of FedAvg"
    assert "var(--hue-orange)" in drawn
    assert "--hue-orange: #C48600;" in pictures.hues_css()
    for name in ("algorithm2", "architecture"):
        assert pictures.diagram(name).startswith("<svg")
    assert "prefers-reduced-motion" in pictures.diagram("algorithm2")
