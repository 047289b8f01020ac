"""The list of items in the order of the paper. Figures have the numbers of the journal version."""

from collections.abc import Callable
from typing import NamedTuple

from fedpd.reproduce import better, claims, curves, formulas, handwriting, orders, panels, remarks, theorems
from fedpd.reproduce.session import Findings, Session


class Item(NamedTuple):
    """A figure, table or claim of the paper.

    Attributes:
        title: A description of the item.
        run: The function that measures it.
    """

    title: str
    run: Callable[[Session], Findings]


ITEMS: dict[str, Item] = {
    "table1": Item("communications against epsilon, by method", orders.table_1),
    "fig1": Item("communications that may be skipped, against epsilon/delta^2", formulas.figure_1),
    "claim2.1": Item("no method needs fewer communications than 1/epsilon", claims.claim_1),
    "claim2.2": Item("FedAvg with a constant step may diverge", claims.claim_2),
    "theorem1": Item("the guarantees of FedPD with Oracle I", theorems.theorem_1),
    "table2": Item("skip probability, linear and logarithmic", formulas.table_2),
    "fig2a": Item("stationarity against communications, weakly non-iid", curves.figure_2a),
    "fig2b": Item("stationarity against communications, strongly non-iid", curves.figure_2b),
    "fig2c": Item("stationarity against samples, weakly non-iid (appendix)", panels.weak_panel),
    "fig2d": Item("stationarity against samples, strongly non-iid (appendix)", panels.strong_panel),
    "fig3a": Item("characters by writer: accuracy against samples", handwriting.figure_3a),
    "fig3b": Item("characters by writer: accuracy with skipped communications", handwriting.figure_3b),
    "fig4": Item("characters by writer: training, stochastic solvers", handwriting.figure_4),
    "fig5": Item("characters by writer: test, stochastic solvers", handwriting.figure_5),
    "theorem3": Item("the guarantees of FedPD with Oracle II", theorems.theorem_3),
    "remarks": Item("wrong remarks and constants in the text", remarks.remarks),
    "better": Item("beyond the paper: every method with its best step size", better.better),
}
