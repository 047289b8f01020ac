"""The page's data, its escaping, what it says of odd runs, and the command that writes it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems, report, simulate
from fedpd.base.atomic import check_replaceable
from fedpd.engine.views.entries import Entry
from fedpd.experiments.recorded import Recorded, read_all
from fedpd.report.figures import FORMATS, MARK, MARKS
from fedpd.report.pages import experiment_targets, facts, flat, page_data, page_of, thinned
from tests.report.recordings import diverging, entry, history, record

NASTY = "</script><script>window.hurt = 1</script><b>&amp;"


def embedded(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_data_holds_curves_bands_and_costs_of_every_target() -> None:
    data = page_data([entry("A", 0.1, 0.2), entry("B", 0.3)], {"stationarity": 1e-7})
    first, second = data["entries"]
    assert [cost["name"] for cost in data["costs"]] == ["communications", "samples", "bytes", "seconds"]
    assert first["y"]["stationarity"]["mean"][10] == pytest.approx(10**-1.5, rel=1e-4), "geometric"
    assert first["y"]["stationarity"]["low"][10] == pytest.approx(1e-2)
    assert first["x"]["seconds"][10] == 2.6
    assert "low" not in second["y"]["stationarity"]
    quantity = data["quantities"][0]
    assert quantity["targets"][quantity["chosen"]] == 1e-7
    assert first["reached"]["stationarity"][quantity["chosen"]]["costs"][0] == [52.5, 35, 70]
    assert list(quantity["findings"]) == [cost["name"] for cost in data["costs"]]
    assert all(
        len(said) == len(quantity["goals"]) == len(quantity["targets"]) for said in quantity["findings"].values()
    )


def test_recorded_columns_reach_the_page() -> None:
    one = entry("A", 0.1)
    names = ("smoothness", "test_loss", "test_accuracy_agents", "test_accuracy_worst", "mae")
    for run in one.runs:
        run.history.update({name: np.linspace(0.9, 0.1, 101) for name in names})
    made = page_of([record(one)])
    quantities = {quantity["name"]: quantity for quantity in embedded(made.html)["quantities"]}
    assert set(quantities) == {"stationarity", "loss", "consensus", *names}
    assert quantities["test_accuracy_worst"]["share"]
    assert quantities["test_accuracy_worst"]["words"] == "mean test accuracy of the worst tenth of the agents"
    assert quantities["test_loss"]["goals"][0].startswith("test loss ≤ ")
    for name in ("smoothness", "mae"):  # neither less nor more is better
        assert quantities[name]["targets"] == []
        assert "only curves" in quantities[name]["findings"]["bytes"][quantities[name]["chosen"]]
    for heading in ("smoothness L", "test loss", "test accuracy of the worst tenth", "mae"):
        assert f'<th scope="col">{heading}</th>' in made.html


def test_what_is_not_finite_is_left_out_of_the_data() -> None:
    html = page_of([record(diverging("Explodes"), entry("Fine", 0.1))]).html
    data = embedded(html)
    assert data["entries"][0]["y"]["stationarity"]["mean"] == [1, 1000, None, None]
    assert "diverged at round 3" in html
    assert "Try 1/L." in html


def test_labels_files_and_folders_are_text_wherever_they_stand() -> None:
    made = page_of([record(entry(NASTY, 0.1), text=f'label = "{NASTY}"', waiting=(NASTY,))._replace(name=NASTY)])
    assert made.html.count("<script") == 3, "data, plotly and the page's own"
    assert "window.hurt = 1</script><b>" not in made.html
    assert embedded(made.html)["entries"][0]["label"] == NASTY
    assert "&lt;/script&gt;" in made.html


def test_the_page_is_self_contained_and_lets_only_its_own_scripts_run() -> None:
    html = page_of([record(entry("A", 0.1))]).html
    head = html.partition("<body>")[0]
    assert "default-src 'none'" in head
    assert head.count("'sha256-") == 2
    assert not re.search(r'(src|href)="', html.partition('<script type="application/json"')[0])


def test_the_page_says_what_it_is_made_of() -> None:
    html = page_of([record(entry("A", 0.1), text="[run] # as it was", waiting=("B",))]).html
    assert "<pre><code>[run] # as it was</code></pre>" in html
    assert "jax 1.2.3" in html
    assert "smoothness L" in html
    assert "a-run is not finished" in html
    assert "B (nothing yet)" in html


def test_runs_of_different_problems_are_called_that() -> None:
    one, other = record(entry("A", 0.1)), record(entry("B", 0.2))
    assert "different problems" not in page_of([one, other]).html
    changed = other._replace(problem={"name": "random_quadratic", "agents": 5, "dimension": 3})
    assert "2 different problems" in page_of([one, changed]).html
    gone = one._replace(problem={"name": "network", "model": "MLP", "data": {"name": "leaf", "path": "gone"}})
    assert "The report cannot show L, δ and the picture of the agents." in page_of([gone]).html


def test_long_histories_are_thinned_for_drawing_only() -> None:
    long = Recorded(0, history(0.0001, 30_000), np.arange(30_001.0))
    data = page_data([Entry("Long", (long,), 30_000)], {"stationarity": 0.1})
    assert len(data["entries"][0]["round"]) <= 400
    quantity = data["quantities"][0]
    assert data["entries"][0]["reached"]["stationarity"][quantity["chosen"]]["costs"][0][0] == 10_000
    kept = thinned(30_001, 400)
    assert kept[0] == 0
    assert kept[-1] == 30_000
    assert (np.diff(kept) > 0).all()


def test_nothing_finite_is_refused() -> None:
    broken = diverging("Broken")
    broken.runs[0].history["stationarity"][:] = np.nan
    with pytest.raises(FedpdError, match=r"Broken: its history has no finite stationarity.*NaN"):
        page_of([record(broken)])


def test_facts_of_equal_agents_and_of_labels() -> None:
    agents = {i: {"x": np.eye(2), "y": np.array([0, 1])} for i in range(3)}
    same = fedpd.data.from_arrays(agents, agents)
    found = facts(problems.classification(lambda model, x: x @ model, same, np.ones((2, 2)) * [1, 2]))
    assert np.allclose(found.distances, 0)
    assert np.allclose(found.alignment, 1)
    assert found.labels is not None
    assert np.allclose(found.labels, 0.5)
    assert "an estimate with a safety factor 1.1; the true L may be larger" in found.rows["smoothness L"]


def test_facts_of_some_agents_where_there_are_too_many_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpd.report.pages.MOST_NUMBERS", 12)
    agents = {i: {"x": np.eye(2) * (i + 1), "y": np.array([0, 1])} for i in range(9)}
    problem = problems.classification(
        lambda model, x: x @ model, fedpd.data.from_arrays(agents, agents), np.ones((2, 2))
    )
    found = facts(problem)
    assert found.shown == "3 of 9 agents"
    assert found.distances.shape == (3,)
    assert found.labels is not None
    assert found.labels.shape == (2, 3)


def test_a_notebook_shows_runs_in_memory() -> None:
    problem = problems.random_quadratic(4, 3)
    runs = simulate(algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 4)), problem, rounds=20, seed=[0, 1])
    made = report.page({"FedPD": runs}, problem, name="Mine")
    assert len(repr(made)) < 500
    assert made.finding in repr(made)
    assert len(repr(made).splitlines()) == 2
    assert made._repr_html_().startswith("<iframe srcdoc=")
    assert "<title>Mine</title>" in made.html
    assert len(embedded(made.html)["entries"][0]["round"]) == 21
    with pytest.raises(FedpdError, match="at least one run"):
        report.page({})


EXPERIMENT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = 20
seeds = [0, 1]
checkpoint_every = 10

[[algorithm]]
label = "A"
name = "fedavg"
oracle = { name = "gd", step = 0.1, iterations = 2 }
"""


