"""Methods in plain NumPy, agent by agent, written from the papers and from the first lines of each module.

They check the package, so they import nothing of it. Randomness is given, never drawn: `Given` says who is present in a
round, whether it skips its communication, how many local steps an agent does, and which samples it uses. After every
round a method yields a `Round`: each agent's copy of the model, its work, and the messages.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Vector = Any  # an array (D,)
Schedule = Callable[[int, int], float]  # (round r, local step q) -> step size


class Agent(NamedTuple):
    """One agent: the number of its samples, f_i, and its gradient h_i(x; rows); rows None: all, which is grad f_i."""

    size: int
    value: Callable[[Vector], float]
    gradient: Callable[..., Vector]


class Given(NamedTuple):
    """Everything that a method does not compute.

    Attributes:
        agents: The agents.
        start: x^0.
        present: (rounds, N) who takes part.
        skipped: (rounds,) whether a round skips its communication.
        steps: (rounds, i, Q) -> the local steps that agent i does of its Q steps.
        rows: (rounds, i, exchange) -> (Q, B) the samples of each local step; None: all samples.
    """

    agents: Sequence[Agent]
    start: Vector
    present: np.ndarray
    skipped: np.ndarray
    steps: Callable[[int, int, int], int] = lambda r, i, Q: Q
    rows: Callable[[int, int, int], Any] | None = None

    @property
    def number(self) -> int:
        return len(self.agents)

    def rounds(self) -> Iterator[tuple[int, list[int], bool]]:
        """Yield (r, the agents that are present, whether the round communicates)."""
        for r, (present, skipped) in enumerate(zip(self.present, self.skipped, strict=True)):
            here = [int(i) for i in np.flatnonzero(present)]
            yield r, here, bool(here) and not skipped

    def copies(self, factor: float = 1.0) -> np.ndarray:
        """Return one copy of factor x^0 per agent, (N, D)."""
        return np.stack([factor * self.start] * self.number)


class Message(NamedTuple):
    """One exchange of a round: agents that send, numbers per message, agents that receive, numbers per broadcast."""

    senders: int
    up: int
    receivers: int
    down: int


class Round(NamedTuple):
    """The state of all agents after a round, and what the round cost."""

    models: np.ndarray  # (N, D) each agent's copy of the model
    updates: np.ndarray  # (N,) local steps
    samples: np.ndarray  # (N,) gradients of samples
    messages: list[Message]
    kept: dict[str, np.ndarray]  # what else agents keep, by name


class Work:
    """The costs of one round, as they come up."""

    def __init__(self, given: Given) -> None:
        self.size, self.number = len(given.start), given.number
        self.updates, self.samples = np.zeros(given.number, int), np.zeros(given.number, int)
        self.messages: list[Message] = []

    def add(self, i: int, updates: int, samples: int) -> None:
        self.updates[i] += updates
        self.samples[i] += samples

    def send(
        self, here: list[int], up: int = 1, down: int = 1, *, extra: int = 0, more: int = 0, senders: int | None = None
    ) -> None:
        """Count an exchange of `up` vectors and `extra` numbers per agent against `down` vectors and `more` numbers."""
        sent = len(here) if senders is None else senders
        self.messages.append(Message(sent, up * self.size + extra, len(here), down * self.size + more))

    def done(self, models: np.ndarray, **kept: np.ndarray) -> Round:
        return Round(models.copy(), self.updates, self.samples, self.messages, kept)


def path(given: Given, rounds: Iterator[Round]) -> tuple[np.ndarray, Round]:
    """Return the mean model after r = 0, ..., T rounds, (T+1, D), and the last round."""
    done = list(rounds)
    return np.stack([given.start, *(one.models.mean(axis=0) for one in done)]), done[-1]


class Phi(NamedTuple):
    """phi_i(x) = f_i(x) + <linear, x> + (curvature/2) ||x||^2 of agent i in round r, and its local steps."""

    given: Given
    r: int
    i: int
    linear: Any = 0.0
    curvature: float = 0.0
    exchange: int = 0

    @property
    def agent(self) -> Agent:
        return self.given.agents[self.i]

    def rows(self, q: int, stochastic: bool) -> Any:
        """Return the samples of local step q; None: all."""
        if not stochastic or self.given.rows is None:
            return None
        return self.given.rows(self.r, self.i, self.exchange)[q]

    def gradient(self, x: Vector, rows: Any = None) -> Vector:
        return self.agent.gradient(x, rows) + self.linear + self.curvature * x

    def cost(self, rows: Any) -> int:
        """Return the samples of a gradient."""
        return self.agent.size if rows is None else len(rows)


class Solved(NamedTuple):
    """What an oracle returns: the point, its memory, and its work."""

    x: Vector
    memory: Any
    updates: int
    samples: int


Oracle = Callable[[Phi, Vector, Any], Solved]


def gd(step: Schedule, Q: int, *, stochastic: bool = False) -> Oracle:
    """Oracle I: x = x - step(r, q) grad phi_i(x), with all samples or some."""

    def solve(phi: Phi, x: Vector, memory: Any) -> Solved:
        steps, samples = phi.given.steps(phi.r, phi.i, Q), 0
        for q in range(steps):
            rows = phi.rows(q, stochastic)
            x = x - step(phi.r, q) * phi.gradient(x, rows)
            samples += phi.cost(rows)
        return Solved(x, None, steps, samples)

    return solve


def sgd(step: Schedule, Q: int) -> Oracle:
    """Oracle I, option II."""
    return gd(step, Q, stochastic=True)


def vr(gamma: float, Q: int, refresh: int, *, stochastic: bool = True) -> Oracle:
    """Oracle II: an exact step of the linearised phi_i, with a recursive estimate g of grad f_i."""

    def solve(phi: Phi, x: Vector, g: Any) -> Solved:
        steps, samples = phi.given.steps(phi.r, phi.i, Q), 0
        if g is None or phi.r % refresh == 0:  # an agent that comes later begins with its gradient at x^0
            g = phi.agent.gradient(x if phi.r % refresh == 0 else phi.given.start)
            samples += phi.agent.size
        for q in range(steps):
            rows = phi.rows(q, stochastic)
            new = (x / gamma - g - phi.linear) / (1 / gamma + phi.curvature)
            g = g + phi.agent.gradient(new, rows) - phi.agent.gradient(x, rows)
            x, samples = new, samples + 2 * phi.cost(rows)
        return Solved(x, g, steps, samples)

    return solve


def lagrangian(given: Given, r: int, i: int, x0: Vector, dual: Vector, eta: float) -> Phi:
    """f_i(x) + <lambda_i, x - x_0> + ||x - x_0||^2/(2 eta), up to a constant."""
    return Phi(given, r, i, dual - x0 / eta, 1 / eta)


def near(given: Given, r: int, i: int, centre: Vector, rho: float) -> Phi:
    """f_i(x) + (rho/2) ||x - centre||^2, up to a constant."""
    return Phi(given, r, i, -rho * centre, rho)


def soft(x: Vector, threshold: float) -> Vector:
    """The proximal step of threshold ||x||_1."""
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0).astype(x.dtype)


# --- averaging and corrected gradients ------------------------------------------------------------------------------


def fedprox(given: Given, *, rho: float, oracle: Oracle) -> Iterator[Round]:
    """f_i + (rho/2) ||x - x^r||^2 from x^r, then averaging; rho = 0 is FedAvg, Algorithm 1."""
    x = given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, new = Work(given), []
        for i in here:
            own, memory[i], *cost = oracle(near(given, r, i, x, rho), x, memory[i])
            work.add(i, *cost)
            new.append(own)
        if communicates:
            x = np.mean(new, axis=0)
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def fedavg(given: Given, *, oracle: Oracle) -> Iterator[Round]:
    return fedprox(given, rho=0.0, oracle=oracle)


def fedavgm(given: Given, *, oracle: Oracle, server: float, momentum: float) -> Iterator[Round]:
    x, v = given.start, 0 * given.start
    for r, here, communicates in given.rounds():
        work, new = Work(given), []
        for i in here:
            own, _, *cost = oracle(Phi(given, r, i), x, None)
            work.add(i, *cost)
            new.append(own)
        if communicates:
            v = momentum * v + np.mean(new, axis=0) - x
            x = x + server * v
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def fedadam(given: Given, *, oracle: Oracle, server: float, beta2: float, tau: float) -> Iterator[Round]:
    x, m, v = given.start, 0 * given.start, 0 * given.start + tau**2
    for r, here, communicates in given.rounds():
        work, new = Work(given), []
        for i in here:
            own, _, *cost = oracle(Phi(given, r, i), x, None)
            work.add(i, *cost)
            new.append(own)
        if communicates:
            delta = np.mean(new, axis=0) - x
            m = 0.9 * m + (1 - 0.9) * delta
            v = beta2 * v + (1 - beta2) * delta**2
            x = x + server * m / (np.sqrt(v) + tau)
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def fednova(given: Given, *, oracle: Oracle) -> Iterator[Round]:
    x = given.start
    for r, here, communicates in given.rounds():
        work, changes, steps = Work(given), [], []
        for i in here:
            own, _, updates, samples = oracle(Phi(given, r, i), x, None)
            work.add(i, updates, samples)
            changes.append((own - x) / updates)
            steps.append(updates)
        if communicates:
            x = (x + np.mean(steps) * np.mean(changes, axis=0)).astype(x.dtype)
            work.send(here, extra=1)
        yield work.done(np.stack([x] * given.number))


def fedcm(given: Given, *, step: float, Q: int, alpha: float, server_step: float) -> Iterator[Round]:
    """One step at a time, as in the paper."""
    x, delta = given.start, 0 * given.start
    for r, here, communicates in given.rounds():
        work, changes, lengths = Work(given), [], []
        for i in here:
            phi, y, steps = Phi(given, r, i), x, given.steps(r, i, Q)
            for q in range(steps):
                rows = phi.rows(q, True)
                y = y - step * (alpha * phi.gradient(y, rows) + (1 - alpha) * delta)
                work.add(i, 1, phi.cost(rows))
            changes.append(y - x)
            lengths.append(steps * step)
        if communicates:
            mean = np.mean(changes, axis=0)
            x, delta = x + server_step * mean, (-mean / np.mean(lengths)).astype(x.dtype)
            work.send(here, down=2, extra=1)
        yield work.done(np.stack([x] * given.number))


def feddc(given: Given, *, step: float, Q: int, alpha: float) -> Iterator[Round]:
    """Drifts and control variates of all agents, as the authors' program keeps them."""
    x, c, own, drift = given.start, 0 * given.start, given.copies(0), given.copies(0)
    oracle = sgd(lambda r, q: step, Q)
    for r, here, communicates in given.rounds():
        work, ends, changes = Work(given), [], []
        for i in here:
            y, _, *cost = oracle(Phi(given, r, i, c - own[i] - alpha * (x - drift[i]), alpha), x, None)
            work.add(i, *cost)
            new = own[i] - c + (x - y) / (cost[0] * step)
            drift[i] = drift[i] + y - x
            changes.append(new - own[i])
            own[i] = new
            ends.append(y)
        if communicates:
            c = c + len(here) / given.number * np.mean(changes, axis=0)
            x = np.mean(ends, axis=0) + drift.mean(axis=0)
            work.send(here, up=2, down=2)
        yield work.done(np.stack([x] * given.number))


