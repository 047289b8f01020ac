"""Draw where skipping saves communications, and how much skipping the theorem allows."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fedpd.engine.views.drawing import COLOURS, Dash, clear_frame, plain_ticks
from fedpd.problems.quadratic import random_quadratic
from fedpd.theory import max_eta, rates
from fedpd.theory.skipping import Drift, communications_map

ROWS: tuple[tuple[Drift, str], ...] = (("corrected-exact", "exact mean dual"), ("corrected", "estimated mean dual"))
ETAS = np.geomspace(0.02, 2, 33)  # eta L
STRETCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 38, 45, 54, 64)
FURTHEST = 6.0  # octaves from 1 that have different colours
LINES = (-5.0, -4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # octaves
BANDS = (  # the colour of each octave on a light page, from the largest saving to the largest cost, and on a dark one
    ("#0b3c6f", "#9fd2ff"), ("#1f61a5", "#6fb4ee"), ("#3f8ec0", "#4b93d0"), ("#7ab6d6", "#3573a8"),
    ("#b3d6e8", "#28557d"), ("#e0ecf3", "#1f3a54"), ("#fae7dc", "#4a2a28"), ("#f9c6ac", "#703530"),
    ("#ee977b", "#964036"), ("#d6604d", "#b64d3e"), ("#b52030", "#cf6551"), ("#700620", "#e3846d"),
)  # fmt: skip


class Family(NamedTuple):
    """A family of quadratics, for one map."""

    name: str  # the title of its panels
    hessians: np.ndarray  # the Hessians of the f_i (N, d, d)


def example_families() -> list[Family]:
    """Return three families of 6 agents in 4 dimensions, eigenvalues in [0.1, 1], with growing differences."""
    names = {"equal Hessians": 0.0, "Hessians half different": 0.5, "Hessians all different": 1.0}
    families = []
    for name, share in names.items():
        problem = random_quadratic(6, 4, convexity=0.1, heterogeneity=share, seed=3)
        families.append(Family(name, np.asarray(problem.data["hessian"])[:, 0]))
    return families


def skipping_map_figure(
    families: Sequence[Family] | None = None,
    etas: Sequence[float] | np.ndarray = ETAS,
    stretches: Sequence[int] = STRETCHES,
) -> Figure:
    """Return a figure of the communications with k local rounds per communication, relative to k = 1.

    Each factor of 2 has its own colour. There is one column of panels per family and one row per estimate of the mean
    dual. Skipping saves communications where a panel is blue, and costs some where it is red.

    Args:
        families: The quadratics; None: `example_families()`.
        etas: Values of eta L, where L is the largest eigenvalue of a family.
    """
    families = example_families() if families is None else families
    figure = Figure(figsize=(3.6 * len(families) + 1.4, 7.2), layout="constrained")
    grid = figure.subplots(len(ROWS), len(families), sharex=True, sharey=True, squeeze=False)
    for axes_row, (drift, estimate) in zip(grid, ROWS, strict=True):
        for axes, family in zip(axes_row, families, strict=True):
            L = float(np.linalg.eigvalsh(family.hessians).max())
            mesh = _map(
                axes, etas, stretches, communications_map(family.hessians, np.asarray(etas) / L, stretches, drift)
            )
        axes_row[0].set_ylabel(estimate)
    for axes, family in zip(grid[0], families, strict=True):
        axes.set_title(family.name, fontsize=10)
    grid[-1, len(families) // 2].set_xlabel("η L, step of a local round")
    figure.supylabel("k, local rounds per communication", fontsize=10)
    figure.suptitle("Skipping saves communications left of the thick line; a smaller η saves more", fontsize=12)
    bar = figure.colorbar(mesh, ax=grid, aspect=40, pad=0.015)
    bar.set_label("communications, relative to k = 1 at the same η\n← skipping saves     skipping costs →")
    bar.set_ticks([*LINES, 0.0], labels=[str(Fraction(2.0**octave)) for octave in (*LINES, 0.0)])
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _map(axes: Axes, etas: Any, stretches: Sequence[int], relative: np.ndarray) -> Any:
    """Draw one panel, with a colour per factor of 2, the break-even line and the best k of every eta."""
    inside = FURTHEST - 1e-6  # the outermost colours include all larger factors
    lengths, octaves = np.asarray(stretches), np.clip(np.log2(relative), -inside, inside)
    edges = np.linspace(-FURTHEST, FURTHEST, len(BANDS) + 1)
    mesh = axes.contourf(etas, lengths, octaves, levels=edges, colors=[light for light, _ in BANDS])
    mesh.set(edgecolor="face", linewidth=0.4)  # no gaps between neighbours
    skipping = lengths > 1  # k = 1 equals itself, and has no border
    axes.contour(etas, lengths[skipping], octaves[skipping], levels=[0.0], colors="black", linewidths=2)
    axes.plot([], [], color="black", linewidth=2, label="break-even")
    best = lengths[relative.argmin(axis=0)]
    axes.step(etas, best, color="black", linewidth=1.2, linestyle=":", where="mid", label="best k at this η")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]))
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16, 32, 64]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        plain_ticks(axis)
    return mesh


def skip_probability_figure(L: float = 1.0, eta: float | None = None, ratios: np.ndarray | None = None) -> Figure:
    """Return the paper's Figure 1, p against epsilon/delta^2: its rule, two approximations, and the guaranteed p.

    Args:
        eta: The penalty parameter; None: the paper's choice, half the bound of Theorem 1.
    """
    eta = max_eta(L) / 2 if eta is None else eta
    curves = rates.savings(np.geomspace(1e-3, 1e8, 200) if ratios is None else ratios, L, eta)
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.subplots()
    shown: tuple[tuple[np.ndarray, str, Dash], ...] = (
        (curves.exact, "the paper's rule, C(p) ≤ ε/(3δ²), solved", "-"),
        (curves.linear, "its linear approximation", "--"),
        (curves.logarithmic, "its logarithmic approximation", "-."),
        (curves.guaranteed, "guaranteed, whatever the fᵢ", "-"),
    )
    for (values, label, dash), colour in zip(shown, COLOURS, strict=False):
        axes.plot(curves.ratio, values, linestyle=dash, color=colour, linewidth=1.9, label=label)
    axes.set(xscale="log", ylim=(-0.02, 1.04))
    axes.set_xlabel("ε/δ², target accuracy over differences between agents")
    axes.set_ylabel("p, share of communications that may be skipped")
    axes.set_title(f"η L = {eta * L:.3g}", fontsize=10)
    clear_frame(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
