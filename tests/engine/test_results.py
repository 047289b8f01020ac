"""What a user does with results: look at them, draw them, save and load them."""

import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
import pytest

import fedpd
from fedpd import Ensemble, FedpdError, Run, algorithms, oracles, problems, report, simulate, sweep
from fedpd.core import Spec

QUADRATIC = problems.random_quadratic(agents=4, dimension=3)
GD = oracles.gd(step=1 / 3, iterations=4)
FEDPD = algorithms.fedpd(eta=0.5, oracle=GD)
NOISY = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=2, batch=1), p=0.3)


class Line(NamedTuple):
    slope: Any
    offset: Any


def line_problem() -> fedpd.Problem:
    rng = np.random.default_rng(0)
    agents = [{"x": rng.normal(size=(6, 2)), "y": rng.normal(size=6)} for _ in range(3)]
    start = {"line": Line(np.zeros(2), np.zeros(()))}
    return problems.from_losses(
        lambda model, batch: (batch["x"] @ model["line"].slope + model["line"].offset - batch["y"]) ** 2, agents, start
    )


LINE = line_problem()


@pytest.fixture(scope="module")
def run() -> Run:
    return simulate(FEDPD, QUADRATIC, rounds=12, metrics_every=5)


@pytest.fixture(scope="module")
def seeds() -> Ensemble:
    return simulate(NOISY, LINE, rounds=6, seed=[0, 7])


@pytest.fixture(scope="module")
def swept() -> fedpd.Sweep:
    def build(eta: Any) -> fedpd.Algorithm:
        return algorithms.fedpd(eta=eta, oracle=GD)

    return sweep(build, QUADRATIC, {"eta": [0.25, 1.0]}, rounds=4, seeds=[0, 1])


@pytest.fixture(scope="module")
def diverged() -> Run:
    wild = algorithms.fedpd(eta=5e3, oracle=oracles.gd(step=3e3, iterations=40))
    return simulate(wild, QUADRATIC, rounds=20, metrics_every=10)


def equal(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    same: Any = jax.tree.structure(one), jax.tree.structure(other)
    return same[0] == same[1] and all(
        np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in leaves
    )


def contents(run: Run) -> list[Any]:
    return [getattr(run, name) for name in Run.__dataclass_fields__ if name != "spec"]


def test_a_run_is_shown_as_text_and_as_a_table(run: Run, seeds: Ensemble) -> None:
    assert repr(run).startswith(
        "Run of fedpd(eta=0.5, oracle=gd(step=0.333333, iterations=4)), seed 0\n  12 rounds, 12"
    )
    assert '<td style="text-align: left">stationarity ‖∇f‖²</td>' in run._repr_html_()
    assert "<polyline" in run._repr_html_()
    assert "seeds 0, 7" in repr(seeds)
    assert seeds._repr_html_().count("<tr>") == 3  # a head and two seeds


def test_text_in_html_is_escaped(run: Run) -> None:
    hand = algorithms.fedpd(eta=0.5, oracle=GD).called(Spec("<script>alert(1)</script>"))
    shown = simulate(hand, QUADRATIC, rounds=1)._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown


def test_figures_are_drawn_without_a_backend(run: Run, seeds: Ensemble, swept: fedpd.Sweep) -> None:
    before = matplotlib.get_backend()
    figure = run.plot()
    assert np.asarray(figure.axes[0].lines[0].get_xdata()).tolist() == [0, 5, 10, 12]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    both = seeds.plot("loss", against=["round", "bytes"], title="mine", width=3.4)
    assert [axes.get_xlabel() for axes in both.axes] == ["rounds", "bytes sent and received, all agents"]
    assert both.get_suptitle() == "mine"
    assert both.get_size_inches()[0] == 3.4
    assert "range of 2 seeds" in both.legends[0].get_texts()[-1].get_text()
    assert [line.get_label() for line in swept.plot().axes[0].lines] == ["eta=0.25", "eta=1"]
    assert matplotlib.get_backend() == before
    with pytest.raises(FedpdError, match=r"against = 'time': there is no such choice"):
        run.plot(against="time")


def test_a_run_without_a_value_to_draw_is_drawn(diverged: Run, tmp_path: Path) -> None:
    assert diverged.history["round"].tolist() == [0, 10]
    figure = diverged.plot(against=["samples", "communications"])  # row 0 has cost nothing, row 1 is not finite
    figure.savefig(tmp_path / "figure.png")
    assert [text.get_text() for text in figure.axes[0].texts] == ["no value that can be drawn"]
    assert "(diverged)" in figure.get_suptitle()
    for one in (report.comparison_figure({"a": diverged}), report.paper_figure({"a": diverged}, "bytes")):
        one.savefig(tmp_path / "figure.png")
    assert "diverged at round 10" in repr(diverged)
    assert diverged.diverged is not None
    assert "Try a smaller local step" in diverged._repr_html_()


def test_all_that_is_reported_takes_the_same(run: Run, seeds: Ensemble, swept: fedpd.Sweep, tmp_path: Path) -> None:
    one, two = run.save(tmp_path / "one"), seeds.save(tmp_path / "two")
    labels = {
        "run": [run.algorithm],
        "seeds": [seeds.runs[0].algorithm],
        "swept": ["eta=0.25", "eta=1"],
        "dict": ["mine", "grid, eta=0.25", "grid, eta=1"],
        "folder": [run.algorithm],
        "folders": [run.algorithm, seeds.runs[0].algorithm],
    }
    given: dict[str, Any] = {"run": run, "seeds": seeds, "swept": swept, "dict": {"mine": run, "grid": swept}}
    given |= {"folder": str(one), "folders": [one, two]}
    for name, results in given.items():
        drawn = report.figure(results).axes[0].lines
        assert [line.get_label() for line in drawn] == labels[name]
    assert report.page(one).finding == report.page(run, QUADRATIC).finding
    none, empty = "int has no runs", "must hold at least one run"
    for wrong, rule in ((3, none), ({"a": 3}, none), ([3], none), ([], empty), ({}, empty)):
        with pytest.raises(FedpdError, match=rf"runs.* = .*: {rule}\. Give e\.g\. a run"):
            report.figure(wrong)  # type: ignore[arg-type]


def test_frames_have_a_row_per_measured_round(run: Run, seeds: Ensemble, swept: fedpd.Sweep) -> None:
    pytest.importorskip("pandas")
    assert run.frame()["round"].tolist() == [0, 5, 10, 12]
    assert list(run.frame().columns) == [*run.history, "seconds"]
    assert list(seeds.frame().columns[:2]) == ["seed", "round"]
    assert seeds.frame()["seed"].tolist() == [0] * 7 + [7] * 7
    frame = swept.frame()
    assert list(frame.columns[:3]) == ["eta", "seed", "round"]
    assert len(frame) == 2 * 2 * 5


def test_a_missing_package_is_a_sentence_with_the_line_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedpdError, match=r'needs pandas, which is not installed\. Run: pip install "fedpd\[frames\]"$'):
        run.frame()


