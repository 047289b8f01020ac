"""The import of torchax, also with versions of torch that lack names which torchax reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fedpd.base.extras import extra

with extra("torch", "problems.network"):
    from torch._ops import OpOverloadPacket


class Missing:
    """Stands for an overload of an operation that torch no longer has; no module can call it."""


def is_named_dimension(overload: str) -> bool:
    """Return whether an overload takes names of dimensions, such as `dim_Dimname`; torch 2.13 removed these."""
    return "dimname" in overload.lower() or "names" in overload.split("_")


@contextmanager
def without_named_dimensions() -> Iterator[list[str]]:
    """Answer look-ups of overloads with named dimensions that torch lacks; the list says which were looked up.

    torchax 0.0.13 reads 22 of them while it is imported. Where torch has them, or torchax does not read them, nothing
    changes.
    """
    look_up, missing = OpOverloadPacket.__getattr__, []

    def answer(packet: Any, overload: str) -> Any:
        try:
            return look_up(packet, overload)
        except AttributeError:
            if not is_named_dimension(overload):
                raise
            missing.append(f"{packet}.{overload}")
            return Missing()

    setattr(OpOverloadPacket, "__getattr__", answer)  # noqa: B010 - mypy knows no assignment to a method
    try:
        yield missing
    finally:
        setattr(OpOverloadPacket, "__getattr__", look_up)  # noqa: B010


@cache
def environment() -> Any:
    """Return torchax's environment in which fedpd runs modules; it has operations of its own, see `torch_layers`."""
    with extra("torch", "problems.network"), without_named_dimensions():
        from fedpd.problems.adapters.torchax_random import Environment

        made = Environment()
    from fedpd.problems.adapters.torch_layers import use_fast_layers

    use_fast_layers(made)
    return made
