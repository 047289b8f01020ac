"""Cooperative SGD (Wang, Joshi, 2018): local steps, then any mixing of the local models.

    x_i = oracle(f_i) from x_i, then one of
        elastic averaging, with an auxiliary variable z at the server:
            x_i = (1 - alpha) x_i + alpha z,    z = (1 - beta) z + beta mean_S x_i
        a mixing matrix W (N, N), symmetric and doubly stochastic:
            x_i = sum_j W_ij x_j

beta = N alpha makes the elastic mixing symmetric, as the paper has it. Agents keep different models (the consensus
column shows how different); the model is mean_i x_i. W = 11^T/N is FedAvg. Sent: one model each way (CTA); with W the
server relays to each agent its own mixture. With constant steps it stops at a floor on heterogeneous data. Elastic
averaging lets absent agents be; mixing needs everyone.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from tree_math import Vector

from fedpd.base.checks import at_most, positive, refuse
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Oracle, Subproblem, Work, check_oracle, describe

ELASTIC = (
    "alpha is how far an agent moves towards the auxiliary variable, beta how far that moves: at most 1, e.g. N alpha"
)
EITHER = "Give alpha and beta for elastic averaging, or a mixing matrix"


class Agent(NamedTuple):
    x: Vector
    memory: Any


def coop_sgd(*, oracle: Oracle, alpha: float | None = None, beta: float | None = None, mixing: Any = None) -> Algorithm:
    """Cooperative SGD with a local oracle, and either elastic averaging (alpha, beta) or a mixing matrix (N, N)."""
    check_oracle(oracle)
    if {alpha is None, beta is None, mixing is not None} != {mixing is not None}:
        refuse("alpha, beta, mixing", (alpha, beta, mixing), "must be the one kind or the other", EITHER)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    exchange = _elastic(local, alpha, beta) if mixing is None else _mixed(local, mixing)
    settings = {"alpha": alpha, "beta": beta} if mixing is None else {"mixing": f"{len(mixing)}x{len(mixing)}"}
    return Algorithm(
        description=describe("coop_sgd", oracle=oracle, **settings),
        init=lambda f, x: Agent(x, oracle.init(f, x)),
        server=lambda x: x,
        exchanges=(exchange,),
        model=lambda agent: agent.x,
        batch=oracle.batch,
        drifts=True,
    )


def _elastic(local: Any, alpha: Any, beta: Any) -> Exchange:
    for name, value in (("alpha", alpha), ("beta", beta)):
        at_most(name, positive(name, value, ELASTIC), 1, ELASTIC)

    def aggregate(z: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return z + beta * (mean - z), z

    def receive(agent: Agent, z: Vector) -> Agent:
        return agent._replace(x=agent.x + alpha * (z - agent.x))

    return Exchange(local, lambda agent: agent.x, aggregate, receive, absent=lambda agent, z: agent)


def _mixed(local: Any, mixing: Any) -> Exchange:
    weights = np.asarray(mixing, float)
    square = weights.ndim == 2 and weights.shape[0] == weights.shape[1]
    if not square or not np.allclose(weights, weights.T) or not np.allclose(weights.sum(1), 1):
        rule = "must be square, symmetric and with rows that sum to 1"
        refuse("mixing", weights.tolist(), rule, "np.full((N, N), 1/N) is FedAvg")

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return server, mean  # what an agent fetches has a model's size

    def row(agent: Array) -> Array:
        return jnp.asarray(weights)[agent]

    return Exchange(local, lambda agent: agent.x, aggregate, lambda a, x: a._replace(x=x), mixing=row)
