"""Draw pictures as SVG inside of the pages, so that they follow the page's light or dark colours and need no files."""

import json
import sys
from collections.abc import Sequence
from functools import cache, partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedpd import algorithms, data, oracles, problems, simulate
from fedpd.core import Method
from fedpd.engine.views.drawing import spread
from fedpd.engine.views.style import DASHES, HUES, Style, style_of, styles

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.figures.record import ANGLES, CURVATURES, FOLDER, MINIMA, START, path, three_agents

DIAGRAMS = Path(__file__).parent / "diagrams"
SIZE = 300  # of the map of the two parameters, in units of the SVG
WINDOW = (-2.6, 2.6)  # of both parameters
DEEPEST = -12.0  # log10 of the stationarity at the bottom of a curve
PLAIN = Style("black", "dot")  # of FedAvg, as a comparison

LOCAL = oracles.gd(step=0.5, iterations=10)  # the local work of the comparisons


def hues_css() -> str:
    """Return the methods' colours as variables of CSS, for light and dark pages."""
    schemes = {"default": "light", "slate": "dark"}
    return "".join(
        f'[data-md-color-scheme="{scheme}"] {{ '
        + " ".join(f"--hue-{name}: {getattr(hue, ground)};" for name, hue in HUES.items())
        + " }\n"
        for scheme, ground in schemes.items()
    )


def diagram(name: str) -> str:
    """Return a diagram that was drawn by hand, without its XML header."""
    return (DIAGRAMS / f"{name}.svg").read_text(encoding="utf-8").strip()


def method_picture(name: str) -> str:
    """Return the path of a method on the three agents' problem, and its error, beside those of FedAvg."""
    labels = [variant.label for variant in algorithms.cards()[name].variants]
    drawn = dict(zip(labels, styles(labels), strict=True))
    paths = {"FedAvg, Q = 10": (fedavg_path(), PLAIN)}
    paths |= {label: (recorded(label), style) for label, style in drawn.items()}
    caption = (
        "Three agents with two parameters each (dots: their minima, with one level line; ring: the minimum of their mean), 150 "
        "rounds from the square, with the settings of the method's own rule. Dotted: FedAvg with 10 local steps of 0.5. "
        "There is no gradient noise: the picture shows what the differences between agents do."
    )
    return figure(
        _pair(f"of {labels[0]}", paths),
        caption,
    )


def pulling_apart() -> str:
    """Return the paths of FedAvg and FedPD with the same local work: one ends beside the minimum, the other reaches it."""
    made: dict[str, Method] = {
        "FedAvg": algorithms.fedavg(oracle=LOCAL),
        "FedPD": algorithms.fedpd(eta=1.0, oracle=LOCAL),
    }
    paths = {
        label: (path(algorithm, 60), style_of(label) or PLAIN)
        for label, algorithm in made.items()
    }
    ends = {
        label: float(np.linalg.norm(np.array(found["model"][-1]) - _minimum()))
        for label, (found, _) in paths.items()
    }
    caption = (
        f"After 60 rounds FedAvg stands {ends['FedAvg']:.2f} beside the minimum of the mean (ring), because the agents' "
        f"walks towards their own minima (dots) cancel there. FedPD's duals cancel the agents' pulls, and it is {_tiny(ends['FedPD'])} "
        "away. Both take 10 local gradient steps of 0.5 per round."
    )
    return figure(
        _pair("of FedAvg, which ends beside the minimum, and FedPD, which reaches it", paths),
        caption,
    )


@cache
def first_histories() -> dict[str, dict[str, Any]]:
    """Return the histories of FedAvg and FedPD on the paper's first problem, small, by the home page's program."""
    features, labels = data.strongly_noniid(agents=20, samples=100, dimension=10)
    problem = problems.penalized_logistic(features, labels)
    local = oracles.gd(step=0.2, iterations=8)
    made = {"FedAvg": algorithms.fedavg(oracle=local), "FedPD": algorithms.fedpd(eta=0.4, oracle=local)}
    return {name: simulate(method, problem, rounds=60, progress=False).history for name, method in made.items()}


