"""Cooperative SGD (Wang, Joshi, 2021): local steps, then any mixing of the local models.

    x_i = oracle(f_i) from x_i, then one of
        elastic averaging, with an auxiliary variable z at the server:
            x_i = (1 - alpha) x_i + alpha z,    z = (1 - beta) z + beta mean_S x_i
        a mixing matrix W (N, N), symmetric and doubly stochastic:
            x_i = sum_j W_ij x_j

beta = N alpha makes the elastic mixing symmetric, as in the paper. Agents keep different models (the consensus column
measures the difference); the global model is mean_i x_i. W = 11^T/N is FedAvg. Agents and server send one model each
way (CTA); with W the server sends each agent its own mixture. With constant steps it stops at an error floor on
heterogeneous data. Elastic averaging does not change absent agents; mixing needs full participation.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpd.algorithms._rules import Q
from fedpd.base.arrays import as_array
from fedpd.base.checks import at_most, positive, refuse
from fedpd.core import Exchange, LocalObjective, Method, Mixing, Model, Oracle, Subproblem, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.vectors import Array, Key, Vector
from fedpd.oracles import gd

ELASTIC = (
    "alpha is the fraction by which an agent moves to the auxiliary variable, beta the fraction by which the variable "
    "moves to the agents' mean: both at most 1, e.g. beta = N alpha"
)
EITHER = "Give alpha and beta for elastic averaging, or a mixing matrix"
FEDAVG = "np.full((N, N), 1/N) is FedAvg"


class Agent(NamedTuple):
    x: Vector
    memory: Any


class CoopSGD(Method):
    """Local steps from the agent's own model."""

    oracle: Oracle
    copies_differ = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, memory), work


class ElasticSGD(CoopSGD):
    """Elastic averaging, with z at the server."""

    alpha: float
    beta: float

    def send(self, agent: Agent) -> Model:
        return Model(agent.x)

    def aggregate(self, z: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return z + self.beta * (mean - z), z

    def receive(self, agent: Agent, z: Vector) -> Agent:
        return agent._replace(x=agent.x + self.alpha * (z - agent.x))

    def missed(self, agent: Agent, z: Vector) -> Agent:
        return agent


class MixedSGD(CoopSGD):
    """Mixing with a matrix, without a server."""

    mixing: Any

    def send(self, agent: Agent) -> Vector:
        return agent.x

    def weights(self, agent: Array) -> Array:
        """Return a row of the matrix."""
        # JAX keeps the precision in which it first saw an array, so it gets a new one each time.
        return jnp.asarray(as_array(self.mixing, "mixing", FEDAVG).astype(float))[agent]

    def exchanges(self) -> tuple[Exchange]:
        return (Exchange(self.local, self.send, Mixing(self.weights), self.receive),)


@makes(ElasticSGD, MixedSGD)
def coop_sgd(*, oracle: Oracle, alpha: float | None = None, beta: float | None = None, mixing: Any = None) -> Method:
    """Return Cooperative SGD with a local oracle, and elastic averaging (alpha, beta) or a mixing matrix (N, N)."""
    check_oracle(oracle)
    if mixing is None and alpha is not None and beta is not None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            at_most(name, positive(name, value, ELASTIC), 1, ELASTIC)
        return ElasticSGD(oracle=oracle, alpha=alpha, beta=beta)
    if mixing is None or alpha is not None or beta is not None:
        refuse("alpha, beta, mixing", (alpha, beta, mixing), "must be either two weights or one matrix", EITHER)
    _check_mixing(mixing)
    return MixedSGD(oracle=oracle, mixing=mixing)


def _check_mixing(mixing: Any) -> None:
    weights = as_array(mixing, "mixing", FEDAVG).astype(float)
    square = weights.ndim == 2 and weights.shape[0] == weights.shape[1]
    if not square or not np.allclose(weights, weights.T) or not np.allclose(weights.sum(1), 1):
        rule = "must be square, symmetric and with rows that sum to 1"
        refuse("mixing", weights.tolist(), rule, FEDAVG)
    largest = float(np.abs(np.linalg.eigvalsh(weights)).max())
    if largest > 1 + 1e-8:
        rule = f"has an eigenvalue of size {largest:.4g}, and above 1 the agents' models move apart in every round"
        refuse("mixing", weights.tolist(), rule, "Use entries of at least 0")


CARD = Card.single(
    title="Cooperative SGD",
    summary="local steps, then any mixing of the models",
    family="averaging",
    authors="Jianyu Wang, Gauri Joshi",
    paper="Cooperative SGD: A Unified Framework for the Design and Analysis of Local-Update SGD Algorithms",
    venue="Journal of Machine Learning Research 22(213), 1-50; arXiv:1808.07576 (2018) under the title '... "
    "of Communication-Efficient SGD Algorithms'",
    year=2021,
    rule=lambda L, agents, scale: coop_sgd(
        oracle=gd(step=scale / (4 * L * Q), iterations=Q), alpha=0.9 / agents, beta=0.9
    ),
    guarantee=Guarantee("NC, iid", "1/e", "1/e^2", "1/e^2"),
    parameters={
        "alpha": "α in (0, 1], the fraction by which agents move to z in elastic averaging; give β too",
        "beta": "β in (0, 1], the fraction by which z moves to the agents; Nα makes it symmetric",
        "mixing": "W (N, N), symmetric and doubly stochastic; replaces α and β",
    },
)
