"""The parts that all items share: they run an experiment file in their own folder, report its progress, and draw.

DIR/runs/NAME/       a run folder like any other (`fedpd report DIR/runs/fig2a` works), resumed if it was interrupted
DIR/NAME.png         the item's figure

An item is a list of checks, and only they determine its verdict:

    every check agrees                           reproduced; as expected, if nothing was published
    some only after a correction, none differs   reproduced with a correction
    every one only after a correction            wrong as printed, holds as corrected
    some differ                                  not reproduced
    nothing was checked                          not run

A check agrees if the printed statement holds. It is corrected if the printed statement does not hold, but a stated
correction of it (a unit, a constant, a setting that the text leaves out) does. Both come from measured numbers; no
verdict is stored in the code.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.figure import Figure

from fedpd.base.checks import FedpdError, TheoryWarning
from fedpd.base.progress import Event, StepFunction
from fedpd.engine.views.drawing import clear_frame, line_style, line_styles
from fedpd.engine.views.entries import Entry
from fedpd.engine.views.style import style_of
from fedpd.experiments import run_folder, runner
from fedpd.experiments.experiment import Experiment, parse
from fedpd.experiments.runner import Result
from fedpd.report.figures import figure

FACTOR = 3.0  # a measured curve within this factor counts as the published one


class Outcome(StrEnum):
    """The outcome of a check."""

    AGREES = "agrees"
    CORRECTED = "corrected"
    DIFFERS = "differs"


class Verdict(StrEnum):
    """Whether an item was reproduced."""

    REPRODUCED = "reproduced"
    EXPECTED = "as expected"
    CORRECTED = "reproduced with a correction"
    WRONG = "wrong as printed, holds as corrected"
    NOT = "not reproduced"
    SKIPPED = "not run"


class Check(NamedTuple):
    """One comparison of a published with a measured value."""

    what: str  # what is compared
    published: str  # the published value, in words
    measured: str  # the measured value, in words
    outcome: Outcome  # whether they agree
    why: str = ""  # why they differ, or what the correction is


def judge(checks: Iterable[Check], against: str = "published") -> Verdict:
    """Return the verdict that follows from an item's checks; `against` is "expected" if nothing was published."""
    outcomes = {check.outcome for check in checks}
    if not outcomes:
        return Verdict.SKIPPED
    if Outcome.DIFFERS in outcomes:
        return Verdict.NOT
    if outcomes == {Outcome.CORRECTED}:
        return Verdict.WRONG
    if Outcome.CORRECTED in outcomes:
        return Verdict.CORRECTED
    return Verdict.REPRODUCED if against == "published" else Verdict.EXPECTED


def outcome(printed: bool, corrected: bool = False) -> Outcome:
    """Return the outcome of a check: whether its printed form holds, or only its corrected form, or neither."""
    if printed:
        return Outcome.AGREES
    return Outcome.CORRECTED if corrected else Outcome.DIFFERS


def ratio(measured: float, published: float) -> float:
    """Return the larger of two numbers divided by the smaller; infinite if one is not positive or not finite."""
    if not (measured > 0 and published > 0 and math.isfinite(measured) and math.isfinite(published)):
        return math.inf
    return max(measured / published, published / measured)


def worst_ratio(measured: Sequence[float], published: Sequence[float]) -> float:
    """Return the largest `ratio` of two rows of numbers."""
    return max(ratio(one, other) for one, other in zip(measured, published, strict=True))


def numbers(values: Iterable[float], form: str = ".1e") -> str:
    """Return numbers as text, with "none" for values that a run never reached."""
    return ", ".join(f"{value:{form}}" if math.isfinite(value) else "none" for value in values)


Rows = Sequence[Sequence[str]]

SIZE = (8.0, 5.2)  # inches of a figure of runs
GREY = "#59636e"
PRINTED = " (as printed)"  # the label of the run with the text's settings


class Session(NamedTuple):
    """The folder, the data and the progress function of a reproduction."""

    folder: Path  # the folder for results and runs
    on_progress: StepFunction  # called with the progress
    data: Path | None = None  # the user's handwriting data, for Figures 3 to 5


class Findings(NamedTuple):
    """The results of an item."""

    checks: list[Check]  # the comparisons that its verdict follows from
    scale: str = ""  # the size of the runs, if it differs from the paper's
    figure: Figure | None = None
    table: Rows = ()  # more numbers, headings first
    against: str = "published"  # what the checks compare with: "published", or "expected" if nothing was published
    shown: Sequence[Result] = ()  # the runs that the figure shows, if it shows runs


def experiment_text(name: str, values: Mapping[str, object]) -> str:
    """Return the text of an item's experiment file, with its placeholders filled in."""
    text = files("fedpd.reproduce").joinpath("experiments", f"{name}.toml").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def run_file(
    session: Session, name: str, values: Mapping[str, object] = MappingProxyType({}), *, into: str | None = None
) -> tuple[Experiment, dict[str, Result]]:
    """Run an item's experiment file, or resume it, and return the experiment and its results by label.

    Args:
        into: The name of the run folder, if a file is run with several values.

    Raises:
        FedpdError: If the folder holds a run of another experiment file.
    """
    text = experiment_text(name, values)
    into = into or name
    folder = session.folder / "runs" / into
    stored = folder / run_folder.EXPERIMENT
    if not stored.exists():
        run_folder.create(folder, text)
    elif stored.read_text(encoding="utf-8") != text:
        raise FedpdError(
            f"{folder}: holds a run of another experiment file, and fedpd does not mix runs. "
            "Give another --out, or remove the folder."
        )
    experiment = parse(text)
    rounds = experiment.settings.rounds

    def listen(event: Event) -> None:
        session.on_progress(f"{into} {event.what}", int(event.done), rounds)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TheoryWarning)  # the theorem does not cover the paper's own steps
        found = runner.run(experiment, folder, listen)
    return experiment, {result.label: result for result in found}


def runs_figure(shown: Sequence[Result | Entry], title: str, quantity: str, against: str = "communications") -> Figure:
    """Draw a quantity of runs against one cost."""
    return figure(list(shown), quantity, against, title=title, width=SIZE[0])


Points = Sequence[tuple[float, float]]


def lines_figure(lines: Mapping[str, Points], points: Points, x: str, y: str, *, points_label: str = "") -> Figure:
    """Draw formulas as lines by label, and measurements as points, on logarithmic axes.

    Lines of different methods have the methods' styles.
    """
    drawing = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = drawing.subplots()
    methods = {style_of(label) for label in lines} - {None}
    drawn = line_styles(list(lines)) if len(methods) == len(lines) else list(map(line_style, range(len(lines))))
    for (label, line), style in zip(lines.items(), drawn, strict=True):
        axes.plot(*zip(*line, strict=True), **style, linewidth=1.6, label=label)
    if points:
        axes.plot(*zip(*points, strict=True), "o", color="black", markersize=5, label=points_label)
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    clear_frame(axes)
    ncols = 2 if max(map(len, lines)) > 20 else 3  # as many columns as fit
    drawing.legend(loc="outside lower center", ncols=ncols, frameon=False)
    return drawing
