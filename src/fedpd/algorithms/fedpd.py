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
and p="auto" decides during the run when to communicate (`_corrected.py`). `memory` mixes the outcomes of past rounds,
and eta="auto" finds eta (`_memory.py`).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from fedpd.algorithms._corrected import CorrectedRounds, ExactRounds, PlannedRounds, ServerOfDuals
from fedpd.algorithms._memory import FedPDM
from fedpd.algorithms._memory_absent import FedPDMWithAbsent
from fedpd.algorithms._rules import Q, eta_above_theorem_1, solver
from fedpd.algorithms._scaled_variables import ScaledFedPDM
from fedpd.base.checks import choice, count, positive, refuse, skip_probability
from fedpd.base.errors import warn
from fedpd.base.value import attribute
from fedpd.core import LocalObjective, Method, Oracle, Work, augmented_lagrangian, check_oracle, makes
from fedpd.core.card import Card, Guarantee, Reference, Rule, Variant
from fedpd.core.message import Change, Iterate, Model
from fedpd.core.oracle import step_above_limit
from fedpd.core.vectors import Array, Key, Vector
from fedpd.oracles import SGD, lbfgs, vr
from fedpd.theory.conditions import max_eta

Skip = Callable[[Any], Any]  # r -> p_r

STEPS_OF_ETA = 5  # eta="auto" with mini-batches, in units of step Q
NAIVE = (
    "absent='naive' averages x_i + eta lambda_i over the agents that are present. With partial participation this mean "
    "changes with the agents, and FedPD stalls away from the solution. Use the default, 'mean_of_duals': it converges."
)


class Agent(NamedTuple):
    x: Vector  # x_i^r
    x0: Vector  # x_{0,i}^r, this agent's copy of the global model
    dual: Vector  # lambda_i^r
    memory: Any  # the oracle's memory between rounds (Oracle II: g_i)


class FedPD(Method):
    """Algorithm 2, line by line."""

    eta: float
    oracle: Oracle
    p: float | Skip
    start: Literal["local", "server"]
    repeats = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, x0=x, dual=0 * x, memory=self.oracle.init(f, x))

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:  # Local Updates
        lagrangian = augmented_lagrangian(f, agent.x0, agent.dual, self.eta)
        begin = agent.x if self.start == "local" else agent.x0
        x, memory, work = self.oracle.solve(lagrangian, begin, agent.memory, r, key)
        dual = agent.dual + (x - agent.x0) / self.eta
        x0 = x + self.eta * dual  # x_{0,i}^{r+}
        return agent._replace(x=x, x0=x0, dual=dual, memory=memory), work

    def send(self, agent: Agent) -> Any:
        return Iterate(agent.x0)

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:  # Global Communicate
        return mean, mean

    def receive(self, agent: Any, x0: Any) -> Any:
        return agent._replace(x0=x0)

    def model(self, agent: Any) -> Vector:
        return agent.x0

    def skip_probability(self, r: Any) -> Any:
        if callable(self.p):
            return self.p(r)
        return None if isinstance(self.p, float) and self.p == 0 else self.p

    def with_message(self, agent: Any, message: Any) -> Any:  # x_i + eta lambda_i is what the server has
        return agent._replace(x0=message, dual=agent.dual + (message - agent.x0) / self.eta)

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:  # lambda_i = -grad f_i, as after an exact local solve
        x, dual = agent.x0, -f.gradient(agent.x0)
        return agent._replace(x=x, dual=dual, memory=self.oracle.init(f, x))

    def local_gradient(self, f: LocalObjective, agent: Any) -> Vector:  # of L_i at x_i: the new dual has its last term
        return f.gradient(agent.x) + agent.dual

    def partial(self) -> Method:
        return FedPDWithAbsent(eta=self.eta, oracle=self.oracle, p=self.p, start=self.start)

    def asynchronous(self) -> Method | None:
        if self.skips:
            return None
        return FedPDWithOldModels(eta=self.eta, oracle=self.oracle, p=self.p, start=self.start)

    def caution(self, L: float) -> str | None:
        return eta_above_theorem_1(self.eta, L) or step_above_limit(self.oracle, L + 1 / self.eta)


class AgentWithAbsent(NamedTuple):
    """The state of an agent when participation is partial."""

    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # lambda_i as the server knows it
    memory: Any


