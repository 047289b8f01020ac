"""The interface of all backends: a driver runs chunks of rounds and never asks where the agents live."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from fedpd.core import State, Tree
from fedpd.engine.loop import Inputs, Program, Rows, Template
from fedpd.engine.measure.costs import Costs
from fedpd.engine.measure.measurements import variant
from fedpd.engine.measure.metrics import Metrics, delivered
from fedpd.engine.plan import Plan

Progress = Callable[[float], None]  # receives the fraction of a round that is done


class Backend(ABC):
    """A run at some round. It is made at the start of the run."""

    plan: Plan
    program: Program  # the method on the problem's functions
    template: Template  # the program to compile. It takes the method as an argument
    inputs: Inputs  # the arrays that do not change
    state: State  # the state after the last chunk
    # the measured values at the start; in a sweep with an axis of variants, whose proximal steps may differ
    metrics: Metrics
    paced: ClassVar[bool] = True  # whether a chunk is as long as the progress bar needs; otherwise it is one round
    # whether agents may be absent, so that `agents` returns the agents seen by each variant
    absence: ClassVar[bool] = False

    @abstractmethod
    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, np.ndarray | None]:
        """Run at most `number` rounds after `done`.

        Returns:
            The rows of the rounds, and the agents of each round, (variants, rounds, columns); None: all agents.
        """

    def model(self, i: int) -> Tree:
        """Return the current model of variant i."""
        kept = delivered(self.plan.algorithm, variant(self.state.server, i, self.plan.many))
        return self.mean_of_copies(i) if kept is None else kept

    def copies(self, i: int) -> Tree:
        """Return the agents' copies of the model of variant i, leaves (N, ...)."""
        raise NotImplementedError

    @abstractmethod
    def mean_of_copies(self, i: int) -> Tree:
        """Return the mean of the copies of the model that the agents of variant i have."""

    @abstractmethod
    def agents(self) -> Any:
        """Return the state of the agents without padding: leaves (N, ...), (variants, N, ...) if there are several.

        If agents may be absent, return the `AgentsSeen` of each variant.
        """

    @abstractmethod
    def like(self, seen: Sequence[int]) -> Any:
        """Return the shapes of `agents`; `seen`: how many agents each variant has seen, if agents may be absent."""

    @abstractmethod
    def restore(self, agents: Any, server: Any, done: int) -> None:
        """Replace the state by one that was saved after `done` rounds: what `agents` returned then, and the server."""

    @abstractmethod
    def costs(self) -> Costs:
        """Return the bytes of the method's messages."""

    def release(self) -> Any:
        """Return `agents()`, and free what the run needed to go on. The run cannot continue then."""
        return self.agents()
