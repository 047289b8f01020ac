"""Choose how the loop over agents runs, by the backend and by the work per step."""

from typing import Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from fedpd.base.checks import choice, count, refuse
from fedpd.core import Method, Problem
from fedpd.core.agents import AXIS, Layout
from fedpd.engine.participation import Participation, most_present

SMALL_STEP = 2**13  # if a local step reads at most this many numbers, all agents run at once
EVEN_SIZES = 1.3  # if agents do epochs, and the largest has at most so many times the mean of the samples, as well
SMALL_PROBLEM = 2**17  # if a full gradient of all agents reads fewer numbers, one device is faster


Execution = Literal["auto", "sequential", "parallel", "debug"]


def choose_layout(
    algorithm: Method,
    problem: Problem,
    execution: Execution = "auto",
    devices: int | None = None,
    participation: Participation | None = None,
) -> Layout:
    """Return whether agents run one after another or all at once, and on which devices.

    On a CPU, agents run one after another if a step is large (full gradients, networks), because the data of one agent
    stays in the cache. They run all at once if steps are small, because that shares the overhead of a step, and on
    accelerators. Measured on 2 cores with float32, N=100, n=400, D=100 and Q=8 full gradients: a round takes 3.5 ms one
    after another and 7.5 ms all at once. If agents do epochs, they all wait for the largest when they run at once: with
    20 agents of 83 to 1,775 samples (mean 648), 5 epochs in batches of 50 and D=784, a round takes 38 ms one after
    another and 109 ms at once (`python -m benchmarks.local_epochs`). `participation` says which agents take part in a
    round; None: all of them.
    """
    choice("execution", execution, get_args(Execution))
    if execution == "debug":
        return Layout(problem.agents, parallel=False, mesh=None)
    largest = int(problem.sizes.max())
    reads = max(problem.dimension, sample_size(problem))
    step = (algorithm.samples_per_step or largest) * reads
    even = algorithm.samples_per_step is not None or (
        problem.offsets is None and problem.load is None
    )  # all agents work the same
    if algorithm.local_epochs is not None:
        even = even and bool(largest <= EVEN_SIZES * problem.sizes.mean())
    at_once = jax.default_backend() != "cpu" or (even and step <= SMALL_STEP)
    available = jax.devices()
    if devices is None:
        agents = (
            problem.agents if participation is None else most_present(participation, problem.agents, problem.agents)
        )
        worth_it = agents * largest * reads >= SMALL_PROBLEM
        devices = min(problem.agents, len(available)) if worth_it else 1
    remedy = "Leave it out, and fedpd chooses"
    if count("devices", devices, remedy) > min(problem.agents, len(available)):
        rule = f"must be at most {len(available)}, the available devices, and {problem.agents}, the agents"
        refuse("devices", devices, rule, remedy)
    mesh = Mesh(np.array(available[:devices]), (AXIS,)) if devices > 1 else None
    return Layout(problem.agents, execution == "parallel" or (execution == "auto" and at_once), mesh)


def sample_size(problem: Problem) -> int:
    """Return how many numbers a sample holds."""
    axes = 2 if problem.offsets is None and problem.load is None else 1  # before the axes of a sample
    return sum(int(np.prod(leaf.shape[axes:])) for leaf in jax.tree.leaves(problem.data))
