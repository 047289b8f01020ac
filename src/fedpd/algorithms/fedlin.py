"""FedLin (Mitra et al., 2021): gradient correction by the exact difference at the server's model.

    g   = mean_S grad f_i(x)                                       first exchange
    x_i = x;  Q times  x_i = x_i - step (grad f_i(x_i) - grad f_i(x) + g)
    x   = mean_S x_i                                               second exchange

With constant steps it converges linearly to the true minimiser. It is not CTA, because agents send gradients. With
partial participation g is the mean over the agents that are present, so the fixed point changes with them. Differences
from the paper: no compression, one step size for all agents, and batch=... allows mini-batches, where the paper has
full gradients only.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpd.algorithms._rules import Q
from fedpd.base.value import attribute
from fedpd.core import Array, Exchange, Gradient, Key, LocalObjective, Method, Model, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step
from fedpd.oracles import check_stochastic, sgd


class Agent(NamedTuple):
    x: Vector  # the server's model, then the local one
    own: Vector  # grad f_i(x)
    mean: Vector  # grad f(x), as the server has it
    memory: Any


class GradientsFirst(Method):
    """FedLin, FedDANE, F-SVRG and others: a first exchange gives every agent the mean gradient at x.

        exchange 1:  agents send grad f_i(x), the server returns g = mean_S grad f_i(x)
        exchange 2:  agents send a local model x_i, computed with g; the server returns x = mean_S x_i

    Subclasses have `solve`, or `local`.
    """

    oracle = attribute(None)  # of type Oracle, if the method has one

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, Any, Work]:
        """Return x_i of an agent that knows the mean gradient, the solver's memory and the work."""
        raise NotImplementedError

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return Agent(x, 0 * x, 0 * x, None if self.oracle is None else self.oracle.init(f, x))

    def exchanges(self) -> tuple[Exchange, Exchange]:
        return (
            Exchange(self.differentiate, lambda agent: Gradient(agent.own), self.share_gradient, self.hear_gradient),
            Exchange(self.local, self.send, self.aggregate, self.receive),
        )

    def differentiate(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        return agent._replace(own=f.gradient(self.model(agent))), Work(jnp.int32(0), jnp.asarray(f.size, jnp.int32))

    def share_gradient(self, server: Any, mean: Vector, share: Any) -> tuple[Any, Vector]:
        return server, mean

    def hear_gradient(self, agent: Any, mean: Vector) -> Any:
        return agent._replace(mean=mean)

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        x, memory, work = self.solve(f, agent, r, key)
        return agent._replace(x=x, memory=memory), work

    def send(self, agent: Any) -> Any:
        return Model(agent.x)


class FedLin(GradientsFirst):
    """FedLin: local steps with the exact difference of the gradients at x."""

    step: float | Step
    iterations: int | None
    batch: int | None
    epochs: int | None

    def solve(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Vector, None, Work]:
        oracle = sgd(self.step, self.iterations, self.batch, epochs=self.epochs)
        return oracle.solve(Subproblem(f, agent.mean - agent.own), agent.x, None, r, key)


@makes(FedLin)
def fedlin(
    *, step: float | Step, iterations: int | None = None, batch: int | None = None, epochs: int | None = None
) -> Method:
    """Return FedLin with Q = `iterations` local steps on `batch` samples (None: all of them), or with `epochs`."""
    check_step(step)
    check_stochastic(iterations, batch, epochs=epochs)
    return FedLin(step=step, iterations=iterations, batch=batch, epochs=epochs)


CARD = Card.single(
    title="FedLin",
    summary="local steps corrected by the mean gradient",
    family="corrected gradients",
    authors="Aritra Mitra, Rayana Jaafar, George J. Pappas, Hamed Hassani",
    paper="Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse Gradients",
    venue=("Advances in Neural Information Processing Systems 34 (NeurIPS 2021), 14606-14619; arXiv:2102.07053"),
    year=2021,
    rule=lambda L, agents, scale: fedlin(step=scale / (6 * L * Q), iterations=Q),
    guarantee=Guarantee("NC (SC: linear)", "1/e", "Q/e", "M Q/e"),
    only_models=False,
)
