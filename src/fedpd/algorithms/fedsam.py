"""FedSAM (Qu et al., 2022): FedAvg whose local steps are sharpness-aware (SAM).

    y_i = x;  Q times   g   = h_i(y_i; xi)
                        y_i = y_i - step h_i(y_i + rho g/||g||; xi)
    x   = mean_S y_i

Both gradients of a step are on the same samples, so a step costs two. Agents look for flat regions of their own f_i.
Agents send y_i, the server sends x: one model each way (CTA). rho = 0 is FedAvg, except that it computes each gradient
twice. Like FedAvg, it stops at an error floor on heterogeneous data.

Differences from the paper: the server's step size is 1; the weights of the mean are equal. As in FL-Simulator, a public
program, 1e-7 is added to ||g||. That program also clips gradients and adds weight decay. With dropout both gradients
use the same random numbers, while PyTorch draws new ones.
"""

from typing import Any

import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedavg import Agent, LocalAveraging
from fedpd.base.checks import at_least, refuse
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee
from fedpd.oracles import GD, Stochastic

SMALL = 1e-7  # added to the norm of the gradient, as in the public programs


def climb(x: Vector, gradient: Vector, rho: Any) -> Vector:
    """Return x + rho g/||g||."""
    return x + rho / (jnp.sqrt(gradient @ gradient) + SMALL) * gradient


def sharpened(f: LocalObjective, rho: Any) -> LocalObjective:
    """Return f_i with the gradients grad f_i(x + rho g/||g||) in place of g = grad f_i(x), both on the same samples."""

    class Sharpened(LocalObjective):
        # It keeps the fields of f_i, so that `_replace` works; `plain` has the gradients of f_i themselves. All further
        # arguments of a gradient say on which samples it is, so that both gradients get them.

        @property
        def plain(self) -> LocalObjective:
            return LocalObjective(*self)

        def gradient(self, x: Vector) -> Vector:
            return self.plain.gradient(climb(x, self.plain.gradient(x), rho))

        def value_and_gradient(self, x: Vector) -> tuple[Array, Vector]:
            return self.plain.value_and_gradient(climb(x, self.plain.gradient(x), rho))

        def stochastic_gradient(self, x: Vector, *batch: Any, **more: Any) -> Vector:
            plain = self.plain
            return plain.stochastic_gradient(
                climb(x, plain.stochastic_gradient(x, *batch, **more), rho), *batch, **more
            )

        def stochastic_value_and_gradient(self, x: Vector, *batch: Any, **more: Any) -> tuple[Array, Vector]:
            _, uphill = self.plain.stochastic_value_and_gradient(x, *batch, **more)
            return self.plain.stochastic_value_and_gradient(climb(x, uphill, rho), *batch, **more)

    return Sharpened(*f)


def twice(work: Work) -> Work:
    """Return the work of the same steps with two gradients for each."""
    return work.plus(work._replace(updates=jnp.zeros_like(work.updates)))


def check_sharpness(rho: float, oracle: Oracle) -> None:
    """Refuse settings that do not fit, and an oracle that does not take its gradients from f_i."""
    at_least("rho", rho, 0, "rho is the length of the step uphill, e.g. 0.05; 0 leaves it out")
    check_oracle(oracle)
    if not isinstance(oracle, GD | Stochastic):
        rule = "must be a solver in JAX with plain gradients, because the method changes the gradients of f_i"
        refuse("oracle", oracle.description, rule, "Give e.g. oracles.sgd(step=0.1, iterations=8)")


class FedSAM(LocalAveraging):
    """FedAvg with sharpness-aware gradients."""

    rho: float
    oracle: Oracle

    def subproblem(self, f: LocalObjective, x: Vector) -> Subproblem:
        return Subproblem(sharpened(f, self.rho))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        agent, work = super().local(f, agent, r, key)
        return agent, twice(work)


@makes(FedSAM)
def fedsam(*, rho: float = 0.05, oracle: Oracle) -> Method:
    """Return FedSAM, with a local oracle of fedpd that works on f_i itself."""
    check_sharpness(rho, oracle)
    return FedSAM(rho=rho, oracle=oracle)


CARD = Card.single(
    title="FedSAM",
    summary="sharpness-aware local steps, then averaging",
    family="averaging",
    authors="Zhe Qu, Xingyu Li, Rui Duan, Yao Liu, Bo Tang, Zhuo Lu",
    paper="Generalized Federated Learning via Sharpness Aware Minimization",
    venue="Proceedings of the 39th International Conference on Machine Learning (ICML 2022), PMLR 162; "
    "arXiv:2206.02618",
    year=2022,
    rule=lambda L, agents, scale: fedsam(oracle=fedavg_steps(L, scale)),
    guarantee=Guarantee("NC, bounded variance and differences"),
    parameters={"rho": "ρ ≥ 0, the length of the step uphill; 0 is FedAvg with twice its gradients"},
    search={"rho": 0.05},
)