def scaffold(given: Given, *, step: float, Q: int, option: int = 2, server_step: float = 1.0) -> Iterator[Round]:
    x, c, own = given.start, 0 * given.start, given.copies(0)
    oracle = sgd(lambda r, q: step, Q)
    for r, here, communicates in given.rounds():
        work, models, controls = Work(given), [], []
        for i in here:
            y, _, updates, samples = oracle(Phi(given, r, i, c - own[i]), x, None)
            new = given.agents[i].gradient(x) if option == 1 else own[i] - c + (x - y) / (updates * step)
            work.add(i, updates, samples + (given.agents[i].size if option == 1 else 0))
            models.append(y - x)
            controls.append(new - own[i])
            own[i] = new
        if communicates:
            x = x + server_step * np.mean(models, axis=0)
            c = c + len(here) / given.number * np.mean(controls, axis=0)
            work.send(here, up=2, down=2)
        yield work.done(np.stack([x] * given.number))


def vrl_sgd(given: Given, *, step: float, Q: int) -> Iterator[Round]:
    x, delta = given.start, given.copies(0)
    oracle = sgd(lambda r, q: step, Q)
    for r, here, communicates in given.rounds():
        work, models, updates = Work(given), {}, {}
        for i in here:
            models[i], _, updates[i], samples = oracle(Phi(given, r, i, -delta[i]), x, None)
            work.add(i, updates[i], samples)
        if communicates:
            x = np.mean(list(models.values()), axis=0)
            for i in here:
                delta[i] = delta[i] + (x - models[i]) / (updates[i] * step)
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def scallion(given: Given, *, step: float, Q: int, alpha: float, server_step: float) -> Iterator[Round]:
    """SCALLION without compression."""
    x, c, own = given.start, 0 * given.start, given.copies(0)
    oracle = sgd(lambda r, q: step, Q)
    for r, here, communicates in given.rounds():
        work, changes = Work(given), []
        for i in here:
            y, _, updates, samples = oracle(Phi(given, r, i, c - own[i]), x, None)
            work.add(i, updates, samples)
            changes.append(alpha * ((x - y) / (updates * step) - c))
            own[i] = own[i] + changes[-1]
        if communicates:
            x = x - server_step * Q * step * (c + np.mean(changes, axis=0))
            c = c + len(here) / given.number * np.mean(changes, axis=0)
            work.send(here, down=2)
        yield work.done(np.stack([x] * given.number))


