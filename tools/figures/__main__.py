"""Draw the figures of the README and the documentation.

    python -m tools.figures            writes all of them, each for light and for dark pages
    python -m tools.figures --check    draws them and says which files show something else; it writes nothing

All data come from this repository: formulas, generated data, and docs/figures/*.json, which `tools.figures.record`
writes. The tables of docs/suite and docs/networks are data too. suite_0.png, suite_8.png and suite_64.png show more
costs, whose data take hours and are not stored: `python -m tools.suite_pages` draws them.
"""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from tools.figures import networks, recorded, suite
from tools.figures.svg import SETTINGS, digest, recorded_digest, save

from fedpd import data
from fedpd.report import comparison_figure
from fedpd.report.figures import skip_probability_figure, skipping_map_figure
from fedpd.reproduce.command import ITEMS
from fedpd.reproduce.session import Session

DOCS = Path(__file__).parents[2] / "docs"


def demo() -> Figure:
    """Draw the paper's first experiment, from the recorded curves of make demo."""
    title = (
        "After 600 rounds FedPD with full or variance-reduced gradients is still converging; FedAvg, FedProx, "
        "FedPD-SGD and constant skipping stop at an error floor"
    )
    return comparison_figure(recorded.entries("demo"), title)


def clients() -> Figure:
    """Draw what `fedpd data inspect` draws, for 24 generated clients whose sizes and labels differ."""
    rng = np.random.default_rng(7)
    sites = {}
    for number in range(24):
        size = int(rng.lognormal(4.3, 0.7)) + 8
        labels = rng.choice(10, size, p=rng.dirichlet(np.full(10, 0.35))).astype(np.int32)
        sites[f"{number + 1}"] = {"x": rng.normal(size=(size, 2)), "y": labels}
    return data.split(data.from_arrays(sites, name="24 clients"), 0.2, seed=0).plot()


def item(name: str) -> Callable[[], Figure]:
    """Return the function that draws the figure of an item of `fedpd reproduce`, one that takes seconds."""

    def drawn() -> Figure:
        session = Session(Path("runs/reproduce"), lambda *_: None, None)
        figure = ITEMS[name].run(session).figure
        assert figure is not None
        return figure

    return drawn


FIGURES: dict[str, Callable[[], Figure]] = {
    "demo": demo,
    "clients": clients,
    "skip_probability": skip_probability_figure,
    "skipping_map": skipping_map_figure,
    "reproduction/table2": item("table2"),
    "unipen62_mlp": partial(
        networks.accuracy,
        "unipen",
        "A perceptron",
        "FedPD from the server's model is ahead at every number of communications (UNIPEN-62, a perceptron)",
        "communications with the server",
    ),
    "unipen62_cnn": partial(
        networks.accuracy,
        "unipen",
        "A convolutional network",
        "After 16 communications FedPD from the server's model is ahead of FedAvg after 40 (UNIPEN-62, SmallCNN)",
        "communications with the server",
    ),
    "unipen62_fig4": partial(
        networks.accuracy,
        "paper_steps",
        "Figures 4 and 5",
        "With its printed step size FedAvg is behind the others, with the others' step size it is ahead (UNIPEN-62)",
        "rounds",
    ),
    "suite_64": partial(suite.profile, 64),
    "suite_0": partial(suite.profile, 0),
    "networks_8": partial(suite.networks, 8),
    **{f"reproduction/{name}": partial(recorded.draw, name) for name in recorded.ITEMS},
}


def main(*arguments: str) -> int:
    """Draw or check the figures, and return the number of stale files."""
    stale = 0
    for name, draw in FIGURES.items():
        path = DOCS / "images" / name
        with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure: Any = draw()
            if arguments == ("--check",):
                fresh = recorded_digest(path) == digest(figure)
                stale += not fresh
                print(f"{'current' if fresh else 'stale: run make figures'}  docs/images/{name}.svg")
                continue
            save(figure, path)
        print(f"docs/images/{name}.svg")
    return stale


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
