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
from tree_math import Vector

from fedpd.algorithms._rules import Q
from fedpd.base.arrays import as_array
from fedpd.base.checks import at_most, positive, refuse
from fedpd.core import (
    Algorithm,
    Array,
    Exchange,
    Key,
    LocalObjective,
    Mixing,
    Oracle,
    Subproblem,
    Timing,
    Work,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import gd

ELASTIC = (
    "alpha is the fraction by which an agent moves to the auxiliary variable, beta the fraction by which the variable "
    "moves to the agents' mean: both at most 1, e.g. beta = N alpha"
)
EITHER = "Give alpha and beta for elastic averaging, or a mixing matrix"


class Agent(NamedTuple):
    x: Vector
    memory: Any


@specified
def coop_sgd(*, oracle: Oracle, alpha: float | None = None, beta: float | None = None, mixing: Any = None) -> Algorithm:
    """Return Cooperative SGD with a local oracle, and elastic averaging (alpha, beta) or a mixing matrix (N, N)."""
    check_oracle(oracle)
    if {alpha is None, beta is None, mixing is not None} != {mixing is not None}:
        refuse("alpha, beta, mixing", (alpha, beta, mixing), "must be either two weights or one matrix", EITHER)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    exchange = _elastic(local, alpha, beta) if mixing is None else _mixed(local, mixing)
    return Algorithm(
        "coop_sgd",
        init=lambda f, x: Agent(x, oracle.init(f, x)),
        server=lambda x: x,
        exchanges=(exchange,),
        model=lambda agent: agent.x,
        timing=Timing(drifts=True),
    )


def _elastic(local: Any, alpha: Any, beta: Any) -> Exchange:
    for name, value in (("alpha", alpha), ("beta", beta)):
        at_most(name, positive(name, value, ELASTIC), 1, ELASTIC)

    def aggregate(z: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return z + beta * (mean - z), z

    def receive(agent: Agent, z: Vector) -> Agent:
        return agent._replace(x=agent.x + alpha * (z - agent.x))

    return Exchange(local, lambda agent: agent.x, aggregate, receive, absent=lambda agent, z: agent, sends="model")


def _mixed(local: Any, mixing: Any) -> Exchange:
    weights = as_array(mixing, "mixing", "np.full((N, N), 1/N) is FedAvg").astype(float)
    square = weights.ndim == 2 and weights.shape[0] == weights.shape[1]
    if not square or not np.allclose(weights, weights.T) or not np.allclose(weights.sum(1), 1):
        rule = "must be square, symmetric and with rows that sum to 1"
        refuse("mixing", weights.tolist(), rule, "np.full((N, N), 1/N) is FedAvg")
    largest = float(np.abs(np.linalg.eigvalsh(weights)).max())
    if largest > 1 + 1e-8:
        rule = f"has an eigenvalue of size {largest:.4g}, and above 1 the agents' models move apart in every round"
        refuse("mixing", weights.tolist(), rule, "Use entries of at least 0")

    def row(agent: Array) -> Array:
        return jnp.asarray(weights.copy())[agent]  # JAX keeps the precision in which it first saw an array

    return Exchange(local, lambda agent: agent.x, Mixing(row), lambda agent, x: agent._replace(x=x))


def _rule(L: float, agents: int, scale: Any) -> Algorithm:
    oracle = gd(step=scale / (4 * L * Q), iterations=Q)
    return coop_sgd(oracle=oracle, alpha=0.9 / agents, beta=0.9)


CARD = Card(
    title="Cooperative SGD",
    summary="local steps, then any mixing of the models",
    family="averaging",
    reference=Reference(
        authors="Jianyu Wang, Gauri Joshi",
        title="Cooperative SGD: A Unified Framework for the Design and Analysis of Local-Update SGD Algorithms",
        venue=(
            "Journal of Machine Learning Research 22(213), 1-50; arXiv:1808.07576 (2018) under the title '... "
            "of Communication-Efficient SGD Algorithms'"
        ),
        year=2021,
        checked=(
            "The journal's BibTeX entry (jmlr.org/papers/v22/20-147.bib) confirms the authors, the journal, "
            "2021 and the published title, and the arXiv record confirms the 2018 preprint under a title that "
            "ends in 'Communication-Efficient SGD Algorithms'."
        ),
    ),
    variants=(Variant("Cooperative SGD", _rule, Guarantee("NC, iid", "1/e", "1/e^2", "1/e^2")),),
    parameters={
        "alpha": "α in (0, 1], the fraction by which agents move to z in elastic averaging; give β too",
        "beta": "β in (0, 1], the fraction by which z moves to the agents; Nα makes it symmetric",
        "mixing": "W (N, N), symmetric and doubly stochastic; replaces α and β",
    },
    theory_checked=(
        "All complexities and the iid assumption are taken from the FedPD paper's Table 1; a public summary "
        "of the preprint (sciencestack.ai/paper/1808.07576) confirms non-convex functions and that no uniform "
        "bound on gradients is assumed."
    ),
    equations_checked="Not compared with the paper.",
)
