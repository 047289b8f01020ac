"""The paper in one command: every figure, table and claim, measured and set beside what is published.

verdict     what a comparison says, by stated rules
session     where an item runs: its folder, its experiment file, its progress
items       the list of items, in the order of the paper
command     run some of them, and write down what came out
"""

from fedpd.reproduce.command import Reproduction, reproduce
from fedpd.reproduce.items import ITEMS
from fedpd.reproduce.verdict import Check, Verdict, judge

__all__ = ["ITEMS", "Check", "Reproduction", "Verdict", "judge", "reproduce"]
