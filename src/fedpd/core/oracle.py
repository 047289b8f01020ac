"""Local solvers: what an oracle is, and what its work costs."""

from typing import Any, NamedTuple, Protocol

from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec, label_of
from fedpd.core.objective import LocalObjective, Subproblem
from fedpd.core.types import Array, Key


class Work(NamedTuple):
    """What a local solve cost one agent.

    Attributes:
        updates: Local steps, Q_i.
        samples: Samples whose gradient was computed.
    """

    updates: Array
    samples: Array


class InitMemory(Protocol):
    """Returns what an oracle keeps between rounds, at the start or after an agent has lost it."""

    def __call__(self, f: LocalObjective, x: Vector, /) -> Any: ...


class Solve(Protocol):
    """Approximately minimises phi, starting at x; returns (x, memory, Work)."""

    def __call__(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key, /) -> tuple[Vector, Any, Work]: ...


class Oracle(NamedTuple):
    """A local solver: approximately minimises a `Subproblem` from where the agent stands.

    Attributes:
        spec: What it was made with; a name where it was made by hand.
        init: Makes what it keeps between rounds.
        solve: Does the local steps of a round.
        batch: Samples per step; None: all of the agent's.
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
