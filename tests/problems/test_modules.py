"""Modules in all tasks: one output for two classes, and losses, steps and metrics that are those of a PyTorch loop."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import flax.linen as linen
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import Tensor, nn
from torch.nn import functional

from fedpd import FedpdError, Problem, algorithms, data, oracles, problems, simulate
from fedpd.engine.plan import problem_identity
from tests.slow_cases import slow_but

VOCABULARY, LENGTH = 7, 5
Agents = dict[str, dict[str, np.ndarray]]


def samples(targets: Callable[[np.random.Generator, np.ndarray], np.ndarray], tokens: bool = False) -> Agents:
    rng = np.random.default_rng(0)
    found = {}
    for name in ("a", "b"):
        x = rng.integers(0, VOCABULARY, (16, LENGTH)) if tokens else rng.normal(size=(16, 3)).astype(np.float32)
        found[name] = {"x": x, "y": targets(rng, x)}
    return found


def numbers(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return (x.sum(axis=1) + rng.normal(size=16)).astype(np.float32)


def classes(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return (x[:, 0] + 0.5 * rng.normal(size=16) > 0).astype(np.int32)


def labels(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.integers(0, 2, (16, 2)).astype(np.float32)


def following(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:, 1:], rng.integers(0, VOCABULARY, (16, 1))], axis=1)


class Words(nn.Module):
    """A model of texts with tied weights, which returns an object with `logits` as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        inner = self.embedding(tokens)
        steps = torch.arange(1, tokens.shape[1] + 1)[None, :, None]
        inner = torch.tanh(self.mix(inner.cumsum(1) / steps))
        return SimpleNamespace(logits=self.head(inner), past_key_values=None)


