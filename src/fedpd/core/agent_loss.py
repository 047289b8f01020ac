"""One loss per agent, for objectives that couple the samples of an agent: Cox, ranking, contrastive losses."""

from collections.abc import Callable
from dataclasses import dataclass

from fedpd.core.types import Array, Tree

LossOfAgent = Callable[[Tree, Tree, Array], Array]  # (model, samples (n, ...), mask (n,)) -> scalar


@dataclass(frozen=True)
class AgentLoss:
    """The `losses` of a problem that has one loss per agent in place of one per sample.

    Attributes:
        loss: (model, samples, mask) -> scalar; the mask is 1 for samples and 0 for padding.
    """

    loss: LossOfAgent

    def __call__(self, model: Tree, batch: tuple[Tree, Array]) -> Array:
        samples, mask = batch
        return self.loss(model, samples, mask)
