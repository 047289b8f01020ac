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

from fedpd.algorithms._averaging import beside_personal_models
from fedpd.algorithms._rules import solver
from fedpd.base.checks import at_least
from fedpd.core import (
    Algorithm,
    Array,
    Key,
    LocalObjective,
    Oracle,
    Subproblem,
    Work,
    check_oracle,
    proximal,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Variant


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, x_i after the local steps
    personal: Vector  # v_i
    memory: Any  # of the oracle
    own_memory: Any  # of the oracle `own`


@specified
def ditto(*, rho: float, oracle: Oracle, own: Oracle | None = None) -> Algorithm:
    """Return Ditto with proximal weight rho >= 0; `own` solves for the personal models (None: as `oracle` does)."""
    at_least("rho", rho, 0, "rho is the weight of (rho/2)||v - x^r||^2; with 0, each agent learns its model alone")
    check_oracle(oracle)
    personal = oracle if own is None else own
    check_oracle(personal)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, oracle.init(f, x), personal.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        phi, draws = proximal(f, agent.x, rho), jax.random.fold_in(key, 1)
        v, own_memory, more = personal.solve(phi, agent.personal, agent.own_memory, r, draws)
        x, memory, work = oracle.solve(Subproblem(f), agent.x, agent.memory, r, key)
        total = work.plus(more)
        return Agent(x, v, memory, own_memory), total

    return beside_personal_models("ditto", init, local, lambda server, mean: mean)


CARD = Card(
    title="Ditto",
    summary="FedAvg, and a personal model of each agent near the server's",
    family="averaging",
    reference=Reference(
        authors="Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith",
        title="Ditto: Fair and Robust Federated Learning Through Personalization",
        venue=(
            "Proceedings of the 38th International Conference on Machine Learning (ICML 2021), PMLR 139, 6357-6368; "
            "arXiv:2012.04221"
        ),
        year=2021,
        checked=(
            "The page of the paper at ai.meta.com, zbmath.org/software/41838 and a public copy of the arXiv record "
            "(tomesphere.com/paper/2012.04221) confirm the authors, the title, ICML 2021 and the preprint; the volume "
            "and the pages are from knowledge."
        ),
    ),
    variants=(
        Variant(
            "Ditto",
            lambda L, agents, scale: ditto(rho=L, oracle=solver(L / scale, 0), own=solver(L, L)),
            Guarantee("as FedAvg for x; for the v_i SC, BG, x within O(1/r) of its limit", "-"),
        ),
    ),
    parameters={
        "rho": "ρ ≥ 0, the weight of the proximal term of the personal models (the paper's λ)",
        "own": "the local solver of the personal models; `None`: as `oracle`",
    },
    theory_checked=(
        "A public summary of the paper (study.space) confirms convergence guarantees for its solver; the "
        "assumptions are from knowledge, and no rate was read in the paper itself. x is FedAvg's."
    ),
    equations_checked=(
        "The updates agree with the authors' program (litian96/ditto, flearn/trainers_MTL/ditto.py), which draws one "
        "mini-batch for a step of v_i and a step of x_i; here both draw their own."
    ),
)
