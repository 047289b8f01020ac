"""FedAvg and FedPD of a convolutional network as a plain PyTorch loop over agents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Parameters = list[torch.Tensor]


class Model(nn.Module):
    """A module that the loop trains: it computes its mean loss on a batch."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class CNN(Model):
    def __init__(self, channels: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        first, second = channels
        self.first = nn.Conv2d(1, first, 5, padding=2)
        self.second = nn.Conv2d(first, second, 5, padding=2)
        self.dense = nn.Linear(49 * second, width)
        self.scores = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.scores(functional.relu(self.dense(x.flatten(1))))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)


def from_flax(tree: dict[str, Any], module: Model) -> Parameters:
    """Return the parameters of a flax network in the order and layout of `module`: images are (C, H, W) here."""
    convolutions = [np.transpose(tree[name]["kernel"], (3, 2, 0, 1)) for name in ("Conv_0", "Conv_1")]
    depth = convolutions[1].shape[0]
    dense = tree["Dense_0"]["kernel"]
    dense = dense.reshape(-1, depth, dense.shape[1]).swapaxes(0, 1).reshape(dense.shape)  # pixels, channels
    kernels = [*convolutions, dense.T, tree["Dense_1"]["kernel"].T]
    biases = [tree[name]["bias"] for name in ("Conv_0", "Conv_1", "Dense_0", "Dense_1")]
    arrays = [array for pair in zip(kernels, biases, strict=True) for array in pair]
    return [torch.tensor(np.ascontiguousarray(array)) for array in arrays]


def local_steps(
    module: Model, x: torch.Tensor, y: torch.Tensor, draws: np.ndarray, step: float, pull: tuple[Any, ...] | None
) -> None:
    """Take Q steps of SGD on the module's loss; with `pull` = (x_0, lambda_i, eta) on the augmented Lagrangian."""
    parameters: Parameters = list(module.parameters())
    for rows in torch.as_tensor(draws):
        gradients = list(torch.autograd.grad(module.loss(x[rows], y[rows]), parameters))
        with torch.no_grad():
            if pull is not None:
                x0, dual, eta = pull
                for gradient, own, centre, price in zip(gradients, parameters, x0, dual, strict=True):
                    gradient.add_(price).add_(own - centre, alpha=1 / eta)
            torch._foreach_add_(parameters, gradients, alpha=-step)


def fedavg_round(module: Model, x0: Parameters, data: Any, draws: np.ndarray, step: float) -> Parameters:
    """Return the model after a round. draws (N, Q, B) are the samples of agent i at step q."""
    total = [torch.zeros_like(leaf) for leaf in x0]
    for (x, y), indices in zip(data, draws, strict=True):
        _load(module, x0)
        local_steps(module, x, y, indices, step, None)
        torch._foreach_add_(total, [leaf.detach() for leaf in module.parameters()])
    return [leaf / len(draws) for leaf in total]


def fedpd_round(
    module: CNN,
    x0: Parameters,
    models: list[Parameters],
    duals: list[Parameters],
    data: Any,
    draws: np.ndarray,
    step: float,
    eta: float,
) -> Parameters:
    """Return x_0 after a round of Algorithm 2 with p = 0; `models` and `duals`, one per agent, change in place."""
    total = [torch.zeros_like(leaf) for leaf in x0]
    for (x, y), indices, model, dual in zip(data, draws, models, duals, strict=True):
        _load(module, model)
        local_steps(module, x, y, indices, step, (x0, dual, eta))
        with torch.no_grad():
            for mine, own, price, centre, sum_ in zip(module.parameters(), model, dual, x0, total, strict=True):
                own.copy_(mine)
                price.add_(own - centre, alpha=1 / eta)
                sum_.add_(own + eta * price)
    return [leaf / len(draws) for leaf in total]


@torch.no_grad()
def _load(module: Model, parameters: Parameters) -> None:
    for mine, leaf in zip(module.parameters(), parameters, strict=True):
        mine.copy_(leaf)
