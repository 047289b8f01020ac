"""Names for the stages of a round, so that an error can say where it happened."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from fedpd.base.checks import FedpdError

Stage = Callable[..., AbstractContextManager[None]]  # (name, round, agent): names whatever fails inside


class StageError(FedpdError):
    """A function of a method or a problem that failed: where, and why."""


@contextmanager
def named_stage(name: str, r: Any, agent: int | None = None) -> Iterator[None]:
    """Name the stage, the round and the agent (None: the server) of whatever fails inside."""
    try:
        yield
    except Exception as error:
        who = "at the server" if agent is None else f"of agent {agent}"
        raise StageError(f"round {int(r)}, {name} {who}: {type(error).__name__}: {error}") from error


def unnamed_stage(name: str, r: Any, agent: int | None = None) -> AbstractContextManager[None]:
    """Let errors pass as they are."""
    return nullcontext()
