"""FedPD, Algorithm 2 of the paper.

X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu: FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data,
2021. FedPD solves min (1/N) sum_i f_i(x_i) s.t. x_i = x_0, with the augmented Lagrangians

    L_i(x_i, x_0, lambda_i) = f_i(x_i) + <lambda_i, x_i - x_0> + ||x_i - x_0||^2 / (2 eta)

    for r = 0, ..., T-1
        for each agent i in parallel (Local Updates)
            x_i^{r+1}      = Oracle_i(L_i(., x_{0,i}^r, lambda_i^r)), started at x_i^r
            lambda_i^{r+1} = lambda_i^r + (x_i^{r+1} - x_{0,i}^r) / eta
            x_{0,i}^{r+}   = x_i^{r+1} + eta lambda_i^{r+1}
        with probability 1 - p (Global Communicate)
            x_{0,i}^{r+1}  = x_0^{r+1} = (1/N) sum_i x_{0,i}^{r+}
        with probability p: x_{0,i}^{r+1} = x_{0,i}^{r+}

All agents share one random draw per round. Agents send x_{0,i}^{r+}, the server sends x_0^{r+1}: one model each way,
as in the computation-then-aggregation protocol (CTA). An agent keeps three models and the oracle's memory.

With partial participation, let S be the agents that are present. The published form averages x_{0,i}^{r+} = x_i + eta
lambda_i over S. It stalls, because the mean of the duals over S changes with S. Here the server keeps the mean of ALL
agents' duals, as with full participation:

    mean dual += (|S|/N) mean_S (lambda_i now - lambda_i as last sent)
    x_0        = mean_S x_i + eta (mean dual)

This equals Algorithm 2 when all agents are present. At p = 0 the change of lambda_i is (x_i - x_0)/eta, so agents send
x_i alone. At p > 0 an agent sends two models: x_i and the change of its dual. absent="naive" is the published form.

A constant p > 0 leaves an error floor, because a skipped round moves away from the solution. `drift` removes the floor
(`_corrected.py`), and p="auto" decides during the run when to communicate (`_automatic.py`). `memory` mixes the
outcomes of past rounds, and eta="auto" finds eta (`_memory.py`).
"""

from typing import Any, Literal, NamedTuple

from tree_math import Vector

from fedpd.algorithms._automatic import automatic
from fedpd.algorithms._corrected import ServerOfDuals, corrected, corrected_exact
from fedpd.algorithms._memory import with_memory
from fedpd.algorithms._memory_absent import with_absent_agents
from fedpd.algorithms._old_models import with_old_models
from fedpd.algorithms._rules import Q, solver
from fedpd.algorithms._scaled_variables import in_scaled_variables
from fedpd.base.checks import choice, count, positive, refuse, skip_probability
from fedpd.base.spec import TRACED
from fedpd.base.warn import warn
from fedpd.core import (
    Algorithm,
    Array,
    Away,
    Exchange,
    Key,
    LocalObjective,
    Oracle,
    Skip,
    Spec,
    Timing,
    Work,
    augmented_lagrangian,
    check_oracle,
    specified,
)
from fedpd.core.card import Card, Guarantee, Reference, Rule, Variant
from fedpd.oracles import lbfgs, vr
from fedpd.theory.conditions import max_eta

NAIVE = (
    "absent='naive' averages x_i + eta lambda_i over the agents that are present. With partial participation this mean "
    "changes with the agents, and FedPD stalls away from the solution. Use the default, 'mean_of_duals': it converges."
)


class Agent(NamedTuple):
    x: Vector  # x_i^r
    x0: Vector  # x_{0,i}^r, this agent's copy of the global model
    dual: Vector  # lambda_i^r
    memory: Any  # the oracle's memory between rounds (Oracle II: g_i)


class PartialAgent(NamedTuple):
    """The state of an agent when participation is partial."""

    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # lambda_i as the server knows it
    memory: Any


