"""The colour and the line style of each method: the same in figures, reports, live pages and the terminal.

A family of methods has one or two hues, and a method has its own dash within them. The hues are those of Okabe and Ito
and of Tol, which readers with any colour vision can tell apart; orange and sky blue are darker than there, so that thin
lines are visible on white.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from fedpd.algorithms import cards
from fedpd.core.card import Family


class Hue(NamedTuple):
    """One colour for three grounds."""

    light: str  # on white paper or a light page
    dark: str  # on a dark page
    terminal: str  # in a terminal, whose ground may be light or dark


class Style(NamedTuple):
    """How to draw the curve of a method."""

    hue: str  # a name of `HUES`
    dash: str  # a name of `DASHES`

    @property
    def colours(self) -> Hue:
        """Return the colour for each ground."""
        return HUES[self.hue]


HUES = {
    "blue": Hue("#0064A0", "#4FA3E0", "#2E86C1"),
    "vermilion": Hue("#C84B00", "#FF8A4C", "#D55E00"),
    "green": Hue("#009E73", "#3BE0B0", "#009E73"),
    "pink": Hue("#CC79A7", "#F2A6D2", "#CC79A7"),
    "orange": Hue("#C48600", "#F2B93B", "#C48600"),
    "sky": Hue("#3A9BD6", "#9AD8FF", "#3A9BD6"),
    "black": Hue("#000000", "#F2F2F2", "default"),
    "brown": Hue("#8C564B", "#B99580", "#A9705F"),
    "indigo": Hue("#332288", "#7E6EE8", "#8272D8"),
    "olive": Hue("#55550F", "#8F9A2E", "#8F8F2A"),
    "wine": Hue("#882255", "#C94078", "#B8477A"),
}
# Lengths of strokes and gaps, in multiples of the width of the line; () is a solid line. Plotly has the same names.
DASHES: dict[str, tuple[float, ...]] = {
    "solid": (),
    "dash": (3.7, 1.6),
    "dashdot": (6.4, 1.6, 1, 1.6),
    "dot": (1, 1.65),
    "longdashdot": (8, 1.6, 1, 1.6, 1, 1.6),
    "longdash": (8, 2.4),
}
FAMILY_HUES: dict[Family, tuple[str, ...]] = {
    "primal-dual": ("blue", "indigo", "sky"),
    "averaging": ("vermilion", "orange"),
    "corrected gradients": ("green", "olive"),
    "lazy communication": ("brown",),
    "steps at the server": ("black",),
    "Newton-type": ("pink", "wine"),
}
# Names in many figures keep their style whatever is added. Other methods take the next style of their family.
FIXED = {
    "fedpd": Style("blue", "solid"),
    "fedpd vr": Style("blue", "dash"),
    "fedpd gd p 0 5": Style("blue", "dashdot"),
    "fedpd sgd": Style("blue", "dot"),
    "fedpd gd p auto": Style("blue", "longdashdot"),
    "fedpd m": Style("indigo", "solid"),
    "fedpd gd p 1 r t": Style("indigo", "dot"),
    "admm": Style("sky", "solid"),
    "feddyn": Style("sky", "dash"),
    "fedavg": Style("vermilion", "solid"),
    "fedavg gd": Style("vermilion", "dash"),
    "fedprox": Style("orange", "solid"),
    "scaffold": Style("green", "solid"),
    "fedlin": Style("green", "dash"),
    "proxskip": Style("olive", "solid"),
    # The methods that came with the last dash: all others keep the styles that they had before.
    "fedadam": Style("vermilion", "longdash"),
    "fedavgm": Style("orange", "longdash"),
    "fedyogi": Style("brown", "longdash"),
    "fedadagrad": Style("wine", "longdash"),
    "fednova": Style("olive", "longdash"),
    "fedexp": Style("pink", "longdash"),
    "fedcm": Style("green", "longdash"),
    "fedacg": Style("indigo", "longdash"),
    "fedsam": Style("black", "longdash"),
    "fedspeed": Style("sky", "longdash"),
    "feddc": Style("blue", "longdash"),
}
ORDER = ("blue", "vermilion", "green", "pink", "orange", "sky", "black", "brown")  # of curves that are no methods


def style_of(label: str) -> Style | None:
    """Return the style of the method that a label names, or None if it names none.

    Examples:
        >>> from fedpd.engine.views.style import style_of
        >>> style_of("FedPD-GD, p = 0.5"), style_of("eta=0.1")
        (Style(hue='blue', dash='dashdot'), None)
    """
    words, known = _words(label), _methods()
    found = [name for name in known if f" {name} " in f" {words} "]
    return known[max(found, key=len)] if found else None


def _words(label: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", label.lower()))


@cache
def _methods() -> dict[str, Style]:
    """Return the style of every method by the words of its label: the fixed ones, then the next of each family."""
    found, taken = dict(FIXED), set[Style]()
    for card in cards().values():
        mine = [Style(hue, dash) for hues in (FAMILY_HUES[card.family], HUES) for dash in DASHES for hue in hues]
        for variant in card.variants:
            words = _words(variant.label)
            fixed = [name for name in FIXED if f"{words} ".startswith(f"{name} ")]
            style = FIXED[max(fixed, key=len)] if fixed else None
            if style is None or style in taken:
                style = next((one for one in mine if one not in taken | set(FIXED.values())), mine[0])
            found[words] = style
            found.setdefault(_words(card.title), style)
            taken.add(style)
    return found


def numbered_style(number: int) -> Style:
    """Return the style of the curve of this number. The first 40 differ, because 8 hues and 5 dashes are coprime."""
    return Style(ORDER[number % len(ORDER)], list(DASHES)[number % 5])


def styles(labels: Sequence[str]) -> list[Style]:
    """Return the style of each curve of a figure. No two curves have the same one, up to 66 curves.

    A method has the style that `style_of` returns. If two labels name the same method, the shorter one keeps its style,
    and the other takes the next dash of the same hue. Labels that name no method, such as the points of a sweep, take
    the styles that are left, in order.
    """
    chosen: dict[int, Style] = {}
    wanted = {i: style_of(label) for i, label in enumerate(labels)}
    for i in sorted(wanted, key=lambda i: (wanted[i] is None, len(labels[i]) if wanted[i] else 0, i)):
        chosen[i] = _free(wanted[i] or numbered_style(i), set(chosen.values()))
    return [chosen[i] for i in range(len(labels))]


def _free(wanted: Style, taken: set[Style]) -> Style:
    """Return the style that is wanted, or the nearest one that is free: first of the same hue, then of any."""
    same = [Style(wanted.hue, dash) for dash in DASHES]
    others = [numbered_style(i) for i in range(40)] + [Style(hue, dash) for hue in HUES for dash in DASHES]
    return next((style for style in (wanted, *same, *others) if style not in taken), wanted)
