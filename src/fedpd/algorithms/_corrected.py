"""FedPD that skips communications and still converges: a skipped round moves by the change of the dual.

At the solution lambda_i = -grad f_i(x*), so Algorithm 2's skipped round, x_{0,i} = x_i + eta lambda_i, moves to
x* - eta grad f_i(x*), away from x*: a constant p > 0 leaves an error floor. With c the last communication and m the
mean of all agents' duals,

    x_{0,i} = x_i + eta (lambda_i - lambda_i^c + m^c)

keeps the solution a fixed point: lambda_i = lambda_i^c and m = 0 there. If local problems are solved exactly, lambda_i
= -grad f_i(x_i), and a skipped round is the implicit gradient step x_i <- prox_{eta g_i}(x_i) on

    g_i(x) = f_i(x) - <grad f_i(x_i^c) + m^c, x>,

the local problem whose gradient at the last communication is replaced by the mean gradient. For quadratics with a
common Hessian eigenvalue h, k such rounds and a communication multiply the error of the mean by (1 + eta h)^-k, and the
differences between agents by 1 - (1 + eta h)^-k. Long stretches reduce the error of the mean but not the differences;
single rounds do the opposite. docs/theory/skipping.md has the derivation, the spectral radius, and a map of the
settings in which it wins.

"corrected-exact" computes m^c from messages: agents send x_i and the change of lambda_i, and receive x_0 and m, two
models each way. "corrected" sends one model each way. Let d_j be the mean over agents of lambda_i - lambda_i^c after j
rounds, and b the true mean of the lambda_i^c. Over the k rounds between two communications, the server's model
satisfies exactly

    (x_0^new - x_0^old)/eta = d_1 + ... + d_{k-1} + 2 d_k + (k-1) m^c + b

If d_j grows linearly in j, every agent finds d_k, and so the new m, from the two server models that it already has:

    m <- m + 2 ((x_0^new - x_0^old)/eta - k m) / (k + 3)

which is exact at k = 1. (The average (x_0^new - x_0^old)/(k eta) itself lags by half a stretch. Measured on strongly
heterogeneous logistic data at eta = 0.28/L and k = 3: the average needs 30 communications to reach 1e-10, this estimate
needs 22.)
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.value import attribute
from fedpd.core import Array, Change, Iterate, Key, LocalObjective, Method, Oracle, Work


class ServerOfDuals(NamedTuple):
    x0: Vector
    dual: Vector  # m, the mean of all agents' duals as far as they have been sent


class ExactAgent(NamedTuple):
    x: Vector  # x_i
    x0: Vector  # x_{0,i}
    dual: Vector  # lambda_i
    sent: Vector  # lambda_i^c, as the server knows it
    mean: Vector  # m^c
    memory: Any  # of the oracle


class EstimatingAgent(NamedTuple):
    x: Vector
    x0: Vector
    dual: Vector
    sent: Vector  # lambda_i^c
    mean: Vector  # the estimate of m^c
    server: Vector  # x_0 of the last communication
    rounds: Array  # k, rounds since then
    memory: Any


class Corrected(Method):
    """Algorithm 2's local updates, which a class beside this one has, with x_i + eta (lambda_i - lambda_i^c + m^c)."""

    eta: float
    oracle: Oracle
    repeats = False
    with_message = attribute(None)

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent._replace(x0=agent.x0 - self.eta * (agent.sent - agent.mean)), work

    def partial(self) -> Method:
        return self

    def asynchronous(self) -> None:
        return None


class ExactRounds(Corrected):
    """Corrected skipped rounds with the exact mean dual; agents may be absent."""

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return ExactAgent(x=x, x0=x, dual=0 * x, sent=0 * x, mean=0 * x, memory=self.oracle.init(f, x))

    def server(self, x: Vector) -> Any:
        return ServerOfDuals(x, 0 * x)

    def send(self, agent: Any) -> Any:
        return Iterate(agent.x), Change(agent.dual - agent.sent)

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, tuple[Vector, Vector]]:
        x, change = mean
        dual = server.dual + share * change
        server = ServerOfDuals(x + self.eta * dual, dual)
        return server, (server.x0, server.dual)

    def missed(self, agent: Any, broadcast: tuple[Vector, Vector]) -> Any:
        x0, mean = broadcast
        return agent._replace(x0=x0, mean=mean)

    def receive(self, agent: Any, broadcast: tuple[Vector, Vector]) -> Any:
        return self.missed(agent, broadcast)._replace(sent=agent.dual)

    def rebuild(self, f: LocalObjective, agent: Any) -> Any:
        agent = super().rebuild(f, agent)
        return agent._replace(sent=agent.dual)


class CorrectedRounds(Corrected):
    """Corrected skipped rounds; agents estimate the mean dual from x_0."""

    needs_everyone = True

    def init(self, f: LocalObjective, x: Vector) -> Any:
        zero, memory = 0 * x, self.oracle.init(f, x)
        return EstimatingAgent(x, x, zero, zero, zero, server=x, rounds=jnp.int32(0), memory=memory)

    def local(self, f: LocalObjective, agent: EstimatingAgent, r: Array, key: Key) -> tuple[EstimatingAgent, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent._replace(rounds=agent.rounds + 1), work

    def send(self, agent: Any) -> Any:
        return Iterate(agent.x + self.eta * agent.dual)

    def receive(self, agent: EstimatingAgent, x0: Vector) -> EstimatingAgent:
        k = agent.rounds.astype(float)
        mean = agent.mean + ((x0 - agent.server) / self.eta - agent.mean * k) * (2 / (k + 3))
        return agent._replace(x0=x0, server=x0, mean=mean, sent=agent.dual, rounds=jnp.int32(0))

    def rebuild(self, f: LocalObjective, agent: EstimatingAgent) -> EstimatingAgent:
        agent = super().rebuild(f, agent)  # its models do not determine m; 0 is its value at the solution
        return agent._replace(sent=agent.dual, mean=0 * agent.mean)
