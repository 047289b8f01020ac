"""One colour and line style per method, which every reader can tell from the others."""

from itertools import combinations

import numpy as np
import pytest

from fedpd.algorithms import variants
from fedpd.engine.views.drawing import spread
from fedpd.engine.views.style import DASHES, HUES, Style, style_of, styles

# Simulations of missing cones (Machado, Oliveira, Fernandes, 2009), severity 1, on linear RGB.
VISIONS = {
    "all cones": np.eye(3),
    "no L cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no M cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no S cones": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    shown = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return high / low


def test_every_method_has_a_style_of_its_own() -> None:
    found = [style_of(label) for label in variants()]
    assert None not in found
    assert len(set(found)) == len(found)
    assert styles(list(variants())) == found, "all of them in one figure keep their styles"


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_hues_differ_with_any_colour_vision(ground: str, vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(getattr(hue, ground))) for name, hue in HUES.items()}
    near = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(HUES, 2)}
    assert min(near.values()) > 7, min(near, key=near.__getitem__)


def test_lines_stand_out_from_their_ground() -> None:
    for hue in HUES.values():
        assert contrast(hue.light, "#ffffff") > 3
        assert contrast(hue.dark, "#12161b") > 3
        if hue.terminal != "default":
            assert min(contrast(hue.terminal, ground) for ground in ("#ffffff", "#000000")) > 3


def test_a_method_keeps_its_style_whatever_is_beside_it() -> None:
    alone = styles(["FedAvg-SGD"])[0]
    assert styles(["eta=0.1", "FedPD-GD", "FedAvg-SGD, server step 2", "FedAvg-SGD"])[3] == alone
    assert style_of("my FedPD-VR run") == style_of("FedPD-VR") != style_of("FedPD-GD")
    assert style_of("FedPD-GD, p = 0.5") == style_of("FedPD-GD p=0.5")
    assert style_of("a label") is None
    assert style_of("FedAvg") == style_of("FedAvg-SGD") != style_of("FedAvg-GD")
    assert style_of("TAMUNA") == style_of("TAMUNA p=0.8"), "the title of a card is the name of its first variant"


def test_no_two_curves_of_a_figure_have_the_same_style() -> None:
    labels = [f"FedPD-GD eta={i}" for i in range(8)] + [f"point {i}" for i in range(58)]
    assert len(set(styles(labels))) == 66 == len(HUES) * len(DASHES)
    assert {style.hue for style in styles(labels[:5])} == {"blue"}
    assert styles([f"p={i}" for i in range(70)])[-1] in {Style(hue, dash) for hue in HUES for dash in DASHES}


def test_names_move_apart_and_keep_their_order() -> None:
    places = spread(np.array([0.5, 0.1, 0.5, 0.52]), 0.1)
    assert np.diff(places[[1, 0, 2, 3]]).min() >= 0.1 - 1e-12
    assert places[1] == 0.1
    assert places[[0, 2, 3]].mean() == pytest.approx(np.mean([0.5, 0.5, 0.52]))
    assert spread(np.array([]), 0.1).size == 0
