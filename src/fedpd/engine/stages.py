"""Name the stages of a round, so that an error message says where it happened."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from fedpd.base.checks import FedpdError

Stage = Callable[..., AbstractContextManager[None]]  # (name, round, agent): adds them to the message of an error


class StageError(FedpdError):
    """Raised if a function of a method or a problem fails. It names the round, the stage and the agent."""


@contextmanager
def named_stage(name: str, r: Any, agent: int | None = None) -> Iterator[None]:
    """Replace an error in the `with` block by one that names the stage, the round and the agent (None: the server)."""
    try:
        yield
    except Exception as error:
        who = "at the server" if agent is None else f"of agent {agent}"
        raise StageError(f"round {int(r)}, {name} {who}: {type(error).__name__}: {error}") from error


def unnamed_stage(name: str, r: Any, agent: int | None = None) -> AbstractContextManager[None]:
    """Return a context that does not change errors."""
    return nullcontext()
