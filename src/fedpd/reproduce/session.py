"""Run an item's experiment file in a folder of its own, and report its progress.

DIR/runs/NAME/       a run folder like any other (`fedpd report DIR/runs/fig2a` works), resumed if it was interrupted
DIR/NAME.png         the item's figure
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from fedpd.base.checks import FedpdError, TheoryWarning
from fedpd.base.progress import StepFunction
from fedpd.experiments import experiment, run_folder, runner
from fedpd.experiments.experiment import Experiment
from fedpd.experiments.runner import Result
from fedpd.reproduce.verdict import Check

Rows = Sequence[Sequence[str]]


class Session(NamedTuple):
    """Where items run.

    Attributes:
        folder: The folder for results and runs.
        tell: Called with the progress.
        data: Handwriting that the user has, for Figures 3 to 5.
    """

    folder: Path
    tell: StepFunction
    data: Path | None = None


class Findings(NamedTuple):
    """What an item found.

    Attributes:
        checks: The comparisons that its verdict follows from.
        scale: What was run, if the paper ran something else.
        figure: Its figure.
        table: More numbers, headings first.
    """

    checks: list[Check]
    scale: str = ""
    figure: Figure | None = None
    table: Rows = ()


def experiment_text(name: str, values: Mapping[str, object]) -> str:
    """Return an item's experiment file, with values for what it leaves open."""
    text = files("fedpd.reproduce").joinpath("experiments", f"{name}.toml").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def run_file(
    session: Session, name: str, values: Mapping[str, object] = MappingProxyType({}), *, into: str | None = None
) -> tuple[Experiment, dict[str, Result]]:
    """Run an item's experiment file, or resume it, and return the experiment and its results by label.

    Args:
        session: Where it runs.
        name: The name of the file.
        values: Values for what the file leaves open.
        into: The name of the run folder, if a file is run with several values.

    Raises:
        FedpdError: The folder holds a run of another experiment file.
    """
    text = experiment_text(name, values)
    into = into or name
    folder = session.folder / "runs" / into
    stored = folder / run_folder.EXPERIMENT
    if not stored.exists():
        run_folder.create(folder, text)
    elif stored.read_text(encoding="utf-8") != text:
        raise FedpdError(
            f"{folder}: holds a run of another experiment file, and runs are never mixed. "
            "Give another --out, or remove the folder."
        )
    plan = experiment.parse(text)
    rounds = plan.settings.rounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TheoryWarning)  # the paper's own steps are beyond its theorem
        found = runner.run(plan, folder, lambda event: session.tell(f"{into} {event.what}", int(event.done), rounds))
    return plan, {result.label: result for result in found}
