"""The network, and the digits of four sites that differ: each has mostly some of the ten digits."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

SITES = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all samples, in a random order. The first 1400 belong to the sites, the others are the test samples."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(pixels[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


def samples_of(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (part[:1400] for part in digits())
    rng = np.random.default_rng(1)
    owner = np.where(rng.random(1400) < 0.9, y.numpy() * SITES // 10, rng.integers(SITES, size=1400))
    return x[owner == site], y[owner == site]


def test_accuracy(net: nn.Module) -> float:
    x, y = (part[1400:] for part in digits())
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())
