"""The rules that divide samples among agents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import FedpdError, data
from fedpd.data.partition import Division, divide, divide_alike
from fedpd.experiments.calls import build_problem

CLASSES, AGENTS = 5, 7
Y = np.arange(1000) % CLASSES
X = np.arange(1000, dtype=np.float64)[:, None]
RULES: dict[str, Division] = {
    "iid": data.iid(),
    "by_dirichlet": data.by_dirichlet(0.5),
    "by_dirichlet, equal": data.by_dirichlet(0.5, sizes="equal"),
    "by_classes": data.by_classes(2),
    "by_shards": data.by_shards(2),
    "by_quantity": data.by_quantity(0.5),
    "by_noise": data.by_noise(0.0),
}


def divided(rule: Division, **options: Any) -> data.Federated:
    return data.partition(X, Y, rule, **({"agents": AGENTS, "seed": 3} | options))


def rows_of(federated: data.Federated, part: str = "train") -> list[list[int]]:
    return [own["x"][:, 0].astype(int).tolist() for own in getattr(federated, part)]


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from(sorted(RULES)), agents=st.integers(1, 20), seed=st.integers(0, 100))
def test_every_sample_goes_to_one_agent(rule: str, agents: int, seed: int) -> None:
    agents = max(agents, 3) if rule == "by_classes" else agents  # 3 agents with 2 classes have all 5
    federated = divided(RULES[rule], agents=agents, seed=seed)
    everyone = sorted(row for own in rows_of(federated) for row in own)
    left_out = 1000 % agents if rule == "by_dirichlet, equal" else 0
    assert len(set(everyone)) == len(everyone) == 1000 - left_out
    assert federated.sizes.min() >= 1
    assert all((own["y"] == own["x"][:, 0] % CLASSES).all() for own in federated.train)
    assert rows_of(federated) == rows_of(divided(RULES[rule], agents=agents, seed=seed))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_another_seed_gives_another_division(rule: str) -> None:
    assert rows_of(divided(RULES[rule], seed=0)) != rows_of(divided(RULES[rule], seed=1))


def test_iid_and_noise_have_equal_sizes() -> None:
    assert sorted(divided(data.iid()).sizes) == [142] + [143] * 6
    assert sorted(divided(data.by_noise(1.0)).sizes) == [142] + [143] * 6


def test_dirichlet_in_plain_numpy() -> None:
    rng, parts = np.random.default_rng(3), []
    shares = rng.dirichlet(np.full(AGENTS, 0.5), CLASSES)
    for k in range(CLASSES):
        ends = np.round(np.cumsum(shares[k]) * 200).astype(int)
        ends[-1] = 200
        parts.append(np.diff(ends, prepend=0))
    np.testing.assert_array_equal(data.label_histogram(divided(data.by_dirichlet(0.5))), np.stack(parts).T)


def test_dirichlet_of_equal_sizes_is_that_of_the_hub() -> None:
    federated = divided(data.by_dirichlet(0.5, sizes="equal"), test=(X[:50], Y[:50]))
    rng = np.random.default_rng(3)
    rows = divide(Y, CLASSES, AGENTS, 0.5, rng)
    assert rows_of(federated) == [own.tolist() for own in rows]
    assert rows_of(federated, "test") == [own.tolist() for own in divide_alike(Y[:50], Y, rows, CLASSES, rng)]
    assert (federated.sizes == 142).all()


def test_a_small_alpha_differs_more() -> None:
    skews = [data.describe(divided(data.by_dirichlet(alpha))).skew for alpha in (0.1, 1.0, 100.0)]
    assert skews[0] > 0.5 > skews[1] > skews[2]
    assert skews[2] < 0.1


def test_least_sizes() -> None:
    assert divided(data.by_dirichlet(0.2, least=30)).sizes.min() >= 30
    sizes = divided(data.by_quantity(0.3, least=20)).sizes
    assert sizes.min() >= 20
    assert sizes.max() > 200
    assert (divided(data.by_quantity(0.3, least=100), agents=10).sizes == 100).all()


def test_classes_and_shards_per_agent() -> None:
    held = data.label_histogram(divided(data.by_classes(2), agents=10)) > 0
    assert (held.sum(axis=1) == 2).all()
    assert (held.sum(axis=0) == 4).all()  # 20 places, 5 classes
    federated = divided(data.by_shards(2), agents=10)
    assert (federated.sizes == 100).all()
    assert ((data.label_histogram(federated) > 0).sum(axis=1) <= 2).all()  # 4 shards of 50 per class


def test_noise_grows_with_the_agent_and_reaches_its_test_samples() -> None:
    x, y = np.zeros((4000, 5)), np.arange(4000) % 2
    federated = data.partition(x, y, data.by_noise(2.0), agents=4, test=(x, y))
    for part in (federated.train, federated.test):
        spreads = [own["x"].std() for own in part]
        np.testing.assert_allclose(spreads, [0, 2 / 3, 4 / 3, 2], rtol=0.05)


def test_rotations_are_exact() -> None:
    images = np.arange(8 * 9, dtype=np.uint8).reshape(8, 3, 3)
    federated = data.partition(images, np.arange(8), data.by_rotation((0, 90)), agents=2, test=(images, np.arange(8)))
    for own in (federated.train, federated.test):
        np.testing.assert_array_equal(own[0]["x"], images[own[0]["y"]])
        np.testing.assert_array_equal(own[1]["x"], [np.rot90(images[k]) for k in own[1]["y"]])
    coloured = np.stack([images, images], axis=1)
    federated = data.partition(coloured, np.arange(8), data.by_rotation((180,), axes=(2, 3)), agents=1)
    np.testing.assert_array_equal(federated.train[0]["x"], coloured[:, :, ::-1, ::-1])


def test_numbers_to_predict_texts_and_names() -> None:
    federated = data.partition(X, X[:, 0] / 3, data.by_quantity(1.0), agents=4, classes=False, test=(X, X[:, 0]))
    np.testing.assert_allclose(federated.test_sizes / 1000, federated.sizes / 1000, atol=0.002)
    texts = np.array(["cat", "dog"])[np.arange(100) % 2]
    animals = data.partition(X[:100], texts, data.by_classes(1), agents=2, name="animals")
    assert (animals.label_names, animals.name) == (("cat", "dog"), "animals")
    assert (data.label_histogram(animals) > 0).sum() == 2


WRONG: list[tuple[Any, str]] = [
    (lambda: data.by_dirichlet(0.0), "alpha = 0.0"),
    (lambda: data.by_dirichlet(0.3, sizes="unequal"), "sizes = 'unequal': there is no such choice"),  # type: ignore[arg-type]
    (
        lambda: divided(data.by_dirichlet(0.01, least=100)),
        "in 1000 draws, no division gave each of 7 agents at least 100",
    ),
    (lambda: divided(data.by_quantity(0.3, least=200)), "7 agents with at least 200 samples need more than the 1000"),
    (lambda: divided(data.by_classes(6)), "number = 6: must be at most 5, the number of classes"),
    (
        lambda: divided(data.by_classes(1), agents=3),
        "3 agents with 1 classes each would leave out some of the 5 classes",
    ),
    (lambda: divided(data.iid(), agents=1001), "agents = 1001: must be at most 1000, the number of samples"),
    (lambda: divided(data.iid(), agents=None), "agents = None"),
    (lambda: divided(data.iid(), seed=-1), "seed = -1"),
    (lambda: divided(data.iid(), columns={"a": Y}), "are for partitioners of flwr-datasets"),
    (lambda: divided(data.iid(), test=X), r"test = 'ndarray': must be a pair \(x, y\)"),
    (lambda: divided(data.iid(), test=(X, Y[:3])), r"shapes of test = \(\(1000, 1\), \(3,\)\)"),
    (lambda: divided(data.by_classes(2), classes=False), "leaves no classes, by which this rule divides"),
    (lambda: data.partition(X.astype(int), Y, data.by_noise(1.0), agents=3), "must be floating-point numbers"),
    (lambda: divided(data.by_rotation()), "must have equal lengths in the axes"),
    (lambda: data.by_rotation((45,)), "angle = 45: must be a multiple of 90"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_divisions_are_refused(call: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        call()


def test_an_experiment_file_divides_an_npz_file(tmp_path: Path) -> None:
    file = tmp_path / "digits.npz"
    np.savez(file, x_train=X.astype(np.float32), y_train=Y, x_test=X[:100].astype(np.float32), y_test=Y[:100])
    loader = {"name": "npz", "source": str(file), "agents": 4, "rule": {"name": "by_dirichlet", "alpha": 1.0}}
    problem = build_problem({"name": "softmax_regression", "data": loader})
    assert (problem.agents, problem.samples, problem.name) == (4, 1000, "digits")
    assert problem.evaluation is not None
    assert problem.evaluation.sizes.sum() == 100
    loaded = data.npz(file, data.by_dirichlet(1.0), agents=4)
    np.testing.assert_array_equal(loaded.sizes, problem.sizes)
    with pytest.raises(FedpdError, match=r"data.*rule.*name = 'by_dirichlett': there is no such name"):
        build_problem({"name": "softmax_regression", "data": loader | {"rule": {"name": "by_dirichlett"}}})
    with pytest.raises(FedpdError, match=r"cannot be read as an \.npz file"):
        data.npz(tmp_path / "none.npz", data.iid(), agents=4)
    np.savez(tmp_path / "other.npz", a=X)
    with pytest.raises(FedpdError, match=r"= \['a'\]: must hold x and y"):
        data.npz(tmp_path / "other.npz", data.iid(), agents=4)
    with pytest.raises(FedpdError, match="rule"):
        data.npz(file, "iid", agents=4)  # type: ignore[arg-type]