@specified
def fedpd(
    *,
    eta: float | Literal["auto"],
    oracle: Oracle,
    p: float | Literal["auto"] | Skip = 0.0,
    memory: int = 0,
    drift: Literal["paper", "corrected", "corrected-exact"] | None = None,
    start: Literal["local", "server"] = "local",
    x0_rule: Literal["paper", "matlab"] = "paper",
    absent: Literal["mean_of_duals", "naive"] = "mean_of_duals",
) -> Algorithm:
    """Return FedPD with penalty 1/eta, a local oracle, and probability p of skipping a communication.

    Args:
        eta: The penalty is 1/eta. Theorem 1 needs eta < (sqrt(5)-1)/(4L), with L the smoothness of the f_i. "auto"
            finds eta during the run, with or without a memory.
        oracle: The local solver, from `fedpd.oracles`.
        p: The probability of skipping a communication: a number in [0, 1) or a function of the round r. With "auto"
            the run decides when to communicate, and drift is "corrected-exact".
        memory: M: every agent mixes its newest outcome with its M last ones, which saves most of the communications if
            f is ill-conditioned. One model and 2M + 7 numbers travel up, one model and M + 3 numbers down. An agent
            keeps 2M + 2 models more. With partial participation two models travel up, and nothing is mixed if fewer
            than a fifth of the agents are present. Memory needs full gradients and p = 0.
        drift: Where a skipped round moves. "paper" (the default) is Algorithm 2, which leaves an error floor if p > 0.
            "corrected" moves by the change of the dual since the last communication and leaves no floor.
            "corrected-exact" does the same with the exact mean dual, and sends two models each way.
        start: Where the oracle starts: "local" at x_i, as in Algorithm 3, or "server" at x_{0,i}. With exact local
            solves both give the same result. With few noisy steps prefer "server": the noise of x_i adds up over the
            rounds, while the noise of x_0 averages out, because x_0 is a mean over all agents.
        x0_rule: "paper" is Algorithm 2. "matlab" is the server step of the authors' MATLAB program, x_{0,i}^{r+} =
            x_{0,i}^r + eta lambda_i^{r+1} = x_i^{r+1} + eta lambda_i^r, which has the old dual where the paper has the
            new one. Both converge.
        absent: What the server averages with partial participation: "mean_of_duals" keeps the mean of all agents'
            duals and converges; "naive" is the published form, which stalls.

    Returns:
        The method, for `fedpd.simulate`.

    Examples:
        >>> from fedpd import oracles, problems, simulate, theory
        >>> problem = problems.random_quadratic(agents=5, dimension=3)
        >>> eta = 1 / theory.smoothness(problem)
        >>> algorithm = fedpd(eta=eta, oracle=oracles.gd(step=eta / 2, iterations=8))
        >>> bool(simulate(algorithm, problem, rounds=60).history["stationarity"][-1] < 1e-10)
        True
    """
    check_oracle(oracle)
    if eta != "auto":
        positive("eta", eta, 'Give "auto", or a number; Theorem 1 needs eta < (sqrt(5)-1)/(4L), L of the f_i')
    count("memory", memory, "Give M, the outcomes of past rounds to mix, e.g. 20; 0 mixes none", least=0)
    choice("start", start, ("local", "server"))
    choice("x0_rule", x0_rule, ("paper", "matlab"))
    choice("absent", absent, ("mean_of_duals", "naive"))
    if eta == "auto" or memory > 0:
        _check_memory(eta, memory, oracle, p=p, drift=drift, x0_rule=x0_rule, absent=absent)
        return _mixing_past_rounds(None if eta == "auto" else eta, oracle, memory, start)
    auto = isinstance(p, str) and p == "auto"
    skip = None if auto else skip_probability(p)
    skipped = _drift(auto, drift, x0_rule, absent)
    if absent == "naive":
        warn(NAIVE)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, memory=oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, eta)
        begin = agent.x if start == "local" else agent.x0
        x, memory, work = oracle.solve(lagrangian, begin, agent.memory, r, key)
        dual = agent.dual + (x - agent.x0) / eta
        x0 = x + eta * (dual if x0_rule == "paper" else agent.dual)  # x_{0,i}^{r+}
        return agent._replace(x=x, x0=x0, dual=dual, memory=memory), work

    def send(agent: Agent) -> Vector:
        return agent.x0

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:  # Global Communicate
        return mean, mean

    def receive(agent: Agent, x0: Vector) -> Agent:
        return agent._replace(x0=x0)

    def with_message(agent: Agent, message: Vector) -> Agent:  # x_i + eta lambda_i is what the server has
        return agent._replace(x0=message, dual=agent.dual + (message - agent.x0) / eta)

    def rebuild(f: LocalObjective, agent: Any) -> Any:  # lambda_i = -grad f_i, as after an exact local solve
        x, dual = agent.x0, -f.gradient(agent.x0)
        sent = {"sent": dual} if "sent" in agent._fields else {}
        return agent._replace(x=x, dual=dual, memory=oracle.init(f, x), **sent)

    whole = Algorithm(
        "fedpd",
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive, sends="iterate", with_message=with_message),),
        model=lambda agent: agent.x0,
        away=Away(rebuild=rebuild, repeats=True),
        timing=Timing(skip=skip),
    )
    if auto:
        return automatic(whole, eta, oracle)
    if skipped != "paper":
        return (corrected if skipped == "corrected" else corrected_exact)(whole, eta, oracle)
    if absent == "naive" or x0_rule == "matlab":
        return whole
    some = _partial_participation(whole, eta, oracle)
    stale = with_old_models(whole, eta, oracle) if skip is None else False
    return whole._replace(away=whole.away._replace(partial=some, stale=stale))


