"""Local oracles that run in PyTorch, on the module's own parameters: `sgd`, `vr` (Oracle II), any torch optimiser.

They do the same steps as `fedpd.oracles` on the same batches, for a `torch_local`. Once per round JAX passes the terms
of phi_i(x) = f_i(x) + <linear, x> + (curvature/2)||x||^2, the drawn indices and the memory, which contains the module's
buffers.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import count, positive, refuse
from fedpd.base.errors import extra
from fedpd.base.value import attribute
from fedpd.core import Array, Key, LocalObjective, Oracle, Subproblem, Work, makes
from fedpd.core.oracle import check_step, step_at
from fedpd.core.sampling import Draw, shuffle, uniform
from fedpd.flower.torch import TorchLosses, array_of, load, locked, seeded, tensor_of
from fedpd.oracles import Step, check_stochastic, work_of_epochs
from fedpd.problems.external import call_back

with extra("torch", "fedpd.flower.torch_oracles"):
    import torch
    from torch import Tensor

__all__ = ["optimizer", "sgd", "vr"]

Tensors = dict[str, Tensor]
DROPOUT = 2**31 - 1  # folded into an agent's key, so that the module's random numbers differ from those of the samples


class Task(NamedTuple):
    """One local solve in PyTorch; the module's parameters are x_i.

    Attributes:
        losses: The losses of the client's samples.
        linear: The linear term of phi_i; None: there is none.
        curvature: The quadratic term of phi_i; None: there is none.
        scale: The weight of f_i.
        samples: The indices of all samples.
        batches: The indices of the samples of every step.
        lengths: The step sizes.
        g: Oracle II's estimate of grad f_i; None for other oracles.
        renew: Whether to compute g again from all samples.
    """

    losses: TorchLosses
    linear: Tensors | None
    curvature: float | None
    scale: float
    samples: np.ndarray
    batches: list[np.ndarray]
    lengths: np.ndarray
    g: Tensors | None
    renew: bool

    def complete(self, gradient: Tensors) -> Tensors:
        """Return grad phi_i at the module's parameters, given (an estimate of) grad f_i."""
        return {name: self._complete(name, part) for name, part in gradient.items()}

    def _complete(self, name: str, part: Tensor) -> Tensor:
        part = part if self.scale == 1 else self.scale * part
        part = part if self.linear is None else part + self.linear[name]
        return part if self.curvature is None else part + self.curvature * self.losses.parameters[name].detach()


Descend = Callable[[Task], Tensors | None]  # changes the module's parameters, and returns g_i if the oracle has one


