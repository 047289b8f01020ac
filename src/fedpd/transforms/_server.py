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
from fedpd.base.spec import Spec
from fedpd.core import Algorithm, Exchange, Mixing, Tree, specified
from fedpd.core.optimizers import Optimizer


class ServerStep(NamedTuple):
    """A step of the server for `wrap(algorithm, mean=...)`.

    Attributes:
        spec: Its name; `specified` replaces it by the name and the arguments of the factory.
        transform: The optimiser.
    """

    spec: Spec | str
    transform: optax.GradientTransformation


class Server(NamedTuple):
    """The server of a method whose step an optimiser takes.

    Attributes:
        model: x.
        optimizer: The optimiser's state.
    """

    model: Vector
    optimizer: Any


@specified
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
    transform = optimizer.transform if isinstance(optimizer, Optimizer) else optimizer
    if not isinstance(transform, optax.GradientTransformation):
        refuse("optimizer", optimizer, "must be an optax optimiser", "Give e.g. optax.adam(1e-2)")
    return ServerStep("server_optimizer", transform)


def _keeps_a_model(algorithm: Algorithm) -> bool:
    """Return whether a method's server keeps nothing but the model that it broadcasts."""
    example = jax.eval_shape(algorithm.server, Vector(jax.ShapeDtypeStruct((1,), float)))
    return isinstance(example, Vector) and len(algorithm.exchanges) == 1


def with_server_step(algorithm: Algorithm, step: ServerStep) -> Algorithm:
    """Return the method with this step; refuse one whose server keeps more than the model that it broadcasts."""
    if not _keeps_a_model(algorithm):
        rule = "its server keeps more than a model, which a step of an optimiser would no longer fit"
        refuse("algorithm", algorithm.description, rule, "Choose a method such as fedavg, fedprox or fedpd")

    def server(x: Vector) -> Server:
        return Server(algorithm.server(x), step.transform.init(x))

    def stepped(exchange: Exchange) -> Exchange:
        aggregate = exchange.aggregate
        assert not isinstance(aggregate, Mixing)  # `with_transforms`

        def optimized(server: Server, mean: Tree, share: Any) -> tuple[Server, Tree]:
            moved, broadcast = aggregate(server.model, mean, share)
            assert isinstance(broadcast, Vector), "a server that keeps a model broadcasts it"
            updates, state = step.transform.update(server.model - moved, server.optimizer, server.model)
            model = server.model + updates
            return Server(model, state), model

        return exchange._replace(aggregate=optimized)

    partial, away = algorithm.away.partial, algorithm.away
    if partial is not None:
        fits = _keeps_a_model(partial)
        away = away._replace(partial=with_server_step(partial, step) if fits else None, everyone=not fits)
    return algorithm._replace(server=server, exchanges=tuple(map(stepped, algorithm.exchanges)), away=away)
