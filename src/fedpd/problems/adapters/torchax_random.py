"""torchax with random numbers that fedpd controls: they come from JAX's keys, are counted, and can be replaced."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedpd.problems.adapters.torch_reference import is_random
from fedpd.problems.adapters.torchax_import import without_named_dimensions

with without_named_dimensions():
    from torchax import tensor


class ReplayError(Exception):
    """The module draws other random numbers by torchax than in PyTorch."""


class Environment(tensor.Environment):
    """torchax's environment, in which tensors that a module makes without a device are JAX's.

    Attributes:
        drawn: How often a module has drawn random numbers from JAX's key.
        given: Random numbers of PyTorch that take the place of the next ones; None: the module draws its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0
        self.given: Iterator[Tensor] | None = None

    def _should_use_torchax_tensor(self, device: Any) -> bool:
        """Return whether a new tensor is JAX's; PyTorch would draw `torch.rand(3)` once, while JAX traces."""
        return device is None or super()._should_use_torchax_tensor(device)

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> Any:
        self.drawn += generator is None  # torchax makes the same numbers from a generator in every call
        return super().get_and_rotate_prng_key(generator)

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.given is None or not is_random(func):
            return super().dispatch(func, types, args, kwargs)
        value = next(self.given, None)
        if value is None:
            raise ReplayError
        made = self.to_xla(value)
        if not str(getattr(func, "__name__", "")).partition(".")[0].endswith("_"):
            return made
        if tuple(args[0].shape) != tuple(made.shape):
            raise ReplayError
        with self:
            return args[0].copy_(made)  # an operation in place, such as bernoulli_

    @contextmanager
    def replaying(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Give modules these random numbers, in this order.

        Raises:
            ReplayError: If a module draws more, fewer or other numbers.
        """
        self.given = iter(values)
        try:
            yield
            if next(self.given, None) is not None:
                raise ReplayError
        finally:
            self.given = None