class TorchOracle(Oracle):
    """An oracle whose local solve runs in PyTorch. JAX calls it back with NumPy arrays; it does not call JAX.

    Its name has "torch." before it, because PyTorch and JAX round differently.
    """

    iterations: int | None
    epochs: int | None = None
    batch: int | None
    draw: Draw
    prefix: ClassVar = "torch."
    gradients: ClassVar[int] = 1  # of each sample, per step
    refreshes = attribute(None)  # rounds between two full gradients, for an oracle that keeps g_i

    def descend(self) -> Descend:
        """Return the function that does the steps. It must not use numbers of the oracle, which JAX may trace."""
        raise NotImplementedError

    def length(self, r: Any, q: Any) -> Any:
        """Return the length of local step q in round r."""
        return 1.0

    def init(self, f: LocalObjective, x: Vector) -> Any:
        memory: dict[str, Any] = {} if self.refreshes is None else {"g": f.gradient(x), "owed": jnp.bool_(True)}
        return memory | (_buffers(f.losses) if isinstance(f.losses, TorchLosses) else {})

    def solve(self, phi: Subproblem, x: Vector, memory: Any, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        f = phi.f
        Q, steps, work = self._plan(f)
        renew = owed = jnp.bool_(False)
        if self.refreshes is not None:  # as in fedpd.oracles.vr: start with grad f_i(x^0), counted when used
            renew, owed = r % self.refreshes == 0, memory["owed"]
        work = work.plus(Work.of(0, renew | owed, f.size))
        if not jax.tree.leaves(f.data):  # the caller needs only shapes
            return x, memory, work
        losses = _check(f)
        drawn = None if self.batch is None else f.rows(self._drawn(f, r, key, (Q, self.batch)))
        lengths = jax.vmap(lambda q: jnp.asarray(self.length(r, q), float))(jnp.arange(Q))
        seed = jax.random.bits(jax.random.fold_in(key, DROPOUT), dtype=jnp.uint32)
        terms = (x, phi.linear, phi.curvature, f.scale, f.size, f.data)
        given = Arguments(*terms, steps, lengths, drawn, memory, renew, seed)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (x, memory))
        length = None if self.epochs is None else self.batch
        x, memory = call_back(partial(_solve, losses, self.descend(), length), shapes, given)
        return x, memory, work

    def _plan(self, f: LocalObjective) -> tuple[int, Any, Work]:
        """Return the most steps of any agent, the steps of this one, and its work."""
        if self.epochs is None or self.batch is None:
            Q = self.epochs if self.iterations is None else self.iterations
            assert Q is not None  # a factory checks that one of the two is given
            cost = self.gradients * (f.size if self.batch is None else jnp.int32(self.batch))
            return Q, f.steps(Q), Work.of(f.steps(Q), f.steps(Q), cost)
        batches = -(-f.size // jnp.int32(self.batch))
        steps = f.steps(self.epochs * batches)
        work = work_of_epochs(steps, batches, f.size, self.batch, self.gradients)
        return self.epochs * -(-_rows_of(f) // self.batch), steps, work

    def _drawn(self, f: LocalObjective, r: Array, key: Key, shape: tuple[int, int]) -> Array:
        """Return the samples of every step, (Q, batch), or of every epoch in its order, (epochs, n)."""
        if self.epochs is None:
            return self.draw(key, r, f.agent, f.size, shape)
        places = jnp.arange(_rows_of(f), dtype=jnp.int32) % f.size  # `_solve` takes the first |D_i| of them
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(self.epochs))
        return jax.vmap(lambda own: shuffle(own, f.size)(places))(keys)


class TorchSGD(TorchOracle):
    step: float | Step

    def length(self, r: Any, q: Any) -> Any:
        return step_at(self.step, r, q)

    def descend(self) -> Descend:
        return _descend_by_gradients


def _descend_by_gradients(task: Task) -> None:
    for indices, length in zip(task.batches, task.lengths, strict=True):
        change = task.complete(task.losses.gradient(indices))
        with torch.no_grad():
            for name, parameter in task.losses.parameters.items():
                parameter.sub_(float(length) * change[name])


@makes(TorchSGD)
def sgd(
    step: float | Step,
    iterations: int | None = None,
    batch: int | None = 1,
    *,
    epochs: int | None = None,
    draw: Draw = uniform,
) -> Oracle:
    """Return stochastic gradient descent in PyTorch, as `fedpd.oracles.sgd`.

    For momentum, weight decay and other rules, use `optimizer`.

    Args:
        step: The step size, or a function of (round, step).
        iterations: Q, the local steps per round. Give this or `epochs`.
        batch: Samples per step. With `iterations`, they are drawn again for each step; None: all samples of the client.
        epochs: Passes over the client's samples per round, in the orders of `fedpd.oracles.sgd`. The last batch of an
            epoch is smaller, so a batch normalisation needs a rest of two samples.
        draw: Draws the samples of `iterations`.
    """
    check_stochastic(iterations, batch, epochs=epochs, draw=draw)
    check_step(step)
    return TorchSGD(step=step, iterations=iterations, epochs=epochs, batch=batch, draw=draw)


class TorchVR(TorchOracle):
    gamma: float
    refresh: int
    gradients: ClassVar = 2
    compares_rounds = True

    @property
    def refreshes(self) -> int:
        return self.refresh

    def length(self, r: Any, q: Any) -> Any:
        return self.gamma

    def descend(self) -> Descend:
        return _descend_by_estimates


def _descend_by_estimates(task: Task) -> Tensors:
    losses, g = task.losses, task.g
    if task.renew or g is None:
        g = losses.full_gradient(task.samples, task.scale / len(task.samples))
    for indices, length in zip(task.batches, task.lengths.tolist(), strict=True):
        if task.curvature is None and length == float("inf"):
            remedy = "Give a finite gamma, the local step size"
            refuse("gamma", length, "needs a method with a quadratic term", remedy)
        old = losses.gradient(indices)
        with torch.no_grad():
            for name, parameter in losses.parameters.items():
                pull = parameter / length - (g[name] if task.linear is None else g[name] + task.linear[name])
                parameter.copy_(pull / (1 / length + (task.curvature or 0.0)))
        g = {
            name: g[name] + task.scale * part - task.scale * old[name]
            for name, part in losses.gradient(indices).items()
        }
    return g


@makes(TorchVR)
def vr(gamma: float, iterations: int, refresh: int, batch: int | None = 1, *, draw: Draw = uniform) -> Oracle:
    """Return Oracle II in PyTorch, as `fedpd.oracles.vr`: a recursive gradient estimate g_i.

    If the first round of an agent does not compute g_i, the agent starts with grad f_i(x^0), and fedpd counts the cost
    in that round.

    Args:
        gamma: The paper's gamma; it may be infinite if the method has a quadratic term.
        iterations: Q, the local steps per round.
        refresh: I, the rounds between two full gradients.
        batch: Samples per step, drawn again for each step; None: all samples of the client.
        draw: Draws the samples.
    """
    positive("gamma", gamma, "Give the paper's gamma, e.g. gamma = eta, or infinity", infinite=True)
    count("refresh", refresh, "Give I, the rounds between two full gradients, e.g. 20")
    check_stochastic(iterations, batch)
    return TorchVR(gamma=gamma, refresh=refresh, iterations=iterations, batch=batch, draw=draw)


Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class TorchOptimizer(TorchOracle):
    make: Make
    label: str

    def descend(self) -> Descend:
        return partial(_descend_by_optimizer, self.make)


def _descend_by_optimizer(make: Make, task: Task) -> None:
    parameters = task.losses.parameters
    stepper = make(parameters.values())
    for indices in task.batches:

        def evaluate(indices: np.ndarray = indices) -> float:
            stepper.zero_grad()
            value = task.scale * task.losses.losses(indices).mean()
            for name, parameter in parameters.items():
                if task.linear is not None:
                    value = value + (task.linear[name] * parameter).sum()
                if task.curvature is not None:
                    value = value + task.curvature / 2 * (parameter * parameter).sum()
            value.backward()
            return value.item()

        stepper.step(evaluate)
    stepper.zero_grad()


@makes(TorchOptimizer)
def optimizer(
    make: Make,
    iterations: int | None = None,
    batch: int | None = None,
    *,
    epochs: int | None = None,
    label: str = "custom",
    draw: Draw = uniform,
) -> Oracle:
    """Return any torch optimiser as an oracle, e.g. optimizer(lambda x: torch.optim.Adam(x, lr=1e-3), iterations=20).

    The optimiser starts again in every round, because phi_i is then another function.

    Args:
        make: Returns the optimiser for the parameters.
        iterations: Q, the local steps per round. Give this or `epochs`.
        batch: Samples per step. With `iterations`, they are drawn again for each step; None: all samples of the client.
        epochs: Passes over the client's samples per round, as in `sgd`.
        label: The optimiser's name in labels.
        draw: Draws the samples.
    """
    if not callable(make):
        refuse("make", make, "must be a function of parameters", "Give e.g. lambda x: torch.optim.Adam(x, lr=1e-3)")
    check_stochastic(iterations, batch, epochs=epochs, draw=draw)
    return TorchOptimizer(make=make, label=label, iterations=iterations, epochs=epochs, batch=batch, draw=draw)


class Arguments(NamedTuple):
    """The arguments of one local solve, as in `Task`, but with JAX's types.

    Attributes:
        x: x_i, the start of the solve.
        size: |D_i|.
        data: The rows (client, index) of the agent's samples.
        steps: The number of steps.
        drawn: The rows of the samples of every step, (Q, batch, 2), or of every epoch, (epochs, n, 2); None: all
            samples at every step.
        memory: The oracle's memory.
        seed: The seed of the module's own random numbers.
    """

    x: Vector
    linear: Vector | None
    curvature: Any
    scale: Any
    size: Any
    data: Any
    steps: Any
    lengths: Any
    drawn: Any
    memory: Any
    renew: Any
    seed: Any


def _rows_of(f: LocalObjective) -> int:
    """Return the number of samples of the largest agent."""
    return len(jax.tree.leaves(f.data)[0])


def _solve(losses: TorchLosses, descend: Descend, length: int | None, given: Arguments) -> tuple[Vector, Any]:
    """Return x_i and the memory after a local solve, as NumPy arrays; `length` is the batch of epochs."""
    losses = losses.owner(given.data)
    samples, steps = given.data[: int(given.size)], int(given.steps)
    batches = [samples] * steps if given.drawn is None else list(given.drawn[:steps])
    if length is not None:
        orders = [order[: len(samples)] for order in given.drawn]
        batches = [order[at : at + length] for order in orders for at in range(0, len(order), length)][:steps]
    task = Task(
        losses,
        None if given.linear is None else _tensors(given.linear),
        None if given.curvature is None else float(given.curvature),
        1.0 if given.scale is None else float(given.scale),
        samples,
        batches,
        given.lengths[:steps],
        _tensors(given.memory["g"]) if "g" in given.memory else None,
        bool(given.renew),
    )
    with locked(losses.module), seeded(int(given.seed)):
        load(losses.parameters, given.x.tree)
        if losses.modes_differ:
            losses.set_mode(train=True)
        kept = "buffers" in given.memory  # otherwise every solve uses the module's own buffers
        load(dict(losses.module.named_buffers()) if kept else {}, given.memory.get("buffers", {}))
        g = descend(task)
        memory = (_buffers(losses) if kept else {}) | ({} if g is None else {"g": _vector(g), "owed": np.False_})
        return _vector(losses.parameters), memory


def _check(f: LocalObjective) -> TorchLosses:
    if not isinstance(f.losses, TorchLosses):
        refuse(
            "losses",
            f.losses,
            "an oracle that runs in PyTorch needs a client made by torch_local",
            "Use fedpd.oracles for other losses",
        )
    if f.penalty is not None:
        refuse("penalty", f.penalty, "is a JAX function, but the oracle runs in PyTorch", "Add it to the loss")
    return f.losses


def _buffers(losses: TorchLosses) -> dict[str, Any]:
    """Return the module's buffers, as part of a memory. Counters become 32-bit, as JAX needs with float32."""
    arrays = {name: array_of(tensor).copy() for name, tensor in losses.module.named_buffers()}
    arrays = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in arrays.items()}
    return {"buffers": arrays} if arrays else {}


def _tensors(vector: Vector) -> Tensors:
    return {name: tensor_of(leaf) for name, leaf in vector.tree.items()}


def _vector(tensors: Mapping[str, Tensor]) -> Vector:
    return Vector({name: array_of(tensor).copy() for name, tensor in tensors.items()})
