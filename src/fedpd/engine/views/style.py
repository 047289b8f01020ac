"""The colour and the line style of each method: the same in figures, reports, live pages and the terminal.

A family of methods has one or two hues, and a method has its own dash within them. The hues are those of Okabe and Ito
and of Tol, which readers with any colour vision can tell apart; orange and sky blue are darker than there, so that thin
lines are visible on white.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple


class Hue(NamedTuple):
    """One colour for three grounds.

    Attributes:
        light: On white paper or a light page.
        dark: On a dark page.
        terminal: In a terminal, whose ground may be light or dark.
    """

    light: str
    dark: str
    terminal: str


class Style(NamedTuple):
    """How to draw the curve of a method.

    Attributes:
        hue: A name of `HUES`.
        dash: A name of `DASHES`.
    """

    hue: str
    dash: str

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
}
# The methods of a hue, in the order of `DASHES`. A label belongs to the method whose words it has, the longest first.
METHODS = {
    "blue": ("fedpd", "fedpd vr", "fedpd gd p 0 5", "fedpd sgd", "fedpd gd p auto"),
    "indigo": ("fedpd m", "a fedpd", "5gcs", "fedpd gd p 1 r t"),
    "sky": ("admm", "feddyn", "fedadmm", "feddr", "fedadmm insa"),
    "vermilion": ("fedavg", "fedavg gd", "local gd", "fedbuff", "cooperative sgd"),
    "orange": ("fedprox", "mpr sgd", "ri sgd", "ditto", "pfedme"),
    "green": ("scaffold", "fedlin", "feddane", "pr spider", "f svrg"),
    "olive": ("proxskip", "tamuna", "stem", "vrl sgd"),
    "brown": ("lag", "lag ps", "cola"),
    "black": ("l bfgs", "gradient descent", "nesterov", "barzilai borwein"),
    "pink": ("dane", "dane lbfgs", "s dane", "s dane lbfgs", "acc s dane"),
    "wine": ("giant", "newton cg", "fedosaa", "fedosaa scaffold"),
}
ORDER = ("blue", "vermilion", "green", "pink", "orange", "sky", "black", "brown")  # of curves that are no methods


def style_of(label: str) -> Style | None:
    """Return the style of the method that a label names, or None if it names none.

    Examples:
        >>> style_of("FedPD-GD, p = 0.5"), style_of("eta=0.1")
        (Style(hue='blue', dash='dashdot'), None)
    """
    words = f" {' '.join(re.findall(r'[a-z0-9]+', label.lower()))} "
    found = [name for name in _methods() if f" {name} " in words]
    return _methods()[max(found, key=len)] if found else None


@cache
def _methods() -> dict[str, Style]:
    dashes = list(DASHES)
    return {name: Style(hue, dashes[i]) for hue, names in METHODS.items() for i, name in enumerate(names)}


def numbered_style(number: int) -> Style:
    """Return the style of the curve of this number. The first 40 differ, because 8 hues and 5 dashes are coprime."""
    return Style(ORDER[number % len(ORDER)], list(DASHES)[number % len(DASHES)])


def styles(labels: Sequence[str]) -> list[Style]:
    """Return the style of each curve of a figure. No two curves have the same one, up to 55 curves.

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
