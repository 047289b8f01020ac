"""The paper's pseudo-code in plain float64 NumPy, agent by agent, for penalised logistic regression.

Written from Algorithms 1 to 4 and not from the package, to check it. Randomness is given, never drawn: `coins[r]` says
whether round r communicates, `indices[r][q][i]` which samples agent i uses at its local step q (an index or several).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Vector = np.ndarray
ALPHA, BETA = 1.0, 0.1


class Agent(NamedTuple):
    """The samples of one agent: features (n, D), labels (n,) in {-1, 1}."""

    features: np.ndarray
    labels: np.ndarray

    def grad(self, x: Vector, samples: Any = None) -> Vector:
        """h_i(x; samples), the mean gradient over these samples; all of them: grad f_i(x)."""
        rows = slice(None) if samples is None else np.atleast_1d(samples)
        a, b = self.features[rows], self.labels[rows]
        weights = (1 - np.tanh(b * (a @ x) / 2)) / 2  # the sigmoid of -b a.x, without overflow
        return -(weights * b) @ a / len(b) + 2 * ALPHA * BETA * x / (1 + ALPHA * x**2) ** 2


def agents_of(features: Iterable[np.ndarray], labels: Iterable[np.ndarray]) -> list[Agent]:
    return [Agent(a, b) for a, b in zip(features, labels, strict=True)]


class Local(NamedTuple):
    """What an oracle is called with: L_i = f_i + <lambda_i, x_i - x_0> + ||x_i - x_0||^2/(2 eta), where it stands."""

    agent: Agent
    i: int
    r: int
    x: Vector
    x0: Vector
    dual: Vector
    eta: float
    g: Vector | None  # Oracle II's estimate from the round before

    def grad(self, x: Vector, samples: Any = None) -> Vector:
        return self.agent.grad(x, samples) + self.dual + (x - self.x0) / self.eta


Oracle = Callable[[Local], tuple[Vector, Vector | None]]  # -> x_i^{r+1}, g_i^{r,Q}
Step = Callable[[int, int], float]


def gd(step: float, Q: int) -> Oracle:
    """Oracle I, option I."""

    def solve(local: Local) -> tuple[Vector, None]:
        x = local.x
        for _ in range(Q):
            x = x - step * local.grad(x)
        return x, None

    return solve


def sgd(step: Step, Q: int, indices: Any) -> Oracle:
    """Oracle I, option II."""

    def solve(local: Local) -> tuple[Vector, None]:
        x = local.x
        for q in range(Q):
            x = x - step(local.r, q) * local.grad(x, indices[local.r][q][local.i])
        return x, None

    return solve


def vr(gamma: float, Q: int, refresh: int, indices: Any = None) -> Oracle:
    """Oracle II; indices None: all of the agent's samples. The closed form is divided by gamma, which may be inf."""

    def solve(local: Local) -> tuple[Vector, Vector | None]:
        x, g, eta = local.x, local.g, local.eta
        if local.r % refresh == 0:
            g = local.agent.grad(x)
        for q in range(Q):
            samples = None if indices is None else indices[local.r][q][local.i]
            new = (eta / gamma * x + local.x0 - eta * (g + local.dual)) / (eta / gamma + 1)
            g = g + local.agent.grad(new, samples) - local.agent.grad(x, samples)
            x = new
        return x, g

    return solve


def fedpd(
    agents: Sequence[Agent], *, eta: float, oracle: Oracle, coins: Any, x0_rule: str = "paper"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 2. Returns mean_i x_{0,i}^r for r = 0..T, and x_i and lambda_i at the end."""
    x, x0, dual = (np.zeros((len(agents), agents[0].features.shape[1])) for _ in range(3))
    g: list[Vector | None] = [None] * len(agents)
    path = [x0.mean(0)]
    for r, communicate in enumerate(coins):
        for i, agent in enumerate(agents):
            x[i], g[i] = oracle(Local(agent, i, r, x[i], x0[i], dual[i], eta, g[i]))
            old = dual[i].copy()
            dual[i] = old + (x[i] - x0[i]) / eta
            x0[i] = x[i] + eta * (dual[i] if x0_rule == "paper" else old)
        if communicate:
            x0[:] = x0.mean(0)
        path.append(x0.mean(0))
    return np.array(path), x, dual


def fedavg(
    agents: Sequence[Agent], *, step: Step, Q: int, rounds: int, indices: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1; indices None: option 2 (full gradients). Returns x^r for r = 0..T, and the last x_i^{r,Q}."""
    x = np.zeros((len(agents), agents[0].features.shape[1]))
    path = [x.mean(0)]
    for r in range(rounds):
        x[:] = path[-1]
        for q in range(Q):
            for i, agent in enumerate(agents):
                x[i] = x[i] - step(r, q) * agent.grad(x[i], None if indices is None else indices[r][q][i])
        path.append(x.mean(0))
    return np.array(path), x


def fedprox(agents: Sequence[Agent], *, rho: float, oracle: Oracle, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """f_i + (rho/2)||x - x^r||^2 from x^r, then averaging. Returns x^r for r = 0..T, and the last x_i^{r,Q}."""
    x = np.zeros((len(agents), agents[0].features.shape[1]))
    path = [x.mean(0)]
    for r in range(rounds):
        for i, agent in enumerate(agents):
            x[i], _ = oracle(Local(agent, i, r, path[-1], path[-1], np.zeros_like(path[-1]), 1 / rho, None))
        path.append(x.mean(0))
    return np.array(path), x
