"""A layer around a method: a method whose messages or whose server something changes."""

from typing import Any

from fedpd.core import Around, LocalObjective, Method, Vector
from fedpd.core.method import of_method


class Layer(Around):
    """A layer that leaves the agents' states as they are. A layer with states of its own overrides what has them."""

    rebuild = of_method("rebuild")
    repeats = of_method("repeats")

    def init(self, f: LocalObjective, x: Vector) -> Any:
        return self.method.init(f, x)

    def model(self, agent: Any) -> Vector:
        return self.method.model(agent)


class WithInner(Layer):
    """A layer whose agents have a field `inner`, the method's own state."""

    @property
    def rebuild(self) -> Any:
        return rebuilt_inside(self.method.rebuild)

    def model(self, agent: Any) -> Vector:
        return self.method.model(agent.inner)


def rebuilt_inside(rebuild: Any) -> Any:
    """Return a method's `rebuild` for states that hold the method's own as `inner`; None if it has none."""
    return None if rebuild is None else lambda f, agent: agent._replace(inner=rebuild(f, agent.inner))


def read_inside(function: Any) -> Any:
    """Return a method's `waits` or `delivers` for servers that hold its own as `inner`; None if it has none."""
    return None if function is None else lambda server, *more: function(server.inner, *more)


def layers_of(method: Method) -> list[Method]:
    """Return the layers around a method, the outermost first, and the method itself."""
    return [method, *layers_of(method.method)] if isinstance(method, Layer) else [method]
