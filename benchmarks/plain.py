"""FedPD on penalised logistic regression in plain NumPy, as one writes it without an engine.

A round is a function (setup, iterates, indices) -> iterates. `indices` (Q, N) are the samples of a stochastic round,
and None where the local steps take full gradients.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray
Gradient = Callable[[Array, Array], Array]  # (samples, x) -> the gradient of the mean logistic loss


class Setup(NamedTuple):
    signed: Array  # (N, n, D): labels times features
    alpha: float
    beta: float
    eta: float
    step: float
    iterations: int  # Q

    def penalty_gradient(self, x: Array) -> Array:
        denominator = 1 + self.alpha * x * x
        return 2 * self.alpha * self.beta * x / (denominator * denominator)


class Iterates(NamedTuple):
    x: Array  # (N, D)
    x0: Array  # (D,)
    dual: Array  # (N, D)


Round = Callable[[Setup, Iterates, Array | None], Iterates]


def start(setup: Setup) -> Iterates:
    agents, _, dimension = setup.signed.shape
    zeros = np.zeros((agents, dimension), setup.signed.dtype)
    return Iterates(zeros, zeros[0], zeros)


def communicate(setup: Setup, old: Iterates, x: Array) -> Iterates:
    """Return the iterates after the dual step of all agents and the average of x_i + eta lambda_i."""
    dual = old.dual + (x - old.x0) / setup.eta
    return Iterates(x, (x + setup.eta * dual).mean(axis=0), dual)


def slope(margins: Array) -> Array:
    """Return the derivative of log(1 + exp(-m))."""
    return -1 / (1 + np.exp(margins))


# All agents at once, full gradients: three ways to write the same two products.


def by_matmul(signed: Array, x: Array) -> Array:
    margins = (signed @ x[:, :, None])[:, :, 0]
    return (slope(margins)[:, None, :] @ signed)[:, 0] / signed.shape[1]


def by_matvec(signed: Array, x: Array) -> Array:
    return np.vecmat(slope(np.matvec(signed, x)), signed) / signed.shape[1]


def by_einsum(signed: Array, x: Array) -> Array:
    margins = np.einsum("nsd,nd->ns", signed, x)
    return np.einsum("ns,nsd->nd", slope(margins), signed) / signed.shape[1]


def descent(gradient: Gradient) -> Round:
    """Return a round of Q full gradients of all agents at once."""

    def play(setup: Setup, old: Iterates, indices: Array | None) -> Iterates:
        x, linear = old.x, old.dual - old.x0 / setup.eta
        for _ in range(setup.iterations):
            direction = gradient(setup.signed, x) + setup.penalty_gradient(x) + linear + x / setup.eta
            x = x - setup.step * direction
        return communicate(setup, old, x)

    return play


# All agents at once, one sample per step.


def gather_each_step(setup: Setup, old: Iterates, indices: Array | None) -> Iterates:
    assert indices is not None
    everyone, x, linear = np.arange(len(setup.signed)), old.x, old.dual - old.x0 / setup.eta
    for chosen in indices:
        x = _stochastic_step(setup, setup.signed[everyone, chosen], x, linear)
    return communicate(setup, old, x)


def gather_beforehand(setup: Setup, old: Iterates, indices: Array | None) -> Iterates:
    assert indices is not None
    x, linear = old.x, old.dual - old.x0 / setup.eta
    for rows in setup.signed[np.arange(len(setup.signed)), indices]:  # (Q, N, D)
        x = _stochastic_step(setup, rows, x, linear)
    return communicate(setup, old, x)


def _stochastic_step(setup: Setup, rows: Array, x: Array, linear: Array) -> Array:
    weights = slope(np.einsum("nd,nd->n", rows, x))
    return x - setup.step * (weights[:, None] * rows + setup.penalty_gradient(x) + linear + x / setup.eta)


def in_place(setup: Setup, old: Iterates, indices: Array | None) -> Iterates:
    """Take the same steps, tuned by hand: no temporary arrays, and all constants multiplied beforehand."""
    assert indices is not None
    agents, samples, dimension = setup.signed.shape
    flat, places = setup.signed.reshape(agents * samples, dimension), indices + samples * np.arange(agents)
    x, rows, work = old.x.copy(), np.empty_like(old.x), np.empty_like(old.x)
    linear, keep = setup.step * (old.dual - old.x0 / setup.eta), 1 - setup.step / setup.eta
    scale = 2 * setup.alpha * setup.beta * setup.step
    for place in places:
        np.take(flat, place, axis=0, out=rows, mode="clip")
        rows *= (setup.step * slope(np.einsum("nd,nd->n", rows, x)))[:, None]
        np.multiply(x, x, out=work)
        work *= setup.alpha
        work += 1
        work *= work
        np.divide(x, work, out=work)
        work *= scale
        rows += work
        rows += linear
        x *= keep
        x -= rows
    return communicate(setup, old, x)


def one_by_one(setup: Setup, old: Iterates, indices: Array | None) -> Iterates:
    """Compute one agent after another, one step after another."""
    x, linear = old.x.copy(), old.dual - old.x0 / setup.eta
    for i, samples in enumerate(setup.signed):
        for q in range(setup.iterations):
            batch = samples if indices is None else samples[indices[q, i], None]
            gradient = slope(batch @ x[i]) @ batch / len(batch)
            x[i] -= setup.step * (gradient + setup.penalty_gradient(x[i]) + linear[i] + x[i] / setup.eta)
    return communicate(setup, old, x)