def test_folders_are_reported_with_figures_and_csv(tmp_path: Path) -> None:
    from fedpd.experiments import experiment, run_folder, runner

    for name in ("one", "two"):
        run_folder.create(tmp_path / name, EXPERIMENT)
        runner.run(experiment.parse(EXPERIMENT), tmp_path / name, lambda *_: None)
    folders = [tmp_path / "one", tmp_path / "two"]
    records = read_all(folders)
    assert [one.entries[0].label for one in records] == ["A (one)", "A (two)"]
    assert records[0].versions is not None
    assert records[0].versions["jax"]
    written = report.write_report(folders, tmp_path / "both.html", target=0.1, figures=["svg"], csv=True)
    assert 1_400_000 < written.page.stat().st_size < 2_000_000, "plotly.js with cartesian charts only"
    assert {path.name for path in written.others} == {
        *(f"{y}-{x}.svg" for y in ("stationarity", "loss") for x in ("communications", "samples", "bytes", "seconds")),
        "both-histories.csv", "both-costs.csv",
    }  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "both-histories.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * 21
    assert float(rows[20]["stationarity"]) == records[0].entries[0].runs[0].history["stationarity"][20]
    assert float(rows[20]["seconds"]) > 0
    assert report.write_report(folders[:1]).page == tmp_path / "one" / "report.html"
    report.write_report(folders, tmp_path / "both.html", csv=True)  # fedpd replaces its own files
    for name in ("both-costs.csv", "both-figures/loss-bytes.svg"):
        (tmp_path / name).write_text("mine")
        before = written.page.stat().st_mtime_ns
        with pytest.raises(FedpdError, match=f"{name}: a file of this name exists. Choose another name"):
            report.write_report(folders, tmp_path / "both.html", figures=["svg"], csv=True)
        assert (tmp_path / name).read_text() == "mine"
        assert written.page.stat().st_mtime_ns == before, "nothing is written if one file cannot be"


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_figure_names_fedpd_so_that_it_may_be_replaced(suffix: str, tmp_path: Path) -> None:
    Figure((1, 1)).savefig(tmp_path / f"a.{suffix}", metadata=MARKS[suffix])
    check_replaceable(tmp_path / f"a.{suffix}", MARK.encode())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"out": Path("report.pdf")},
            "--out = 'report.pdf': must end in .html, because the report is HTML. Give e.g. report.html",
        ),
        ({"target": -1.0}, "--target = -1.0: must be positive"),
        ({"figures": ["gif"]}, "--figures = 'gif': there is no such choice"),
        ({}, "there is no such folder. Start a run"),
    ],
)
def test_mistakes_are_sentences(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match=re.escape(message)):
        report.write_report([tmp_path / "missing"], **arguments)


