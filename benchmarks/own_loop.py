"""The cost of `fedpd.torch.local` around a PyTorch loop: processor seconds per round beside the same loop, alternating.

python -m benchmarks.own_loop
"""

import time

import numpy as np
import torch
from torch import nn

import fedpd.torch
from fedpd import algorithms, oracles

STEPS, BATCH, ROUNDS = 50, 50, 15


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(STEPS):
        rows = slice(step * BATCH % len(x), step * BATCH % len(x) + BATCH)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def convolutions() -> nn.Module:
    first = (nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10))


def seconds(run: object, *arguments: object) -> float:
    begin = time.process_time()
    run(*arguments)  # type: ignore[operator]
    return time.process_time() - begin


def main() -> None:
    """Print the least seconds of a round for networks of several sizes, alone and in the block, and their ratio."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads that wait for one another take processor time, too
    method = algorithms.fedpd(eta=0.1, oracle=oracles.own_loop(), start="server")
    x, y = torch.randn(1000, 784), torch.randint(0, 10, (1000,))
    print("parameters  alone (s)  in the block (s)  ratio")
    for net in (perceptron(20), perceptron(200), perceptron(1000), convolutions()):
        agent = fedpd.torch.Agent()

        def inside(net: nn.Module = net, agent: fedpd.torch.Agent = agent) -> None:
            with fedpd.torch.local(method, net, agent):
                train(net, x, y)

        times = np.array([[seconds(train, net, x, y), seconds(inside)] for _ in range(ROUNDS)])
        alone, around = times.min(axis=0)
        number = sum(parameter.numel() for parameter in net.parameters())
        print(f"{number:10,}  {alone:9.4f}  {around:16.4f}  {around / alone:5.2f}")


if __name__ == "__main__":
    main()
