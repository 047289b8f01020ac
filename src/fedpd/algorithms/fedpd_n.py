"""FedPD-N: FedPD for networks, with mini-batches and few agents per round, and nothing to tune.

    agents i of the cohort S, K of N:
        x_i       = Q steps  x <- x - gamma (h_i(x) + lambda_i + (penalty/eta)(x - y)),  from y,   with eta = gamma Q
        lambda_i += (rho/eta)(x_i - y),    send x_i
    server:
        lambda   += (K/N)(rho/eta)(mean_S x_i - y)               the mean of ALL agents' duals
        u         = mean_S x_i + eta lambda - y                  Algorithm 2's server step
        m         = beta m + u,    y <- y + u + beta m           Nesterov's momentum; broadcast y
        w         = w + 5/(r + 5)(y - w)                         the running mean, which the run delivers

rho = 1, beta = 0 and penalty = 1 are Algorithm 2 at p = 0 from the server's model, for all agents or for cohorts:
`fedpd(eta=gamma Q, oracle=sgd(gamma, Q, batch), start="server")`. The defaults are a relative of it. FedPD from the
server's model is Nesterov's momentum in disguise, since its duals push with the mean of past updates. At participation
K/N this push lags by N/K times as many rounds. So beta does the same at the server, at once, and rho = 0.2 keeps a
fifth of the duals. Momentum adds up the noise of small cohorts, so

    beta = min(0.8, max((K - 1)/(K + 1), 1 - (loss at y, smoothed)/(loss at x^0))) :

a small cohort starts with little momentum, and gets more as the loss at y comes down. That is the loss of agents which
had no part in the last update, so it shows what agents have in common. Nine agents or more have beta = 0.8 at once.

Trials find gamma. In the rounds 0, 1, 4, 16, 64, ... agents make their Q steps with each step size of a ladder, on the
same samples, and send H of each, the mean loss over the second half of the steps. The ladder is 0, 2^-11, 2^-9, ..., 2
until gamma is known, which takes the trials of five agents, and 0, 1/16, 1/4, 1/2, 1, 2, 4, 16 times gamma afterwards.
Of the means over S,

    low  = the smallest step with H <= 1.05 min H that makes 80 % of the largest decrease
    high = the largest step with H <= min H + 5 % of (first loss - min H), after round 8 with 10 %
    good = low^(1 - s) high^s,    s = min(1, K/5)/2

Gamma is good at first. A larger gamma than high comes down to it. A smaller one than good goes up to it in the first
rounds only: later, where the loss is noisy, a short run prefers a step that is too small for a long one. So gamma then
goes half way down to good, in each round of trials at most to a half, which makes the last models less noisy. In a
round of trials, x_i is that of gamma. Before gamma is known, agents stay at x^0, where all first trials are made; but
in the last of these rounds each takes a step of its own: it goes up the ladder, and takes each step that decreases H by
a quarter more than the one before. If gamma was 1.5 times too large in one of the first rounds, the server does not use
the x_i, and agents forget their duals: a network that has died in one round has the loss of a living one, and would not
recover.

The losses guard the run, too. An agent whose loss doubles over its local steps sends y, and gamma is halved. If the
mean loss at y, smoothed, is above its best by a quarter of the decrease since x^0 and by more than its noise, the
server returns to w as it was at its best, without momentum and duals, with half of gamma.

One model travels each way, with 12 numbers up and 3 down. An agent keeps lambda_i and the number of the last return.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from tree_math import Vector

from fedpd.algorithms._rules import Q
from fedpd.base.checks import at_least, at_most, below, count, positive, refuse
from fedpd.base.errors import warn
from fedpd.core import Array, Key, LocalObjective, Method, Model, Subproblem, Work, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.core.sampling import uniform
from fedpd.core.vectors import running_mean

FIRST = (0.0, *(2.0**k for k in range(-11, 2, 2)))  # the ladder while gamma is not known
NEAR = (0.0, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 16.0)  # the ladder afterwards, in units of gamma
CALIBRATES = 5  # agents: one alone may know a single class, and any step is good for that
EARLY = 8  # the last round in which trials may raise gamma
TRIALS = (0, *(4**k for k in range(16)))  # the rounds of trials
MOMENTUM = 0.8  # the most
WORST = 1e9  # stands for a loss that is not finite
RHO = "0 leaves the duals out, 1 is FedPD's"
BETA = "0 leaves the momentum out; None chooses it by the cohort and the losses"


class Numbers(NamedTuple):
    """The numbers that an agent sends beside its model. The server sees their means over the cohort."""

    losses: Array  # (8,) H of each step size of the ladder; 0 in a round without trials
    first: Array  # the loss of the first mini-batch, at y
    square: Array  # its square
    failed: Array  # 1 if the loss doubled over the local steps, so that x_i is y
    tried: Array  # 1 in a round of trials


class Orders(NamedTuple):
    """The numbers that the server broadcasts beside y."""

    step: Array  # gamma; 0: not known yet
    level: Array  # the first loss, at x^0
    epoch: Array  # how often the server returned to an earlier model; older duals do not count


class Taken(NamedTuple):
    """The model that an agent takes from its trials so far."""

    x: Vector
    later: Array  # its H
    still: Array  # H of y, the step 0


class Agent(NamedTuple):
    y: Vector
    x: Vector
    dual: Vector
    epoch: Array  # of the dual
    orders: Orders
    numbers: Numbers


class Watch(NamedTuple):
    """The smoothed loss at y, and the best model so far."""

    loss: Array
    variance: Array  # of one round's mean loss, smoothed
    rounds: Array  # since the last return
    best: Array  # the smallest upper bound of the loss
    model: Vector  # w at that time


class Server(NamedTuple):
    y: Vector
    dual: Vector
    momentum: Vector
    mean: Vector
    age: Array  # the models in the mean
    round: Array
    orders: Orders
    caution: Array  # what trials find is multiplied by this
    wrong: Array  # whether the last models were not used, because gamma was too large
    losses: Array  # (8,) the mean H of the first rounds, until gamma is known
    watch: Watch


class FedPDN(Method):
    """FedPD with mini-batches, momentum at the server and a step size found by trials."""

    iterations: int
    batch: int
    cohort: int
    step: float | None
    adapt: bool
    rho: float
    beta: float | None
    penalty: float

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        zero = jnp.zeros((), float)
        numbers = Numbers(jnp.zeros(len(NEAR)), zero, zero, zero, zero)
        return Agent(x, x, 0 * x, jnp.int32(0), self.first_orders(), numbers)

    def server(self, x: Vector) -> Server:
        zero = jnp.zeros((), float)
        watch = Watch(zero, zero, jnp.int32(0), zero, x)
        number, orders = jnp.int32(0), self.first_orders()
        none = jnp.zeros(len(NEAR))
        return Server(x, 0 * x, 0 * x, x, number, number, orders, zero + 1, jnp.bool_(False), none, watch)

    @property
    def first_rounds(self) -> int:
        """The rounds of trials after which gamma is known: those of five agents."""
        return -(-CALIBRATES // self.cohort) if self.step is None else 0

    def first_orders(self) -> Orders:
        zero = jnp.zeros((), float)
        return Orders(zero + (0.0 if self.step is None else self.step), zero, jnp.int32(0))

    # --- agents ---

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        current = agent.epoch == agent.orders.epoch
        agent = agent._replace(dual=jnp.where(current, 1.0, 0.0) * agent.dual, epoch=agent.orders.epoch)
        rows = uniform(key, r, f.agent, f.size, (self.iterations, self.batch))
        if not self.adapt:
            return self.train(f, agent, rows)
        # The condition is on the round alone: a condition on an agent's state would compute both for all agents.
        trial = (r == jnp.array(sorted({*range(self.first_rounds), *TRIALS}))).any()
        return lax.cond(trial, partial(self.try_steps, f, r), partial(self.train, f), agent, rows)

    def train(self, f: LocalObjective, agent: Agent, rows: Array) -> tuple[Agent, Work]:
        x, first, later = self.descend(f, agent, rows, agent.orders.step)
        steps = f.steps(self.iterations)
        return self.moved(agent, x, first, later, 0 * agent.numbers.losses), Work.of(steps, steps, self.batch)

    def try_steps(self, f: LocalObjective, r: Array, agent: Agent, rows: Array) -> tuple[Agent, Work]:
        ladder = ladder_of(agent.orders.step)
        known, moves = agent.orders.step > 0, r + 1 >= self.first_rounds

        def one(now: Taken, step: Array) -> tuple[Taken, tuple[Array, Array]]:
            x, first, later = self.descend(f, agent, rows, step)
            still = jnp.where(step == 0, later, now.still)
            more = still - later > 1.25 * (still - now.later)
            now = now._replace(still=still, later=jnp.where(step == 0, later, now.later))
            taken = jnp.where(known, step == agent.orders.step, more & moves)
            return choose(taken, Taken(x, later, still), now), (first, later)

        zero = jnp.zeros_like(agent.numbers.first)
        (x, later, _), (firsts, losses) = lax.scan(one, Taken(agent.y, zero, zero), ladder)
        steps = len(NEAR) * f.steps(self.iterations)
        return self.moved(agent, x, firsts[0], later, losses, tried=1), Work.of(steps, steps, self.batch)

    def descend(self, f: LocalObjective, agent: Agent, rows: Array, step: Array) -> tuple[Vector, Array, Array]:
        """Return x after Q steps from y, the loss of the first step, and the mean loss over the second half."""
        weight = 0.0 if self.penalty == 0 else self.penalty / self.eta(step)
        linear = agent.dual if self.penalty == 0 else agent.dual - weight * agent.y
        phi, steps = Subproblem(f, linear, None if self.penalty == 0 else weight), f.steps(self.iterations)

        def advance(x: Vector, one: tuple[Array, Array]) -> tuple[Vector, Array]:
            q, drawn = one
            loss, gradient = f.at_step(q).stochastic_value_and_gradient(x, f.rows(drawn))
            moved = x - step * phi.complete(gradient, x)
            return choose(q < steps, moved, x), loss.astype(float)

        x, losses = lax.scan(advance, agent.y, (jnp.arange(self.iterations), rows))
        later = losses[self.iterations // 2 :].mean()
        finite = jnp.isfinite(later) & jnp.isfinite((x - agent.y) @ (x - agent.y))
        return choose(finite, x, agent.y), losses[0], jnp.where(finite, later, WORST)

    def moved(self, agent: Agent, x: Vector, first: Array, later: Array, losses: Array, tried: int = 0) -> Agent:
        """Return the agent at x, or at y if its loss doubled, with its new dual and its numbers."""
        good = later <= 2 * jnp.maximum(first, agent.orders.level) if self.adapt else jnp.bool_(True)
        good = good | (agent.orders.level <= 0)  # the first loss is not known yet
        numbers = Numbers(losses, first, first * first, jnp.where(good, 0.0, 1.0), 0 * first + tried)
        return self.at(agent, choose(good, x, agent.y), numbers)

    def at(self, agent: Agent, x: Vector, numbers: Numbers) -> Agent:
        return agent._replace(x=x, dual=agent.dual + self.dual_step(agent.orders.step) * (x - agent.y), numbers=numbers)

    def eta(self, step: Array) -> Array:
        return jnp.where(step > 0, step, 1) * self.iterations

    def dual_step(self, step: Array) -> Array:
        """Return rho/eta; 0 until gamma is known."""
        return jnp.where(step > 0, self.rho, 0) / self.eta(step)

    def send(self, agent: Agent) -> tuple[Model, Numbers]:
        return Model(agent.x), agent.numbers

    def receive(self, agent: Agent, broadcast: tuple[Vector, Orders]) -> Agent:
        y, orders = broadcast
        return agent._replace(y=y, orders=orders)

    def with_message(self, agent: Agent, message: tuple[Vector, Numbers]) -> Agent:
        x, numbers = message
        undone = self.at(agent._replace(y=agent.x), agent.y, numbers)  # its dual is that before the local steps
        return self.at(undone._replace(y=agent.y), x, numbers)

    def model(self, agent: Agent) -> Vector:
        return agent.y

    # --- the server ---

    def aggregate(self, server: Server, mean: tuple[Vector, Numbers], share: Any) -> tuple[Server, Any]:
        x, numbers = mean
        step = server.orders.step
        dual = server.dual + share * self.dual_step(step) * (x - server.y)
        u = x + self.eta(step) * dual - server.y
        beta = self.momentum_after(server) if self.beta is None else self.beta
        momentum = beta * server.momentum + u
        y = server.y + u + beta * momentum
        age = server.age + 1
        w = running_mean(server.mean, y, age)
        new = server._replace(y=y, dual=dual, momentum=momentum, mean=w, age=age, round=server.round + 1)
        new = self.adapted(new, server, numbers) if self.adapt else new
        return new, (new.y, new.orders)

    def momentum_after(self, server: Server) -> Array:
        """Return beta, which grows with the decrease of the loss at y if the cohort is small."""
        level, least = server.orders.level, min(MOMENTUM, (self.cohort - 1) / (self.cohort + 1))
        made = jnp.where(level > 0, 1 - server.watch.loss / jnp.where(level > 0, level, 1), 0)
        return jnp.clip(made, least, MOMENTUM)

    def adapted(self, new: Server, old: Server, numbers: Numbers) -> Server:
        """Return the server with the step size of the next round, or at an earlier model."""
        begins = old.round == 0
        level = jnp.where(begins, numbers.first, old.orders.level)
        # Nobody was there in a round of trials: until the next one, gamma is not known, and nothing counts.
        waits = (old.orders.step <= 0) & (numbers.tried <= 0)
        losses = choose(waits, old.losses, old.losses + (numbers.losses - old.losses) / (old.round + 1))
        new = new._replace(round=jnp.where(waits, old.round, new.round))
        found, wrong = self.after_trials(old, choose(old.orders.step > 0, numbers.losses, losses), level)
        wrong = wrong & (numbers.tried > 0)
        step = jnp.where(numbers.tried > 0, found, old.orders.step)
        factor = jnp.where((numbers.failed > 0) & ~wrong, 0.5, 1.0)
        new = new._replace(
            orders=old.orders._replace(step=step * factor, level=level),
            caution=old.caution * factor,
            wrong=wrong,
            losses=losses,
        )
        unused = back_to(new, old.y, old.mean)._replace(age=old.age)
        return self.watched(choose(wrong, unused, new), old, numbers, begins)

    def after_trials(self, server: Server, losses: Array, level: Array) -> tuple[Array, Array]:
        """Return gamma after a round of trials, and whether it was so large that the models of this round are bad."""
        step, early = server.orders.step, server.round <= EARLY
        low, high = acceptable(ladder_of(step), losses, level, jnp.where(early, 0.05, 0.1))
        high = server.caution * jnp.maximum(low, high)
        share = min(1.0, self.cohort / CALIBRATES) / 2  # a few agents pull further apart with large steps
        good = (server.caution * low) ** (1 - share) * high**share
        wrong = early & (step > 1.5 * high)
        lower = jnp.where(wrong, good, jnp.minimum(step, high))
        higher = step * (good / jnp.maximum(step, 1e-30)) ** min(1.0, self.cohort / CALIBRATES)
        # Half way down to good, but at most to a half: about 1/sqrt(r), where the trials agree.
        late = jnp.sqrt(lower * jnp.clip(good, lower / 4, lower))
        near = jnp.where(early, jnp.where(step < good, higher, lower), late)
        near = jnp.where(server.wrong & ~wrong, good, near)  # the ladder around a step far off was coarse
        first = jnp.where(server.round + 1 < self.first_rounds, 0.0, good)
        return jnp.where(step > 0, near, first), wrong & (step > 0)

    def watched(self, new: Server, old: Server, numbers: Numbers, begins: Array) -> Server:
        """Return the server at its best model, if the loss is clearly above its best; else as it is."""
        watch, level = old.watch, new.orders.level
        finite = jnp.isfinite(numbers.first)
        loss = jnp.where(finite, numbers.first, WORST)
        spread = jnp.maximum(numbers.square - loss * loss, 0) / max(self.cohort - 1, 1)
        spread = jnp.maximum(spread, (loss / self.cohort) ** 2)  # few agents may be equal by chance
        rounds = jnp.where(begins, 1, watch.rounds + 1)
        weight = jnp.maximum(1 / rounds, 0.25)
        smooth = watch.loss + weight * (loss - watch.loss)
        variance = watch.variance + weight * (spread - watch.variance)
        error = 2 * jnp.sqrt(variance / jnp.minimum(rounds, 7))
        best = jnp.where(begins, 2 * loss, watch.best)
        now = 3 * jnp.sqrt(jnp.maximum(spread, variance))
        margin = jnp.maximum(0.25 * (level - best), 0.02 * level)
        returns = ~begins & (~finite | (jnp.maximum(smooth - error, loss - now) > best + margin))
        better = smooth + error < best
        seen = Watch(smooth, variance, rounds, jnp.minimum(best, smooth + error), choose(better, old.mean, watch.model))
        back = back_to(new, watch.model, watch.model)._replace(
            age=0 * new.age, caution=new.caution / 2, watch=seen._replace(rounds=0 * rounds, variance=0 * variance)
        )
        back = back._replace(orders=back.orders._replace(step=back.orders.step / 2))
        return choose(returns, back, new._replace(watch=seen))

    def check_agents(self, agents: int, fewest: Callable[[], int]) -> None:
        if self.cohort > agents:
            remedy = "Give the number of agents of a round; the momentum depends on it"
            refuse("cohort", self.cohort, f"must be at most {agents}, the number of agents", remedy)
        if self.beta is None and fewest() < self.cohort:
            warn(
                f"a round of this run has as few as {fewest()} agents, and the momentum of fedpd_n is that for "
                f"cohort = {self.cohort}, so it may be too large. Give fedpd_n(cohort={fewest()}), or a beta."
            )

    def delivers(self, server: Server) -> Vector:
        return server.mean


def back_to(server: Server, y: Vector, mean: Vector) -> Server:
    """Return the server at an earlier model, without momentum; a new epoch makes the agents forget their duals."""
    orders = server.orders._replace(epoch=server.orders.epoch + 1)
    return server._replace(y=y, mean=mean, dual=0 * server.dual, momentum=0 * server.momentum, orders=orders)


def ladder_of(step: Array) -> Array:
    """Return the step sizes to try; `step`: gamma, or 0 if it is not known."""
    return jnp.where(step > 0, jnp.array(NEAR) * step, jnp.array(FIRST))


def acceptable(ladder: Array, losses: Array, level: Array, share: Any) -> tuple[Array, Array]:
    """Return the smallest and the largest step size of a ladder whose losses are good, interpolated.

    Args:
        ladder: (n,) the step sizes in ascending order. The first is so small that nothing moves.
        losses: (n,) H of each.
        level: The loss at x^0.
        share: The part of the decrease since x^0 that a good step may miss.
    """
    best, start = losses.min(), losses[0]
    logs = jnp.log(jnp.maximum(ladder, ladder[1] / 8))
    low = jnp.maximum(best, jnp.minimum(1.05 * best, start - 0.8 * (start - best)))
    k = jnp.argmax(losses <= low)
    smallest = jnp.exp(_crossing(logs, losses, jnp.maximum(k - 1, 0), k, low))
    high = best + share * jnp.maximum(level - best, 0)
    k = len(ladder) - 1 - jnp.argmax((losses <= high)[::-1])
    capped = jnp.minimum(losses, high + 2 * jnp.abs(level))
    largest = jnp.exp(_crossing(logs, capped, jnp.minimum(k + 1, len(ladder) - 1), k, high))
    return smallest, largest


def _crossing(logs: Array, losses: Array, beyond: Array, k: Array, limit: Array) -> Array:
    """Return where the loss crosses the limit between trial `beyond`, which is above it, and trial k."""
    gap = losses[beyond] - losses[k]
    share = jnp.clip((limit - losses[k]) / jnp.where(gap > 0, gap, 1), 0, 1)
    return logs[k] + jnp.where(gap > 0, share, 0) * (logs[beyond] - logs[k])


def choose(condition: Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


@makes(FedPDN)
def fedpd_n(
    *,
    iterations: int,
    batch: int,
    cohort: int,
    step: float | None = None,
    adapt: bool = True,
    rho: float = 0.2,
    beta: float | None = None,
    penalty: float = 0.0,
) -> Method:
    """Return FedPD-N, for networks with mini-batches. `fedpd.train` chooses its arguments.

    Args:
        iterations: Q, the number of local steps per round.
        batch: Samples per step.
        cohort: K, the agents per round; N if all take part. The momentum depends on it.
        step: The first step size gamma; None: trials in the first round find it.
        adapt: Whether trials and losses change the step size during the run, and return to an earlier model.
        rho: The part of a dual step that is made, in [0, 1].
        beta: The server's momentum, in [0, 1); None: 0.8, and less at first for fewer than nine agents.
        penalty: The weight of FedPD's penalty in the local steps, in units of 1/eta.

    Examples:
        >>> from fedpd import algorithms
        >>> algorithms.fedpd_n(iterations=10, batch=20, cohort=10).description
        'fedpd_n(iterations=10, batch=20, cohort=10)'
    """
    count("iterations", iterations, "Give Q, the number of local steps, e.g. 10", bits=31)
    count("batch", batch, "Give the samples per step, e.g. 20", bits=31)
    count("cohort", cohort, "Give K, the agents per round; N if all take part", bits=31)
    if step is not None:
        positive("step", step, "Give the first step size, or None: trials find it")
    elif not adapt:
        refuse("adapt", adapt, "needs a step, since no trial finds one", "Give step=, or leave adapt out")
    at_most("rho", at_least("rho", rho, 0, RHO), 1, RHO)
    if beta is not None:
        below("beta", at_least("beta", beta, 0, BETA), 1, BETA)
    at_least("penalty", penalty, 0, "0 leaves the penalty out, 1 is FedPD's")
    return FedPDN(
        iterations=iterations,
        batch=batch,
        cohort=cohort,
        step=step,
        adapt=adapt,
        rho=rho,
        beta=beta,
        penalty=penalty,
    )


def _rule(L: float, agents: int, scale: Any) -> Method:
    return fedpd_n(iterations=Q, batch=1, cohort=agents, step=scale / (4 * L * Q), adapt=False)


CARD = Card(
    title="FedPD-N",
    summary="FedPD for networks: mini-batches, small cohorts, nothing to tune",
    family="primal-dual",
    reference=Reference(
        authors="Xinwei Zhang, Mingyi Hong, Sairaj Dhople, Wotao Yin, Yang Liu",
        title="FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data",
        venue="IEEE Transactions on Signal Processing 69, 6055-6070 (2021); the changes for networks are fedpd's own",
        year=2021,
    ),
    variants=(Variant("FedPD-N", _rule, Guarantee("none")),),
    parameters={
        "cohort": "K, the number of agents per round",
        "adapt": "whether trials and losses change the step size",
        "rho": "ρ, the part of a dual step that is made",
        "beta": "β, the server's momentum",
        "penalty": "the weight of the penalty, in units of 1/η",
    },
)
