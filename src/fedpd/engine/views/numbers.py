"""Numbers as people read them."""

import numpy as np

PREFIXES = ("", "k", "M", "G", "T", "P")


def short_number(number: float, unit: str = "") -> str:
    """Return a large number with three digits and a prefix, such as "192 M" or "9.6 MB"."""
    power = 0 if number < 1 else min(int(np.log10(number) // 3), len(PREFIXES) - 1)
    return f"{number / 1000**power:.3g} {PREFIXES[power]}{unit}".strip()
