"""The type of a local solver (oracle), and the work that it reports."""

from typing import Any, NamedTuple, Protocol

from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec, label_of
from fedpd.core.objective import LocalObjective, Subproblem
from fedpd.core.types import Array, Key


class Work(NamedTuple):
    """The work of one agent in a local solve.

    Attributes:
        updates: Local steps, Q_i.
        samples: Sample gradients that were computed.
    """

    updates: Array
    samples: Array


class InitMemory(Protocol):
    """Returns the memory that an oracle keeps between rounds, at the start or after an agent has lost it."""

    def __call__(self, f: LocalObjective, x: Vector, /) -> Any: ...


class Solve(Protocol):
    """Minimises phi approximately, starting at x; returns (x, memory, Work)."""

    def __call__(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key, /) -> tuple[Vector, Any, Work]: ...


class Oracle(NamedTuple):
    """A local solver, which minimises a `Subproblem` approximately from a given point.

    Attributes:
        spec: The name and arguments of its factory; only a name for an oracle of your own.
        init: Returns the memory that it keeps between rounds.
        solve: Does the local steps of a round.
        batch: Samples per step; None: all samples of the agent.
    """

    spec: Spec | str
    init: InitMemory
    solve: Solve
    batch: int | None = None

    @property
    def description(self) -> str:
        return label_of(self.spec)


def check_oracle(oracle: Any) -> None:
    if not isinstance(oracle, Oracle):
        refuse("oracle", oracle, "must be a local solver", "Give e.g. oracles.gd(step=0.1, iterations=8)")
