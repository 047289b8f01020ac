"""Reproduce the paper: measure every figure, table and claim, and compare it with what is published.

verdict     the rules that make a verdict from comparisons
session     where an item runs: its folder, its experiment file, its progress
items       the list of items, in the order of the paper
command     runs items and writes the results
"""

from fedpd.reproduce.command import Reproduction, reproduce
from fedpd.reproduce.items import ITEMS
from fedpd.reproduce.verdict import Check, Verdict, judge

__all__ = ["ITEMS", "Check", "Reproduction", "Verdict", "judge", "reproduce"]
