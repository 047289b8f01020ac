"""Problems in which agents share blocks of data, for RI-SGD."""

from dataclasses import replace

import jax
import numpy as np

from fedpd.base.checks import count, refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Problem
from fedpd.problems.build import from_losses


@explained
def share_blocks(problem: Problem, copies: int) -> Problem:
    """Return the problem in which agent i also holds the data of agents i+1, ..., i+copies (cyclically).

    Each f_i becomes the mean over all samples that agent i holds, so f changes if agents differ in size.

    Args:
        problem: The problem.
        copies: The number of other agents whose data each agent holds, 0 to N - 1.
    """
    count("copies", copies, "Give the number of other agents whose data each agent holds, e.g. 1", least=0)
    if copies >= problem.agents:
        refuse("copies", copies, f"must be below {problem.agents}, the number of agents", "N - 1 shares all data")
    own = [jax.tree.map(lambda leaf, i=i: leaf[i, : problem.sizes[i]], problem.data) for i in range(problem.agents)]
    held = [
        jax.tree.map(lambda *blocks: np.concatenate(blocks), *(own[(i + k) % len(own)] for k in range(copies + 1)))
        for i in range(len(own))
    ]
    shared = from_losses(problem.losses, held, problem.start, penalty=problem.penalty, name=problem.name)
    return replace(
        shared,
        answer=Answer(smoothness=problem.answer.smoothness),
        evaluation=problem.evaluation,
        block=problem.block,
        statistics=problem.statistics,
    )
