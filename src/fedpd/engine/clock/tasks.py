"""The task of an agent in a round: its local steps and the bytes of its messages, known before the run."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.precision import scope
from fedpd.clock import Clock
from fedpd.core import Array, Key, Method, Problem
from fedpd.core.agents import Functions, Shard, arrays, local_objective, one_agent
from fedpd.engine.backends.liveness import sources
from fedpd.engine.measure.costs import message_costs


class Tasks(NamedTuple):
    """The task of each agent, which is the same in every round.

    Attributes:
        steps: (N,) local steps.
        bytes_up: Bytes of its message.
        bytes_down: Bytes of the broadcast.
    """

    steps: np.ndarray
    bytes_up: int
    bytes_down: int

    def seconds(self, clock: Clock, agents: np.ndarray, number: Any) -> np.ndarray:
        """Return the seconds of a task, from the broadcast to the arrival of the message.

        Args:
            clock: The clock.
            agents: The numbers of the agents.
            number: The number of the round, or of the task of each agent, counted from 0.
        """
        work = clock.work(agents, number, self.steps[agents])
        return work + clock.transfer(agents, number, self.bytes_up, self.bytes_down)


def tasks_of(algorithm: Method, problem: Problem, name: str, value: Any) -> Tasks:
    """Return the tasks of a method on a problem.

    Args:
        algorithm: The method.
        problem: The problem.
        name: The option that needs them, for the error message.
        value: Its value.

    Raises:
        FedpdError: A round has several exchanges, communicates only sometimes or has no server, or the number of local
            steps depends on the iterates.
    """
    if len(algorithm.exchanges()) != 1 or algorithm.skips or not _always(algorithm):
        rule = f"needs one message per agent and round, and {algorithm.description} sends more, fewer or none"
        refuse(name, value, rule, "Choose a method with one exchange that skips no round, e.g. FedPD with p = 0")
    functions = Functions.of(problem)
    with scope(problem.double):
        first = one_agent(arrays(problem.subset([0]).in_memory()), 0)
        start = Vector(problem.start)
        steps = partial(_steps, algorithm, functions)
        given = np.asarray(first.sizes), first, start, np.int32(0), jax.random.key(0, impl="threefry2x32")
        if sources(steps, *given)[0, 1:].any():  # sizes come first
            rule = f"needs a fixed number of local steps, and that of {algorithm.description} depends on the iterates"
            refuse(name, value, rule, "Give an oracle without a tolerance, e.g. oracles.gd(step=0.1, iterations=8)")
        found = jax.jit(jax.vmap(steps, in_axes=(0, None, None, None, None)))(problem.sizes, *given[1:])
        agent = jax.eval_shape(lambda one, x: algorithm.init(local_objective(functions, one), x), first, start)
        costs = message_costs(algorithm, functions, first, agent, jax.eval_shape(algorithm.server, start))
    return Tasks(np.asarray(found, np.int64), costs.bytes_up[0], costs.bytes_down[0])


def _always(algorithm: Method) -> bool:
    """Return whether every agent that is present sends to the server in every exchange."""
    return all(one.when is None and one.speaks is None and not one.mixes for one in algorithm.exchanges())


def _steps(
    algorithm: Method, functions: Functions, size: Array, one: Shard, start: Vector, r: Array, key: Key
) -> Array:
    """Return the local steps of an agent with this number of samples."""
    f = local_objective(functions, one._replace(sizes=size))
    return algorithm.exchanges()[0].local(f, algorithm.init(f, start), r, key)[1].updates
