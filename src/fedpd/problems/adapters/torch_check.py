"""A second opinion on the problem of a PyTorch module: one loss and one gradient against PyTorch's own autograd.

torchax runs a module's forward pass, and JAX differentiates it. So JAX does not see what PyTorch does only in its
backward pass: `torch.no_grad()`, `.data`, hooks, and the `backward` of an autograd function. The losses agree, and the
gradients differ.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.extras import extra
from fedpd.base.precision import scope
from fedpd.core import Array, Key, Problem, Tree
from fedpd.problems.adapters.torch_batch_norm import copied
from fedpd.problems.adapters.torch_reference import ONE_AT_A_TIME, Outcome, Reference
from fedpd.problems.adapters.torchax_import import environment

with extra("torch", "problems.network"):
    import torch
    from torch import Tensor, nn

TIGHT = {False: 1e-5, True: 1e-8}  # by whether it is float64: differences that rounding makes
LOOSE = 1e-3  # differences that rounding makes in float32, in deep networks
WRONG = 0.1  # differences that rounding never makes
NEGLIGIBLE = 1e-3  # of the largest entry of the gradient: smaller parts are compared with that
SHIFT = 0.1  # of the size of a parameter: a start of zeros hides most of a gradient


def second_opinion(module: nn.Module, problem: Problem, samples: Tree, loss: Any, *, compiled: bool) -> str | None:
    """Return how the problem's loss or gradient differs from PyTorch's own on a batch; None if they agree.

    The batch is compared in the problem's precision, at the start and near it in evaluation, and near it in training if
    that differs, with the same random numbers. A small difference in float32 counts only if float64 has it, too.

    Args:
        module: The module.
        problem: Its problem.
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
        program = jax.jit(jax.value_and_grad(lambda model: jnp.mean(problem.losses(model, batch))))
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
        model: Where.
        key: The key from which PyTorch's seed was made.
        expected: PyTorch's outcome.
        compiled: Whether torchax runs the module; otherwise PyTorch draws the same numbers again.
    """
    from fedpd.problems.adapters.torchax_random import ReplayError

    if compiled and (lost := _lost_draws(partial(losses, model), key, len(expected.drawn))):
        return np.inf, lost
    replay = environment().replaying(expected.drawn) if compiled else nullcontext()
    alone = ONE_AT_A_TIME if compiled else nullcontext()  # a callback runs in another thread, which needs the lock
    try:
        with alone, replay:
            found = jax.jit(jax.value_and_grad(lambda model: jnp.mean(losses(model, key))))(model)
    except ReplayError:
        return np.inf, "in training, it draws other random numbers than in PyTorch"
    return _difference(found, expected, "in training")


def _lost_draws(losses: Callable[[Key], Array], key: Key, number: int) -> str:
    """Return how many draws do not come from JAX's key, so that they are the same in all steps; "" if all do."""
    env, before = environment(), torch.get_rng_state()
    first = env.drawn
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


def _scalar(loss: Any, y: np.ndarray, double: bool) -> Callable[[Tensor], Tensor]:
    """Return the mean of the user's loss as a function of scores, in PyTorch, also if the loss is JAX's."""
    if loss is None or isinstance(loss, nn.Module):
        own: Any = nn.CrossEntropyLoss() if loss is None else copied(loss)
        own = own.double() if double else own
        own.reduction = "none"
        targets = torch.from_numpy(np.array(y))
        targets = targets if targets.is_floating_point() else targets.long()
        return lambda scores: own(scores, targets).mean()

    def linearised(scores: Tensor) -> Tensor:
        """Return the loss's value, with its slope in these scores."""
        value, slope = jax.value_and_grad(lambda given: jnp.mean(loss(given, y)))(jnp.asarray(scores.detach().numpy()))
        linear = (scores * torch.from_numpy(np.array(slope))).sum()
        return linear + (float(value) - linear.detach())

    return linearised
