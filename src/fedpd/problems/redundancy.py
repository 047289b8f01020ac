"""Problems in which agents share blocks of data, for RI-SGD."""

from dataclasses import replace

import jax
import numpy as np

from fedpd.base.checks import count, refuse
from fedpd.base.typed import explained
from fedpd.core import Answer, Problem
from fedpd.core.agent_loss import AgentLoss
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
    if isinstance(problem.losses, AgentLoss):
        refuse("problem", problem.name, "has one loss per agent", "Use a problem with one loss per sample")
    if not (problem.scale == 1).all():
        rule = "has weights, and f_i would lose them: it becomes the mean over all samples that agent i holds"
        refuse("problem", problem.name, rule, "Build it without weights=")
    held = problem.in_memory()
    groups = (np.arange(held.agents)[:, None] + np.arange(copies + 1)) % held.agents  # (N, copies + 1)
    rows = held.rows_of(groups.reshape(-1))[0]
    sizes = held.sizes[groups].sum(axis=1)
    blocks = np.split(np.arange(int(sizes.sum())), np.cumsum(sizes)[:-1])
    own = [jax.tree.map(lambda leaf, block=block: leaf[block], rows) for block in blocks]
    shared = from_losses(problem.losses, own, problem.start, penalty=problem.penalty, name=problem.name, check=False)
    return replace(
        shared,
        answer=Answer(smoothness=problem.answer.smoothness),
        evaluation=problem.evaluation,
        block=problem.block,
        statistics=problem.statistics,
        random=problem.random,
    )
