r"""Let an optimiser of optax take the server's step: FedAvgM, FedAdam, FedYogi and others (Reddi et al., ICLR 2021).

A method's server goes from its model x to x'. The optimiser gets x - x' as a gradient, and the server goes to
x + update instead. With `optax.sgd(1.0)` this is the method itself. Where the method stands still (x' = x), the
gradient is 0, so an optimiser that then also stands still keeps the method's fixed points.

| method | optimiser |
|---|---|
| FedAvgM | `optax.sgd(1.0, momentum=0.9)` |
| FedAdam | `optax.adam(0.01, b1=0.9, b2=0.99, eps=1e-3)` |
| FedYogi | `optax.yogi(0.01, b1=0.9, b2=0.99, eps=1e-3)` |
| FedAdagrad | `optax.adagrad(0.01, initial_accumulator_value=0, eps=1e-3)` |
"""

from typing import Any, NamedTuple

import jax
import optax
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.core import Exchange, Method, Tree, Value, form_with_absent, makes
from fedpd.core.optimizers import Optimizer
from fedpd.transforms._layer import Layer


class ServerStep(Value):
    """A step of the server for `wrap(algorithm, mean=...)`."""

    optimizer: Any

    @property
    def transform(self) -> optax.GradientTransformation:
        return self.optimizer.transform if isinstance(self.optimizer, Optimizer) else self.optimizer


class Server(NamedTuple):
    """The server of a method whose step an optimiser takes.

    Attributes:
        model: x.
        optimizer: The optimiser's state.
    """

    model: Vector
    optimizer: Any


@makes(ServerStep)
def server_optimizer(optimizer: "optax.GradientTransformation | Optimizer") -> ServerStep:
    """Return a rule by which an optimiser takes the server's step.

    Args:
        optimizer: An optimiser of optax, or `oracles.optimizer("adam", ...)`, which an experiment file can contain.

    Examples:
        >>> import optax
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8, batch=4))
        >>> fedavgm = transforms.wrap(fedavg, mean=transforms.server_optimizer(optax.sgd(1.0, momentum=0.9)))
    """
    step = ServerStep(optimizer=optimizer)
    if not isinstance(step.transform, optax.GradientTransformation):
        refuse("optimizer", optimizer, "must be an optax optimiser", "Give e.g. optax.adam(1e-2)")
    return step


def _keeps_a_model(algorithm: Method) -> bool:
    """Return whether a method's server keeps nothing but the model that it broadcasts."""
    example = jax.eval_shape(algorithm.server, Vector(jax.ShapeDtypeStruct((1,), float)))
    return isinstance(example, Vector) and len(algorithm.exchanges()) == 1


class Stepped(Layer):
    """A method whose server's step an optimiser takes."""

    step: ServerStep

    def server(self, x: Vector) -> Server:
        return Server(self.method.server(x), self.step.transform.init(x))

    def exchanges(self) -> tuple[Exchange, ...]:
        (exchange,) = self.method.exchanges()
        return (exchange._replace(aggregate=self.aggregate),)

    def aggregate(self, server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
        moved, broadcast = self.method.aggregate(server.model, mean, share)
        assert isinstance(broadcast, Vector), "a server that keeps a model broadcasts it"
        updates, state = self.step.transform.update(server.model - moved, server.optimizer, server.model)
        model = server.model + updates
        return Server(model, state), model

    @property
    def needs_everyone(self) -> bool:
        return self.method.needs_everyone or not _keeps_a_model(self.method.partial())

    def partial(self) -> Method:
        return self if self.needs_everyone else Stepped(method=form_with_absent(self.method), step=self.step)


def with_server_step(algorithm: Method, step: ServerStep) -> Method:
    """Return the method with this step; refuse one whose server keeps more than the model that it broadcasts."""
    if not _keeps_a_model(algorithm):
        rule = "its server keeps more than a model, which a step of an optimiser would no longer fit"
        refuse("algorithm", algorithm.description, rule, "Choose a method such as fedavg, fedprox or fedpd")
    return Stepped(method=algorithm, step=step)
