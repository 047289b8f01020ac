"""The items, in the order of the paper. Figures have the numbers of the journal version."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fedpd.reproduce import claims, curves
from fedpd.reproduce.session import Findings, Session


class Item(NamedTuple):
    title: str
    run: Callable[[Session], Findings]


ITEMS: dict[str, Item] = {
    "claim2.1": Item("no method needs fewer communications than 1/epsilon", claims.claim_1),
    "claim2.2": Item("FedAvg with a constant step may diverge", claims.claim_2),
    "fig2a": Item("stationarity against communications, weakly non-iid", partial(curves.figure_2, name="fig2a")),
    "fig2b": Item("stationarity against communications, strongly non-iid", partial(curves.figure_2, name="fig2b")),
}
