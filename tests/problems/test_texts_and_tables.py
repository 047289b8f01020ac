"""Texts by speaker and tables by client go the way of images: LEAF's files, a network, any method."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import algorithms, data, networks, oracles, problems, simulate
from tests.data.real import real


def spoken(speaker: int, length: int, seed: int) -> str:
    """A Markov chain over letters: the alphabet's order, but every speaker has a habit, and slips in one of ten."""
    rng = np.random.default_rng([speaker, seed])
    letters = "abcdefgh "
    habit = {letters[speaker]: letters[(speaker + 4) % len(letters)]}  # what this one says after that letter
    text = letters[rng.integers(len(letters))]
    while len(text) < length:
        after = habit.get(text[-1], letters[(letters.index(text[-1]) + 1) % len(letters)])
        text += after if rng.random() < 0.9 else letters[rng.integers(len(letters))]
    return text


def write_speakers(path: Path, speakers: int, samples: int, seed: int) -> None:
    """As LEAF's Shakespeare: x are 80 characters, y the next one."""
    users = {}
    for i in range(speakers):
        text = spoken(i, 80 + samples * (1 + i), seed)
        starts = range(len(text) - 80)
        users[f"SPEAKER_{i}"] = {"x": [text[k : k + 80] for k in starts], "y": [text[k + 80] for k in starts]}
    path.parent.mkdir()
    sizes = [len(user["y"]) for user in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))


def majority(federated: data.Federated) -> float:
    """The test accuracy of always guessing the label that is the most frequent in training."""
    trained, tested = (data.pool(list(part))["y"] for part in (federated.train, federated.test))
    values, counts = np.unique(trained, return_counts=True)
    return float(np.mean(tested == values[counts.argmax()]))


def learned(federated: data.Federated, module: Any, step: float, rounds: int, eta: float = 10.0) -> float:
    problem = problems.network(module, federated, check=False)
    oracle = oracles.sgd(step, iterations=20, batch=10)
    algorithm = algorithms.fedpd(eta=eta, oracle=oracle, start="server")
    return float(simulate(algorithm, problem, rounds=rounds, metrics_every=rounds).history["test_accuracy"][-1])


@pytest.mark.slow
def test_speakers_learn_the_next_character(tmp_path: Path) -> None:
    write_speakers(tmp_path / "train" / "all_data.json", speakers=4, samples=40, seed=0)
    write_speakers(tmp_path / "test" / "all_data.json", speakers=4, samples=15, seed=1)
    speakers = data.leaf(tmp_path)
    assert speakers.shape == (80,)
    assert speakers.sizes.tolist() == [40, 80, 120, 160]
    assert len(speakers.classes) == 80
    assert learned(speakers, networks.GRU(80, embedding=8, width=32), step=2.0, rounds=10) > 3 * majority(speakers)


def table(agents: int, features: int) -> data.Federated:
    """Sizes from 7 to 534, labels -1 and +1, everyone's hyperplane near a common one."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(features)
    sizes = np.geomspace(7, 534, agents).astype(int)

    def client(size: int) -> dict[str, np.ndarray]:
        x = (rng.standard_normal((size, features)) + rng.standard_normal(features)).astype(np.float32)
        return {"x": x, "y": np.where(x @ (common + 0.3 * rng.standard_normal(features)) > 0, 1, -1)}

    return data.from_arrays({i: client(size) for i, size in enumerate(sizes)}, classes=[-1, 1])


def test_a_linear_model_of_a_table() -> None:
    clients = data.split(table(agents=12, features=10), 0.2)
    assert learned(clients, networks.MLP(2, ()), step=0.1, rounds=10) > max(0.8, majority(clients) + 0.1)


@pytest.mark.slow
def test_vehicle23() -> None:
    clients = data.split(data.leaf(real("vehicle23/vehicle23_train.leaf.json.gz")), 0.2)
    assert learned(clients, networks.MLP(2, ()), step=0.02, rounds=10) > majority(clients) + 0.1
