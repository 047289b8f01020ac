"""Frozen arrays: the part of a model that is the same for all agents, is not trained and is never sent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedpd.core.types import Tree


@dataclass(frozen=True, eq=False)
class WithFrozen:
    """A function of a problem whose first argument is the frozen arrays. It is called without them.

    A function that captured the arrays would copy them into every compiled program. The engine takes `function` and
    `frozen` apart instead, and gives the arrays to its programs as an argument: they are in memory once.

    Attributes:
        function: (frozen, ...) -> the value, such as (frozen, model, batch) -> losses.
        frozen: The frozen arrays.
    """

    function: Callable[..., Any]
    frozen: Tree

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.frozen, *arguments)