class FedPDWithAbsent(FedPD):
    """FedPD with a server that keeps the mean of all agents' duals; the local updates are Algorithm 2's."""

    repeats = False
    model_first = True

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return AgentWithAbsent(x=x, x0=x, dual=0 * x, sent=0 * x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> ServerOfDuals:
        return ServerOfDuals(x, 0 * x)

    def send(self, agent: Any) -> Any:
        return (Model(agent.x), Change(agent.dual - agent.sent)) if self.skips else Model(agent.x)

    def aggregate(self, server: ServerOfDuals, mean: Any, share: Any) -> tuple[ServerOfDuals, Vector]:
        x, change = mean if self.skips else (mean, (mean - server.x0) / self.eta)
        dual = server.dual + share * change
        x0 = x + self.eta * dual
        return ServerOfDuals(x0, dual), x0

    def receive(self, agent: AgentWithAbsent, x0: Vector) -> AgentWithAbsent:
        return agent._replace(x0=x0, sent=agent.dual)

    def missed(self, agent: AgentWithAbsent, x0: Vector) -> AgentWithAbsent:
        return agent._replace(x0=x0)

    def with_message(self, agent: AgentWithAbsent, message: Any) -> AgentWithAbsent:
        if not self.skips:  # x_i alone, and the dual moves with it
            return agent._replace(x=message, dual=agent.dual + (message - agent.x) / self.eta)
        x, change = message
        return agent._replace(x=x, dual=agent.sent + change)

    def rebuild(self, f: LocalObjective, agent: AgentWithAbsent) -> AgentWithAbsent:
        agent = super().rebuild(f, agent)
        return agent._replace(sent=agent.dual)

    def partial(self) -> Method:
        return self


class AgentWithOldModel(NamedTuple):
    x: Vector
    x0: Vector  # as received last; x_i + eta lambda_i after the local steps
    dual: Vector
    sent: Vector  # x_i + eta lambda_i as the server knows it
    memory: Any


class FedPDWithOldModels(FedPD):
    """FedPD with p = 0 for asynchronous runs, in which agents work with old models of the server.

        x_i      = argmin f_i(x) + <lambda_i, x - x_{0,i}> + ||x - x_{0,i}||^2 / (2 eta)     (by the oracle)
        lambda_i = lambda_i + (x_i - x_{0,i}) / eta
        x_0      = (1/N) sum_i (x_i + eta lambda_i)

    x_{0,i} is the x_0 that agent i received last. Agents send the change of x_i + eta lambda_i, so the server's mean is
    over all agents, however old their messages are. If every agent is present in every step, this is FedPD with p = 0.
    With y_i = x_{0,i} - eta lambda_i it is asyncFedDR (Tran-Dinh et al., 2021) without relaxation and regulariser:
    y_i <- y_i + (x_{0,i} - x_i), x_i = prox_{eta f_i}(y_i), and x_i + eta lambda_i = 2 x_i - y_i.
    """

    repeats = False

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return AgentWithOldModel(x=x, x0=x, dual=0 * x, sent=x, memory=self.oracle.init(f, x))

    def send(self, agent: Any) -> Vector:
        return agent.x0 - agent.sent

    def aggregate(self, server: Vector, change: Vector, share: Any) -> tuple[Vector, Vector]:
        x0 = server + share * change
        return x0, x0

    def receive(self, agent: AgentWithOldModel, x0: Vector) -> AgentWithOldModel:
        return agent._replace(x0=x0, sent=agent.x + self.eta * agent.dual)

    def missed(self, agent: AgentWithOldModel, x0: Vector) -> AgentWithOldModel:
        return agent._replace(x0=x0)

    def partial(self) -> Method:
        return self


class CorrectedFedPD(CorrectedRounds, FedPD):
    """FedPD whose skipped rounds leave no error floor, with one model each way."""

    drift: ClassVar = "corrected"


class ExactFedPD(ExactRounds, FedPD):
    """FedPD whose skipped rounds leave no error floor, with the exact mean dual."""

    drift: ClassVar = "corrected-exact"


class PlannedFedPD(PlannedRounds, ExactRounds, FedPD):
    """FedPD whose server decides when to communicate."""


class NaiveFedPD(FedPD):
    """FedPD as published, also if agents are absent: it then stalls."""

    absent = attribute("naive")

    def partial(self) -> Method:
        return self

    def asynchronous(self) -> None:
        return None


class ProgramFedPD(NaiveFedPD):
    """The authors' MATLAB program, whose server step has the old dual where the paper has the new one."""

    absent: str
    x0_rule: ClassVar = "matlab"

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        new, work = super().local(f, agent, r, key)
        return new._replace(x0=new.x + self.eta * agent.dual), work


@makes(
    FedPD,
    FedPDWithAbsent,
    FedPDWithOldModels,
    CorrectedFedPD,
    ExactFedPD,
    PlannedFedPD,
    NaiveFedPD,
    ProgramFedPD,
    FedPDM,
    ScaledFedPDM,
    FedPDMWithAbsent,
)
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
) -> Method:
    """Return FedPD with penalty 1/eta, a local oracle, and probability p of skipping a communication.

    Args:
        eta: The penalty is 1/eta. Theorem 1 needs eta < (sqrt(5)-1)/(4L), with L the smoothness of the f_i. "auto"
            finds eta during the run, with or without a memory, if the oracle has full gradients. With `oracles.sgd` and
            mini-batches it is 5 step Q, with the first step size if there are several.
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
        >>> from fedpd import algorithms, oracles, problems, simulate, theory
        >>> problem = problems.random_quadratic(agents=5, dimension=3)
        >>> eta = 1 / theory.smoothness(problem)
        >>> algorithm = algorithms.fedpd(eta=eta, oracle=oracles.gd(step=eta / 2, iterations=8))
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
    if eta == "auto" and memory == 0 and oracle.batch is not None:
        eta = _eta_of_steps(oracle)
    if eta == "auto" or memory > 0:
        _check_memory(eta, memory, oracle, p=p, drift=drift, x0_rule=x0_rule, absent=absent)
        form = ScaledFedPDM if eta == "auto" else FedPDM
        return form(eta=eta, oracle=oracle, memory=memory, start=start)
    planned = isinstance(p, str) and p == "auto"
    if not planned:
        skip_probability(p)
    skipped = _drift(planned, drift, x0_rule, absent)
    settings: dict[str, Any] = {"eta": eta, "oracle": oracle, "p": p, "start": start}
    if absent == "naive":
        warn(NAIVE)
    if planned:
        return PlannedFedPD(**settings)
    if skipped != "paper":
        return CorrectedFedPD(**settings) if skipped == "corrected" else ExactFedPD(**settings)
    if x0_rule == "matlab":
        return ProgramFedPD(**settings, absent=absent)
    return NaiveFedPD(**settings) if absent == "naive" else FedPD(**settings)


def _eta_of_steps(oracle: Oracle) -> float:
    """Return eta = 5 step Q. On seven networks the best eta was 2.5 to 20 times step Q (`docs/networks.md`)."""
    if not isinstance(oracle, SGD):
        rule = f"is 5 times step Q with mini-batches, and {oracle.description} has no such step"
        refuse("eta", "auto", rule, "Give a number; or oracles.sgd(step, iterations, batch), or full gradients")
    if oracle.iterations is None:
        rule = f"is 5 times step Q with mini-batches, and each agent of {oracle.description} has a Q of its own"
        refuse("eta", "auto", rule, "Give a number, e.g. 5 times step times the mean number of local steps")
    step = oracle.step(0, 0) if callable(oracle.step) else oracle.step
    return float(STEPS_OF_ETA * step * oracle.iterations)


def _drift(planned: bool, drift: str | None, x0_rule: str, absent: str) -> str:
    """Return the value of `drift` to use, and refuse one that does not fit the other arguments."""
    if planned and drift not in (None, "corrected-exact"):
        refuse("drift", drift, 'must be "corrected-exact" with p="auto"', "Leave drift out")
    drift = "corrected-exact" if planned else drift
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


def _rule(*, p: float | Literal["auto"] = 0.0, reduced: bool = False) -> Rule:
    """Return the default rule: eta is 0.9 times the bound of Theorem 1, with gradient descent or Oracle II."""

    def rule(L: float, agents: int, scale: Any) -> Method:
        eta = scale * 0.9 * max_eta(L)
        return fedpd(eta=eta, oracle=vr(gamma=eta, iterations=Q, refresh=20) if reduced else solver(L, 1 / eta), p=p)

    return rule


CARD = Card(
    title="FedPD",
    summary="primal-dual local solves, one dual per agent",
    family="primal-dual",
    reference=Reference(
        authors="Xinwei Zhang, Mingyi Hong, Sairaj Dhople, Wotao Yin, Yang Liu",
        title="FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data",
        venue="IEEE Transactions on Signal Processing 69, 6055-6070 (2021); arXiv:2005.11418 (2020) under the "
        "title 'FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to Non-IID Data'",
        year=2021,
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
            # It has no step size: the factor multiplies the accuracy of the local solves instead.
            lambda L, agents, scale: fedpd(eta="auto", oracle=lbfgs(tolerance=3e-3 * scale), memory=20),
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
        "x0_rule": '`"paper"`, or `"matlab"`, the server step of the authors\' program',
        "absent": 'for partial participation: `"mean_of_duals"` (converges), or `"naive"`, the published form (stalls)',
    },
    search={"start": ("server", "local")},
)
