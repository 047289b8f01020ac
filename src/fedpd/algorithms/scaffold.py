"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift.

    y_i  = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    c_i+ = grad f_i(x)                              option 1
    c_i+ = c_i - c + (x - y_i)/(Q step)             option 2
    x    = x + server_step mean_S (y_i - x),        c = c + (|S|/N) mean_S (c_i+ - c_i)

Agents send y_i - x and c_i+ - c_i, the server sends x and c: two models each way. c_i is a gradient estimate, so it is
not CTA. Absent agents keep c_i. With full participation, option 2 and server_step 1, SCAFFOLD equals VRL-SGD.
Differences from the paper: batch=None uses full gradients, and option 1 uses the full gradient where the paper uses a
mini-batch.
"""

from typing import Any, Literal, NamedTuple

from tree_math import Vector

from fedpd.algorithms._rules import Q
from fedpd.base.checks import choice, positive
from fedpd.core import Algorithm, Array, Exchange, Key, LocalObjective, Subproblem, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP, sgd


class Agent(NamedTuple):
    x: Vector  # the server's model
    c: Vector  # the server's control variate
    y: Vector  # the local model
    own: Vector  # c_i
    new: Vector  # c_i+


class Server(NamedTuple):
    x: Vector
    c: Vector


@specified
def scaffold(
    *, step: float, iterations: int, batch: int | None = None, option: Literal[1, 2] = 2, server_step: float = 1.0
) -> Algorithm:
    """Return SCAFFOLD with Q = `iterations` local steps on `batch` samples (None: all of them)."""
    positive("step", step, STEP)
    positive("server_step", server_step, "1 is the mean of the local models")
    choice("option", str(option), ("1", "2"))
    oracle = sgd(step, iterations, batch)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, c=0 * x, y=x, own=0 * x, new=0 * x)

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        y, _, work = oracle.solve(Subproblem(f, agent.c - agent.own), agent.x, None, r, key)
        if option == 1:
            new, work = f.gradient(agent.x), work._replace(samples=work.samples + f.size)
        else:
            new = agent.own - agent.c + (agent.x - y) / (step * work.updates.astype(float))
        return agent._replace(y=y, new=new), work

    def send(agent: Agent) -> tuple[Vector, Vector]:
        return agent.y - agent.x, agent.new - agent.own

    def aggregate(server: Server, mean: tuple[Vector, Vector], share: Any) -> tuple[Server, Server]:
        model_change, control_change = mean
        server = Server(server.x + server_step * model_change, server.c + share * control_change)
        return server, server

    def receive(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c, own=agent.new)

    def missed(agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c)

    def with_message(agent: Agent, message: tuple[Vector, Vector]) -> Agent:
        model_change, control_change = message
        return agent._replace(y=agent.x + model_change, new=agent.own + control_change)

    kinds: Any = ("change", "change")
    exchange = Exchange(local, send, aggregate, receive, absent=missed, sends=kinds, with_message=with_message)
    return Algorithm(
        "scaffold",
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(exchange,),
        model=lambda agent: agent.x,
    )


CARD = Card(
    title="SCAFFOLD",
    summary="local steps corrected by control variates",
    family="corrected gradients",
    reference=Reference(
        authors=(
            "Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, "
            "Ananda Theertha Suresh"
        ),
        title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        venue=(
            "Proceedings of the 37th International Conference on Machine Learning (ICML 2020), PMLR 119, "
            "5132-5143; arXiv:1910.06378"
        ),
        year=2020,
        checked=(
            "The conference's page (icml.cc/virtual/2020/poster/5880), the paper's first page and the BibTeX "
            "entry in the repository wenh06/fl-sim confirm the authors, the title, the venue, the pages and "
            "the year."
        ),
    ),
    variants=(
        Variant(
            "SCAFFOLD",
            lambda L, agents, scale: scaffold(step=scale / (24 * L * Q), iterations=Q),
            Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
            only_models=False,
        ),
    ),
    parameters={
        "option": "1 or 2: how agents update the control variates",
    },
    theory_checked=(
        "Theorem III of the paper confirms, for non-convex functions with gradient noise of bounded variance "
        "s^2 and no assumption on similarity, rounds of order s^2/(K S e^2) + (N/S)^(2/3)/e for K local steps "
        "and S of N agents, which is 1/e rounds and 1/e^2 updates and samples where K is of order 1/e."
    ),
    equations_checked="The updates agree with Algorithm 1 of the paper, except for option 1's mini-batch.",
)
