"""The experiment files of the items and of experiments/: whole, accepted, and resumable."""

from pathlib import Path

import pytest

from fedpd.checks import FedpdError
from fedpd.experiments import calls, experiment
from fedpd.reproduce import figure_2
from fedpd.reproduce.session import PRINTED, Session, experiment_text, run_file

OPEN = {
    "agents": 2, "links": 4, "epsilon": 1e-3, "rounds": 3, "eta": 0.5, "gamma": 0.5, "step": 0.5, "iterations": 2,
    "refresh": 5, "problem": 'name = "opposing_quadratics"',
}  # fmt: skip
FILES = sorted((Path(figure_2.__file__).parent / "experiments").glob("*.toml"))
PAPER = sorted((Path(__file__).resolve().parents[2] / "experiments").glob("*_fig*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_is_accepted(file: Path) -> None:
    outline = experiment.read_outline(experiment_text(file.stem, OPEN))
    assert outline.methods
    assert outline.problem["name"] in calls.PROBLEMS


@pytest.mark.parametrize("name", ["fig2a", "fig2b"])
def test_figure_2_has_a_run_a_published_curve(name: str) -> None:
    labels = set(experiment.read_outline(experiment_text(name, {})).methods)
    printed = {label + PRINTED for label in figure_2.published(name)} - {"FedPD-GD p=1-r/T" + PRINTED}
    assert labels == printed | set(figure_2.published(name))


@pytest.mark.slow
@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_the_paper_s_runs_on_handwriting_are_accepted(file: Path) -> None:
    """The files as they are, with generated characters in place of the data that is not here."""
    text = file.read_text(encoding="utf-8")
    data = next(line for line in text.splitlines() if line.startswith("data = "))
    small = 'data = { name = "characters", writers = 100, samples = 3, classes = 62, size = 8 }'
    plan = experiment.parse(text.replace(data, small))
    assert plan.problem.agents == 90
    title = "UNIPEN-62" if file.name.startswith("unipen62") else "FEMNIST"
    assert f'title = "{title}"' in text
    assert {method.algorithm.description.split("(")[0] for method in plan.methods} <= {"fedavg", "fedprox", "fedpd"}


def test_there_are_files_for_both_data_sets() -> None:
    stems = {file.stem for file in PAPER}
    assert stems == {f"{data}_{figure}" for data in ("femnist", "unipen62") for figure in ("fig3a", "fig3b", "fig4")}


def test_a_run_is_gone_on_with_and_another_file_refused(tmp_path: Path) -> None:
    told: list[int] = []
    session = Session(tmp_path, lambda what, done, total: told.append(done))
    values = {"eta": 0.01, "gamma": 0.13, "iterations": 2, "refresh": 5}
    first = run_file(session, "theorem3", values)[1]["FedPD-VR"].runs[0].history
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors") if "checkpoints" in path.parts}
    again = run_file(session, "theorem3", values)[1]["FedPD-VR"].runs[0].history
    assert again["stationarity"].tolist() == first["stationarity"].tolist()
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}  # nothing was run twice
    with pytest.raises(FedpdError, match=r"holds a run of another experiment file.*Give another --out"):
        run_file(session, "theorem3", values | {"refresh": 6})
    assert told[-1] == 400
