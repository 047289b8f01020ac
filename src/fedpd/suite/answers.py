"""The answers of the suite's problems: f* and the curvature at the minimum, computed once and kept in a file."""

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

FILE = "answers.json"


class KnownAnswer(NamedTuple):
    """Known facts about a problem of the suite."""

    agents: int  # N
    dimension: int  # d
    samples: int  # M, all samples
    value: float  # f*, the value at the minimum
    stationarity: float  # ||grad f||^2 at the minimum that was found, relative to the start's
    smallest: float  # the smallest eigenvalue of the mean Hessian at the minimum
    largest: float  # the largest eigenvalue there
    dissimilarity: float  # max_i ||H_i - H|| there, relative to the largest eigenvalue
    negative: float  # the smallest eigenvalue of any H_i at the start or at the minimum, if it is negative; 0 otherwise

    @property
    def condition(self) -> float:
        """The condition number of the mean Hessian at the minimum; infinite where minima are not isolated."""
        return self.largest / self.smallest if self.smallest > 1e-12 * self.largest else np.inf


@cache
def known() -> dict[str, KnownAnswer]:
    """Return the facts of all problems, from the file."""
    read = json.loads(files("fedpd.suite").joinpath(FILE).read_text(encoding="utf-8"))
    return {name: KnownAnswer(**facts) for name, facts in read.items()}
