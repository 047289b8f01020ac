"""FedPD around Lightning's Trainer: the LightningModule and the Trainer do not change.

python train_lightning.py
"""

import logging
import warnings
from typing import Any

import lightning
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedpd.torch
from fedpd import algorithms, oracles

CLIENTS, ROUNDS = 4, 10


class Digits(lightning.LightningModule):
    """An ordinary LightningModule. Nothing here knows of fedpd."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loaders() -> tuple[list[DataLoader], tuple[torch.Tensor, torch.Tensor]]:
    """Return a loader for each client, sorted by digit for the most part, and a test set."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits))
    x, y = torch.tensor(pixels[order] / 16, dtype=torch.float32), torch.tensor(digits[order])
    owner = np.where(rng.random(1400) < 0.9, y[:1400].numpy() * CLIENTS // 10, rng.integers(CLIENTS, size=1400))
    parts = [TensorDataset(x[:1400][owner == i], y[:1400][owner == i]) for i in range(CLIENTS)]
    return [DataLoader(part, batch_size=32, shuffle=True) for part in parts], (x[1400:], y[1400:])


def trainer() -> lightning.Trainer:
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    lightning.seed_everything(0, verbose=False)
    clients, (test_x, test_y) = loaders()
    module = Digits()
    method = algorithms.fedpd(eta=5.0, oracle=oracles.own_loop(), start="server")
    server = fedpd.torch.Server(method, fedpd.torch.parameters_of(module))
    agents = [fedpd.torch.Agent() for _ in clients]  # what each client keeps: its dual
    for r in range(ROUNDS):
        messages = []
        for agent, loader in zip(agents, clients, strict=True):
            fedpd.torch.load(module, server.model)
            with fedpd.torch.local(method, module, agent) as step:  # the one line
                trainer().fit(module, loader)
            messages.append(step.message)
        server.update(messages)
        fedpd.torch.load(module, server.model)
        with torch.no_grad():
            accuracy = (module.net(test_x).argmax(1) == test_y).float().mean()
        print(f"round {r + 1:2}  test accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
