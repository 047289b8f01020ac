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
from fedpd.core import Array, Problem, Tree
from fedpd.problems.adapters.torch_batch_norm import copied
from fedpd.problems.adapters.torch_reference import Outcome, Reference
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

    The batch is compared in the problem's precision, at the start and near it, in evaluation and, if that differs, in
    training with the same random numbers. A small difference in float32 counts only if it is there in float64, too.

    Args:
        module: The module.
        problem: Its problem.
        samples: The batch, x and the numbers of the classes y.
        loss: The loss that the user gave: None, a module of PyTorch, or a function in JAX.
        compiled: Whether the problem runs the module by torchax, or calls PyTorch back.
    """
    found = _compare(module, problem, samples, loss, compiled, problem.double)
    if found is None or found[0] <= TIGHT[problem.double]:
        return None
    size, sentence = found
    if problem.double or size > WRONG:
        return sentence
    try:
        precise = _compare(module, problem, samples, loss, compiled, True)
    except Exception:  # the module converts to float32 itself, so there is only one opinion
        return sentence if size > LOOSE else None
    return None if precise is None or precise[0] <= TIGHT[True] else precise[1]


def _compare(
    module: nn.Module, problem: Problem, samples: Tree, loss: Any, compiled: bool, double: bool
) -> tuple[float, str] | None:
    """Return the largest relative difference and where it is; None if there is none."""
    reference = Reference(module, double)
    dtype = np.float64 if double else np.float32
    batch = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf, samples)
    inputs, scalar = reference.inputs(batch["x"]), _scalar(loss, batch["y"], double)
    worst: tuple[float, str] | None = None
    with scope(double):
        key = jax.random.key(0)
        seed = int(jax.random.bits(key, dtype=jnp.uint32))  # that of CalledBack
        for train in (False, True)[: 1 if problem.random is None else 2]:
            for model in _points(problem.start, dtype):
                expected = reference.evaluate(model, inputs, scalar, train=train, seed=seed)
                if not expected.has_gradient:
                    rule = "its scores have no gradient in PyTorch"
                    refuse("module", type(module).__name__, rule, "Check that it does not detach them")
                if not np.isfinite(expected.loss):
                    continue
                if train and compiled and (lost := _lost_draws(problem, model, batch, key, expected)):
                    return np.inf, lost
                found = _found(problem, model, batch, key if train else None, expected if compiled else None)
                if found is None:
                    return np.inf, "in training, it draws other random numbers than in PyTorch"
                difference = _difference(*found, expected, "in training" if train else "in evaluation")
                worst = difference if worst is None or difference[0] > worst[0] else worst
    return worst


def _points(start: Tree, dtype: Any) -> list[Tree]:
    """Return the start and a model near it."""
    rng = np.random.default_rng(0)

    def shift(leaf: np.ndarray) -> np.ndarray:
        size = max(float(np.sqrt(np.mean(np.square(leaf)))), SHIFT) if leaf.size else 0.0
        return (leaf + SHIFT * size * rng.normal(size=leaf.shape)).astype(dtype)

    return [jax.tree.map(lambda leaf: leaf.astype(dtype), start), jax.tree.map(shift, start)]


def _found(
    problem: Problem, model: Tree, batch: Tree, key: Any, replayed: Outcome | None
) -> tuple[float, dict[str, np.ndarray]] | None:
    """Return the problem's loss and gradient, by a compiled program; None if it draws other numbers than the replayed.

    Args:
        problem: The problem.
        model: Where.
        batch: The samples.
        key: The key of random layers in training; None: in evaluation.
        replayed: PyTorch's outcome, whose random numbers take the place of torchax's; None: PyTorch draws them again.
    """
    from fedpd.problems.adapters.torchax_random import ReplayError

    def value(model: Tree) -> Array:
        if key is None:
            return jnp.mean(problem.losses(model, batch))
        assert problem.random is not None  # there is a key only then
        return jnp.mean(problem.random(model, batch, key))

    replay = nullcontext() if key is None or replayed is None else environment().replaying(replayed.drawn)
    try:
        with replay:
            loss, gradient = jax.device_get(jax.jit(jax.value_and_grad(value))(model))
    except ReplayError:
        return None
    return float(loss), gradient


def _lost_draws(problem: Problem, model: Tree, batch: Tree, key: Any, expected: Outcome) -> str:
    """Return which random numbers do not come from JAX's key, so that they are the same in all steps; "" if none."""
    assert problem.random is not None
    env, before = environment(), torch.get_rng_state()
    first = env.drawn
    jax.eval_shape(partial(problem.random, model, batch), key)
    drawn, number = env.drawn - first, len(expected.drawn)
    if drawn == number and torch.equal(before, torch.get_rng_state()):
        return ""
    torch.set_rng_state(before)
    return f"in training, {drawn} of its {number} draws of random numbers differ from step to step"


def _difference(loss: float, gradient: dict[str, np.ndarray], expected: Outcome, mode: str) -> tuple[float, str]:
    """Return the largest relative difference of two outcomes, and a sentence with the numbers."""
    scale = max(abs(expected.loss), 1e-6)
    differences = [(abs(loss - expected.loss) / scale, f"the loss is {loss:.5g}, and in PyTorch {expected.loss:.5g}")]
    largest = max((float(np.abs(g).max(initial=0)) for g in expected.gradient.values()), default=0.0)
    for name, wanted in expected.gradient.items():
        error, found = np.abs(gradient[name] - wanted), gradient[name]
        if not error.size:
            continue
        place = np.unravel_index(int(np.argmax(np.nan_to_num(error, nan=np.inf))), error.shape)
        scale = max(float(np.abs(wanted).max()), NEGLIGIBLE * largest, 1e-12)
        size = float(np.nan_to_num(error[place], nan=np.inf)) / scale
        numbers = f"{found[place]:.5g}, and in PyTorch {wanted[place]:.5g}"
        differences.append((size, f"an entry of the gradient of {name!r} is {numbers}"))
    size, sentence = max(differences)
    return size, f"{mode}, {sentence}"


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
