"""Random changes of features in training: `augment=`, modules that draw by themselves, and datasets with transforms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate

CLASSES, SIDE = 3, 4


def agents() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {f"site {i}": {"x": rng.normal(size=(6, SIDE)), "y": np.arange(6) % CLASSES} for i in range(2)}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(SIDE, CLASSES).double()


def shift(key: Any, x: Any) -> Any:
    return x + jax.random.normal(key, x.shape, x.dtype)


def test_augment_changes_training_and_not_what_is_measured() -> None:
    own = data.from_arrays(agents(), agents())
    plain = problems.network(linear(), own)
    augmented = problems.network(linear(), own, augment=shift)
    assert plain.random is None
    step = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=1, batch=3))
    runs = [
        simulate(step, problem, rounds=2, seed=seed) for problem, seed in ((plain, 0), (augmented, 0), (augmented, 0))
    ]
    assert runs[0].history["loss"][0] == pytest.approx(runs[1].history["loss"][0], rel=1e-12)
    assert runs[0].history["loss"][-1] != pytest.approx(runs[1].history["loss"][-1], rel=1e-6)
    np.testing.assert_array_equal(runs[1].history["loss"], runs[2].history["loss"])


def test_a_loss_on_augmented_samples_is_that_of_pytorch() -> None:
    own = agents()["site 0"]
    problem = problems.network(linear(), data.from_arrays({"only": own}), augment=shift)
    assert problem.random is not None
    with jax.enable_x64(True):
        key = jax.random.key(3)
        batch = {"x": jnp.asarray(own["x"]), "y": jnp.asarray(own["y"], jnp.int32)}
        found = float(problem.random(problem.start, batch, key).mean())
        drawn = np.array(shift(jax.random.split(key)[0], batch["x"]))
    loss = nn.CrossEntropyLoss()(linear()(torch.from_numpy(drawn)), torch.from_numpy(own["y"]))
    assert found == pytest.approx(loss.item(), rel=1e-10)


def scores(model: Any, x: Any) -> Any:
    return x @ model


def numbers(**options: Any) -> Any:
    own = {name: one | {"y": one["x"].sum(axis=1, keepdims=True) > 0} for name, one in agents().items()}
    own = {name: {"x": one["x"], "y": one["y"].astype(float)} for name, one in own.items()}
    return data.from_arrays(own, own, classes=False)


OTHERS: dict[str, Any] = {
    "classification": lambda **more: problems.classification(
        scores, data.from_arrays(agents(), agents()), np.ones((SIDE, CLASSES)), **more
    ),
    "regression": lambda **more: problems.regression(scores, numbers(), np.ones((SIDE, 1)), **more),
    "multilabel": lambda **more: problems.multilabel(nn.Linear(SIDE, 1).double(), numbers(), **more),
    "supervised": lambda **more: problems.supervised(
        scores, numbers(), np.ones((SIDE, 1)), loss=lambda found, y: jnp.sum((found - y) ** 2, axis=1), **more
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tasks_train_on_augmented_samples_and_are_measured_on_the_samples(name: str) -> None:
    torch.manual_seed(0)
    plain = OTHERS[name]()
    torch.manual_seed(0)
    problem = OTHERS[name](augment=shift)
    assert plain.random is None
    assert problem.random is not None
    with jax.enable_x64(True):
        batch, key = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), problem.data), jax.random.key(3)
        changed = batch | {"x": shift(jax.random.split(key)[0], batch["x"])}
        wanted = plain.losses(plain.start, changed)
        np.testing.assert_allclose(problem.random(problem.start, batch, key), wanted, rtol=1e-12)
        np.testing.assert_allclose(problem.losses(problem.start, batch), plain.losses(plain.start, batch), rtol=1e-12)
    with pytest.raises(FedpdError, match="result of augment"):
        OTHERS[name](augment=lambda key, x: x[:, :2])


class Draws(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change, self.linear = change, nn.Linear(SIDE, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.change(x) if self.training else x)


def crop(x: torch.Tensor) -> torch.Tensor:
    first = torch.randint(0, 3, (len(x), 1))
    return torch.gather(nn.functional.pad(x, (1, 1)), 1, first + torch.arange(SIDE))


def rolled(x: torch.Tensor) -> torch.Tensor:
    first = int(torch.randint(0, 3, ()))
    return nn.functional.pad(x, (1, 1))[:, first : first + SIDE]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        crop,
        lambda x: x * torch.bernoulli(torch.full((len(x), 1), 0.7)),
        lambda x: x + 0.3 * torch.randn_like(x),
        lambda x: x[torch.randperm(len(x))] + torch.rand(1),
        nn.Dropout(1e-9),
    ],
    ids=["randint", "bernoulli", "randn", "randperm", "dropout 1e-9"],
)
@pytest.mark.parametrize("backend", ["jax", "callback"])
def test_a_module_that_draws_trains_in_training_mode(change: Any, backend: Any) -> None:
    own = {name: {"x": one["x"].astype(np.float32), "y": one["y"]} for name, one in agents().items()}
    problem = problems.network(Draws(change), data.from_arrays(own), backend=backend)
    assert problem.random is not None
    step = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=2, batch=3))
    one, same, other = (simulate(step, problem, rounds=2, seed=seed).history["loss"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert one[-1] != other[-1]


def test_a_number_of_python_in_the_middle_of_a_module_needs_the_callback() -> None:
    own = {name: {"x": one["x"].astype(np.float32), "y": one["y"]} for name, one in agents().items()}
    with pytest.raises(FedpdError, match='give backend="callback"'):
        problems.network(Draws(rolled), data.from_arrays(own))
    assert problems.network(Draws(rolled), data.from_arrays(own), backend="callback").random is not None


def test_datasets_are_read_once() -> None:
    own = agents()
    sets = {name: TensorDataset(torch.from_numpy(one["x"]), torch.from_numpy(one["y"])) for name, one in own.items()}
    found, wanted = data.from_datasets(sets, sets), data.from_arrays(own, own)
    np.testing.assert_array_equal(found.train[1]["x"], wanted.train[1]["x"])
    np.testing.assert_array_equal(found.test[0]["y"], wanted.test[0]["y"])
    texts = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [2, 3], "labels": 1}]
    assert data.from_datasets({"a": texts}).features["input_ids"][0] == (2,)


class Noisy(TensorDataset):
    def __getitem__(self, i: Any) -> Any:
        x, y = super().__getitem__(i)
        return x + torch.randn(()), y


def one_argument(x: Any) -> Any:
    return x


def test_what_is_refused() -> None:
    wrong: Any = one_argument
    own = agents()
    both = data.from_arrays(own)
    x, y = torch.from_numpy(own["site 0"]["x"]), torch.from_numpy(own["site 0"]["y"])
    for sentence, make in {
        "two reads differ, because a transform is random.*augment=": lambda: data.from_datasets({"a": Noisy(x, y)}),
        "has no length": lambda: data.from_datasets({"a": iter([(x, y)])}),
        r"must be \(x, y\)": lambda: data.from_datasets({"a": [x]}),
        "its samples differ in form": lambda: data.from_datasets({"a": [(x[0], 0), (x[0, :2], 1)]}),
        "result of augment.*must be": lambda: problems.network(linear(), both, augment=lambda key, x: x[:, :2]),
        "augment fails": lambda: problems.network(linear(), both, augment=lambda key, x: x.rotate()),
        "must take 2": lambda: problems.network(linear(), both, augment=wrong),
    }.items():
        with pytest.raises(FedpdError, match=sentence):
            make()
