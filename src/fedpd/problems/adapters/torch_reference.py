"""A module as PyTorch itself runs it, with its own autograd: what fedpd's programs are compared with.

`trains_differently` says whether `module.train()` changes a module or lets it draw random numbers. `second_opinion`
compares one loss and one gradient of a problem with PyTorch's: torchax runs a module's forward pass, and JAX
differentiates it. So JAX does not see what PyTorch does only in its backward pass: `torch.no_grad()`, `.data`, hooks,
and the `backward` of an autograd function. The losses agree, and the gradients differ.
"""

import inspect
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import extra, warn
from fedpd.base.identity import fingerprint
from fedpd.base.precision import scope
from fedpd.base.process import compiled_quickly
from fedpd.core import Array, Key, Problem, Tree
from fedpd.problems.adapters.torch_batch_norm import batch_norms, buffer_names, copied
from fedpd.problems.scores import has_one_output

with extra("torch", "problems.network"):
    import torch
    from torch import Tensor, nn
    from torch.utils._python_dispatch import TorchDispatchMode

ONE_AT_A_TIME = threading.RLock()  # torch's modes and generators belong to the process, and JAX traces in threads
CONSTRUCTORS = (torch.rand, torch.randn, torch.randint)  # torchax answers these before they are operations of ATen
SEEDS = 8  # that evaluation is tried with, if it draws random numbers: it may not use them
TIGHT = {False: 1e-5, True: 1e-8}  # by whether it is float64: differences that rounding makes
LOOSE = 1e-3  # differences that rounding makes in float32, in deep networks
WRONG = 0.1  # differences that rounding never makes
NEGLIGIBLE = 1e-3  # of the largest entry of the gradient: smaller parts are compared with that
SHIFT = 0.1  # of the size of a parameter: a start of zeros hides most of a gradient


BY_ELEMENT = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)


