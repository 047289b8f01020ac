"""Reproduce the paper: measure every figure, table and claim, and compare it with the published one.

command       the list of items, in the order of the paper; runs them and writes the results
session       what all items share: a run folder, drawings, and the rules that derive a verdict from comparisons
figure_2, handwriting, formulas, theorems, better      the items
"""

from fedpd.reproduce.command import ITEMS, Reproduction, reproduce
from fedpd.reproduce.session import Check, Verdict, judge

__all__ = ["ITEMS", "Check", "Reproduction", "Verdict", "judge", "reproduce"]