def text_of(html: str) -> str:
    return html.rpartition('<script type="application/json"')[0]


def test_runs_made_in_python_can_be_repeated() -> None:
    """The page said "run: this session", and no setting of any method."""
    problem = problems.random_quadratic(4, 3)
    method = algorithms.fedpd(eta=0.25, oracle=oracles.gd(step=0.125, iterations=3), p=0.5)
    runs = simulate(method, problem, rounds=7, seed=[3, 5])
    few = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), problem, rounds=6, cohort=2)
    shown = text_of(report.page({"Mine <1>": runs, "few": few}, problem).html)
    settings, _, rest = shown.partition("Where each method ended")
    table = (
        "name = &quot;fedpd&quot;\neta = 0.25\noracle = {name = &quot;gd&quot;, step = 0.125, iterations = 3}\np = 0.5"
    )
    assert f"<code>{table}</code></td><td>7</td><td>3, 5</td>" in settings
    assert "\n# run: cohort = 2</code></td><td>6</td><td>0</td>" in settings
    assert f"[[algorithm]]\nlabel = &quot;Mine &lt;1&gt;&quot;\n{table}" in rest
    assert "# few ran with cohort = 2\nrounds = 7\nseeds = [0, 3, 5]" in rest
    assert f"# The problem was made in Python: {problem.name}, 4 agents, 4 samples." in rest
    assert "this session" not in shown


def test_a_setting_that_no_file_can_hold_is_named() -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=lambda r, q: 0.1, iterations=2))
    shown = text_of(report.page(simulate(method, problems.random_quadratic(4, 3), rounds=3)).html)
    assert "<code>fedavg(oracle=gd(step=&lt;lambda&gt;, iterations=2))</code>" in shown
    assert "# The problem was made in Python: not given." in shown


