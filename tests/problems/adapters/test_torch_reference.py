"""The mode in which a PyTorch module trains is found by running it, and its gradient is compared with PyTorch's."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems
from fedpd.core import Problem
from tests.problems.adapters.same_network import CLASSES, INPUTS, agents

GD = algorithms.fedavg(oracle=oracles.gd(step=1.0, iterations=1))


class Net(nn.Module):
    """Two layers, with a function between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(INPUTS, 5), nn.Linear(5, CLASSES), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


def built(module: nn.Module, **options: Any) -> tuple[Problem, list[str]]:
    """Return the problem and the warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        problem = problems.network(module, agents(), **options)
    return problem, [str(one.message) for one in given]


def losses_by_key(problem: Problem, *keys: int) -> list[np.ndarray]:
    assert problem.random is not None
    batch = {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)}
    return [np.asarray(jax.jit(problem.random)(problem.start, batch, jax.random.key(key))) for key in keys]


class Uniform(nn.Module):
    """f = -w times a uniform number in training, -w in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * (torch.rand(len(x), 1) if self.training else 1.0) * torch.ones_like(x)


@pytest.mark.parametrize("backend", ["jax", "callback"])
def test_a_module_that_calls_torch_rand_trains_with_random_numbers(backend: Any) -> None:
    own = {name: {"x": np.ones((40, 2), np.float32), "y": np.arange(40) % 2} for name in "ab"}
    problem = problems.network(
        Uniform(), data.from_arrays(own, classes=2), backend=backend, loss=lambda scores, y: scores[:, 0]
    )
    run, again, other = (fedpd.simulate(GD, problem, rounds=3, seed=s, progress=False) for s in (0, 0, 1))
    # -3 in evaluation; the mean of 80 uniform numbers has a standard deviation of 0.03
    assert run.model["w"][0] == pytest.approx(-1.5, abs=0.25)
    assert run.model["w"][0] == again.model["w"][0] != other.model["w"][0]
    assert run.history["loss"][-1] == pytest.approx(run.model["w"][0])  # measured in evaluation


@pytest.mark.parametrize("backend", ["jax", "callback"])
def test_a_train_mode_without_random_numbers_is_used(backend: Any) -> None:
    class Twice(Uniform):
        def forward(self, x: Tensor) -> Tensor:
            return self.w * x * (2 if self.training else 1)

    own = {"a": {"x": np.ones((2, 2), np.float32), "y": np.array([0, 1])}}
    problem = problems.network(
        Twice(), data.from_arrays(own, classes=2), backend=backend, loss=lambda scores, y: scores[:, 0]
    )
    run = fedpd.simulate(GD, problem, rounds=3, progress=False)
    np.testing.assert_allclose(run.model["w"], [-6, 0], atol=1e-6)


def test_a_train_mode_that_only_changes_gradients_is_used() -> None:
    problem, warned = built(Net(lambda own, h: h.detach() if own.training else h), backend="callback")
    assert problem.random is not None
    assert not warned


def gumbel(own: nn.Module, h: Tensor) -> Tensor:
    return functional.gumbel_softmax(h) if own.training else h.softmax(-1)


