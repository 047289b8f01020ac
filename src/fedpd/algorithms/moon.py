"""MOON (Li, He and Song, 2021): FedAvg with a contrastive loss between the features of three models.

    y_i = oracle(f_i + mu c_i), from x,    c_i(y) = mean over the agent's samples a of
          -log( exp(s(y, x)/t) / (exp(s(y, x)/t) + exp(s(y, b_i)/t)) ),    s(u, v) = cos(z(u; a), z(v; a))
    b_i = y_i,    x = mean_S y_i

z(y; a) are the features of sample a that the model y computes, b_i is the agent's local model of its last round, and t
the temperature. The loss pulls the features towards those of the server's model and away from those of the last local
model. An agent without a last local model has b_i = x^0. Where b_i = x the loss is constant, so the first round is
FedAvg's, as it is in the authors' program. Agents send y_i, the server sends x: one model each way (CTA), and each
local step computes features three times. mu = 0 is FedAvg.

Differences from the authors' program (QinbinLi/MOON): the mean is plain, where the program weighs models by the agents'
numbers of samples, as `transforms.weighted` does; an agent remembers one local model, the program's default; an agent
that was absent so far has b_i = x^0, where the program has a model of another random start. With dropout, features are
those without it.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.algorithms._rules import fedavg_steps
from fedpd.algorithms.fedavg import Agent, LocalAveraging
from fedpd.base.checks import at_least, positive, refuse
from fedpd.core import Array, Key, LocalObjective, Method, Oracle, Subproblem, Tree, Vector, Work, check_oracle, makes
from fedpd.core.card import Card, Guarantee, Reference, Variant

SMALL = 1e-8  # the least product of two norms, as in PyTorch's cosine similarity
Features = Callable[[Tree, Tree], Array]


class Memory(NamedTuple):
    before: Vector  # b_i
    oracle: Any  # the oracle's memory between rounds


def similarity(one: Array, other: Array) -> Array:
    """Return the cosine of each pair of rows, (B,)."""
    dots, squares = jnp.sum(one * other, 1), jnp.sum(one * one, 1) * jnp.sum(other * other, 1)
    return dots / jnp.sqrt(jnp.maximum(squares, SMALL**2))  # the root of a constant has no infinite slope at 0


class MOON(LocalAveraging):
    """FedAvg with a model-contrastive loss."""

    features: Features | Literal["model"]
    mu: float
    temperature: float
    oracle: Oracle

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, Memory(x, self.oracle.init(f, x)))

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        before, memory = agent.memory
        phi = Subproblem(self.contrasted(f, agent.x, before))
        y, memory, work = self.oracle.solve(phi, agent.x, memory, r, key)
        return Agent(y, Memory(y, memory)), work

    def contrasted(self, f: LocalObjective, x: Vector, before: Vector) -> LocalObjective:
        """Return f_i + mu c_i, for random layers too."""
        if f.joint:
            refuse("method", self.description, "adds a loss of each sample", "Give a problem with one loss per sample")

        def contrast(model: Tree, batch: Tree) -> Array:
            z, pull, push = (self.rows(one, batch) for one in (model, x.tree, before.tree))
            gap = (similarity(z, push) - similarity(z, pull)) / self.temperature
            return self.mu * jnp.logaddexp(0, gap)

        losses, noise = f.losses, f.noise
        if noise is not None:
            random = noise.losses
            noise = noise._replace(losses=lambda model, batch, key: random(model, batch, key) + contrast(model, batch))
        return f._replace(losses=lambda model, batch: losses(model, batch) + contrast(model, batch), noise=noise)

    def rows(self, model: Tree, batch: Tree) -> Array:
        """Return the features of a batch as rows, (B, d); a single row if all samples have the same."""
        if self.features == "model":
            return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(model)])[None]
        found = self.features(model, batch)
        if getattr(found, "ndim", 0) < 2:
            rule = f"returned an array of shape {getattr(found, 'shape', ())}"
            refuse("features", self.features, rule, "Return one row of features per sample, shape (B, d)")
        return found.reshape(len(found), -1)

    def rebuild(self, f: LocalObjective, agent: Agent) -> Agent:
        return self.init(f, agent.x)


@makes(MOON)
def moon(*, features: Features | Literal["model"], mu: float = 1.0, temperature: float = 0.5, oracle: Oracle) -> Method:
    """Return MOON, with a local oracle that works on f_i itself.

    Args:
        features: (model, batch) -> (B, d), the features of the samples, e.g. what the layer before the last returns.
            The batch has the entries of the problem's data, such as "x" and "y". "model" takes the model's parameters
            as the features of every sample, for problems without layers.
        mu: The weight of the contrastive loss. The paper tries 0.1, 1, 5 and 10.
        temperature: The temperature of the contrastive loss; 0.5 in the paper.
        oracle: The local solver, e.g. `oracles.sgd`.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fedpd import algorithms, oracles
        >>> def hidden(model, batch):
        ...     return jnp.tanh(batch["x"] @ model["first"])
        >>> sgd = oracles.sgd(step=0.1, iterations=5, batch=10)
        >>> algorithms.moon(features=hidden, oracle=sgd).mu
        1.0
    """
    if not callable(features) and features != "model":
        rule = 'must be a function or "model"'
        refuse("features", features, rule, "Give a function of (model, batch) that returns rows (B, d)")
    at_least("mu", mu, 0, "mu is the weight of the contrastive loss; 0 is FedAvg")
    positive("temperature", temperature, "0.5 is the paper's")
    check_oracle(oracle)
    return MOON(features=features, mu=mu, temperature=temperature, oracle=oracle)


def _rule(L: float, agents: int, scale: Any) -> Method:
    return moon(features="model", mu=0.1 * L, oracle=fedavg_steps(L, scale))


CARD = Card(
    title="MOON",
    summary="FedAvg with a contrastive loss between the features of three models",
    family="averaging",
    reference=Reference(
        authors="Qinbin Li, Bingsheng He, Dawn Song",
        title="Model-Contrastive Federated Learning",
        venue="IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR 2021); arXiv:2103.16257",
        year=2021,
    ),
    variants=(
        Variant(
            "MOON, features = model",
            _rule,
            Guarantee("none"),
            summary="the features are the model's parameters; give the function of a layer for a network",
        ),
    ),
    parameters={
        "features": 'z: a function (model, batch) -> (B, d), the features of samples; `"model"`: the parameters',
        "mu": "μ ≥ 0, the weight of the contrastive loss; 0 is FedAvg",
        "temperature": "the temperature of the contrastive loss",
    },
    search={"mu": 1.0},
)
