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

import jax.numpy as jnp

from fedpd.base.checks import at_least, choice, count, positive
from fedpd.core import Array, Change, Key, LocalObjective, Method, Vector, Work, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.core.vectors import choose
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


class Lag(Method):
    """LAG for agents that are always present."""

    step: float
    threshold: float
    memory: int
    trigger: Literal["worker", "server"]
    smoothness: float | None
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, x, 0 * x, 0 * x, jnp.zeros(self.memory), jnp.bool_(False))

    def server(self, x: Vector) -> Any:
        return Server(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        gradient = f.gradient(agent.x)
        change, distance = gradient - agent.sent, agent.x - agent.x_sent
        L = None if self.trigger == "worker" else self.smoothness
        size = change @ change if L is None else L**2 * (distance @ distance)
        speaks = (size > self.threshold / (self.step**2 * self.memory) * jnp.sum(agent.steps)) | (r == 0)
        agent = agent._replace(gradient=gradient, speaks=speaks)
        return agent, Work(jnp.int32(1), jnp.asarray(f.size, jnp.int32))

    def speaks(self, agent: Agent) -> Array:
        return agent.speaks

    def send(self, agent: Agent) -> Change:
        return Change(agent.gradient - agent.sent)

    def aggregate(self, server: Any, change: Vector, share: Any) -> tuple[Any, Any]:
        g = server.g + share * change
        x = server.x - self.step * g
        return Server(x, g), x

    def receive(self, agent: Agent, broadcast: Any) -> Agent:
        sent, x_sent = choose(agent.speaks, (agent.gradient, agent.x), (agent.sent, agent.x_sent))
        steps = _with_step(agent.steps, agent.x, broadcast)
        return agent._replace(x=broadcast, x_sent=x_sent, sent=sent, steps=steps)

    def partial(self) -> Method:
        return LagWithAbsent(
            step=self.step,
            threshold=self.threshold,
            memory=self.memory,
            trigger=self.trigger,
            smoothness=self.smoothness,
        )


class LagWithAbsent(Lag):
    """LAG for partial participation: an absent agent misses the steps of x, so the server sends the last D with x."""

    def server(self, x: Vector) -> ServerOfSteps:
        return ServerOfSteps(x, 0 * x, jnp.zeros(self.memory))

    def aggregate(
        self, server: ServerOfSteps, change: Vector, share: Any
    ) -> tuple[ServerOfSteps, tuple[Vector, Array]]:
        (x, g), _ = super().aggregate(server, change, share)
        steps = _with_step(server.steps, server.x, x)
        return ServerOfSteps(x, g, steps), (x, steps)

    def receive(self, agent: Agent, broadcast: tuple[Vector, Array]) -> Agent:
        return self.missed(super().receive(agent, broadcast[0]), broadcast)

    def missed(self, agent: Agent, broadcast: tuple[Vector, Array]) -> Agent:
        return agent._replace(x=broadcast[0], steps=broadcast[1])

    def partial(self) -> Method:
        return self


def _with_step(steps: Array, old: Vector, new: Vector) -> Array:
    """Return the last D steps with the one from old to new."""
    return jnp.roll(steps, 1).at[0].set(((new - old) @ (new - old)).astype(steps.dtype))


@makes(Lag, LagWithAbsent)
def lag(
    *,
    step: float,
    threshold: float = 1.0,
    memory: int = 10,
    trigger: Literal["worker", "server"] = "worker",
    smoothness: float | None = None,
) -> Method:
    """Return LAG with the worker-side trigger, or the server-side one (which needs `smoothness`, the L of the f_i)."""
    positive("step", step, STEP)
    at_least("threshold", threshold, 0, "0 is gradient descent, 1 the paper's choice for the worker-side rule")
    count("memory", memory, "Give D, the number of steps of x that agents remember, e.g. 10")
    choice("trigger", trigger, ("worker", "server"))
    if trigger == "server":
        positive("smoothness", smoothness, "The server-side trigger needs L; theory.smoothness(problem) finds it")
    return Lag(step=step, threshold=threshold, memory=memory, trigger=trigger, smoothness=smoothness)


CARD = Card(
    title="LAG",
    summary="gradient descent without small messages",
    family="lazy communication",
    reference=Reference(
        authors="Tianyi Chen, Georgios B. Giannakis, Tao Sun, Wotao Yin",
        title="LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning",
        venue="Advances in Neural Information Processing Systems 31 (NeurIPS 2018), 5050-5060; arXiv:1805.09965",
        year=2018,
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
)
