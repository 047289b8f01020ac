"""The tasks' models in PyTorch, for every peer that trains PyTorch modules."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import torch_loop
from benchmarks.peers.task import ALPHA, BETA, Task

CHANNELS, WIDTH = (8, 16), 128  # of fedpd.networks.SmallCNN


class Logistic(torch_loop.Model):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimension))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        squares = ALPHA * self.w * self.w
        return functional.softplus(-y * (x @ self.w)).mean() + BETA * (squares / (1 + squares)).sum()


def model(task: Task) -> torch_loop.Model:
    """Return the model at the task's start."""
    if task.kind == "linear":
        return _at(Logistic(task.x.shape[-1]), [torch.tensor(task.start["w"])])
    module = torch_loop.CNN(CHANNELS, WIDTH, task.classes)
    return _at(module, torch_loop.from_flax(_nested(task), module))


def _nested(task: Task) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in task.start.items():
        layer, part = name.split("/")
        tree.setdefault(layer, {})[part] = array
    return tree


@torch.no_grad()
def _at(module: torch_loop.Model, parameters: torch_loop.Parameters) -> torch_loop.Model:
    for mine, value in zip(module.parameters(), parameters, strict=True):
        mine.copy_(value)
    return module


def agents(task: Task) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return every agent's samples; images are (C, H, W)."""
    x = torch.tensor(task.x if task.kind == "linear" else task.x[:, :, None])
    return list(zip(x, torch.tensor(task.y), strict=True))


@torch.no_grad()
def mean_loss(module: torch_loop.Model, task: Task) -> float:
    losses = [module.loss(x, y) for x, y in agents(task)]
    return float(torch.stack(losses).mean())