def test_results_come_back_to_the_bit(
    run: Run, seeds: Ensemble, swept: fedpd.Sweep, diverged: Run, tmp_path: Path
) -> None:
    results: dict[str, Any] = {"run": run, "seeds": seeds, "swept": swept, "diverged": diverged}
    for name, result in results.items():
        found = fedpd.load(result.save(tmp_path / name))
        assert type(found) is type(result)
        pairs = zip(
            [one for entry in result.entries() for one in entry.runs],
            [one for entry in found.entries() for one in entry.runs],
            strict=True,
        )
        for one, other in pairs:
            assert equal(contents(one), contents(other))
            assert one.spec == other.spec
        assert result._repr_html_() == found._repr_html_()


def test_a_loaded_run_is_continued_to_the_bit(seeds: Ensemble, tmp_path: Path) -> None:
    loaded = fedpd.load(seeds.save(tmp_path / "run"))
    more = simulate(NOISY, LINE, rounds=9, seed=[0, 7], start=loaded)
    whole = simulate(NOISY, LINE, rounds=9, seed=[0, 7])
    for one, other in zip(more.runs, whole.runs, strict=True):
        assert equal([one.model, one.history, one.agents], [other.model, other.history, other.agents])


def test_a_model_of_any_kind_is_loaded_like_another_and_reported_without(run: Run, tmp_path: Path) -> None:
    model = OrderedDict(w=run.model)
    folder = replace(run, model=model).save(tmp_path / "run")
    with pytest.raises(FedpdError, match=r"Give a model of the same structure, e\.g\. like=problem\.start"):
        fedpd.load_model(folder)
    assert equal(fedpd.load_model(folder, like=model), model)
    assert len(report.figure(folder).axes[0].lines) == 1


def test_nothing_of_anyone_is_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file"):
        with pytest.raises(FedpdError, match="Choose another folder"):
            run.save(tmp_path / name, overwrite=True)
    run.save(tmp_path / "run")
    with pytest.raises(FedpdError, match="overwrite=True"):
        run.save(tmp_path / "run")
    run.save(tmp_path / "run", overwrite=True)
    (tmp_path / "run" / "result.safetensors").write_bytes(b"someone's own")
    with pytest.raises(FedpdError, match="is not a complete safetensors file"):
        run.save(tmp_path / "run", overwrite=True)


@pytest.mark.slow
def test_tuned_methods_and_advice_are_shown_and_saved(tmp_path: Path) -> None:
    (tuned,) = fedpd.tune(QUADRATIC, methods=["FedPD-GD"], rounds=20, target=1e-3, scales=[0.5, 1.0, 1e6])
    advice = fedpd.advise(QUADRATIC, 1e-3, pilot=20)
    assert repr(tuned).startswith("Tuned FedPD-GD: 3 factors from 0.5 to 1e+06")
    assert repr(advice).startswith("Advice for ||grad f||^2 <= 0.001\n  guaranteed: FedPD with eta = ")
    results: dict[str, Any] = {"tuned": tuned, "advice": advice}
    for name, result in results.items():
        found = fedpd.load(result.save(tmp_path / name))
        assert type(found) is type(result)
        assert repr(found) == repr(result)
        assert found._repr_html_() == result._repr_html_()
        result.plot().savefig(tmp_path / "figure.png")
        assert len(result.frame()) == 3
    assert "<img" not in replace(tuned, label="<img src=x>")._repr_html_()
    assert equal(fedpd.load_model(tmp_path / "tuned"), tuned.runs[0].model)
    with pytest.raises(FedpdError, match="there is no model"):
        fedpd.load_model(tmp_path / "advice")
