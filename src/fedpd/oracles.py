"""Local solvers (oracles), which minimise `phi_i(x) = f_i(x) + <linear, x> + (curvature/2)||x||^2` approximately.

    gd     Oracle I, option I     x <- x - step grad phi_i(x)
    sgd    Oracle I, option II    x <- x - step (h_i(x; xi) + linear + curvature x)
    vr     Oracle II    minimises a linearised phi_i exactly, with a recursive gradient estimate
    dp_sgd gradient steps with example-level differential privacy
    optax  any optax optimiser on stochastic or full gradients of phi_i
    lbfgs  L-BFGS on full gradients, with secant pairs kept over rounds; its tolerance is relative
    phases one oracle on some of the parameters, then another one on the rest (FedRep)

phi_i is a `Subproblem`. Each oracle does Q = `iterations` steps. With `tolerance` = eps_1 it stops earlier, at the
first checked point with ||grad phi_i||^2 <= eps_1. For this check, stochastic oracles compute grad phi_i every `check`
steps, and fedpd counts the cost (|D_i| samples).

`sgd` and `optax` take `epochs` in place of `iterations`: passes over the agent's own samples, each in a new random
order and without replacement. An agent then does epochs ceil(|D_i|/batch) steps, and epochs |D_i| sample gradients. The
last batch of an epoch is the rest, and its gradient is the mean over the samples of that rest.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax as optax_library
from jax import lax
from tree_math import Vector

from fedpd.base.checks import at_least, below, count, is_traced, positive, refuse
from fedpd.base.value import attribute
from fedpd.core import Array, Key, LocalObjective, Oracle, Subproblem, Tree, Work, makes
from fedpd.core.dp_sgd import dp_sgd as dp_sgd
from fedpd.core.lbfgs import Secants, minimise, no_secants
from fedpd.core.message import merged, names_of, part_of
from fedpd.core.objective import WeightedBatch, with_fixed
from fedpd.core.oracle import ITERATIONS, check_oracle, check_step, step_at
from fedpd.core.oracle import STEP as STEP
from fedpd.core.oracle import Optimizer as Optimizer
from fedpd.core.oracle import Step as Step
from fedpd.core.oracle import optimizer as optimizer
from fedpd.core.oracle import optimizers as optimizers
from fedpd.core.sampling import Draw, shuffle, uniform

EPOCHS = "Give the passes over the agent's own samples, e.g. epochs=5"


class GD(Oracle):
    """Oracle I, option I."""

    step: float | Step
    iterations: int
    tolerance: float | None
    counts: ClassVar = ("iterations",)

    def solve(self, phi: Subproblem, x: Vector, memory: None, r: Array, key: Key) -> tuple[Vector, None, Work]:
        steps = phi.f.steps(self.iterations)
        if self.tolerance is not None:
            return self._solve_to_tolerance(phi, x, r, steps)
        x = lax.fori_loop(0, steps, lambda q, x: x - step_at(self.step, r, q) * phi.gradient(x), x)
        return x, None, Work.of(steps, steps, phi.f.size)

    def _solve_to_tolerance(self, phi: Subproblem, x: Vector, r: Array, steps: Any) -> tuple[Vector, None, Work]:
        def unfinished(carry: tuple[Array, Vector, Vector]) -> Array:
            q, _, gradient = carry
            return (q < steps) & (gradient @ gradient > self.tolerance)

        def descend(carry: tuple[Array, Vector, Vector]) -> tuple[Array, Vector, Vector]:
            q, x, gradient = carry
            x = x - step_at(self.step, r, q) * gradient
            return q + 1, x, phi.gradient(x)

        q, x, _ = lax.while_loop(unfinished, descend, (jnp.int32(0), x, phi.gradient(x)))
        return x, None, Work.of(q, q + 1, phi.f.size)


@makes(GD)
def gd(step: float | Step, iterations: int, tolerance: float | None = None) -> Oracle:
    """Return gradient descent (Oracle I, option I): x <- x - step grad phi_i(x).

    Args:
        step: The step size, or a function of the round r and the local step q.
        iterations: Q, the number of local steps per round.
        tolerance: eps_1. If given, the oracle stops as soon as ||grad phi_i||^2 <= eps_1.

    Examples:
        >>> from fedpd import oracles
        >>> oracles.gd(step=0.1, iterations=8).description
        'gd(step=0.1, iterations=8)'
        >>> falling = oracles.gd(step=lambda r, q: 0.1 / (1 + r), iterations=9, tolerance=0.1)
        >>> falling.description.endswith("tolerance=0.1)")
        True
    """
    check_step(step)
    count("iterations", iterations, ITERATIONS, bits=31)
    _check_tolerance(tolerance)
    return GD(step=step, iterations=iterations, tolerance=tolerance)


class Stochastic(Oracle):
    """Q steps on random samples, or blocks of `check` steps until the full gradient is small enough, or epochs."""

    iterations: int | None  # Q, the largest number of steps; None: `epochs` says how many
    epochs: int | None = None  # passes over the agent's own samples; None: Q steps
    batch: int | None  # samples per step; None: all samples of the agent
    tolerance: float | None = None  # the value of ||grad phi_i||^2 at which it stops; None: it does Q steps
    check: int | None = None  # steps between two checks; None: Q
    draw: Draw = uniform  # draws the samples
    gradients: ClassVar[int] = 1  # the gradients of each sample that a step computes

    def advance(self, phi: Subproblem, carry: Any, rows: Tree, r: Array, q: Array) -> Any:
        """Return the carry after local step q on these samples."""
        raise NotImplementedError

    def position(self, carry: Any) -> Vector:
        """Return x of a carry, which may have more behind it."""
        return carry[0] if isinstance(carry, tuple) else carry

    def run(self, phi: Subproblem, carry: Any, r: Array, key: Key) -> tuple[Any, Work]:
        """Return the carry after the steps, and the work."""
        if self.epochs is not None and self.batch is not None:
            return self._run_epochs(self.epochs, self.batch, phi, carry, r, key)
        iterations = self.iterations if self.epochs is None else self.epochs  # an epoch on all samples is one step
        assert iterations is not None  # a factory checks that one of the two is given
        size, steps = phi.f.size, phi.f.steps(iterations)
        cost = self.gradients * (size if self.batch is None else jnp.int32(self.batch))

        def step(carry: Any, one: tuple[Array, Array | None]) -> tuple[Any, None]:
            q, drawn = one
            now = phi if phi.f.noise is None else phi._replace(f=phi.f.at_step(q))
            rows = None if drawn is None else phi.f.rows(drawn)
            new = self.advance(now, carry, rows, r, q)
            if phi.f.effort is not None:  # a straggler stops early
                new = jax.tree.map(partial(jnp.where, q < steps), new, carry)
            return new, None

        def block(carry: Any, key: Key, first: Any, length: int) -> Any:
            # Draw all indices of a block at once, but gather the rows in each step. The rows of all steps would not fit
            # in the cache, and a vmap over agents would transpose them. Measured with batch 1, Q = 600, N = 100 and
            # D = 100: 2.5 times as fast as gathering all rows first.
            drawn = None
            if self.batch is not None:
                drawn = self.draw(key, r, phi.f.agent, size, (length, self.batch))
            return lax.scan(step, carry, (first + jnp.arange(length), drawn))[0]

        if self.tolerance is None:
            return block(carry, key, 0, iterations), Work.of(steps, steps, cost)
        check = iterations if self.check is None else self.check

        def too_large(carry: Any) -> Array:
            gradient = phi.gradient(self.position(carry))
            return gradient @ gradient > self.tolerance

        def unfinished(loop: tuple[Array, Any, Array]) -> Array:
            return (loop[0] < steps) & loop[2]

        def next_block(loop: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
            q, carry, _ = loop
            carry = block(carry, jax.random.fold_in(key, q), q, check)
            return q + check, carry, too_large(carry)

        q, carry, _ = lax.while_loop(unfinished, next_block, (jnp.int32(0), carry, too_large(carry)))
        taken = jnp.minimum(q, steps)
        return carry, Work.of(taken, taken, cost).plus(Work.of(0, q // check + 1, size))

    def _run_epochs(
        self, epochs: int, length: int, phi: Subproblem, carry: Any, r: Array, key: Key
    ) -> tuple[Any, Work]:
        """Return the carry after passes over the samples, each in an order of its own, and the work.

        The number of steps is data, so agents that run one after another do their own and no more.
        """
        size, batches = phi.f.size, -(-phi.f.size // jnp.int32(length))
        steps = phi.f.steps(epochs * batches)

        def epoch(number: Array, carry: Any) -> Any:
            order = shuffle(jax.random.fold_in(key, number), size)

            def step(place: Array, carry: Any) -> Any:
                places, q = place * length + jnp.arange(length, dtype=jnp.int32), number * batches + place
                # The last batch continues with the first samples of the epoch, which do not count: shapes are fixed,
                # and batch normalisation sees samples of this agent only.
                inside = places < size
                batch = WeightedBatch(phi.f.rows(order(places % size)), inside / jnp.sum(inside))
                now = phi if phi.f.noise is None else phi._replace(f=phi.f.at_step(q))
                return self.advance(now, carry, batch, r, q)

            return lax.fori_loop(0, jnp.clip(steps - number * batches, 0, batches), step, carry)

        return lax.fori_loop(0, epochs, epoch, carry), work_of_epochs(steps, batches, size, length, self.gradients)


def work_of_epochs(steps: Any, batches: Array, size: Array, batch: int, gradients: int) -> Work:
    """Return the work of steps in epochs; a straggler may end within one, and then before its last batch."""
    whole, rest = steps // batches, steps % batches
    return Work.of(steps, gradients * whole, size).plus(Work.of(0, gradients * rest, batch))


def check_stochastic(
    iterations: int | None,
    batch: int | None,
    tolerance: float | None = None,
    check: int | None = None,
    epochs: int | None = None,
    draw: Draw = uniform,
) -> None:
    """Refuse settings of a stochastic oracle that do not fit."""
    if batch is not None:
        count("batch", batch, "Give the samples per step, or None for all samples of the agent", bits=31)
    _check_tolerance(tolerance)
    if epochs is not None:
        count("epochs", epochs, EPOCHS, bits=31)
        _check_epochs(epochs, iterations=iterations, tolerance=tolerance, check=check)
        if draw is not uniform:
            refuse("draw", draw, "draws with replacement, and epochs have an order", "Leave it out, or give iterations")
        return
    if iterations is None:
        refuse("iterations", None, "must be given, unless epochs is", f"{ITERATIONS}, or the passes, e.g. epochs=5")
    count("iterations", iterations, ITERATIONS, bits=31)
    if check is None:
        return
    if tolerance is None:
        refuse("check", check, "is an interval of checks, so it needs a tolerance", "Give both or neither")
    count("check", check, "Give the steps between two checks")
    if iterations % check:
        refuse("check", check, f"must divide iterations = {iterations}", "Choose a divisor")


def same_iterations(iterations: int | None, epochs: int | None, reason: str) -> int:
    """Return Q of a method whose algebra needs the same at all agents; refuse epochs."""
    if epochs is not None:
        rule = f"gives each agent a Q of its own, and {reason}"
        refuse("epochs", epochs, rule, "Give iterations, or choose scaffold, which takes epochs")
    if iterations is None:
        refuse("iterations", None, "must be given", ITERATIONS)
    return int(count("iterations", iterations, ITERATIONS, bits=31))


def _check_epochs(epochs: int, **others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            refuse(
                "epochs", epochs, f"does not go with {name} = {value!r}, which counts steps", "Leave one of them out"
            )


class SGD(Stochastic):
    """Oracle I, option II."""

    step: float | Step

    def advance(self, phi: Subproblem, x: Vector, rows: Tree, r: Array, q: Array) -> Vector:
        return x - step_at(self.step, r, q) * phi.complete(estimate(phi, x, rows), x)

    def solve(self, phi: Subproblem, x: Vector, memory: None, r: Array, key: Key) -> tuple[Vector, None, Work]:
        x, work = self.run(phi, x, r, key)
        return x, None, work


class MomentumSGD(Stochastic):
    """The steps of torch.optim.SGD, on the gradient of phi_i after clip_grad_norm_. The buffer starts at 0 each round.

    It is no `SGD`: what relies on x moving by the sum of step times gradient must not take it for one.
    """

    step: float | Step
    momentum: float
    nesterov: bool
    weight_decay: float
    clip: float | None

    def solve(self, phi: Subproblem, x: Vector, memory: None, r: Array, key: Key) -> tuple[Vector, None, Work]:
        (x, _), work = self.run(phi, (x, None if _is_off(self.momentum) else 0 * x), r, key)
        return x, None, work

    def advance(
        self, phi: Subproblem, carry: tuple[Vector, Vector | None], rows: Tree, r: Array, q: Array
    ) -> tuple[Vector, Vector | None]:
        x, buffer = carry
        change = phi.complete(estimate(phi, x, rows), x)
        if self.clip is not None:  # 1e-6 is PyTorch's
            change = change * jnp.minimum(1, self.clip / (jnp.sqrt(change @ change) + 1e-6))
        if not _is_off(self.weight_decay):
            change = change + self.weight_decay * x
        if buffer is not None:
            buffer = self.momentum * buffer + change
            change = change + self.momentum * buffer if self.nesterov else buffer
        return x - step_at(self.step, r, q) * change, buffer


def _is_off(number: Any) -> bool:
    """Return whether a number is 0, which is static in a value; a traced one is another."""
    return not is_traced(number) and number == 0


@makes(SGD, MomentumSGD)
def sgd(
    step: float | Step,
    iterations: int | None = None,
    batch: int | None = 1,
    *,
    epochs: int | None = None,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip: float | None = None,
    tolerance: float | None = None,
    check: int | None = None,
    draw: Draw = uniform,
) -> Oracle:
    """Return stochastic gradient descent (Oracle I, option II): x <- x - step (h_i(x; xi) + linear + curvature x).

    With momentum, weight decay or a clip, the steps are those of torch.optim.SGD after clip_grad_norm_:

        g = clipped(h_i(x; xi) + linear + curvature x) + weight_decay x
        u = momentum u + g,     x <- x - step u              nesterov: x <- x - step (g + momentum u)

    The clip is on the whole gradient of phi_i, as in programs that add a method's terms to the loss: it vanishes at a
    solution of the local problem, where h_i alone does not if the agents differ. Weight decay comes after the clip, and
    adds (weight_decay/2)||x||^2 to every phi_i. The history measures f without it.

    Args:
        step: The step size, or a function of the round r and the local step q, e.g. `schedules.exponential`.
        iterations: Q, the number of local steps per round, the same for all agents. Give this or `epochs`.
        batch: Samples per step. With `iterations`, they are drawn again for each step, with replacement; None takes all
            samples of the agent.
        epochs: Passes over the agent's own samples per round, without replacement: epochs ceil(|D_i|/batch) steps. Each
            pass has a new random order, and its last batch is the rest. With batch=None a pass is one full gradient.
        momentum: The factor on the old buffer u, which starts at 0 in every round; 0: no momentum.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: The factor of x that is added to the gradient.
        clip: The largest norm of the gradient of phi_i in a step; None: it is not clipped.
        tolerance: eps_1. If given, the oracle stops at the first checked point with ||grad phi_i||^2 <= eps_1. It needs
            `iterations`.
        check: Steps between two checks of the tolerance, a divisor of `iterations`; None checks before and after all
            steps. A check costs a full gradient, and fedpd counts it.
        draw: Draws the samples of `iterations`; a test can replay recorded draws.

    Examples:
        >>> from fedpd import oracles
        >>> oracles.sgd(step=0.1, iterations=30, batch=10).description
        'sgd(step=0.1, iterations=30, batch=10)'
        >>> oracles.sgd(step=0.1, epochs=5, batch=50, momentum=0.9).description
        'sgd(step=0.1, batch=50, epochs=5, momentum=0.9)'
    """
    check_step(step)
    check_stochastic(iterations, batch, tolerance, check, epochs, draw)
    check_decay(weight_decay, clip)
    remedy = "Give the factor on the old buffer, e.g. 0.9; 0 is no momentum"
    below("momentum", at_least("momentum", momentum, 0, remedy), 1, remedy)
    if nesterov and _is_off(momentum):
        refuse("nesterov", nesterov, "needs a momentum", "Give e.g. momentum=0.9")
    same: dict[str, Any] = {"step": step, "iterations": iterations, "epochs": epochs, "batch": batch}
    same |= {"tolerance": tolerance, "check": check, "draw": draw}
    if _is_off(momentum) and _is_off(weight_decay) and clip is None:
        return SGD(**same)
    return MomentumSGD(**same, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, clip=clip)


def check_decay(weight_decay: float, clip: float | None) -> None:
    """Refuse a weight decay or a clip that does not fit."""
    at_least("weight_decay", weight_decay, 0, "Give the factor of x in the gradient, e.g. 1e-3; 0 is none")
    if clip is not None:
        positive("clip", clip, "Give the largest norm of a gradient, e.g. 10.0, or None")


class LBFGS(Oracle):
    tolerance: float
    iterations: int
    pairs: int
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Secants:
        return no_secants(x, self.pairs)

    def solve(self, phi: Subproblem, x: Vector, known: Secants, r: Array, key: Key) -> tuple[Vector, Secants, Work]:
        x, known, trials = minimise(phi, x, known, self.tolerance, phi.f.steps(self.iterations))
        return x, known, Work.of(trials, trials + 1, phi.f.size)


@makes(LBFGS)
def lbfgs(tolerance: float = 3e-3, iterations: int = 100, pairs: int = 20) -> Oracle:
    """Return L-BFGS on full gradients of phi_i, which never raises phi_i. Secant pairs are kept from round to round.

    Args:
        tolerance: The factor by which a solve reduces ||grad phi_i||; rounding ends it as well.
        iterations: Q, the most gradients of a solve after its first one.
        pairs: The secant pairs that an agent keeps; each takes the room of two models.

    Examples:
        >>> from fedpd import oracles
        >>> oracles.lbfgs(tolerance=1e-2, iterations=50).description
        'lbfgs(tolerance=0.01, iterations=50)'
    """
    positive("tolerance", tolerance, "Give the factor by which a solve reduces ||grad phi_i||, e.g. 3e-3")
    count("iterations", iterations, ITERATIONS, bits=31)
    count("pairs", pairs, "Give the secant pairs that are kept, e.g. 20")
    return LBFGS(tolerance=tolerance, iterations=iterations, pairs=pairs)


class Estimate(NamedTuple):
    """The memory of Oracle II between rounds."""

    g: Vector  # g_i, the gradient estimate
    uncounted: Array  # whether g is a full gradient whose samples are not counted yet


class VR(Stochastic):
    """Oracle II."""

    gamma: float
    refresh: int
    gradients: ClassVar = 2
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Estimate:
        # Round 0 computes g_i, but an agent may be absent then, or lose its state later: it must start with a gradient.
        return Estimate(f.gradient(x), jnp.bool_(True))

    def solve(self, phi: Subproblem, x: Vector, known: Estimate, r: Array, key: Key) -> tuple[Vector, Estimate, Work]:
        if phi.curvature is None and isinstance(self.gamma, float) and self.gamma == float("inf"):
            rule = "needs a method with a quadratic term"
            refuse("gamma", self.gamma, rule, "Give a finite gamma, the local step size")
        renew = r % self.refresh == 0
        g = lax.cond(renew, lambda: phi.f.gradient(x), lambda: known.g)
        (x, g), work = self.run(phi, (x, g), r, key)
        work = work._replace(samples=work.samples + jnp.where(renew | known.uncounted, phi.f.size, 0))
        return x, Estimate(g, jnp.bool_(False)), work

    def advance(
        self, phi: Subproblem, carry: tuple[Vector, Vector], rows: Tree, r: Array, q: Array
    ) -> tuple[Vector, Vector]:
        x, g = carry
        pull = x / self.gamma - (g if phi.linear is None else g + phi.linear)
        new = pull / (1 / self.gamma + (0 if phi.curvature is None else phi.curvature))
        return new, g + estimate(phi, new, rows) - estimate(phi, x, rows)


@makes(VR)
def vr(
    gamma: float,
    iterations: int,
    refresh: int,
    batch: int | None = 1,
    *,
    tolerance: float | None = None,
    check: int | None = None,
    draw: Draw = uniform,
) -> Oracle:
    """Return Oracle II, which reduces the variance over the whole primal-dual iteration.

    It starts a round with g_i = grad f_i(x_i) if r mod I = 0, else with g_i from the previous round; then Q times

        x+ = argmin <g + linear, x> + (curvature/2)||x||^2 + ||x - x_q||^2/(2 gamma)
           = (x_q/gamma - g - linear) / (curvature + 1/gamma)
        g+ = g + mean_b (h_i(x+; xi_b) - h_i(x; xi_b))

    If the first round of an agent is not one with r mod I = 0, the agent starts with g_i = grad f_i(x^0), and fedpd
    counts the cost in that round.

    Args:
        gamma: The local step size. It may be infinite, as in the authors' program, if the method has a quadratic term.
        iterations: Q, the number of local steps per round.
        refresh: I, the rounds between two full gradients.
        batch: Samples per step, drawn again for each step; None takes all samples of the agent.
        tolerance: eps_1. If given, the oracle stops at the first checked point with ||grad phi_i||^2 <= eps_1.
        check: Steps between two checks of the tolerance, as in `sgd`.
        draw: Draws the samples; a test can replay recorded draws.

    Examples:
        >>> from fedpd import oracles
        >>> oracles.vr(gamma=0.1, iterations=8, refresh=20).description
        'vr(gamma=0.1, iterations=8, refresh=20)'
    """
    positive("gamma", gamma, "Give the paper's gamma, e.g. gamma = eta, or infinity", infinite=True)
    count("refresh", refresh, "Give I, the rounds between two full gradients, e.g. 20")
    check_stochastic(iterations, batch, tolerance, check)
    return VR(
        gamma=gamma, refresh=refresh, iterations=iterations, batch=batch, tolerance=tolerance, check=check, draw=draw
    )


class Optax(Stochastic):
    optimizer: Any
    keep_state: bool
    label: str

    @property
    def transform(self) -> optax_library.GradientTransformation:
        return self.optimizer.transform if isinstance(self.optimizer, Optimizer) else self.optimizer

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return self.transform.init(x) if self.keep_state else None

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        state = memory if self.keep_state else self.transform.init(x)
        (x, state), work = self.run(phi, (x, state), r, key)
        return x, state if self.keep_state else None, work

    def advance(self, phi: Subproblem, carry: tuple[Vector, Any], rows: Tree, r: Array, q: Array) -> tuple[Vector, Any]:
        x, state = carry
        gradient = phi.complete(estimate(phi, x, rows), x)
        rule = self.optimizer.at(r, q) if isinstance(self.optimizer, Optimizer) else self.optimizer
        try:
            updates, state = rule.update(gradient, state, x)
        except TypeError as error:
            name = self.optimizer.spec.label() if isinstance(self.optimizer, Optimizer) else self.label
            why = f"cannot take a step with a gradient alone ({error})"
            refuse("optimizer", name, why, "Give e.g. optax.adam(1e-2)")
        return x + updates, state


@makes(Optax)
def optax(
    optimizer: "optax_library.GradientTransformation | Optimizer",
    iterations: int | None = None,
    batch: int | None = None,
    *,
    epochs: int | None = None,
    keep_state: bool = False,
    label: str = "custom",
    tolerance: float | None = None,
    check: int | None = None,
    draw: Draw = uniform,
) -> Oracle:
    """Return an oracle that applies an optax optimiser to gradients of phi_i.

    Args:
        optimizer: An optimiser of optax, or `optimizer("adam", ...)`, which an experiment file can contain and whose
            learning rate may be a schedule by round, e.g. `schedules.exponential`.
        iterations: Q, the number of local steps per round, the same for all agents. Give this or `epochs`.
        batch: Samples per step. With `iterations`, they are drawn again for each step, with replacement; None takes all
            samples of the agent.
        epochs: Passes over the agent's own samples per round, as in `sgd`.
        keep_state: Whether to keep the optimiser's state (momentum, second moments, step count) between rounds. By
            default the optimiser starts again in every round, because phi_i is then another function.
        label: The optimiser's name in descriptions.
        tolerance: eps_1, as in `sgd`. It needs `iterations`.
        check: Steps between two checks of the tolerance, as in `sgd`.
        draw: Draws the samples of `iterations`; a test can replay recorded draws.

    Examples:
        >>> from fedpd import oracles
        >>> from fedpd.core.oracle import optimizer
        >>> oracles.optax(optimizer("adam", learning_rate=0.01), iterations=20, batch=10).description
        'optax(optimizer=adam(learning_rate=0.01), iterations=20, batch=10)'
    """
    made = Optax(
        optimizer=optimizer,
        iterations=iterations,
        epochs=epochs,
        batch=batch,
        keep_state=keep_state,
        label=label,
        tolerance=tolerance,
        check=check,
        draw=draw,
    )
    if not isinstance(made.transform, optax_library.GradientTransformation):
        refuse("optimizer", optimizer, "must be an optax optimiser", "Give e.g. optax.adam(1e-2)")
    check_stochastic(iterations, batch, tolerance, check, epochs, draw)
    return made


class Phases(Oracle):
    """An oracle on the parameters of the first phase, then another one on the rest."""

    first: Oracle
    then: Oracle
    where: Callable[[str], bool]

    def init(self, f: LocalObjective, x: Vector) -> Any:
        names = names_of(x.tree)
        if names != [""] and len({self.where(name) for name in names}) == 1:  # "": fedpd's own example of a model
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            rule = f"is {self.where(names[0])} for all paths, so one phase has no parameters. The paths are {shown}"
            refuse("where", self.where, rule, 'Give e.g. where=lambda path: path.startswith("head")')
        return tuple(one.init(f_own, own) for one, f_own, own, _ in self._phases(f, x))

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        kept, done = [], None
        for phase in range(2):
            oracle, f, own, fixed = self._phases(phi.f, x)[phase]
            linear = None if phi.linear is None else self._phases(phi.f, phi.linear)[phase][2]
            problem = Subproblem(f, linear, phi.curvature)
            own, held, work = oracle.solve(problem, own, memory[phase], r, jax.random.fold_in(key, phase))
            x, done = merged(own, fixed), work if done is None else done.plus(work)
            kept.append(held)
        assert done is not None
        return x, tuple(kept), done

    def _phases(self, f: LocalObjective, x: Vector) -> list[tuple[Oracle, LocalObjective, Vector, Vector]]:
        """Return the oracle of each phase, f_i of the parameters that it changes, these, and the others."""
        first, then = (part_of(x, self.where, personal=chosen) for chosen in (True, False))
        return [
            (self.first, with_fixed(_in_phase(f, 0), then), first, then),
            (self.then, with_fixed(_in_phase(f, 1), first), then, first),
        ]


def _in_phase(f: LocalObjective, phase: int) -> LocalObjective:
    """Return f_i with random numbers of this phase."""
    noise = f.noise
    return f if noise is None else f._replace(noise=noise._replace(key=jax.random.fold_in(noise.key, phase)))


@makes(Phases)
def phases(first: Oracle, then: Oracle, where: Callable[[str], bool]) -> Oracle:
    """Return an oracle that minimises over some of the parameters first, and then over the rest.

    With `transforms.wrap(algorithms.fedavg(oracle=...), personal=where)` this is FedRep: in each round an agent trains
    its head on the received body, and then the body on the new head.

    Args:
        first: The oracle of the first phase. The parameters of the second one stay as they are.
        then: The oracle of the second phase.
        where: Which parameters the first phase changes: a function of the path of a parameter.

    Examples:
        >>> from fedpd import algorithms, oracles, transforms
        >>> def is_head(path):
        ...     return path.startswith("head")
        >>> head, body = oracles.gd(step=0.1, iterations=10), oracles.gd(step=0.1, iterations=5)
        >>> both = oracles.phases(first=head, then=body, where=is_head)
        >>> fedrep = transforms.wrap(algorithms.fedavg(oracle=both), personal=is_head)
    """
    for name, oracle in (("first", first), ("then", then)):
        check_oracle(oracle)
        if oracle.compares_rounds or oracle.needs_samples or isinstance(oracle, OwnLoop | Phases):
            rule = "cannot be a phase: it compares rounds, adds noise to samples, is a loop, or has phases"
            refuse(name, oracle.description, rule, "Give oracles.gd, sgd or optax")
    if not callable(where):
        remedy = 'Give e.g. where=lambda path: path.startswith("head")'
        refuse("where", where, "must be a function of the path of a parameter", remedy)
    return Phases(first=first, then=then, where=where)


class OwnLoop(Oracle):
    step = attribute(None)  # that of the loop

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        remedy = "Run it in fedpd.torch.local or fedpd.local, or give an oracle such as oracles.sgd"
        refuse("oracle", self.description, "stands for a training loop of your own", remedy)


@makes(OwnLoop)
def own_loop() -> Oracle:
    """Return a place holder for a training loop of your own, for `fedpd.torch.local`, `fedpd.local` and Flower's mod.

    Examples:
        >>> from fedpd import oracles
        >>> oracles.own_loop().description
        'own_loop()'
    """
    return OwnLoop()


def estimate(phi: Subproblem, x: Vector, rows: Tree) -> Vector:
    """Return h_i(x) on these rows, or grad f_i(x) on all samples of the agent if `rows` is None."""
    if isinstance(rows, WeightedBatch):
        return phi.f.stochastic_gradient(x, rows.rows, rows.weights)
    return phi.f.gradient(x) if rows is None else phi.f.stochastic_gradient(x, rows)


def _check_tolerance(tolerance: float | None) -> None:
    if tolerance is not None:
        positive("tolerance", tolerance, "Give eps_1, the ||grad phi_i||^2 at which the oracle stops, e.g. 1e-8")
