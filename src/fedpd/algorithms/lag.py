"""LAG, lazily aggregated gradients (Chen, Giannakis, Sun, Yin, 2018): agents send only gradients that changed enough.

    g = g + (1/N) sum_{i in S} (grad f_i(x) - g_i),   x = x - step g,   g_i the gradient that agent i sent last

S are the agents that send. An agent sends if its change is large, compared with the last D = `memory` steps of x:

    worker side:  ||grad f_i(x) - g_i||^2          > threshold/(step^2 D) sum_{d=1..D} ||x^{r+1-d} - x^{r-d}||^2
    server side:  L_i^2 ||x - (x when i last sent)||^2 > the same

threshold = 0 is gradient descent. Agents sometimes send gradient differences (not CTA), the server sends x. Absent
agents send nothing; with partial participation, the server also sends the D steps. Differences from the paper: equal
weights xi_d = threshold/D for the D steps; one L for all agents. The paper's factor 1/N^2 is not missing here: its f is
a sum, so its gradients are 1/N of these, and N cancels. The paper's xi_d = 0.1 with D = 10 is threshold = 1. The
authors' program uses threshold = 10 for the server-side rule.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import at_least, choice, count, positive
from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Work, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import STEP


class Agent(NamedTuple):
    x: Vector
    x_sent: Vector  # x when this agent last sent
    sent: Vector  # g_i, the gradient that it sent
    gradient: Vector  # grad f_i(x)
    steps: Array  # (D,) the last ||x^{r+1} - x^r||^2
    speaks: Array


class Server(NamedTuple):
    x: Vector
    g: Vector


class ServerOfSteps(NamedTuple):
    x: Vector
    g: Vector
    steps: Array  # (D,), as of an agent that was never absent


@specified
def lag(
    *,
    step: float,
    threshold: float = 1.0,
    memory: int = 10,
    trigger: Literal["worker", "server"] = "worker",
    smoothness: float | None = None,
) -> Algorithm:
    """Return LAG with the worker-side trigger, or the server-side one (which needs `smoothness`, the L of the f_i)."""
    positive("step", step, STEP)
    at_least("threshold", threshold, 0, "0 is gradient descent, 1 the paper's choice for the worker-side rule")
    count("memory", memory, "Give D, the number of steps of x that agents remember, e.g. 10")
    choice("trigger", trigger, ("worker", "server"))
    if trigger == "worker":
        smoothness = None
    else:
        positive("smoothness", smoothness, "The server-side trigger needs L; theory.smoothness(problem) finds it")

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, 0 * x, jnp.zeros(memory), jnp.bool_(False))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        gradient = f.gradient(agent.x)
        change, distance = gradient - agent.sent, agent.x - agent.x_sent
        size = change @ change if smoothness is None else smoothness**2 * (distance @ distance)
        speaks = (size > threshold / (step**2 * memory) * jnp.sum(agent.steps)) | (r == 0)
        agent = agent._replace(gradient=gradient, speaks=speaks)
        return agent, Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def send(agent: Agent) -> Vector:
        return agent.gradient - agent.sent

    def aggregate(server: Server, change: Vector, share: Any) -> tuple[Server, Vector]:
        g = server.g + share * change
        x = server.x - step * g
        return Server(x, g), x

    def update(agent: Agent, x: Vector) -> Agent:
        steps = jnp.roll(agent.steps, 1).at[0].set(((x - agent.x) @ (x - agent.x)).astype(agent.steps.dtype))
        return agent._replace(x=x, steps=steps)

    def receive(agent: Agent, x: Vector) -> Agent:
        def keep(new: Vector, old: Vector) -> Vector:
            return jax.tree.map(lambda a, b: jnp.where(agent.speaks, a, b), new, old)

        agent = agent._replace(sent=keep(agent.gradient, agent.sent), x_sent=keep(agent.x, agent.x_sent))
        return update(agent, x)

    def aggregate_steps(
        server: ServerOfSteps, change: Vector, share: Any
    ) -> tuple[ServerOfSteps, tuple[Vector, Array]]:
        (x, g), _ = aggregate(Server(server.x, server.g), change, share)
        steps = update(Agent(server.x, x, x, x, server.steps, jnp.bool_(False)), x).steps
        return ServerOfSteps(x, g, steps), (x, steps)

    def missed(agent: Agent, broadcast: tuple[Vector, Array]) -> Agent:
        return agent._replace(x=broadcast[0], steps=broadcast[1])

    speaks = lambda agent: agent.speaks  # noqa: E731
    whole = Algorithm(
        "lag",
        init=init,
        server=lambda x: Server(x, 0 * x),
        exchanges=(Exchange(local, send, aggregate, receive, speaks=speaks, sends="change"),),
        model=lambda agent: agent.x,
    )
    # An absent agent misses the steps of x, so the server sends the last D with x.
    away = Exchange(
        local,
        send,
        aggregate_steps,
        lambda agent, new: missed(receive(agent, new[0]), new),
        missed,
        speaks=speaks,
        sends="change",
    )
    partial = whole._replace(server=lambda x: ServerOfSteps(x, 0 * x, jnp.zeros(memory)), exchanges=(away,))
    return whole._replace(away=Away(partial=partial))


CARD = Card(
    title="LAG",
    summary="gradient descent without small messages",
    family="lazy communication",
    reference=Reference(
        authors="Tianyi Chen, Georgios B. Giannakis, Tao Sun, Wotao Yin",
        title="LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning",
        venue="Advances in Neural Information Processing Systems 31 (NeurIPS 2018), 5050-5060; arXiv:1805.09965",
        year=2018,
        checked=(
            "The proceedings page (papers.nips.cc/paper/7752) and "
            "the README of the authors' repository chentianyi1991/LAG-code confirm the authors, the "
            "title, the venue and the year."
        ),
    ),
    variants=(
        Variant(
            "LAG-WK",
            lambda L, agents, scale: lag(step=scale / L),
            Guarantee("NC (SC: linear)", "1/e", "1/e", "M/e"),
            only_models=False,
        ),
        Variant(
            "LAG-PS",
            lambda L, agents, scale: lag(step=scale / L, trigger="server", smoothness=L),
            Guarantee("NC (SC: linear)", "1/e", "1/e", "M/e"),
            only_models=False,
            summary="the server decides which agents send",
        ),
    ),
    parameters={
        "step": "γ, the step size; 1/L is gradient descent's",
        "threshold": "an agent sends if its change is larger than this; 0 is gradient descent",
        "memory": "D, the number of past steps of the model that the change is compared with",
        "trigger": 'who decides whether an agent sends: `"worker"` or `"server"`',
        "smoothness": 'L of the f_i; `trigger="server"` needs it',
    },
    theory_checked=(
        "The abstract in the proceedings confirms the rate of gradient descent for strongly convex, convex "
        "and non-convex functions, hence 1/e rounds and a linear rate if strongly convex; 1/e local updates "
        "and M/e samples are those rounds times one full gradient, an upper bound for LAG-PS, where silent "
        "agents compute nothing."
    ),
    equations_checked=(
        "Both rules agree with the authors' program (chentianyi1991/LAG-code), whose constant is ten times "
        "larger for the server-side rule."
    ),
    compares=lambda spec: True,
)