def small(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def words() -> nn.Module:
    torch.manual_seed(0)
    return Words()


def plain_step(module: nn.Module, own: Agents, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[float, Any]:
    """Return the loss over all samples and the parameters after one step of 0.1, by PyTorch alone."""
    x, y = (torch.from_numpy(np.concatenate([one[name] for one in own.values()])) for name in ("x", "y"))
    found = module(x)
    value = loss(getattr(found, "logits", found), y)
    value.backward()
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    return value.item(), {name: (one - 0.1 * one.grad).detach().numpy() for name, one in trained.items()}  # type: ignore[operator]


def agrees(problem: Problem, module: nn.Module, own: Agents, loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Compare a problem with PyTorch, and return the history of one step."""
    run = simulate(algorithms.gradient_descent(step=0.1), problem, rounds=1)
    value, stepped = plain_step(module, own, loss)
    assert run.history["loss"][0] == pytest.approx(value, rel=1e-5)
    assert set(run.model) == set(stepped)
    for name, array in stepped.items():
        np.testing.assert_allclose(run.model[name], array, rtol=1e-5, atol=1e-6)
    return run


def token_loss(scores: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), y.flatten().long())


BACKENDS = ("jax", "callback")
mostly_jax = pytest.mark.parametrize("backend", slow_but(["jax"], BACKENDS))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight", [None, 2.0])
def test_one_output_for_two_classes(weight: float | None, backend: Any) -> None:
    own = samples(classes)
    loss = None if weight is None else nn.BCEWithLogitsLoss(pos_weight=torch.tensor([weight]))
    module = small(1)
    problem = problems.network(module, data.from_arrays(own, own), loss=loss, backend=backend)
    plain = loss or nn.BCEWithLogitsLoss()
    run = agrees(problem, module, own, lambda scores, y: plain(scores.squeeze(1), y.float()))
    problems.load_model(module, run.model)
    right = [((module(torch.from_numpy(one["x"]))[:, 0] > 0).numpy() == one["y"]).mean() for one in own.values()]
    assert run.history["test_accuracy"][-1] == pytest.approx(np.mean(right), abs=1e-6)


def test_one_output_of_a_function_is_a_logit() -> None:
    own = samples(classes)
    problem = problems.classification(lambda model, x: x @ model, data.from_arrays(own), np.zeros((3, 1), np.float32))
    run = simulate(algorithms.gradient_descent(step=0.1), problem, rounds=1)
    assert run.history["loss"][0] == pytest.approx(np.log(2), rel=1e-6)
    x, y = (np.concatenate([one[name] for one in own.values()]) for name in ("x", "y"))
    np.testing.assert_allclose(run.model[:, 0], -0.1 * x.T @ (0.5 - y) / len(y), rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_regression_is_that_of_pytorch(backend: Any) -> None:
    own, module = samples(numbers), small(1)
    problem = problems.regression(module, data.from_arrays(own, own, classes=False), backend=backend)
    run = agrees(problem, module, own, lambda found, y: functional.mse_loss(found[:, 0], y) / 2)
    assert run.history["rmse"][0] == pytest.approx(np.sqrt(2 * run.history["loss"][0]), rel=1e-5)


def test_losses_of_pytorch_in_regression_and_supervised() -> None:
    own, module = samples(labels), small(2)
    found = data.from_arrays(own, classes=False)
    agrees(problems.regression(module, found, loss=nn.SmoothL1Loss()), module, own, nn.SmoothL1Loss())
    module = small(2)
    agrees(problems.supervised(module, found, loss=nn.BCEWithLogitsLoss()), module, own, nn.BCEWithLogitsLoss())


@mostly_jax
def test_multilabel_is_that_of_pytorch(backend: Any) -> None:
    own, module = samples(labels), small(2)
    problem = problems.multilabel(module, data.from_arrays(own, own, classes=False), backend=backend)
    run = agrees(problem, module, own, functional.binary_cross_entropy_with_logits)
    problems.load_model(module, run.model)
    right = [((module(torch.from_numpy(one["x"])) > 0).numpy() == one["y"]).mean() for one in own.values()]
    assert run.history["test_accuracy"][-1] == pytest.approx(np.mean(right), abs=1e-6)


def test_missing_labels_do_not_count_in_the_comparison_with_pytorch() -> None:
    own = samples(labels)
    for one in own.values():
        one["y"][::3, 0] = np.nan
    module = small(2)

    def known(scores: Tensor, y: Tensor) -> Tensor:
        mask = ~y.isnan()
        terms = functional.binary_cross_entropy_with_logits(scores, y.nan_to_num(), reduction="none")
        return ((terms * mask).sum(1) / mask.sum(1)).mean()

    agrees(problems.multilabel(module, data.from_arrays(own, classes=False)), module, own, known)


@mostly_jax
def test_next_token_is_that_of_pytorch(backend: Any) -> None:
    own, module = samples(following, tokens=True), words()
    problem = problems.next_token(module, data.from_arrays(own, own, classes=False), backend=backend)
    assert set(problem.start) == {"embedding.weight", "mix.weight", "mix.bias"}  # tied weights are one array
    run = agrees(problem, module, own, token_loss)
    assert run.history["perplexity"][0] == pytest.approx(np.exp(run.history["loss"][0]), rel=1e-5)


def test_labels_of_minus_100_are_no_tokens() -> None:
    own, module = samples(following, tokens=True), words()
    for one in own.values():
        one["y"][:, -2:] = -100  # as many in every sample, so that the mean of means is PyTorch's mean
    agrees(problems.next_token(module, data.from_arrays(own, classes=False)), module, own, token_loss)
    with pytest.raises(FedpdError, match="token = -100: must be at least 0"):
        problems.next_token(module, data.from_arrays(own, classes=False), padding=None)


def test_cross_entropy_of_pytorch_per_position() -> None:
    class Positions(Words):
        def forward(self, tokens: Tensor) -> Any:
            return super().forward(tokens).logits.transpose(1, 2)  # classes are PyTorch's second axis

    torch.manual_seed(0)
    own, module = samples(following, tokens=True), Positions()
    found = data.from_arrays(own, classes=False)
    agrees(problems.supervised(module, found, loss=nn.CrossEntropyLoss()), module, own, functional.cross_entropy)
    own["b"]["y"][0, 0] = -100
    with pytest.raises(FedpdError, match="leaves out targets of -100, and fedpd would count them"):
        problems.supervised(module, data.from_arrays(own, classes=False), loss=nn.CrossEntropyLoss())


def test_own_loss_with_a_module() -> None:
    own, module = samples(numbers), small(1)
    problem = problems.supervised(
        module, data.from_arrays(own, classes=False), loss=lambda found, y: abs(found[:, 0] - y) ** 3
    )
    agrees(problem, module, own, lambda found, y: ((found[:, 0] - y).abs() ** 3).mean())


@pytest.mark.slow
def test_parameters_without_gradient_stay_and_are_not_in_the_model() -> None:
    own, module = samples(numbers), small(1)
    for parameter in module[0].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    problem = problems.regression(module, data.from_arrays(own, own, classes=False), l2=0.0)
    assert set(problem.start) == {"2.weight", "2.bias"}
    agrees(problem, module, own, lambda found, y: functional.mse_loss(found[:, 0], y) / 2)


@mostly_jax
def test_dropout_is_on_in_training_and_off_where_fedpd_measures(backend: Any) -> None:
    own = samples(numbers)
    module = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    problem = problems.regression(module, data.from_arrays(own, classes=False), backend=backend)
    batch = {"x": own["a"]["x"], "y": own["a"]["y"]}
    assert problem.random is not None
    first, second = (np.asarray(problem.random(problem.start, batch, jax.random.key(seed))) for seed in (0, 1))
    assert not np.allclose(first, second)
    quiet = (module.eval()(torch.from_numpy(batch["x"]))[:, 0] - torch.from_numpy(batch["y"])) ** 2 / 2
    np.testing.assert_allclose(problem.losses(problem.start, batch), quiet.detach(), rtol=1e-5)
    method = algorithms.fedpd(eta=0.1, oracle=oracles.sgd(step=0.05, iterations=4, batch=4))
    runs = [simulate(method, problem, rounds=2, seed=3) for _ in range(2)]
    assert runs[0].history["loss"][-1] == runs[1].history["loss"][-1]


MODULES: dict[str, Callable[[], Any]] = {
    "torch": lambda: small(1),
    "linen": lambda: linen.Dense(1),
    "nnx": lambda: nnx.Linear(3, 1, rngs=nnx.Rngs(0)),
    "equinox": lambda: eqx.nn.Linear(3, 1, key=jax.random.key(0)),
}


@pytest.mark.parametrize("library", ["torch", "linen", "nnx"])
def test_a_problem_is_identified_in_another_process(library: str) -> None:
    """Checkpoints need it; two modules made in the same way stand for two processes."""
    make, found = MODULES[library], data.from_arrays(samples(numbers), classes=False)
    one, other = (problem_identity(problems.regression(make(), found, check=False)) for _ in range(2))
    assert one == other
    loss = problem_identity(problems.regression(make(), found, loss=nn.HuberLoss(delta=2.0), check=False))
    assert one["losses"] != loss["losses"]


class Doubled(nn.Module):
    """A module whose gradient only PyTorch sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.inner(x)
        return self.inner(x) + fixed


def test_a_gradient_that_torchax_does_not_see_uses_the_callback() -> None:
    own, module = samples(numbers), Doubled()
    with pytest.warns(UserWarning, match="it is another function than in PyTorch"):
        problem = problems.regression(module, data.from_arrays(own, classes=False))
    agrees(problem, module, own, lambda found, y: functional.mse_loss(found[:, 0], y) / 2)


@pytest.mark.parametrize("library", slow_but(["nnx"], ["linen", "nnx", "equinox"]))
def test_modules_of_other_libraries(library: str) -> None:
    own = samples(numbers)
    problem = problems.regression(MODULES[library](), data.from_arrays(own, own, classes=False))
    run = simulate(algorithms.gradient_descent(step=0.3), problem, rounds=40)
    x, y = (np.concatenate([one[name] for one in own.values()]) for name in ("x", "y"))
    rest = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y)[1]
    assert run.history["loss"][-1] == pytest.approx(rest[0] / len(y) / 2, rel=1e-3)


def test_dropout_of_flax_in_a_regression() -> None:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return linen.Dense(1)(linen.Dropout(0.5, deterministic=not train)(linen.Dense(8)(x)))

    problem = problems.regression(Net(), data.from_arrays(samples(numbers), classes=False))
    assert problem.random is not None


def test_what_is_refused() -> None:
    found = data.from_arrays(samples(numbers), classes=False)
    two = data.from_arrays(samples(classes))

    def refused(sentence: str, build: Any, *arguments: Any, **named: Any) -> None:
        with pytest.raises(FedpdError, match=sentence):
            build(*arguments, **named)

    norm = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    refused("has batch normalisation, which this task does not support. Use", problems.regression, norm, found)
    refused("brings its own parameters, so .* Leave start out", problems.regression, small(1), found, np.zeros(3))
    refused(
        "must be .2,., one score per label",
        problems.multilabel,
        small(3),
        data.from_arrays(samples(labels), classes=False),
    )
    refused("'tuple': must be a tensor, or an object or dict with", problems.network, nn.LSTM(3, 2), two)
    refused("needs one score per class, but", problems.network, small(1), two, loss=nn.CrossEntropyLoss())
    refused(
        "backend = 'callback': is for modules of PyTorch",
        problems.regression,
        linen.Dense(1),
        found,
        backend="callback",
    )
    refused(
        "loss = 'MSELoss': is a class, not a loss. Call it first", problems.regression, small(1), found, loss=nn.MSELoss
    )
    refused("model = 'Linear': must be a module of .*, not its class", problems.regression, nn.Linear, found)
    refused("backend = 'cuda'", problems.regression, small(1), found, backend="cuda")
    refused("Check that it takes such x", problems.regression, nn.Linear(5, 1), found)
    own = samples(following, tokens=True)
    own["a"]["x"][3, 2] = VOCABULARY
    refused(
        "Check that all entries of x are indices", problems.next_token, words(), data.from_arrays(own, classes=False)
    )
