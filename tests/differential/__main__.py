"""Repeat a case: python -m tests.differential SEED [METHOD [MODE]]."""

import sys

from .compare import check
from .draw import draw

seed, replaced = int(sys.argv[1]), sys.argv[2:]
print(draw(seed, *replaced))
print(check(seed, *replaced) or "all numbers agree")
