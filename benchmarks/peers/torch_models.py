"""The tasks' models in PyTorch, for every peer that trains PyTorch modules."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import torch_loop
from benchmarks.peers.task import ALPHA, BETA, Task

CHANNELS, WIDTH = (8, 16), 128  # of fedpd.networks.SmallCNN
Samples = tuple[torch.Tensor, torch.Tensor]


class Logistic(torch_loop.Model):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimension))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        squares = ALPHA * self.w * self.w
        return functional.softplus(-y * (x @ self.w)).mean() + BETA * (squares / (1 + squares)).sum()


class Softmax(torch_loop.Model):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(features, classes)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.scores(x), y)


class Cifar(torch_loop.Model):
    """pfl-research's network for CIFAR-10, without its dropout."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(x), y)


class Tags(torch_loop.Model):
    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.scores = nn.Linear(width, classes)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.scores(self.words(x).mean(dim=-2)), y)


def model(task: Task) -> torch_loop.Model:
    """Return the model at the task's start."""
    if task.kind == "linear":
        return _at(Logistic(task.x.shape[-1]), [torch.tensor(task.start["w"])])
    if task.kind == "softmax":
        return _at(Softmax(task.x.shape[-1], task.classes), _dense(task, "Dense_0"))
    if task.kind == "tags":
        words = torch.tensor(task.start["Embed_0/embedding"])
        return _at(Tags(words.shape[0], words.shape[1], task.classes), [words, *_dense(task, "Dense_0")])
    module = Cifar(task.classes) if task.kind == "cifar" else torch_loop.CNN(CHANNELS, WIDTH, task.classes)
    return _at(module, torch_loop.from_flax(_nested(task), module))


def _dense(task: Task, layer: str) -> torch_loop.Parameters:
    return [torch.tensor(task.start[f"{layer}/kernel"].T.copy()), torch.tensor(task.start[f"{layer}/bias"])]


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


def samples(task: Task, agents: Iterable[int]) -> dict[int, Samples]:
    """Return the x and y of each agent's steps in a round."""
    return {i: tensors(task, x, y) for i, (x, y) in task.samples(agents).items()}


def tensors(task: Task, x: Any, y: Any) -> Samples:
    """Return x and y as tensors; images are (C, H, W), and PyTorch's cross entropy takes classes of 64 bits."""
    if task.kind == "cnn":
        x = x[:, None]
    elif task.kind == "cifar":
        x = x.transpose(0, 3, 1, 2).copy()
    return torch.tensor(x), torch.tensor(y if task.kind == "linear" else y.astype("int64"))


@torch.no_grad()
def final_loss(module: torch_loop.Model, task: Task) -> float:
    x, y = tensors(task, *task.last_samples())
    losses = [module.loss(*some) * len(some[0]) for some in zip(x.split(100), y.split(100), strict=True)]
    return float(torch.stack(losses).sum() / len(x))
