"""A module as PyTorch itself runs it, with its own autograd: what fedpd's programs are compared with.

It also says how a module behaves in training: whether `module.train()` changes it, and whether it draws random numbers.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import warn
from fedpd.base.extras import extra
from fedpd.base.identity import fingerprint
from fedpd.problems.adapters.torch_batch_norm import batch_norms, buffer_names, copied

with extra("torch", "problems.network"):
    import torch
    from torch import Tensor, nn
    from torch.utils._python_dispatch import TorchDispatchMode

ONE_AT_A_TIME = threading.RLock()  # torch's modes and generators belong to the process, and JAX traces in threads
CONSTRUCTORS = (torch.rand, torch.randn, torch.randint)  # torchax answers these before they are operations of ATen
SEEDS = 8  # that evaluation is tried with, if it draws random numbers: it may not use them


class Outcome(NamedTuple):
    """One loss and one gradient of a module.

    Attributes:
        scores: What the module returned.
        loss: The loss.
        gradient: Its gradient, by the names of the parameters.
        drawn: The random numbers that the module drew, in this order.
        changed: The names of the buffers that the call changed.
        has_gradient: Whether PyTorch has a gradient at all; otherwise `backward()` fails.
    """

    scores: np.ndarray
    loss: float
    gradient: dict[str, np.ndarray]
    drawn: list[Tensor]
    changed: list[str]
    has_gradient: bool


def is_random(operation: Any) -> bool:
    """Return whether an operation may draw random numbers."""
    return operation in CONSTRUCTORS or torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


class Recorder(TorchDispatchMode):
    """Keeps the random numbers that operations draw from PyTorch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_random(func):
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        found = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):  # attention without dropout draws nothing
            self.drawn.append((found if isinstance(found, Tensor) else found[0]).detach().clone())
        return found


class Reference:
    """A copy of a module, with the gradient hooks of its parameters, which PyTorch runs.

    Args:
        module: The module.
        double: Whether it computes in float64.

    Raises:
        FedpdError: If the module cannot be copied.
    """

    def __init__(self, module: nn.Module, double: bool) -> None:
        self.module = _copied(module).cpu()
        if double:
            self.module = self.module.double()
        self.dtype = next((one.dtype for one in self.module.parameters()), torch.get_default_dtype())
        self.parameters = dict(self.module.named_parameters())
        self.buffers = {name: tensor.clone() for name, tensor in self.module.named_buffers()}
        self.unused = buffer_names(self.module)  # running averages, which fedpd does not use

    def inputs(self, x: np.ndarray) -> Tensor:
        """Return a batch as PyTorch takes it."""
        tensor = torch.from_numpy(np.array(x))
        if tensor.dtype == torch.uint8:
            return tensor.to(self.dtype) / 255
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor.long()

    def evaluate(
        self, model: Mapping[str, Any], x: Tensor, loss: Callable[[Tensor], Tensor], *, train: bool, seed: int = 0
    ) -> Outcome:
        """Return one loss and one gradient. In evaluation, batches are still normalised by their own statistics.

        Args:
            model: The parameters that are trained, by name; the others stay.
            x: The batch.
            loss: The scores -> a scalar.
            train: Whether as after `module.train()`, or as after `module.eval()`.
            seed: The seed of the random numbers.
        """
        self._load(model)
        self.module.train(train)
        for layer in batch_norms(self.module).values():
            layer.train()
        with seeded(seed), torch.enable_grad():
            with Recorder() as recorder:
                scores = self.module(x)
            value = loss(scores)
            wanted = {name: tensor for name, tensor in self.parameters.items() if name in model}
            found: Any = [None] * len(wanted)
            if value.requires_grad:  # else PyTorch's backward() would fail
                found = torch.autograd.grad(value, list(wanted.values()), allow_unused=True)
        pairs = zip(wanted.items(), found, strict=True)
        gradient = {name: (torch.zeros_like(one) if g is None else g).numpy() for (name, one), g in pairs}
        return Outcome(
            scores.detach().numpy(), value.item(), gradient, recorder.drawn, self._changed(), value.requires_grad
        )

    def _load(self, model: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, array in model.items():
                self.parameters[name].copy_(torch.from_numpy(np.array(array)))
            for name, tensor in self.module.named_buffers():
                tensor.copy_(self.buffers[name])

    def _changed(self) -> list[str]:
        own = [(name, tensor) for name, tensor in self.module.named_buffers() if name not in self.unused]
        return [name for name, tensor in own if not torch.equal(tensor, self.buffers[name])]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use this seed for random numbers, and restore the user's generator at the end; one thread at a time."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def trains_differently(module: nn.Module, x: np.ndarray, double: bool) -> bool:
    """Return whether `module.train()` changes the module's scores or gradients on a batch, apart from batch statistics.

    Raises:
        FedpdError: If it draws random numbers in evaluation, or numbers that PyTorch's seed does not determine.
    """
    try:
        return _trains_differently(Reference(module, double), x)
    except RuntimeError:
        if not double:
            raise
        return _trains_differently(Reference(module, False), x)  # it converts to float32 itself


def _trains_differently(reference: Reference, x: np.ndarray) -> bool:
    model = {name: tensor.detach().numpy() for name, tensor in reference.parameters.items() if tensor.requires_grad}
    if not model:
        return False
    inputs, name = reference.inputs(x), type(reference.module).__name__

    def found(train: bool, seed: int = 0) -> Outcome:
        return reference.evaluate(model, inputs, _uneven_sum, train=train, seed=seed)

    others = _other_states()
    quiet, train, again = found(False), found(True), found(True)
    if others != _other_states():
        rule = "draws random numbers by Python's random or by NumPy, which fedpd cannot repeat"
        refuse("module", name, rule, "Draw them by torch, e.g. torch.rand")
    if quiet.drawn and not all(_same(quiet, found(False, seed)) for seed in range(1, SEEDS)):
        rule = "draws random numbers also after module.eval(), where fedpd measures"
        refuse("module", name, rule, "Use nn.Dropout, or draw only if self.training")
    if not _same(train, again):
        rule = "two calls in training differ, though both had the same seed, the same model and the same batch"
        remedy = "Draw random numbers only by torch, without a generator of your own, and keep no state between calls"
        refuse("module", name, rule, remedy)
    if train.changed:
        rule = f"changes its buffers {', '.join(train.changed)} in training, but fedpd keeps buffers as they are"
        warn(f"module = {name!r}: {rule}. Use layers without running state, e.g. nn.LayerNorm or nn.GroupNorm.")
    return bool(train.drawn) or not _same(train, quiet)


def _other_states() -> str:
    """Return a hash of the states of the generators of Python and NumPy, which no seed of PyTorch sets."""
    return fingerprint(random.getstate(), np.random.get_state())  # noqa: NPY002 - a module may use the old one


def _uneven_sum(scores: Tensor) -> Tensor:
    """Return a scalar in which all scores count, and differently, so that their gradients do not cancel."""
    weights = torch.linspace(1, 2, scores.numel(), dtype=scores.dtype).reshape(scores.shape)
    return (scores * weights).sum()


def _same(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are equal up to the order of sums in PyTorch's threads."""
    pairs = [(one.scores, other.scores), *((g, other.gradient[name]) for name, g in one.gradient.items())]
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-4 * _largest(b), equal_nan=True) for a, b in pairs)


def _largest(array: np.ndarray) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters have their gradient hooks, which PyTorch does not copy."""
    own = copied(module)
    for parameter, copy_of_it in zip(module.parameters(), own.parameters(), strict=True):
        for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
            copy_of_it.register_hook(hook)
    return own
