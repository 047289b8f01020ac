"""What MPR-SGD, STEM and PR-SPIDER share: the whole state of an agent, a model and a second vector, is averaged."""

from typing import Any

from fedpd.core import Exchange, Local


def average_state(local: Local) -> Exchange:
    """Return an exchange in which agents send all that they keep and receive its mean; the server keeps the model."""

    def aggregate(server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        return mean.x, mean

    return Exchange(local, lambda agent: agent, aggregate, lambda agent, mean: mean)
