"""Train a PyTorch network on characters by writer: JAX compiles the module, and the result loads back into it.

    python examples/torch_by_writer.py

The module has convolutions and dropout. It is an ordinary nn.Module: `fedpd new-app DIR --framework torch` writes a
Flower app for the same module, and a model of the simulation is a starting model of the federation.
"""

import numpy as np
import torch
from torch import nn

import fedpd
from fedpd import algorithms, data, oracles, problems

CLASSES, SIDE = 6, 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3, padding=1)
        self.pool, self.dropout = nn.MaxPool2d(2), nn.Dropout(0.2)
        self.scores = nn.Linear(8 * (SIDE // 2) ** 2, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.convolution(x[:, None])))  # the data have no axis of channels
        return self.scores(self.dropout(x.flatten(1)))


def main() -> None:
    torch.manual_seed(0)
    module, writers = Net(), data.characters(writers=8, samples=60, classes=CLASSES, size=SIDE)
    problem = problems.network(module, writers)
    oracle = oracles.sgd(step=0.2, iterations=20, batch=10)
    run = fedpd.simulate(algorithms.fedpd(eta=10.0, oracle=oracle, start="server"), problem, rounds=10, metrics_every=5)
    for r, accuracy in zip(run.history["round"], run.history["test_accuracy"], strict=True):
        print(f"round {r:2}  test accuracy {accuracy:.2f}")
    problems.load_model(module, run.model).eval()
    with torch.no_grad():
        right = [(module(torch.from_numpy(own["x"])).argmax(1).numpy() == own["y"]).mean() for own in writers.test]
    print(f"in PyTorch, with the trained module: {np.mean(right):.2f}; the worst writer {min(right):.2f}")


if __name__ == "__main__":
    main()
