"""One rule says how outputs become classes: in simulations and for PyTorch clients, with one output or several."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems
from fedpd.flower import Local
from fedpd.flower.torch import model_of, torch_local
from fedpd.problems.scores import is_right

X = np.array([[1.0], [2.0], [-1.0], [-3.0], [4.0], [0.5]], np.float32)
Y = np.array([1, 1, 0, 1, 0, 1])  # the sign of x is right for 4 of 6
METHOD = algorithms.fedavg(oracle=oracles.gd(step=1e-9, iterations=1))


def one_output() -> nn.Linear:
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(0.0)
    return module


def client(module: nn.Module, loss: Any, targets: Any, **options: Any) -> Local:
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.as_tensor(targets)), batch_size=3)
    return torch_local(module, loss, loader, test=loader, **options)


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (Y[:, None].astype(np.float32), nn.BCEWithLogitsLoss()),
        (2 * Y[:, None].astype(np.float32) - 1, nn.SoftMarginLoss()),
        (Y, lambda outputs, y: nn.functional.softplus(outputs[:, 0]) - y * outputs[:, 0]),
    ],
)
def test_the_sign_of_one_output_is_the_class_of_a_client(targets: np.ndarray, loss: Any) -> None:
    local = client(one_output(), loss, targets)
    assert local.correct is not None
    found = local.correct(model_of(one_output()), local.test)
    np.testing.assert_array_equal(found, [1, 1, 1, 0, 0, 1])


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_the_sign_of_one_score_is_the_class_of_a_simulation(shape: tuple[int, ...]) -> None:
    own = {"a": {"x": X, "y": Y}}

    def loss(scores: Any, y: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(scores.reshape(-1), y)

    class Scores(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).reshape(shape)

    module = Scores(1, 1)
    module.load_state_dict(one_output().state_dict())
    federated = data.from_arrays(own, own, classes=2)
    problem = problems.network(module, federated, loss=loss)
    run = fedpd.simulate(METHOD, problem, rounds=1, progress=False)
    assert run.history["test_accuracy"][0] == pytest.approx(4 / 6)
    usual = fedpd.simulate(METHOD, problems.network(module, federated), rounds=1, progress=False)
    np.testing.assert_allclose(usual.history["loss"], run.history["loss"], rtol=1e-6)  # the default is this loss
    three = data.from_arrays(own, own, classes=3)
    with pytest.raises(FedpdError, match="number of scores = 1: must be at least 3"):
        problems.network(module, three)


def test_numbers_to_predict_have_no_accuracy() -> None:
    for targets in (X * 0.7, np.repeat(X, 2, axis=1)):
        module = nn.Linear(1, targets.shape[1])
        assert client(module, nn.MSELoss(), targets).correct is None
    own = client(nn.Linear(1, 1), nn.MSELoss(), X * 0.7, correct=lambda outputs, y: (outputs - y).abs()[:, 0] < 1)
    assert own.correct is not None


def test_the_axis_of_the_classes_is_that_of_pytorch_or_the_last() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 3, 4))
    images, tokens = rng.integers(0, 3, (5, 4)), rng.integers(0, 4, (5, 3))
    for make in (np.asarray, jnp.asarray, torch.as_tensor):
        found: Any = is_right(make(scores), make(images))
        np.testing.assert_array_equal(np.asarray(found), scores.argmax(1) == images)
        found = is_right(make(scores), make(tokens))
        np.testing.assert_array_equal(np.asarray(found), scores.argmax(2) == tokens)
    with pytest.raises(ValueError, match="are not scores"):
        is_right(scores, images[:3])
