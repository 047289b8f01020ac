r"""Let an optimiser of optax take the server's step of any method (FedOpt; Reddi et al., ICLR 2021).

A method's server goes from its model x to x'. The optimiser gets x - x' as a gradient, and the server goes to
x + update instead. With `optax.sgd(1.0)` this is the method itself. Where the method stands still (x' = x), the
gradient is 0, so an optimiser that then also stands still keeps the method's fixed points. A server that keeps more
than a model (FedPD with absent agents, A-FedPD, FedDyn, SCAFFOLD) goes to x + update with the rest of its state as it
is: the agents and the server measure their next steps from the model that was broadcast.

FedAvg with `optax.sgd(1.0, momentum=0.9)` is `algorithms.fedavgm`. `optax.adam` and `optax.yogi` correct the bias of
their running means, which FedAdam and FedYogi as published do not: `algorithms.fedadam` and `algorithms.fedyogi`.
"""

from typing import Any, NamedTuple

import jax
import optax

from fedpd.base.checks import refuse
from fedpd.core import Exchange, Method, Tree, Value, Vector, form_with_absent, makes
from fedpd.core.method import Layer, read_inside
from fedpd.core.oracle import Optimizer


class ServerStep(Value):
    """A step of the server for `wrap(algorithm, mean=...)`."""

    optimizer: Any

    @property
    def transform(self) -> optax.GradientTransformation:
        return self.optimizer.transform if isinstance(self.optimizer, Optimizer) else self.optimizer


class Server(NamedTuple):
    """The server of a method whose step an optimiser takes."""

    inner: Any  # the method's own state, whose model is x
    optimizer: Any  # the optimiser's state


@makes(ServerStep)
def server_optimizer(optimizer: "optax.GradientTransformation | Optimizer") -> ServerStep:
    """Return a rule by which an optimiser takes the server's step.

    Args:
        optimizer: An optimiser of optax, or `oracles.optimizer("adam", ...)`, which an experiment file can contain.

    Examples:
        >>> import optax
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=8, batch=4))
        >>> fedavgm = transforms.wrap(
        ...     fedavg, mean=transforms.server_optimizer(optax.sgd(1.0, momentum=0.9))
        ... )
    """
    if isinstance(optimizer, Optimizer) and optimizer.by_round:
        rule = "has a learning rate by rounds of local steps, and the server's step has none"
        refuse("optimizer", optimizer, rule, "Give a number, or a schedule of optax")
    step = ServerStep(optimizer=optimizer)
    if not isinstance(step.transform, optax.GradientTransformation):
        refuse("optimizer", optimizer, "must be an optax optimiser", "Give e.g. optax.adam(1e-2)")
    return step


def _has_model(algorithm: Method) -> bool:
    """Return whether a method's server keeps the model that it broadcasts, and nothing that a step would not fit."""
    example = jax.eval_shape(algorithm.server, Vector(jax.ShapeDtypeStruct((1,), float)))
    return (isinstance(example, Vector) or algorithm.model_first) and len(algorithm.exchanges()) == 1


def _model_of(state: Any) -> Vector:
    return state if isinstance(state, Vector) else state[0]


def _at(state: Any, x: Vector) -> Any:
    """Return the state of a server, or a broadcast, with another model."""
    if isinstance(state, Vector):
        return x
    if hasattr(state, "_fields"):
        return state._replace(**{state._fields[0]: x})
    return (x, *state[1:])


class Stepped(Layer):
    """A method whose server's step an optimiser takes."""

    step: ServerStep

    def server(self, x: Vector) -> Server:
        return Server(self.method.server(x), self.step.transform.init(x))

    def exchanges(self) -> tuple[Exchange, ...]:
        (exchange,) = self.method.exchanges()
        return (exchange._replace(aggregate=self.aggregate),)

    def aggregate(self, server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
        x = _model_of(server.inner)
        moved, broadcast = self.method.aggregate(server.inner, mean, share)
        updates, state = self.step.transform.update(x - _model_of(moved), server.optimizer, x)
        return Server(_at(moved, x + updates), state), _at(broadcast, x + updates)

    @property
    def delivers(self) -> Any:
        return read_inside(self.method.delivers)

    @property
    def needs_everyone(self) -> bool:
        return self.method.needs_everyone or not _has_model(self.method.partial())

    def partial(self) -> Method:
        return self if self.needs_everyone else Stepped(method=form_with_absent(self.method), step=self.step)


def with_server_step(algorithm: Method, step: ServerStep) -> Method:
    """Return the method with this step; refuse one whose server keeps what the step would not fit."""
    if not _has_model(algorithm):
        rule = "its server keeps more than a model, which a step of an optimiser would no longer fit"
        refuse("algorithm", algorithm.description, rule, "Choose a method such as fedavg, scaffold, feddyn or fedpd")
    return Stepped(method=algorithm, step=step)
