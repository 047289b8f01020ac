"""PR-SPIDER, parallel restarted SPIDER (Sharma et al., 2019): recursive gradients, averaged with the models.

    when r mod I = 0:  v_i = g = (1/N) sum_i grad f_i(x)           an exchange of gradients
    Q times            x_i+ = x_i - step v_i
                       v_i  = v_i + h_i(x_i+; xi) - h_i(x_i; xi)
    x = mean_S x_i,    v_i = mean_S v_i                            an exchange of models and gradient estimates

Its sample complexity is O(sqrt(M)/eps). It is not CTA, because agents send gradients. An agent keeps two models. Absent
agents miss the refresh and take the newest x and v when they return. Difference from the paper: the refresh is every I
rounds, which is every I Q iterations in the paper.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedpd.algorithms._rules import Q
from fedpd.algorithms.mpr_sgd import AveragedState
from fedpd.base.checks import count
from fedpd.core import Array, Exchange, Key, LocalObjective, Method, Subproblem, Tree, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, step_at
from fedpd.oracles import Stochastic, check_stochastic, estimate


class Agent(NamedTuple):
    x: Vector
    v: Vector


class Steps(Stochastic):
    """The local steps."""

    step: float | Step
    gradients: ClassVar = 2

    def advance(self, phi: Subproblem, agent: Agent, rows: Tree, r: Array, q: Array) -> Agent:
        x, v = agent
        new = x - step_at(self.step, r, q) * v
        return Agent(new, v + estimate(phi, new, rows) - estimate(phi, x, rows))


class PRSpider(AveragedState):
    """Local steps along recursive gradients, with an exchange of full gradients every I rounds."""

    refresh: int
    compares_rounds = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, 0 * x)

    def exchanges(self) -> tuple[Exchange, ...]:
        first = Exchange(self.renew, lambda agent: agent.v, self.share_gradient, self.hear_gradient, when=self.due)
        return (first, *super().exchanges())

    def due(self, r: Array) -> Array:
        return r % self.refresh == 0

    def renew(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        v = lax.cond(self.due(r), lambda: f.gradient(agent.x), lambda: agent.v)
        return agent._replace(v=v), Work(jnp.int32(0), jnp.where(self.due(r), f.size, 0).astype(jnp.int32))

    def share_gradient(self, server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return server, mean

    def hear_gradient(self, agent: Agent, v: Vector) -> Agent:
        return agent._replace(v=v)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        return self.steps(Steps).run(Subproblem(f), agent, r, key)


@makes(PRSpider)
def pr_spider(
    *, step: float | Step, iterations: int | None = None, refresh: int, batch: int | None = 1, epochs: int | None = None
) -> Method:
    """Return PR-SPIDER with Q = `iterations` steps on `batch` samples, or `epochs`, and I = `refresh`."""
    check_step(step)
    count("refresh", refresh, "Give I, the rounds between two full gradients, e.g. 20")
    check_stochastic(iterations, batch, epochs=epochs)
    return PRSpider(step=step, iterations=iterations, refresh=refresh, batch=batch, epochs=epochs)


CARD = Card.single(
    title="PR-SPIDER",
    summary="recursive gradients, averaged with the models",
    family="corrected gradients",
    authors="Pranay Sharma, Swatantra Kafle, Prashant Khanduri, Saikiran Bulusu, Ketan Rajawat, Pramod K. Varshney",
    paper="Parallel Restarted SPIDER -- Communication Efficient Distributed Nonconvex Optimization with "
    "Optimal Computation Complexity",
    venue="arXiv:1912.06036",
    year=2019,
    rule=lambda L, agents, scale: pr_spider(step=scale / (8 * L * Q), iterations=Q, refresh=5),
    guarantee=Guarantee("NC", "1/e", "Q/e", "sqrt(M)/e"),
    only_models=False,
    parameters={"refresh": "I, the rounds between two full gradients"},
)
