"""A run that shows every iterate, of problems that share their functions, on recorded coins and samples."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tree_math import Vector

from fedpd import Algorithm, Problem
from fedpd.base.precision import scope
from fedpd.core import State
from fedpd.core.agents import Functions, Layout, Shard, arrays
from fedpd.core.sampling import Draw
from fedpd.engine.loop import Inputs, Program, init_agents, one_round

# The tests as a whole let XLA optimise less, since they mostly compile; what runs long here is optimised all the same.
OPTIMISED: dict[str, Any] = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


class Trajectory(NamedTuple):
    x: np.ndarray  # (T+1, D): mean_i x_{0,i}^r
    agents: Any  # their final state


def trajectories(algorithm: Algorithm, *some: Problem, rounds: int) -> list[Trajectory]:
    """All iterates of `algorithm` on problems that share their functions: compiled once, run side by side."""
    first = some[0]
    functions = Functions(first.losses, first.penalty)
    layout = Layout(first.agents, first.samples < 1000, None)  # small ones all at once, large ones agent by agent
    program = Program(algorithm, functions, layout)

    def run(shard: Shard, start: Vector) -> tuple[Any, Any]:
        def step(state: State, nothing: None) -> tuple[State, Any]:
            state, *_ = one_round(program, Inputs(shard, jax.random.key(0), algorithm), state)
            return state, jax.vmap(algorithm.model)(state.agents).tree.mean(0)

        agents = init_agents(program, shard, start)
        state = State(agents, algorithm.server(start), jnp.int32(0))
        end, path = lax.scan(step, state, None, length=rounds)
        return jnp.concatenate([start.tree[None], path]), end.agents

    with scope(True):
        inputs = [jax.device_put((arrays(problem), Vector(problem.start))) for problem in some]
        compiled = jax.jit(run).lower(*inputs[0]).compile(None if layout.parallel else OPTIMISED)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda one: Trajectory(*jax.tree.map(np.asarray, compiled(*one))), inputs))


@partial(jax.jit, static_argnums=(0, 1), compiler_options=OPTIMISED)
def _gaps(losses: Any, penalty: Any, samples: jax.Array, path: jax.Array) -> jax.Array:
    gradient = jax.grad(lambda x: jnp.mean(losses(x, samples)) + penalty(x))
    return lax.map(lambda x: jnp.sum(gradient(x) ** 2), path)


def gaps(problem: Problem, path: np.ndarray) -> np.ndarray:
    """||grad f||^2 along a path, where all agents have as many samples."""
    with scope(True):
        return np.asarray(_gaps(problem.losses, problem.penalty, problem.data.reshape(-1, problem.dimension), path))


def recorded_coins(coins: np.ndarray) -> Callable[[Any], Any]:
    """p_r for which round r communicates exactly where the coin says so."""
    return lambda r: jnp.where(jnp.asarray(coins)[r], 0.0, 1.0)


def recorded_draw(indices: np.ndarray) -> Draw:
    """The samples of (T, Q, N) or (T, Q, N, B), whatever the key."""
    indices = indices.astype(np.int32)
    return lambda key, r, agent, size, shape: jnp.asarray(indices)[r, :, agent].reshape(shape)