def mpr_sgd(given: Given, *, step: float, Q: int, momentum: float) -> Iterator[Round]:
    x, u = given.start, 0 * given.start
    for r, here, communicates in given.rounds():
        work, models, buffers = Work(given), [], []
        for i in here:
            phi, own, buffer = Phi(given, r, i), x, u
            for q in range(given.steps(r, i, Q)):
                rows = phi.rows(q, True)
                buffer = momentum * buffer + phi.gradient(own, rows)
                own = own - step * buffer
                work.add(i, 1, phi.cost(rows))
            models.append(own)
            buffers.append(buffer)
        if communicates:
            x, u = np.mean(models, axis=0), np.mean(buffers, axis=0)
            work.send(here, up=2, down=2)
        yield work.done(np.stack([x] * given.number))


def s_dane(given: Given, *, rho: float, oracle: Oracle, mu: float) -> Iterator[Round]:
    v = given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, sent = Work(given), []
        own = {i: given.agents[i].gradient(v) for i in here}
        for i in here:
            linear = np.mean(list(own.values()), axis=0) - own[i] - rho * v
            x, memory[i], updates, samples = oracle(Phi(given, r, i, linear, rho, exchange=1), v, memory[i])
            work.add(i, updates, samples + 2 * given.agents[i].size)
            sent.append(mu * x - given.agents[i].gradient(x))
        if communicates:
            v = (rho * v + np.mean(sent, axis=0)) / (rho + mu)
            work.send(here)
            work.send(here)
        yield work.done(np.stack([v] * given.number))


