"""Minimise f with nothing to choose: FedPD with memory, by the rules below.

method    fedpd(eta="auto", memory=M): eta, the server's step and the mixing weights are found during the run
oracle    lbfgs() with its tolerance: full gradients, since a memory amplifies the noise of samples
memory    M = 30 outcomes and 40 secant pairs per agent. If all agents together would need more than ROOM bytes
          for them, M is the largest that fits, but at least 1.
variables scaled where the agents' Hessians differ by more than a factor of 1000 between variables
start     x^0 of the problem; agents send their gradients there in the first communication
"""

from typing import Any

import jax
import numpy as np

from fedpd import algorithms, oracles
from fedpd.base.arrays import as_array
from fedpd.base.checks import count, positive, refuse
from fedpd.base.errors import warn
from fedpd.base.progress import ProgressFunction
from fedpd.base.typed import typed
from fedpd.core import Method, Problem
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate

MEMORY = 30  # outcomes. On 52 problems 20 took up to 1.9 times as many communications
PAIRS = 4 / 3  # secant pairs per outcome: they are of f_i alone, so old ones stay true, and more save local gradients
ROOM = 2**31  # bytes for the memory of all agents


@typed
def solve(
    problem: Problem,
    target: float = 1e-10,
    max_communications: int = 1000,
    *,
    progress: bool | ProgressFunction | None = None,
) -> Run:
    """Minimise f until ||grad f||^2 <= target, with nothing to tune.

    Args:
        problem: The problem. Its gradients are computed on all samples.
        target: The stationarity at which the run stops.
        max_communications: The most communications.
        progress: Whether to show a bar; None: where a person watches and it takes over two seconds. Or a function of
            (communications done, communications at most, stationarity).

    Returns:
        The run, whose history ends with the first row of stationarity <= target. A warning says if there is none.

    Examples:
        >>> from fedpd import problems, solve
        >>> run = solve(problems.random_quadratic(agents=5, dimension=3))
        >>> bool(run.history["stationarity"][-1] <= 1e-10)
        True
    """
    positive("target", target, "target is the ||grad f||^2 at which the run stops, e.g. 1e-10")
    count("max_communications", max_communications, "Give the most communications, e.g. 1000", bits=31)
    until = {"stationarity": target}
    run = simulate(chosen_method(problem), problem, rounds=max_communications, until=until, progress=progress)
    last, communications = run.history["stationarity"][-1], run.history["communications"][-1]
    if run.diverged is not None:
        warn(f"solve did not reach {target:g}: {run.diverged.message}")
    elif not last <= target:
        precision, plural = "float64" if problem.double else "float32", "" if communications == 1 else "s"
        warn(
            f"solve came to ||grad f||^2 = {last:.3g} in {communications} communication{plural} and did not reach "
            f"{target:g}. Give it more communications, or a larger target if that is below what {precision} resolves."
        )
    elif ended_higher(run):
        warn(f"solve reached ||grad f||^2 = {last:.3g}, but {rise_text(run)}")
    return run


def ended_higher(run: Run) -> bool:
    """Return whether f is clearly larger at the end of a run than at its start."""
    first, last = (float(value) for value in run.history["loss"][[0, -1]])
    return last > first + 1e-5 * (abs(first) + abs(last))


def rise_text(run: Run) -> str:
    """Return a sentence about a run that ended at a larger f than that of its start."""
    first, last = run.history["loss"][[0, -1]]
    return (
        f"f rose from {first:.3g} to {last:.3g}, so it ended at a maximum or a saddle point, and f may be unbounded "
        "below. Add a penalty, e.g. l2=0.01, or start from another model."
    )


def chosen_method(problem: Problem, room: float = ROOM) -> Method:
    """Return the method that `solve` runs on a problem, with `room` bytes for the memory of all agents."""
    memory = memory_for(problem, room)
    return algorithms.fedpd(eta="auto", oracle=oracles.lbfgs(pairs=int(PAIRS * memory)), memory=memory)


def memory_for(problem: Problem, room: float = ROOM) -> int:
    """Return M, the outcomes, each with its secant pairs, of two models each, that `solve` keeps for each agent."""
    return min(MEMORY, max(1, int(room / max(2 * (1 + PAIRS) * model_bytes(problem) * problem.agents, 1))))


def model_bytes(problem: Problem) -> int:
    """Return the bytes of a model."""
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(problem.start))


def check_everyone(
    participation: Any = 1.0, stragglers: float = 0.0, cohort: int | None = None, sampling: str = "uniform"
) -> None:
    """Refuse partial participation and stragglers: only with all agents does FedPD-M scale variables and descend."""
    rule, remedy = "solve needs all agents, with all their steps, in every round", "Leave it out, or use fedpd advise"
    if np.any(as_array(participation, "participation", remedy) != 1):
        refuse("participation", participation, rule, remedy)
    if cohort is not None:
        refuse("cohort", cohort, rule, remedy)
    if stragglers != 0:
        refuse("stragglers", stragglers, rule, remedy)