def card() -> bytes:
    """Return the picture that social networks show for a link to the site, as a PNG of 1200 x 630."""
    drawn = Figure(figsize=(12, 6.3), dpi=100)
    drawn.text(0.05, 0.84, "fedpd", fontsize=46, weight="bold")
    drawn.text(0.05, 0.74, "Federated optimisation for clients whose data differ", fontsize=25)
    axes = drawn.add_axes((0.09, 0.13, 0.77, 0.52))
    for name, history in first_histories().items():
        x, y = history["communications"], history["stationarity"]
        style = style_of(name) or PLAIN
        axes.semilogy(x, y, color=style.colours.light, linewidth=4)
        axes.text(x[-1] + 1, y[-1], name, color=style.colours.light, fontsize=24, va="center")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=16)
    axes.set_xlabel("communications", fontsize=20)
    axes.set_title("error ‖∇f‖²", fontsize=20, loc="left")
    with BytesIO() as file:
        drawn.savefig(file, format="png")
        return file.getvalue()


def first_comparison() -> str:
    """Return what the home page's program draws: the errors of FedPD and FedAvg."""
    found = first_histories()
    paths = {name: (history, style_of(name) or PLAIN) for name, history in found.items()}
    ends = {name: history["stationarity"][-1] for name, history in found.items()}
    caption = (
        f"The program draws these curves: after 60 communications FedPD is at ‖∇f‖² = {_tiny(ends['FedPD'])} and still falling, and "
        f"FedAvg stays at {_tiny(ends['FedAvg'])}, with the same local work."
    )
    return figure(svg(420, 330, "FedPD keeps converging, FedAvg stops", _errors(paths, 50, 360)), caption)


def _tiny(number: float) -> str:
    return f"{number:.0e}" if number else "0"


@cache
def fedavg_path() -> dict[str, Any]:
    """Return the path of FedAvg with many local steps, which every picture shows as a comparison."""
    return path(algorithms.fedavg(oracle=LOCAL))


@cache
def recorded(label: str) -> dict[str, Any]:
    """Return the recorded path of a method, or run it if it was not recorded."""
    found = json.loads((FOLDER / "paths.json").read_text(encoding="utf-8"))
    if label in found:
        return dict(found[label])
    return path(algorithms.variants()[label].rule(1.0, len(MINIMA), 1.0))


def figure(picture: str, caption: str) -> str:
    """Return a picture with its caption, as one block of HTML."""
    return f'<figure class="picture" markdown="0">{picture}<figcaption>{escape(caption)}</figcaption></figure>'


