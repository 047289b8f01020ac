"""The common part of MPR-SGD, STEM and PR-SPIDER: the server averages the whole state of the agents (two vectors)."""

from typing import Any

from fedpd.core import Exchange, Local


def average_state(local: Local) -> Exchange:
    """Return an exchange in which agents send their whole state and receive its mean; the server keeps the model."""

    def aggregate(server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        return mean.x, mean

    return Exchange(local, lambda agent: agent, aggregate, lambda agent, mean: mean)
