"""Modules and losses in the form of FLamby's: one output, class weights, and Cox's partial likelihood."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems
from fedpd.flower.torch import torch_local


class Baseline(nn.Module):
    """Fed-Heart-Disease's baseline: a linear layer and a sigmoid."""

    def __init__(self, outputs: int = 1, *, sigmoid: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.sigmoid = nn.Linear(4, outputs), sigmoid

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x)) if self.sigmoid else self.linear(x)


class BaselineLoss(_Loss):
    def __init__(self) -> None:
        super().__init__()
        self.bce = nn.BCELoss()

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 - FLamby's name
        return self.bce(input, target)


def hospitals(classes: int = 2) -> Any:
    rng = np.random.default_rng(0)

    def one(patients: int) -> dict[str, np.ndarray]:
        return {"x": rng.normal(size=(patients, 4)).astype(np.float32), "y": np.arange(patients) % classes}

    own = {f"hospital {i}": one(n) for i, n in enumerate((6, 9))}
    return data.from_arrays(own, own)


def test_probabilities_are_refused_and_logits_are_trained() -> None:
    both = hospitals()
    with pytest.raises(FedpdError, match=r"BCELoss.*needs probabilities.*BCEWithLogitsLoss"):
        problems.network(Baseline(), both, loss=nn.BCELoss())
    with pytest.raises(FedpdError, match="target size"):
        problems.network(Baseline(), both, loss=BaselineLoss())
    rows = [(torch.from_numpy(x), float(y)) for x, y in zip(both.train[0]["x"], both.train[0]["y"], strict=True)]
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=2)  # type: ignore[arg-type] # a list is a dataset
    with pytest.raises(FedpdError, match=r"BCELoss.*give `correct`"):
        torch_local(Baseline(), nn.BCELoss(), loader, test=loader)


@pytest.mark.slow
def test_class_weights_are_those_of_pytorch() -> None:
    both, weight = hospitals(3), torch.tensor([1.0, 2.0, 0.5])
    module = Baseline(3, sigmoid=False)
    loss = nn.CrossEntropyLoss(weight=weight, reduction="none")
    run = fedpd.simulate(algorithms.gradient_descent(step=0.1), problems.network(module, both, loss=loss), rounds=1)
    parts = [loss(module(torch.from_numpy(own["x"])), torch.from_numpy(own["y"]).long()).mean() for own in both.train]
    assert run.history["loss"][0] == pytest.approx(torch.stack(parts).mean().item(), rel=1e-5)


def cox_of_samples(x: Any, rows: Any) -> Any:
    """Return Cox's negative partial likelihood as FLamby's loss does, over the samples of a batch."""
    score = rows["a"] @ x
    at_risk = rows["t"][None, :] >= rows["t"][:, None]
    return rows["d"] * (jnp.log(at_risk @ jnp.exp(score)) - score)


def test_cox_needs_the_loss_of_an_agent() -> None:
    rng = np.random.default_rng(0)

    def own(patients: int) -> dict[str, np.ndarray]:
        a = rng.normal(size=(patients, 2))
        return {"a": a, "t": rng.exponential(np.exp(-a[:, 0])), "d": np.ones(patients)}

    agents = [own(n) for n in (12, 20)]
    with pytest.raises(FedpdError, match=r"padding would repeat samples.*problems.from_agent_loss"):
        problems.from_losses(cox_of_samples, agents, np.zeros(2))

    def cox(x: Any, samples: Any, mask: Any) -> Any:
        score, d = samples["a"] @ x, samples["d"] * mask
        at_risk = (samples["t"][None, :] >= samples["t"][:, None]) * mask[None, :]
        return jnp.sum(d * (jnp.log(at_risk @ jnp.exp(score)) - score)) / jnp.sum(d)

    problem = problems.from_agent_loss(cox, agents, np.zeros(2))
    run = fedpd.simulate(algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.3, iterations=3)), problem, rounds=2)
    with jax.enable_x64(True):
        values = [
            np.mean(cox_of_samples(jnp.zeros(2), {name: jnp.asarray(leaf) for name, leaf in one.items()}))
            for one in agents
        ]
    assert run.history["loss"][0] == pytest.approx(np.mean(values), rel=1e-12)