def _caution(spec: Spec, L: float) -> str | None:
    """Return a sentence if eta is too large for Theorem 1, else None. (The paper's own eta = 4 is too large.)"""
    eta, bound = spec["eta"], max_eta(L) if L > 0 else float("inf")
    if eta is TRACED or eta == "auto" or eta < bound:
        return None
    return (
        f"eta = {eta:.3g} is above (sqrt(5)-1)/(4L) = {bound:.3g} (L = {L:.3g}), so Theorem 1 does not cover this run. "
        "It may converge faster, or it may diverge."
    )


def _drift(auto: bool, drift: str | None, x0_rule: str, absent: str) -> str:
    """Return the value of `drift` to use, and refuse one that does not fit the other arguments."""
    if auto and drift not in (None, "corrected-exact"):
        refuse("drift", drift, 'must be "corrected-exact" with p="auto"', "Leave drift out")
    drift = "corrected-exact" if auto else drift
    drift = choice("drift", "paper" if drift is None else drift, ("paper", "corrected", "corrected-exact"))
    for name, value, usual in (("x0_rule", x0_rule, "paper"), ("absent", absent, "mean_of_duals")):
        if drift != "paper" and value != usual:
            refuse(name, value, f"needs drift='paper', but drift is {drift!r}", f"Leave {name} out")
    return drift


def _check_memory(eta: Any, memory: int, oracle: Oracle, **others: Any) -> None:
    """Refuse what does not go with a memory or with eta="auto"."""
    what, value = ("eta", eta) if eta == "auto" else ("memory", memory)
    if oracle.batch is not None:
        rule = f"needs full gradients, and {oracle.description} takes {oracle.batch} per step"
        refuse(what, value, rule, "Give e.g. oracles.lbfgs()")
    usual = {"p": 0, "drift": None, "x0_rule": "paper", "absent": "mean_of_duals"}
    for name, given in others.items():
        if given is not usual[name] and given != usual[name]:
            why = ", since the server has no row of a skipped round" if name in ("p", "drift") else ""
            refuse(what, value, f"does not go with {name} = {given!r}{why}", f"Leave {name} out")


def _mixing_past_rounds(eta: float | None, oracle: Oracle, memory: int, start: str) -> Algorithm:
    """Return FedPD-M, in scaled variables if it finds eta itself, with its form for partial participation."""
    whole, some = (form(eta, oracle, memory, start) for form in (with_memory, with_absent_agents))
    whole = in_scaled_variables(whole) if eta is None else whole
    away = whole.away._replace(everyone=False)
    return whole._replace(away=away._replace(partial=some._replace(away=away)))


def _partial_participation(whole: Algorithm, eta: Any, oracle: Oracle) -> Algorithm:
    """Return FedPD with a server that keeps the mean of all agents' duals; the local updates are Algorithm 2's."""

    def init(f: LocalObjective, x: Vector) -> PartialAgent:
        return PartialAgent(x=x, x0=x, dual=0 * x, sent=0 * x, memory=oracle.init(f, x))

    def send(agent: PartialAgent) -> Any:
        return agent.x if whole.timing.skip is None else (agent.x, agent.dual - agent.sent)

    def aggregate(server: ServerOfDuals, mean: Any, share: Any) -> tuple[ServerOfDuals, Vector]:
        x, change = (mean, (mean - server.x0) / eta) if whole.timing.skip is None else mean
        dual = server.dual + share * change
        x0 = x + eta * dual
        return ServerOfDuals(x0, dual), x0

    def receive(agent: PartialAgent, x0: Vector) -> PartialAgent:
        return agent._replace(x0=x0, sent=agent.dual)

    def missed(agent: PartialAgent, x0: Vector) -> PartialAgent:
        return agent._replace(x0=x0)

    def with_message(agent: PartialAgent, message: Any) -> PartialAgent:
        if whole.timing.skip is None:  # x_i alone, and the dual moves with it
            return agent._replace(x=message, dual=agent.dual + (message - agent.x) / eta)
        x, change = message
        return agent._replace(x=x, dual=agent.sent + change)

    local = whole.exchanges[0].local
    kinds: Any = "model" if whole.timing.skip is None else ("model", "change")
    exchange = Exchange(local, send, aggregate, receive, absent=missed, sends=kinds, with_message=with_message)
    server = lambda x: ServerOfDuals(x, 0 * x)  # noqa: E731
    away = whole.away._replace(repeats=False)
    return whole._replace(init=init, server=server, exchanges=(exchange,), away=away)


