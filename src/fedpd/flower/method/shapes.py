"""The shapes of states and messages, which follow from the model alone. The server checks messages against them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import as_numpy, is_double
from fedpd.base.value import constant
from fedpd.core import Array, LocalObjective, Method, Tree
from fedpd.engine.measure.costs import Costs, costs_of, exchanged_messages
from fedpd.engine.privacy import private_oracle, without_oracles
from fedpd.experiments.federated import TORCH
from fedpd.flower.carry.records import ALIGNED
from fedpd.own_loop import is_own_loop, with_shapes


class Shapes(NamedTuple):
    """Pytrees of shapes and types.

    Attributes:
        model: The user's own model.
        agent: The state of an agent.
        messages: A message of each exchange.
        broadcasts: A broadcast of each exchange.
        costs: The bytes of messages and broadcasts.
    """

    model: Tree
    agent: Any
    messages: list[Tree]
    broadcasts: list[Tree]
    costs: Costs


class TorchArray(np.ndarray):
    """An array that came from a PyTorch module. If a federation starts from such arrays, its model loads as tensors."""


def framework_of(start: Tree) -> str:
    """Return the framework in which users load the trained model: "torch", or "" for arrays."""
    return TORCH if any(isinstance(leaf, TorchArray) for leaf in jax.tree.leaves(start)) else ""


def shapes(algorithm: Method, start: Tree) -> Shapes:
    """Return the shapes of a method on a model.

    It traces a round of an agent without data, because shapes do not depend on the samples.
    """
    algorithm, dtype = with_shapes(algorithm), jax.tree.leaves(start)[0].dtype

    def losses(model: Tree, batch: Tree) -> Array:
        return jnp.zeros(1, dtype)

    if private_oracle(algorithm) is not None:
        algorithm = without_oracles(algorithm)  # a private oracle needs samples, and keeps nothing
    f = LocalObjective(losses, None, {}, jnp.int32(1), None, None, jnp.int32(0))
    x = Vector(start)
    agent = jax.eval_shape(lambda x: algorithm.init(f, x), x)
    messages = exchanged_messages(algorithm, lambda _: f, (), agent, jax.eval_shape(algorithm.server, x))
    model = jax.eval_shape(lambda tree: tree, start)
    sent, broadcasts = [message for message, _ in messages], [broadcast for _, broadcast in messages]
    return Shapes(model, agent, sent, broadcasts, costs_of(messages))


def entries_of(like: Tree) -> int:
    """Return the number of entries of all arrays of these shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def zeros(like: Tree) -> Tree:
    """Return zeros of these shapes and types, which JAX can use without a copy."""
    return jax.tree.map(_aligned_zeros, like)


def _aligned_zeros(like: Any) -> np.ndarray:
    size = math.prod(like.shape) * np.dtype(like.dtype).itemsize
    whole = np.zeros(size + ALIGNED, np.uint8)
    begin = -whole.ctypes.data % ALIGNED
    return whole[begin : begin + size].view(like.dtype).reshape(like.shape)


def check_algorithm(algorithm: Any, *, own_loops: bool = False) -> Method:
    """Return the method if it can run on a server and agents that communicate only with the server.

    Its numbers are constants of the compiled programs: a process runs one method.

    Args:
        algorithm: What the user gave.
        own_loops: Whether the clients may be apps with loops of their own.
    """
    if not isinstance(algorithm, Method):
        refuse("algorithm", algorithm, "must return a method", "Return e.g. algorithms.fedpd(eta=..., oracle=...)")
    if is_own_loop(algorithm) and not own_loops:
        rule = "has a training loop of your own for its oracle, which only fedpd.flower.mod runs"
        refuse(
            "algorithm", algorithm.description, rule, "Use fedpd.flower.Strategy and mod, or give an oracle of fedpd"
        )
    if algorithm.copies_differ:
        rule = "gives every agent its own model, so there is no global model to return"
        refuse("algorithm", algorithm.description, rule, "Use it in fedpd.simulate, or deploy another method")
    if algorithm.only_at_agents:
        rule = "has a model that agents change by themselves, and the server knows only its broadcasts"
        refuse("algorithm", algorithm.description, rule, "Use it in fedpd.simulate, or deploy another method")
    return constant(algorithm)


def check_start(start: Any) -> Tree:
    """Return the model to start from with NumPy leaves, all in float64 if one of them is."""
    framework = framework_of(start)
    start = jax.tree.map(np.asarray, start)
    double = is_double(start)
    start = jax.tree.map(lambda leaf: as_numpy(leaf, double, "start"), start)
    leaves = jax.tree.leaves(start)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, np.floating) for leaf in leaves):
        found = ", ".join(sorted({str(leaf.dtype) for leaf in leaves})) or "no arrays"
        raise FedpdError(f"start holds {found}: models must be floating-point. Give float32 or float64.")
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        raise FedpdError("start holds NaN or infinity. Start from finite numbers.")
    return jax.tree.map(lambda leaf: leaf.view(TorchArray), start) if framework else start