def hidden_in_training(own: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = functional.dropout(torch.sigmoid(h), 0.5, own.training)
    return h * gate if own.training else h


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "sentence"),
    [
        (gumbel, "in training, 0 of its 1 draws of random numbers differ from step to step"),
        (hidden_in_training, "in training, an entry of the gradient of 'first.*, and in PyTorch"),
        (lambda own, h: h * h.data, "in evaluation, an entry of the gradient of 'first.*, and in PyTorch"),
    ],
)
def test_on_a_difference_pytorch_is_called_back_with_a_warning(between: Any, sentence: str) -> None:
    problem, (warning,) = built(Net(between))
    with pytest.warns(UserWarning, match=sentence):
        warnings.warn(warning, stacklevel=1)
    assert 'backend="callback"' in warning
    again, warned = built(Net(between), backend="callback")
    assert not warned
    batch = {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)}
    for one, other in zip(*(jax.tree.leaves(gradient(own, batch)) for own in (problem, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    if problem.random is not None:
        one, same, other = losses_by_key(problem, 0, 0, 1)
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()


def gradient(problem: Problem, batch: Any) -> Any:
    return jax.grad(lambda model: problem.losses(model, batch).mean())(problem.start)


@pytest.mark.parametrize(
    "between",
    [
        lambda own, h: functional.dropout(h, 0.5, own.training),
        lambda own, h: functional.alpha_dropout(h, 0.3, own.training),
        lambda own, h: h * torch.rand(len(h), 1) + torch.randn_like(h) if own.training else h,
        lambda own, h: h * torch.bernoulli(torch.sigmoid(h)) if own.training else h,
        lambda own, h: h + h[torch.randperm(len(h))] if own.training else h,
        lambda own, h: h * torch.empty_like(h).uniform_(0, 2) + torch.randint(0, 3, h.shape) if own.training else h,
    ],
)
def test_random_numbers_of_torch_are_compiled_and_compared_with_the_same_numbers(between: Any) -> None:
    problem, warned = built(Net(between))
    assert not warned
    one, same, other = losses_by_key(problem, 0, 0, 1)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_without_the_check_nothing_is_compared() -> None:
    problem, warned = built(Net(lambda own, h: h * h.data), check=False)
    assert not warned
    batch = {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)}
    right, _ = built(Net(lambda own, h: h * h.data))
    found, expected = (gradient(own, batch)["first.weight"] for own in (problem, right))
    np.testing.assert_allclose(found, 2 * np.asarray(expected), rtol=1e-4)


def with_parameter_hook() -> nn.Module:
    module = Net(lambda own, h: torch.tanh(h))
    module.first.weight.register_hook(lambda g: 2 * g)
    return module


def after_a_call() -> nn.Module:
    def keep(own: nn.Module, h: Tensor) -> Tensor:
        setattr(own, "kept", h)  # noqa: B010 - nn.Module types its attributes
        return h

    module = Net(keep)
    module(torch.ones(1, INPUTS))
    return module


NUMBERS = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (with_parameter_hook, "fedpd would train another function than PyTorch.*gradient of 'first.weight'.*hooks"),
        (after_a_call, "module = 'Net': cannot be copied.*Make the module anew"),
        (
            lambda: Net(lambda own, h: h * float(NUMBERS.random()) if own.training else h),
            "two calls in training differ, though both had the same seed.*only by torch",
        ),
        (lambda: Net(lambda own, h: functional.dropout(h, 0.5)), r"draws random numbers also after module.eval\(\)"),
    ],
)
def test_what_is_refused(make: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        problems.network(make(), agents())


def test_buffers_that_change_in_training_are_named() -> None:
    module = Net(lambda own, h: h)
    module.first = nn.utils.parametrizations.spectral_norm(module.first)  # type: ignore[assignment]
    _, (warning,) = built(module)
    assert "changes its buffers first.parametrizations.weight.0._u" in warning


def test_a_module_in_another_precision_than_the_data_is_checked() -> None:
    for backend in ("jax", "callback"):
        _, warned = built(Net(lambda own, h: torch.tanh(h)).double(), backend=backend)
        assert not warned


def test_a_module_that_converts_to_float32_is_checked_in_float32() -> None:
    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    own = {"a": {"x": np.random.default_rng(0).normal(size=(4, INPUTS)), "y": np.arange(4) % 3}}
    assert problems.network(Cast(INPUTS, 3), data.from_arrays(own, classes=3)).double


def test_a_loss_of_pytorch_with_another_gradient_is_refused() -> None:
    class Detached(nn.Module):
        def forward(self, scores: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(torch.cat([scores[:, :1].detach(), scores[:, 1:]], 1), y, reduction="none")

    with pytest.raises(FedpdError, match="another function than PyTorch: in evaluation, an entry of the gradient"):
        problems.network(nn.Linear(INPUTS, CLASSES), agents(), loss=Detached())


@pytest.mark.parametrize("index", [-1, 12])
def test_an_index_out_of_range_anywhere_in_the_data_is_refused(index: int) -> None:
    """A compiled program would wrap or clip it."""
    x = np.arange(48).reshape(16, 3) % 10
    x[15, 0] = index
    texts = data.from_arrays({name: {"x": x, "y": np.arange(16) % 2} for name in "ab"})
    module = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(FedpdError, match="fails for samples of the data: index out of range"):
        problems.network(module, texts)


def test_random_numbers_of_python_are_refused_whatever_they_are() -> None:
    class Sometimes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(2 * x if self.training and random.random() < 1e-9 else x)

    with pytest.raises(FedpdError, match="draws random numbers by Python's random or by NumPy"):
        problems.network(Sometimes(INPUTS, CLASSES), agents())


def test_a_mean_over_weights_is_not_the_mean_over_samples() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.linspace(1, 5, CLASSES))
    with pytest.warns(UserWarning, match="number of samples, and PyTorch divides it by the sum of their weights"):
        problems.network(nn.Linear(INPUTS, CLASSES), agents(), loss=loss)


def test_a_sum_over_components_is_not_their_mean() -> None:
    x = np.ones((4, INPUTS), np.float32)
    targets: Any = data.from_arrays({"a": {"x": x, "y": np.full((4, CLASSES), 1 / CLASSES)}}, classes=False)
    module = nn.Sequential(nn.Linear(INPUTS, CLASSES), nn.LogSoftmax(-1))
    with pytest.warns(UserWarning, match="the components of a sample, where fedpd takes the mean"):
        problems.regression(module, targets, loss=nn.KLDivLoss(reduction="batchmean"))


def test_a_sum_is_not_the_mean_over_samples() -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")
    with pytest.warns(UserWarning, match="by the number of samples, and PyTorch takes their sum"):
        problems.network(nn.Linear(INPUTS, CLASSES), agents(), loss=loss)
