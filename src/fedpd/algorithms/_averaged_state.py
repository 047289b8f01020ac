"""The common part of MPR-SGD, STEM and PR-SPIDER: the server averages the whole state of the agents (two vectors)."""

from typing import Any

from fedpd.core import Method


class AveragedState(Method):
    """Agents send their whole state and receive its mean; the server keeps the model. States have a field x."""

    def send(self, agent: Any) -> Any:
        return agent

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        return mean.x, mean

    def receive(self, agent: Any, mean: Any) -> Any:
        return mean