def _pair(whose: str, paths: dict[str, tuple[dict[str, Any], Style]]) -> str:
    """Return the map of the paths and the errors, side by side, or one below the other on a phone."""
    maps = svg(SIZE + 20, 330, f"Paths {whose}", _map(paths))
    return f'<div class="pair">{maps}{svg(400, 330, f"Errors {whose}", _errors(paths, 50, 350))}</div>'


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return an SVG that grows with its column."""
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width: {width:g}px" role="img" '
        f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _minimum() -> np.ndarray:
    found = three_agents().answer.minimiser
    assert found is not None
    return found


def _place(point: Any) -> tuple[float, float]:
    low, high = WINDOW
    x, y = (np.clip(np.asarray(point, float), 4 * low, 4 * high) - low) / (high - low)
    return 10 + SIZE * x, 10 + SIZE * (1 - y)


def _map(paths: dict[str, tuple[dict[str, Any], Style]]) -> list[str]:
    scale = SIZE / (WINDOW[1] - WINDOW[0])
    parts = [
        f'<clipPath id="map"><rect x="10" y="10" width="{SIZE}" height="{SIZE}"/></clipPath>'
    ]
    parts.append(
        f'<rect class="frame" x="10" y="10" width="{SIZE}" height="{SIZE}"/><g clip-path="url(#map)">'
    )
    for minimum, angle in zip(MINIMA, ANGLES, strict=True):
        x, y = _place(minimum)
        wide, narrow = (scale * 0.42 / np.sqrt(curvature) for curvature in CURVATURES[::-1])
        turn = f"rotate({-np.degrees(angle):.4g} {x:.1f} {y:.1f})"
        parts.append(
            f'<ellipse class="level" cx="{x:.1f}" cy="{y:.1f}" rx="{wide:.1f}" ry="{narrow:.1f}" transform="{turn}"/>'
        )
        parts.append(f'<circle class="own" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    for found, style in paths.values():
        points = [_place(point) for point in found["model"] if None not in point]
        parts.append(_line(points, style, 2))
        x, y = points[-1]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill: var(--hue-{style.hue})"/>'
        )
    (x, y), (u, v) = _place(_minimum()), _place(START)
    parts.append(f'<circle class="goal" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
    return [
        *parts,
        f'<rect class="own" x="{u - 4:.1f}" y="{v - 4:.1f}" width="8" height="8"/></g>',
    ]


def _errors(
    paths: dict[str, tuple[dict[str, Any], Style]], left: float, width: float
) -> list[str]:
    """Draw log10 of the stationarity against communications, with the methods' names at the ends."""
    curves = {}
    for label, (found, style) in paths.items():
        rows = zip(found["communications"], found["stationarity"], strict=True)
        kept = [
            (c, np.log10(max(s, 10**DEEPEST))) for c, s in rows if s is not None and s < 1e6
        ]
        curves[label] = (kept, style)
    most = max(max(c for c, _ in kept) for kept, _ in curves.values()) or 1
    top = max(1.0, max(max(s for _, s in kept) for kept, _ in curves.values()))
    wide, bottom = width - 105, 10 + SIZE - 28
    parts = [f'<path class="axis" d="M{left} 22V{bottom}H{left + wide}"/>']
    parts.append(f'<text x="{left - 30}" y="14">error ‖∇f‖²</text>')
    for power in range(int(DEEPEST), int(top) + 1, 4):
        y = bottom - (power - DEEPEST) / (top - DEEPEST) * (bottom - 26)
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">1e{power:+03d}</text>'
        )
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{wide}"/>')
    parts.append(
        f'<text x="{left + wide / 2}" y="{bottom + 32}" text-anchor="middle">communications</text>'
    )
    parts.append(
        f'<text x="{left}" y="{bottom + 16}">0</text><text x="{left + wide}" y="{bottom + 16}" text-anchor="middle">{most:,.0f}</text>'
    )
    ends = []
    for kept, style in curves.values():
        points = [
            (left + c / most * wide, bottom - (s - DEEPEST) / (top - DEEPEST) * (bottom - 26))
            for c, s in kept
        ]
        parts.append(_line(points, style, 2))
        ends.append(points[-1])
    places = spread(np.array([y for _, y in ends]), 15.0)
    places -= max(0.0, places.max() - bottom)
    for (label, (_, style)), y in zip(curves.items(), places, strict=True):
        parts.append(
            f'<text x="{left + wide + 6}" y="{y + 4:.1f}" style="fill: var(--hue-{style.hue})">{escape(label)}</text>'
        )
    return parts


def _line(points: Sequence[tuple[float, float]], style: Style, width: float) -> str:
    dash = " ".join(f"{width * length:g}" for length in DASHES[style.dash])
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{at}" class="path" style="stroke: var(--hue-{style.hue}); stroke-dasharray: {dash or "none"}"/>'


def _diagram(name: str, caption: str) -> str:
    return figure(diagram(name), caption)


PICTURES = {
    "first_comparison": first_comparison,
    "pulling_apart": pulling_apart,
    "algorithm2": partial(
        _diagram,
        "algorithm2",
        "Algorithm 2, FedPD: agents solve locally, raise the price of disagreement, and then average or skip. "
        "(The diagram stands still if your system asks for reduced motion.)",
    ),
    "architecture": partial(
        _diagram,
        "architecture",
        "Samples, local models and duals stay with their client. Without masks, the messages of FedPD at p = 0 still "
        "reveal each client's gradient to the server.",
    ),
}
