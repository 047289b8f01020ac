"""Compare the paper's step sizes with the best step size of every method, on the strongly non-iid data.

`tune` multiplies the step size of each method's own rule by factors from 1/4 to 256, runs 200 rounds, and takes the
factor with the fewest communications to 1e-10. `advise` measures L and recommends a setting. p="auto" is one of the
methods. DIR/tuned.json keeps the tuned methods, so that they are not tuned again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedpd import theory
from fedpd.algorithms import variants
from fedpd.base.atomic import replace_file
from fedpd.core import Problem
from fedpd.engine.measure.columns import column_of
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate
from fedpd.engine.views.drawing import name_curves, panel, plain_ticks, set_heading
from fedpd.engine.views.entries import MAIN, Entry, axis_label, short_number
from fedpd.experiments.calls import build_algorithm
from fedpd.experiments.recorded import entries_of
from fedpd.experiments.runner import Result
from fedpd.report.advice import step_text
from fedpd.reproduce.session import GREY, SIZE, Check, Findings, Session, outcome, run_file
from fedpd.search.advise import advise
from fedpd.search.sweep import first_below
from fedpd.search.tune import tune

TARGET = 1e-10
LEAST = 1e-14  # where the figure ends
ROUNDS = 200
SCALES = tuple(2.0**exponent for exponent in range(-2, 9))
HEADINGS = ("method", "paper's step: communications", "best step: communications", "samples", "bytes", "setting")
COSTS = ("communications", "samples", "bytes_up", "bytes_down")

Costs = dict[str, float]  # the costs to the target; NaN if the run did not reach it


def better(session: Session) -> Findings:
    """Compare the costs to 1e-10 with the paper's step sizes, with tuned ones, and with advised ones."""
    experiment, results = run_file(session, "better")
    before = {label: costs_to(result.runs[0]) for label, result in results.items()}
    tuned = _tuned(session, experiment.problem)
    advised = advise(experiment.problem, TARGET, progress=session.on_progress)
    advice = advised.recommended or advised.failed[-1]
    rows = [(label, before.get(label), one["costs"], step_text(label, one["table"])) for label, one in tuned.items()]
    rows.sort(key=lambda row: (math.isnan(row[2]["communications"]), row[2]["communications"]))
    table = [HEADINGS, *(_row(*row) for row in rows)]
    best, auto = (tuned[label]["costs"]["communications"] for label in ("FedPD-GD", "FedPD-GD p=auto"))
    papers = before["FedPD-GD"]["communications"]
    checks = [
        Check(
            "FedPD-GD with the paper's eta, 0.08 on f_i: communications",
            "over 200",
            f"{papers:.0f}",
            outcome(papers > 200),
        ),
        Check("FedPD-GD with a good eta", "about 11", f"{best:.0f}", outcome(9 <= best <= 13)),
        Check(
            "FedPD-GD p=auto with a good eta (two models each way)",
            "about 11 or fewer",
            f"{auto:.0f}",
            outcome(auto <= 13),
        ),
        Check(
            "FedPD as advised, from the measured L alone",
            "about 11",
            f"{advice.communications:.0f} communications, {short_number(advice.samples)} samples, "
            f"{short_number(advice.transfer, 'B')}",
            outcome(advice.reached and advice.communications <= 15),
            f"eta = {advice.table['eta']:.3g}, p = {advice.table.get('p', 0)}.",
        ),
    ]
    papers_run = results["FedPD-GD"]._replace(label="FedPD-GD, the paper's step")
    shown = [papers_run, *_reruns(experiment.problem, tuned)]
    title = (
        f"FedPD-GD reaches ‖∇f‖² ≤ {TARGET:g} with {best:.0f} communications at its best step size, and with "
        f"{papers:.0f} at the paper's; methods without a correction stop at an error floor"
    )
    scale = (
        f"penalised logistic regression, 100 agents x 400 samples; {len(SCALES)} factors x {ROUNDS} rounds per method"
    )
    return Findings(checks, scale, steps_figure(shown, title), table, "expected", shown)


def steps_figure(shown: Sequence[Result | Entry], title: str) -> Figure:
    """Draw the stationarity against communications, both on logarithmic axes, until it is below `LEAST`."""
    entries = entries_of(list(shown))
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    panel(axes, entries, column_of("communications"), column_of(MAIN))
    for line in axes.lines:
        x, y = (np.asarray(values, float) for values in line.get_data())
        end = int(np.argmax(y < LEAST)) + 1 if (y < LEAST).any() else len(y)
        line.set_data(x[1:end], y[1:end])  # without the start, which has no communications
    axes.relim()
    axes.set(xscale="log", ylabel=axis_label(column_of(MAIN)))
    plain_ticks(axes.xaxis)
    axes.axhline(TARGET, color=GREY, linewidth=0.8)
    axes.autoscale_view()
    name_curves(axes, entries, 0.75 * SIZE[1])
    set_heading(figure, title, int(12 * SIZE[0]))
    return figure


def costs_to(run: Run) -> Costs:
    """Return the costs of a run until its stationarity was at most the target."""
    return {column: first_below(run, TARGET, column) for column in COSTS}


def _tuned(session: Session, problem: Problem) -> dict[str, Any]:
    """Return the best step size of every method, and save each as soon as it is found."""
    path = session.folder / "tuned.json"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    L = theory.smoothness(problem)
    for label in variants():
        if label in known:
            continue
        (one,) = tune(
            problem, methods=[label], target=TARGET, rounds=ROUNDS, scales=SCALES, L=L, progress=session.on_progress
        )
        known[label] = {"costs": costs_to(one.runs[0]), "table": one.table, "least": float(min(one.values))}
        with replace_file(path) as file:
            file.write(json.dumps(known, indent=1).encode())
    return known


def _reruns(problem: Problem, tuned: Mapping[str, Any]) -> list[Result]:
    """Run the tuned methods that the figure shows."""
    shown = ("FedPD-GD", "FedPD-GD p=auto", "Local GD", "FedProx", "SCAFFOLD")
    found = []
    for label in shown:
        run = simulate(build_algorithm(tuned[label]["table"], ROUNDS), problem, rounds=ROUNDS, progress=False)
        found.append(Result(f"{label}, best step", (run,)))
    return found


def _row(label: str, before: Costs | None, after: Costs, setting: str) -> tuple[str, ...]:
    papers = "" if before is None else _number(before["communications"], "not in 600")
    if math.isnan(after["communications"]):
        return label, papers, f"not in {ROUNDS}", "", "", setting
    moved = short_number(after["bytes_up"] + after["bytes_down"], "B")
    return label, papers, _number(after["communications"]), short_number(after["samples"]), moved, setting


def _number(value: float, otherwise: str = "") -> str:
    return otherwise if math.isnan(value) else f"{value:.0f}"
