"""Ditto (Li et al., 2021): FedAvg, and a personal model of each agent that stays near the server's.

    v_i = argmin f_i(v) + (rho/2) ||v - x^r||^2        (by the oracle `own`, from v_i)
    x_i = argmin f_i(x)                                (by the oracle, from x^r)
    x^{r+1} = mean_S x_i

S are the agents that are present. Agents send x_i, the server sends x^{r+1} (CTA); v_i never leaves its agent, and
absent agents keep theirs. rho is the paper's lambda: 0 gives models that learn alone, and a large rho gives the
server's. x is FedAvg's: the personal models do not change it, and it stops at FedAvg's error floor. `run.personal`
evaluates the v_i. Difference from the paper: its agents send x_i - x^r, which gives the same mean.
"""

from typing import Any, NamedTuple

import jax
from tree_math import Vector

from fedpd.algorithms._rules import solver
from fedpd.base.checks import at_least
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Work, check_oracle, makes, proximal
from fedpd.core.card import Card, Guarantee


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, x_i after the local steps
    personal: Vector  # v_i
    memory: Any  # of the oracle
    own_memory: Any  # of the oracle `own`


class BesidePersonalModels(Method):
    """Agents send x and keep a personal model, which they lose if their state is lost. States have a field x."""

    repeats = True

    def send(self, agent: Any) -> Vector:
        return agent.x

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        return self.init(f, agent.x)


class Ditto(BesidePersonalModels):
    """FedAvg, and personal models near the server's."""

    rho: float
    oracle: Oracle
    own: Oracle | None

    @property
    def personal(self) -> Oracle:
        """The local solver of the personal models."""
        return self.oracle if self.own is None else self.own

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, self.oracle.init(f, x), self.personal.init(f, x))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi, draws = proximal(f, agent.x, self.rho), jax.random.fold_in(key, 1)
        v, own_memory, more = self.personal.solve(phi, agent.personal, agent.own_memory, r, draws)
        x, memory, work = self.oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        return Agent(x, v, memory, own_memory), work.plus(more)


@makes(Ditto)
def ditto(*, rho: float, oracle: Oracle, own: Oracle | None = None) -> Method:
    """Return Ditto with proximal weight rho >= 0; `own` solves for the personal models (None: as `oracle` does)."""
    at_least("rho", rho, 0, "rho is the weight of (rho/2)||v - x^r||^2; with 0, each agent learns its model alone")
    check_oracle(oracle)
    check_oracle(oracle if own is None else own)
    return Ditto(rho=rho, oracle=oracle, own=own)


CARD = Card.single(
    title="Ditto",
    summary="FedAvg, and a personal model of each agent near the server's",
    family="averaging",
    authors="Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith",
    paper="Ditto: Fair and Robust Federated Learning Through Personalization",
    venue="Proceedings of the 38th International Conference on Machine Learning (ICML 2021), PMLR 139, 6357-6368; "
    "arXiv:2012.04221",
    year=2021,
    rule=lambda L, agents, scale: ditto(rho=L, oracle=solver(L / scale, 0), own=solver(L, L)),
    guarantee=Guarantee("as FedAvg for x; for the v_i SC, BG, x within O(1/r) of its limit", "-"),
    parameters={
        "rho": "ρ ≥ 0, the weight of the proximal term of the personal models (the paper's λ)",
        "own": "the local solver of the personal models; `None`: as `oracle`",
    },
)