def test_the_settings_of_a_file_are_those_of_its_tables() -> None:
    lines = '[problem]\nname = "random_quadratic"\nagents = 4\ndimension = 3\n\n[run]\nrounds = 100\n\n'
    named = '[[algorithm]]\nlabel = "A"\nname = "local_gd"\nstep = 0.5\niterations = 2\n\n'
    unnamed = '[[algorithm]]\nname = "gradient_descent"\nstep = 0.25\n'
    other = algorithms.gradient_descent(step=0.25).description
    shown = text_of(page_of([record(entry("A", 0.1), entry(other, 0.1), text=lines + named + unnamed)]).html)
    assert "<code>name = &quot;local_gd&quot;\nstep = 0.5\niterations = 2</code>" in shown
    assert "<code>name = &quot;gradient_descent&quot;\nstep = 0.25</code>" in shown
    assert "made in Python" not in shown


def test_agents_have_their_names() -> None:
    rng = np.random.default_rng(0)
    held = {
        name: {"x": rng.normal(size=(20, 2)), "y": np.arange(20) % classes}
        for name, classes in (("Oslo", 2), ("Bergen", 1), ("<b>Bodø", 2))  # all of Bergen's labels are 0
    }
    problem = problems.softmax_regression(fedpd.data.from_arrays(held))
    found = facts(problem)
    assert found.names is not None
    assert found.names[0][0] == "Bergen", "its gradient is the farthest"
    assert sorted(found.names[1]) == sorted(held)
    assert [str(name) for name in np.asarray(problem.subset([2, 0]).names)] == ["<b>Bodø", "Oslo"]
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), problem, rounds=3)
    html = report.page(run, problem).html
    (pictures,) = embedded(html)["problems"]
    assert pictures["farthest"][0] == "Bergen"
    assert "<b>Bodø" not in html
    assert facts(problems.random_quadratic(4, 3)).names is None


def test_quantities_are_said_in_plain_words() -> None:
    one = entry("A", 0.1, accuracy=True)
    for run in one.runs:
        run.history["mae"] = np.linspace(0.9, 0.1, 101)
    plain = {found["name"]: found["plain"] for found in page_data([one])["quantities"]}
    assert plain["stationarity"].endswith("0 where no small change of the model lowers that loss. Lower is better.")
    assert plain["test_accuracy"] == "Accuracy on all test samples. Higher is better."
    assert plain["mae"] == ""
    assert not any("‖" in words or "∇" in words for words in plain.values())


def test_a_setting_has_one_key() -> None:
    assert flat({"eta": 0.1, "oracle": {"name": "gd", "step": 0.2}}) == {
        "eta": "0.1", "oracle.name": "gd", "oracle.step": "0.2",
    }  # fmt: skip
    assert flat("my own method") == {"settings": "my own method"}


@pytest.mark.parametrize(
    ("run", "asked"),
    [
        ("until = { loss = 0.5 }", {"loss": 0.5}),
        ('record = ["accuracy"]', {"test_accuracy": None}),
        ("", {}),
    ],
)
def test_a_page_begins_with_what_the_file_asks_for(run: str, asked: dict[str, float | None]) -> None:
    one = record(entry("FedPD", 0.1))._replace(asked={}, text=f"[run]\nrounds = 3\n{run}\n")
    assert experiment_targets([one]) == asked


def test_the_axis_of_an_accuracy_begins_where_the_first_rounds_are_over() -> None:
    data = page_data([entry("A", 0.1, accuracy=True), entry("B", 0.2, accuracy=True)], {"test_accuracy": None})
    ranges = {found["name"]: found["range"] for found in data["quantities"]}
    least = 1 - 0.9 * 10**-0.5  # of A at round 5 of 100
    room = 0.1 * (1 - least)
    assert ranges["test_accuracy"] == pytest.approx([least - room, 1 + room], abs=1e-3)
    assert ranges["stationarity"] is None
