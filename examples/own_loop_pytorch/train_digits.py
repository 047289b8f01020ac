"""FedPD around a plain PyTorch loop: four clients, each with mostly some of the ten digits.

python train_digits.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedpd.torch
from fedpd import algorithms, oracles

CLIENTS, ROUNDS, EPOCHS = 4, 20, 2


def samples_of_clients() -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Return the samples of each client, sorted by digit for the most part, and a test set."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits))
    x, y = torch.tensor(pixels[order] / 16, dtype=torch.float32), torch.tensor(digits[order])
    owner = np.where(rng.random(1400) < 0.9, y[:1400].numpy() * CLIENTS // 10, rng.integers(CLIENTS, size=1400))
    return [(x[:1400][owner == i], y[:1400][owner == i]) for i in range(CLIENTS)], (x[1400:], y[1400:])


def my_train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train as you always do. Nothing here knows of fedpd."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    clients, (test_x, test_y) = samples_of_clients()
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    method = algorithms.fedpd(eta=5.0, oracle=oracles.own_loop(), start="server")
    server = fedpd.torch.Server(method, fedpd.torch.parameters_of(net))
    agents = [fedpd.torch.Agent() for _ in clients]  # what each client keeps: its dual
    for r in range(ROUNDS):
        messages = []
        for agent, (x, y) in zip(agents, clients, strict=True):
            fedpd.torch.load(net, server.model)
            with fedpd.torch.local(method, net, agent) as step:  # the one line
                my_train(net, x, y)
            messages.append(step.message)
        server.update(messages)
        fedpd.torch.load(net, server.model)
        with torch.no_grad():
            accuracy = (net(test_x).argmax(1) == test_y).float().mean()
        print(f"round {r + 1:2}  test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