def _rule(*, p: float | Literal["auto"] = 0.0, reduced: bool = False) -> Rule:
    """Return the default rule: eta is 0.9 times the bound of Theorem 1, with gradient descent or Oracle II."""

    def rule(L: float, agents: int, scale: Any) -> Algorithm:
        eta = scale * 0.9 * max_eta(L)
        return fedpd(eta=eta, oracle=vr(gamma=eta, iterations=Q, refresh=20) if reduced else solver(L, 1 / eta), p=p)

    return rule


def _with_memory_of_20(L: float, agents: int, scale: Any) -> Algorithm:
    """Return FedPD-M, which has no step size: the factor multiplies the accuracy of the local solves instead."""
    return fedpd(eta="auto", oracle=lbfgs(tolerance=3e-3 * scale), memory=20)


CARD = Card(
    title="FedPD",
    summary="primal-dual local solves, one dual per agent",
    family="primal-dual",
    reference=Reference(
        authors="Xinwei Zhang, Mingyi Hong, Sairaj Dhople, Wotao Yin, Yang Liu",
        title="FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data",
        venue=(
            "IEEE Transactions on Signal Processing 69, 6055-6070 (2021); arXiv:2005.11418 (2020) under the "
            "title 'FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to Non-IID Data'"
        ),
        year=2021,
        checked=(
            "The BibTeX entry in the repository wenh06/fl-sim and library records of the article (doi "
            "10.1109/TSP.2021.3115952) confirm the authors, the journal's title, volume, pages and year, and "
            "a public copy of the arXiv record (tomesphere.com/paper/2005.11418) confirms the preprint's "
            "longer title."
        ),
    ),
    variants=(
        Variant("FedPD-GD", _rule(), Guarantee("NC", "1/e", "log(1/e)/e", "M log(1/e)/e")),
        Variant(
            "FedPD-GD p=0.5",
            _rule(p=0.5),
            Guarantee("NC, delta-non-iid, p chosen from e/delta^2", "(1-p)/e", "log(1/e)/e", "M log(1/e)/e"),
            summary="skips half of the communications at random",
        ),
        Variant(
            "FedPD-GD p=auto",
            _rule(p="auto"),
            Guarantee("NC, not proved"),
            only_models=False,
            summary="decides during the run when to communicate",
        ),
        Variant(
            "FedPD-VR",
            _rule(reduced=True),
            Guarantee("NC", "1/e", "Q/e", "M + sqrt(M)/e"),
            summary="variance-reduced local steps",
        ),
        Variant(
            "FedPD-M",
            _with_memory_of_20,
            Guarantee("C, exact local solves: converges, no rate"),
            only_models=False,
            summary="mixes past rounds, and has nothing to tune",
        ),
    ),
    parameters={
        "p": 'the probability of skipping a communication: a number in [0, 1), a function of r, or `"auto"`',
        "eta": 'η: the penalty is 1/η. 1/L is a good start, L the smoothness of the f_i; `"auto"` finds it',
        "memory": "M: the outcomes of past rounds that are mixed with the newest; 20 is enough, 0 mixes none",
        "drift": 'where a skipped round moves: `"paper"` (the default), `"corrected"`, `"corrected-exact"`',
        "start": 'where the oracle starts: `"local"`, at x_i, or `"server"`, at the copy of the server\'s model',
        "x0_rule": '`"paper"`, or `"matlab"`, the server step of the authors\' program',
        "absent": 'for partial participation: `"mean_of_duals"` (converges), or `"naive"`, the published form (stalls)',
    },
    theory_checked=(
        "All complexities are taken from the FedPD paper's Table 1 and agree with its theorems; (1-p)/e holds "
        "for p chosen from e/delta^2, as the table's caption says. At a fixed p the bound of Case II keeps a "
        "term of order delta^2."
    ),
    equations_checked="The updates are Algorithm 2 of the paper.",
    caution=_caution,
    compares=lambda spec: spec["eta"] == "auto" or (spec["memory"] is not TRACED and spec["memory"] > 0),
)
