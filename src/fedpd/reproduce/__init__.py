"""Reproduce the paper: measure every figure, table and claim, and compare it with the published one.

verdict     the rules that derive a verdict from comparisons
session     runs an item's experiment file in its own folder, and reports its progress
items       the list of items, in the order of the paper
command     runs items and writes the results
"""

from fedpd.reproduce.command import Reproduction, reproduce
from fedpd.reproduce.items import ITEMS
from fedpd.reproduce.verdict import Check, Verdict, judge

__all__ = ["ITEMS", "Check", "Reproduction", "Verdict", "judge", "reproduce"]
