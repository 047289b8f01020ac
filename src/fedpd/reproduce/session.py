"""Where an item runs: a folder of its own, its experiment file, and someone to tell how far it is.

DIR/runs/NAME/       a run's folder like any other (`fedpd report DIR/runs/fig2a` works), gone on with if interrupted
DIR/NAME.png         the item's figure
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from fedpd.base.checks import FedpdError, TheoryWarning
from fedpd.experiments import experiment, run_folder, runner
from fedpd.experiments.experiment import Experiment
from fedpd.experiments.runner import Result
from fedpd.reproduce.verdict import Check

Rows = Sequence[Sequence[str]]
Tell = Callable[[str, int, int], None]  # (what, done, of)


class Session(NamedTuple):
    folder: Path
    tell: Tell
    data: Path | None = None  # handwriting that the user has, for Figures 3 to 5


class Findings(NamedTuple):
    """What an item found."""

    checks: list[Check]
    scale: str = ""  # what was run, where that is not what the paper ran
    figure: Figure | None = None
    table: Rows = ()  # more numbers, headings first


def experiment_text(name: str, values: Mapping[str, object]) -> str:
    """An item's experiment file, with what it leaves open."""
    text = files("fedpd.reproduce").joinpath("experiments", f"{name}.toml").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def run_file(
    session: Session, name: str, values: Mapping[str, object] = MappingProxyType({}), *, into: str | None = None
) -> tuple[Experiment, dict[str, Result]]:
    """Run an item's experiment file, or what is left of it, and give the results by label.

    values: what the file leaves open.  into: the name of the run's folder, where a file is run with several values.
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