def gradients_first(given: Given, solve: Callable[[int, int, Vector, Vector, Vector, Any], Solved]) -> Iterator[Round]:
    """Exchange 1: g = mean_S grad f_i(x). Exchange 2: x = mean_S solve(r, i, x, grad f_i(x), g, memory)."""
    x = given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, new = Work(given), []
        own = {i: given.agents[i].gradient(x) for i in here}
        for i in here:
            y, memory[i], updates, samples = solve(r, i, x, own[i], np.mean(list(own.values()), axis=0), memory[i])
            work.add(i, updates, samples + given.agents[i].size)
            new.append(y)
        if communicates:
            x = np.mean(new, axis=0)
            work.send(here)
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def dane(given: Given, *, mu: float, oracle: Oracle, eta: float = 1.0) -> Iterator[Round]:
    """DANE; eta = 1 is FedDANE."""

    def solve(r: int, i: int, x: Vector, own: Vector, mean: Vector, memory: Any) -> Solved:
        return oracle(Phi(given, r, i, eta * mean - own - mu * x, mu, exchange=1), x, memory)

    return gradients_first(given, solve)


def fedlin(given: Given, *, step: float, Q: int) -> Iterator[Round]:
    oracle = sgd(lambda r, q: step, Q)

    def solve(r: int, i: int, x: Vector, own: Vector, mean: Vector, memory: Any) -> Solved:
        return oracle(Phi(given, r, i, mean - own, exchange=1), x, None)

    return gradients_first(given, solve)


