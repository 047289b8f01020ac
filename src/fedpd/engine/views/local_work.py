"""Say whether methods do equal local work: one that computes more per communication usually needs fewer of them.

Every headline about communications asks `unequal_work`, so that none compares batches of one sample with full gradients
without saying so.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from fedpd.engine.views.entries import Entry
from fedpd.engine.views.numbers import short_number

SAME = 1.1  # local work that differs by at most this factor is equal, because some methods begin with a gradient
LONGEST = 30  # characters of a label


def local_work(entry: Entry) -> float:
    """Return the sample gradients of all agents per communication, as the mean over seeds; NaN if there was none."""
    ends = [(run.history["samples"][-1], run.history["communications"][-1]) for run in entry.usable]
    return float(np.mean([samples / number if number else np.nan for samples, number in ends]))


def works_of(entries: Iterable[Entry]) -> dict[str, float]:
    """Return the local work of each method, by label."""
    return {entry.label: local_work(entry) for entry in entries}


def unequal_work(works: Mapping[str, float], unit: str = "sample gradients") -> str:
    """Return how the local work of methods differs, as the beginning of a sentence; "" if it is equal.

    Args:
        works: The local work per communication of each method, by label. Those that are not finite do not count.
        unit: The unit of the work.

    Examples:
        >>> unequal_work({"FedAvg": 24, "FedPD": 4800, "FedProx": 4800})
        'Unequal local work, from 24 (FedAvg) to 4.8 k (FedPD) sample gradients per communication'
        >>> unequal_work({"FedPD": 4800, "FedProx": 4800})
        ''
    """
    known = {label: work for label, work in works.items() if np.isfinite(work)}
    if not known or max(known.values()) <= SAME * min(known.values()):
        return ""
    least, most = (_with_name(pick(known, key=lambda label: known[label]), known) for pick in (min, max))
    return f"Unequal local work, from {least} to {most} {unit} per communication"


def _with_name(label: str, works: Mapping[str, float]) -> str:
    short = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
    return f"{short_number(works[label])} ({short})"
