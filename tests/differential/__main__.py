"""Repeat cases: python -m tests.differential SEED [METHOD]."""

import sys

from .compare import check
from .draw import draw

seed, method = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
print(draw(seed, method))
print(check(seed, method) or "all numbers agree")