def arguments_of(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a module: the features alone, or the entries of a dict by name."""
    return ((), dict(x)) if isinstance(x, Mapping) else ((x,), {})


def check_names(module: nn.Module, x: Any) -> None:
    """Refuse entries of features that a module does not take by name."""
    if not isinstance(x, Mapping):
        return
    if "labels" in x:
        refuse("entry of x", "labels", "are the targets, which fedpd gives to the loss", "Give them as y")
    known = inspect.signature(module.forward).parameters
    if any(one.kind == inspect.Parameter.VAR_KEYWORD for one in known.values()):
        return
    for name in x:
        if name not in known:
            rule = f"is no argument of {type(module).__name__}.forward, which takes {', '.join(known) or 'nothing'}"
            refuse("entry of x", name, rule, "Leave it out, or rename it")


def scores_of(found: Any) -> Tensor:
    """Return the tensor that a module returned, or the `logits` of an object or dict, as of Hugging Face's models."""
    scores = unwrapped(found)
    if not isinstance(scores, Tensor):
        rule = "must be a tensor, or an object or dict with the tensor `logits`"
        refuse("output of the module", type(found).__name__, rule, "Return the scores alone")
    return scores


def unwrapped(found: Any) -> Any:
    """Return the `logits` of what a module returned, if it has any."""
    return found.get("logits", found) if isinstance(found, Mapping) else getattr(found, "logits", found)


def fitted(loss: nn.Module, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and targets as a loss of PyTorch takes them: (B, 1) becomes (B,), with targets of its type."""
    one = has_one_output(tuple(scores.shape), tuple(targets.shape))
    if one and isinstance(loss, BY_CLASS):
        rule = "needs one score per class, but the module has one output"
        refuse("loss", type(loss).__name__, rule, "Use nn.BCEWithLogitsLoss, or give the module two outputs")
    if not isinstance(loss, BY_ELEMENT):
        return scores, targets
    return scores.reshape(targets.shape) if one else scores, targets.to(scores.dtype)


class Outcome(NamedTuple):
    """One loss and one gradient of a module."""

    scores: np.ndarray  # what the module returned
    loss: float
    gradient: dict[str, np.ndarray]  # its gradient, by the names of the parameters
    drawn: list[Tensor]  # the random numbers that the module drew, in this order
    changed: list[str]  # the names of the buffers that the call changed
    has_gradient: bool  # whether PyTorch has a gradient at all; otherwise `backward()` fails


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

    Raises:
        FedpdError: If the module cannot be copied.
    """

    def __init__(self, module: nn.Module, double: bool) -> None:
        self.module = _copied(module, double)
        if double:
            self.module = self.module.double()
        self.dtype = next((one.dtype for one in self.module.parameters()), torch.get_default_dtype())
        self.parameters = dict(self.module.named_parameters())
        self.buffers = {name: tensor.clone() for name, tensor in self.module.named_buffers()}
        self.unused = buffer_names(self.module)  # running averages, which fedpd does not use

    def inputs(self, x: Tree) -> Any:
        """Return a batch as PyTorch takes it."""
        return jax.tree.map(self._input, x)

    def _input(self, x: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.array(x))
        if tensor.dtype == torch.uint8:
            return tensor.to(self.dtype) / 255
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor.long()

    def evaluate(
        self, model: Mapping[str, Any], x: Any, loss: Callable[[Tensor], Tensor], *, train: bool, seed: int = 0
    ) -> Outcome:
        """Return one loss and one gradient. In evaluation, batches are still normalised by their own statistics.

        Args:
            model: The parameters that are trained, by name; the others stay.
            train: Whether as after `module.train()`, or as after `module.eval()`.
        """
        self._load(model)
        self.module.train(train)
        for layer in batch_norms(self.module).values():
            layer.train()
        with seeded(seed), torch.enable_grad():
            with Recorder() as recorder:
                args, named = arguments_of(x)
                scores = scores_of(self.module(*args, **named))
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


def trains_differently(module: nn.Module, x: Tree, double: bool) -> bool:
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


def _trains_differently(reference: Reference, x: Tree) -> bool:
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


def _copied(module: nn.Module, double: bool) -> nn.Module:
    """Return a copy of a module whose parameters have their gradient hooks, which PyTorch does not copy.

    It shares frozen parameters with the module, unless they change to float64 or come to the CPU.
    """
    frozen = [one for one in module.parameters() if not one.requires_grad and one.device.type == "cpu"]
    own = copied(module, () if double else frozen).cpu()
    for parameter, copy_of_it in zip(module.parameters(), own.parameters(), strict=True):
        for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
            copy_of_it.register_hook(hook)
    return own


def second_opinion(module: nn.Module, problem: Problem, samples: Tree, loss: Any, *, compiled: bool) -> str | None:
    """Return how the problem's loss or gradient differs from PyTorch's own on a batch; None if they agree.

    The batch is compared in the problem's precision, at the start and near it in evaluation, and near it in training if
    that differs, with the same random numbers. A small difference in float32 counts only if float64 has it, too.

    Args:
        samples: The batch, x and the numbers of the classes y.
        loss: The loss that the user gave: None, a module of PyTorch, or a function in JAX.
        compiled: Whether the problem runs the module by torchax, or calls PyTorch back.
    """
    try:
        size, sentence = _compare(module, problem, samples, loss, compiled, problem.double)
    except RuntimeError:
        if not problem.double:
            raise
        size, sentence = _compare(module, problem, samples, loss, compiled, False)  # it converts to float32 itself
        return sentence if size > LOOSE else None
    if size <= TIGHT[problem.double]:
        return None
    if problem.double or size > WRONG:
        return sentence
    try:
        precise, in_double = _compare(module, problem, samples, loss, compiled, True)
    except Exception:  # the module converts to float32 itself, so there is only one opinion
        return sentence if size > LOOSE else None
    return in_double if precise > TIGHT[True] else None


def _compare(
    module: nn.Module, problem: Problem, samples: Tree, loss: Any, compiled: bool, double: bool
) -> tuple[float, str]:
    """Return the largest relative difference and where it is."""
    reference = Reference(module, double)
    dtype = np.float64 if double else np.float32
    batch = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf, samples)
    inputs, scalar = reference.inputs(batch["x"]), _scalar(loss, batch["y"], double)
    with scope(double):
        start, near = _points(problem.start, dtype)
        program = compiled_quickly(jax.value_and_grad(lambda model: jnp.mean(problem.losses(model, batch))))
        differences = []
        for model in (start, near):
            expected = reference.evaluate(model, inputs, scalar, train=False)
            _check_gradient(module, expected)
            differences.append(_difference(program(model), expected, "in evaluation"))
        if problem.random is not None:
            key = jax.random.key(0)
            seed = int(jax.random.bits(key, dtype=jnp.uint32))  # that of CalledBack
            expected = reference.evaluate(near, inputs, scalar, train=True, seed=seed)
            _check_gradient(module, expected)
            differences.append(_in_training(partial(_random_losses, problem, batch), near, key, expected, compiled))
    return max(differences)


def _random_losses(problem: Problem, batch: Tree, model: Tree, key: Key) -> Array:
    assert problem.random is not None  # the caller knows
    return problem.random(model, batch, key)


def _check_gradient(module: nn.Module, expected: Outcome) -> None:
    if not expected.has_gradient:
        rule = "its scores have no gradient in PyTorch"
        refuse("module", type(module).__name__, rule, "Check that it does not detach them")


def _points(start: Tree, dtype: Any) -> list[Tree]:
    """Return the start and a model near it."""
    rng = np.random.default_rng(0)

    def shift(leaf: np.ndarray) -> np.ndarray:
        size = max(float(np.sqrt(np.mean(np.square(leaf)))), SHIFT) if leaf.size else 0.0
        return (leaf + SHIFT * size * rng.normal(size=leaf.shape)).astype(dtype)

    return [jax.tree.map(lambda leaf: leaf.astype(dtype), start), jax.tree.map(shift, start)]


def _in_training(
    losses: Callable[[Tree, Key], Array], model: Tree, key: Key, expected: Outcome, compiled: bool
) -> tuple[float, str]:
    """Return the relative difference in training. torchax gets the random numbers that PyTorch drew.

    Args:
        losses: (model, key) -> the losses of the batch.
        compiled: Whether torchax runs the module; otherwise PyTorch draws the same numbers again.
    """
    program = compiled_quickly(jax.value_and_grad(lambda model: jnp.mean(losses(model, key))))
    if not compiled:  # without the lock: a callback runs in another thread, which needs it
        return _difference(program(model), expected, "in training")
    from fedpd.problems.adapters.torchax import ReplayError, environment

    if lost := _lost_draws(environment(), partial(losses, model), key, len(expected.drawn)):
        return np.inf, lost
    try:
        with ONE_AT_A_TIME, environment().replaying(expected.drawn):
            found = program(model)
    except ReplayError:
        return np.inf, "in training, it draws other random numbers than in PyTorch"
    return _difference(found, expected, "in training")


def _lost_draws(env: Any, losses: Callable[[Key], Array], key: Key, number: int) -> str:
    """Return how many draws do not come from JAX's key, so that they are the same in all steps; "" if all do."""
    before, first = torch.get_rng_state(), env.drawn
    jax.eval_shape(losses, key)
    drawn, untouched = env.drawn - first, torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    if drawn == number and untouched:
        return ""
    return f"in training, {drawn} of its {number} draws of random numbers differ from step to step"


def _difference(found: tuple[Array, Tree], expected: Outcome, mode: str) -> tuple[float, str]:
    """Return the largest relative difference of two outcomes, and a sentence with the numbers.

    Numbers that are not finite in PyTorch are not compared.
    """
    loss, gradient = jax.device_get(found)
    pairs = {"the loss": (np.asarray(loss), np.asarray(expected.loss))}
    pairs |= {f"an entry of the gradient of {name!r}": (gradient[name], g) for name, g in expected.gradient.items()}
    largest = max((float(np.abs(g).max(initial=0)) for g in expected.gradient.values()), default=0.0)
    worst, sentence = 0.0, ""
    for what, (one, other) in pairs.items():
        if not other.size or not np.isfinite(other).all():
            continue
        error = np.nan_to_num(np.abs(one - other), nan=np.inf)
        place = np.unravel_index(int(error.argmax()), error.shape)
        least = 1e-6 if what == "the loss" else max(NEGLIGIBLE * largest, 1e-12)
        size = float(error[place]) / max(float(np.abs(other).max()), least)
        if size > worst:
            worst, sentence = size, f"{mode}, {what} is {one[place]:.5g}, and in PyTorch {other[place]:.5g}"
    return worst, sentence


def warn_of_mean(loss: Any) -> None:
    """Warn of a loss module that PyTorch does not average over samples, as f is."""
    reduction = getattr(loss, "reduction", None)
    weighted = getattr(loss, "weight", None) is not None or getattr(loss, "ignore_index", -1) >= 0
    theirs = "takes their sum" if reduction == "sum" else None
    if reduction == "batchmean":
        theirs = "takes the sum over the components of a sample, where fedpd takes the mean"
    elif isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and reduction == "mean" and weighted:
        theirs = "divides it by the sum of their weights"
    if theirs is not None:
        warn(
            f"loss = {loss}: fedpd divides the sum of the losses by the number of samples, and PyTorch {theirs}, so "
            'the numbers differ. Give reduction="none" to turn this warning off.'
        )


def _scalar(loss: Any, y: np.ndarray, double: bool) -> Callable[[Tensor], Tensor]:
    """Return the mean of the user's loss as a function of scores, in PyTorch, also if the loss is JAX's."""
    if loss is None or isinstance(loss, nn.Module):
        targets = torch.from_numpy(np.array(y))
        targets = targets if targets.is_floating_point() else targets.long()

        def mean(scores: Tensor) -> Tensor:
            one = has_one_output(tuple(scores.shape), tuple(targets.shape))
            usual = nn.BCEWithLogitsLoss() if one else nn.CrossEntropyLoss()
            own: Any = usual if loss is None else copied(loss)
            own = own.double() if double else own
            own.reduction = "none"
            return own(*fitted(own, scores, targets)).mean()

        return mean

    def linearised(scores: Tensor) -> Tensor:
        """Return the loss's value, with its slope in these scores."""
        value, slope = jax.value_and_grad(lambda given: jnp.mean(loss(given, y)))(jnp.asarray(scores.detach().numpy()))
        linear = (scores * torch.from_numpy(np.array(slope))).sum()
        return linear + (float(value) - linear.detach())

    return linearised
