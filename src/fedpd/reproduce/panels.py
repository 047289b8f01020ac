"""Check the panels of the appendix (stationarity over samples), and the text's conclusions from Figure 2.

Both use the runs of Figure 2. No values were read from these panels; the checks are the conclusions of the text.
"Similar" means within a factor of 3, as elsewhere. "Does not converge" means that the last value is more than a hundred
times that of FedPD-GD at p = 0.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fedpd.engine.views.entries import MAIN, Entry
from fedpd.experiments.runner import Result
from fedpd.report.figures import figure
from fedpd.reproduce.curves import PRINTED, SIZE, published
from fedpd.reproduce.session import Findings, Session, run_file
from fedpd.reproduce.verdict import FACTOR, Check, outcome, ratio
from fedpd.search.sweep import first_below

TARGET = 1e-8
FAR = 100.0
EXACT = 1e-12


def weak_panel(session: Session) -> Findings:
    """Check the runs of Figure 2(a) as functions of the number of samples."""
    _, results = run_file(session, "fig2a")
    ends, shown = _ends(results), _shown(results)
    samples = {label: _samples(result) for label, result in shown.items()}
    order = sorted((number, label) for label, number in samples.items() if math.isfinite(number))
    words = ", ".join(f"{label} {number:.2g}" for number, label in order)
    first, second = ([label for _, label in order] + ["no method"] * 2)[:2]
    checks = [
        Check(f"fewest samples to {TARGET:g}", "FedPD-VR", words, outcome(first == "FedPD-VR")),
        Check("second fewest", "FedProx-VR", second, outcome(second == "FedProx-VR")),
        _similar("FedProx and FedPD at p = 0 are comparable", ends, "FedProx-VR", "FedPD-GD p=0"),
        _floor("FedAvg-GD does not converge with Q > 1", ends),
        _similar(
            "skipping half of the communications gives FedAvg's error", ends, "FedPD-GD p=0.5", "FedAvg-GD", "fig2a"
        ),
    ]
    runs = list(shown.values())
    title = (
        f"{first} needs the fewest sample gradients to ‖∇f‖² ≤ {TARGET:g}, {second} the second fewest; "
        f"FedAvg-GD stops at {ends['FedAvg-GD']:.1e}"
    )
    return Findings(checks, "the runs of fig2a", samples_figure(runs, title), shown=runs)


def strong_panel(session: Session) -> Findings:
    """Check the runs of Figure 2(b) as functions of the number of samples."""
    _, results = run_file(session, "fig2b")
    ends, shown = _ends(results), _shown(results)
    both = max(ends["FedPD-GD p=0"], ends["FedPD-VR"])
    checks = [
        Check(
            "FedPD-VR and FedPD-GD at p = 0 converge to the stationary point",
            "converge",
            f"‖∇f‖² {ends['FedPD-VR']:.1e} and {ends['FedPD-GD p=0']:.1e} after 600 rounds",
            outcome(both < EXACT),
        ),
        _similar("FedProx has an error similar to FedAvg-GD's", ends, "FedProx-VR", "FedAvg-GD", "fig2b"),
        _floor("FedAvg-GD does not converge with Q > 1", ends),
    ]
    low = [label for label, end in ends.items() if end < EXACT]
    title = (
        f"Below {EXACT:g} after 600 rounds: {' and '.join(low) or 'no method'}; "
        f"FedAvg-GD stops at {ends['FedAvg-GD']:.1e}, FedProx-VR at {ends['FedProx-VR']:.1e}"
    )
    runs = list(shown.values())
    return Findings(checks, "the runs of fig2b", samples_figure(runs, title), shown=runs)


def samples_figure(shown: Sequence[Result | Entry], title: str) -> Figure:
    """Draw the stationarity against samples."""
    return figure(list(shown), MAIN, "samples", title=title, width=SIZE[0])


def _shown(results: Mapping[str, Result]) -> dict[str, Result]:
    return {label: result for label, result in results.items() if not label.endswith(PRINTED)}


def _ends(results: Mapping[str, Result]) -> dict[str, float]:
    """Return ||grad f||^2 at the end, as the median over the seeds."""
    return {
        label: float(np.median([run.history["stationarity"][-1] for run in result.runs]))
        for label, result in _shown(results).items()
    }


def _samples(result: Result) -> float:
    return float(np.median([first_below(run, TARGET, "samples") for run in result.runs]))


def _similar(what: str, ends: Mapping[str, float], one: str, other: str, figure: str | None = None) -> Check:
    """Check whether two last values are within a factor of 3, and quote the published curves of a figure."""
    words = ""
    if figure is not None:
        curves = published(figure)
        words = (
            f"On the published curves the two ends are {curves[one].values[-1]:.1e} and {curves[other].values[-1]:.1e}."
        )
    found = f"{ends[one]:.1e} and {ends[other]:.1e}, a factor {ratio(ends[one], ends[other]):.2g}"
    return Check(what, "similar", found, outcome(ratio(ends[one], ends[other]) <= FACTOR), words)


def _floor(what: str, ends: Mapping[str, float]) -> Check:
    found = f"{ends['FedAvg-GD']:.1e}, FedPD-GD {ends['FedPD-GD p=0']:.1e}"
    return Check(what, "stops at a floor", found, outcome(ends["FedAvg-GD"] > FAR * ends["FedPD-GD p=0"]))