def f_svrg(given: Given, *, step: float, Q: int) -> Iterator[Round]:
    def solve(r: int, i: int, anchor: Vector, own: Vector, mean: Vector, memory: Any) -> Solved:
        phi, x, samples = Phi(given, r, i, exchange=1), anchor, 0
        steps = given.steps(r, i, Q)
        for q in range(steps):
            rows = phi.rows(q, True)
            x = x - step * (phi.gradient(x, rows) - phi.gradient(anchor, rows) + mean)
            samples += 2 * phi.cost(rows)
        return Solved(x, None, steps, samples)

    return gradients_first(given, solve)


def proxskip(given: Given, *, step: float, p: float, l1: float = 0.0, control: str = "learned") -> Iterator[Round]:
    x, c = given.copies(), given.copies(0)
    oracle = sgd(lambda r, q: step, 1)
    term = step / (1 - p) if l1 or given.present.all() else 0.0  # of c_i in the messages
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            x[i], _, *cost = oracle(Phi(given, r, i, -c[i]), x[i], None)
            work.add(i, *cost)
        if communicates:
            new = soft(np.mean([x[i] - term * c[i] for i in here], axis=0), step / (1 - p) * l1)
            for i in here if control == "learned" else ():
                c[i] = c[i] + (1 - p) / step * (new - x[i])
            x[:] = new
            work.send(here)
        yield work.done(x)


# --- one gradient per communication ---------------------------------------------------------------------------------


def gradient_descent(given: Given, *, step: float) -> Iterator[Round]:
    x = given.start
    for _, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            work.add(i, 1, given.agents[i].size)
        if communicates:
            x = x - step * np.mean([given.agents[i].gradient(x) for i in here], axis=0)
            work.send(here)
        yield work.done(np.stack([x] * given.number))


def nesterov(given: Given, *, step: float, restart: bool = True) -> Iterator[Round]:
    x, y, t = given.start, given.start, 1.0
    for _, here, _ in given.rounds():
        work = Work(given)
        for i in here:
            work.add(i, 1, given.agents[i].size)
        gradient = np.mean([agent.gradient(y) for agent in given.agents], axis=0)
        new = y - step * gradient
        if restart and gradient @ (new - x) > 0:
            x, y, t = new, new, 1.0
        else:
            grown = (1 + (1 + 4 * t**2) ** 0.5) / 2
            x, y, t = new, new + (t - 1) / grown * (new - x), grown
        work.send(here)
        yield work.done(np.stack([y] * given.number))


def lag(
    given: Given, *, step: float, threshold: float, memory: int, smoothness: float | None = None
) -> Iterator[Round]:
    """LAG with the worker-side trigger; with a smoothness L, the server-side one."""
    x, g, sent, x_sent, moves = given.start, 0 * given.start, given.copies(0), given.copies(), [0.0] * memory
    everyone = bool(given.present.all())
    for r, here, communicates in given.rounds():
        work, changes = Work(given), []
        bound = threshold / (step**2 * memory) * sum(moves)
        for i in here:
            work.add(i, 1, given.agents[i].size)
            gradient = given.agents[i].gradient(x)
            change, distance = gradient - sent[i], x - x_sent[i]
            size = change @ change if smoothness is None else smoothness**2 * (distance @ distance)
            if size > bound or r == 0:
                changes.append(change)
                sent[i], x_sent[i] = gradient, x
        if communicates:
            g = g + np.sum(changes, axis=0) / given.number if changes else g
            new = x - step * g
            x, moves = new, [(new - x) @ (new - x), *moves[:-1]]
            work.send(here, more=0 if everyone else memory, senders=len(changes))
        yield work.done(np.stack([x] * given.number))
