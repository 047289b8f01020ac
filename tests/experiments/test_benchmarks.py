"""The benchmark files run on generated data of the same shape, in a few agents and steps."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import networks, simulate
from fedpd.data import SHAKESPEARE
from fedpd.experiments import experiment

FILES = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"
SMALL = {
    "CifarCNN": "channels = [2, 2], widths = [4, 4]",
    "LeafCNN": "channels = [2, 2], width = 4",
    "LSTM": "widths = [4, 4]",
}


def make_cifar(folder: Path, name: str, label: str, classes: int) -> None:
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    parts = {}
    for part, number in (("train", 40), ("test", 20)):
        images = [image.tolist() for image in rng.integers(0, 256, (number, 32, 32, 3), np.uint8)]
        features = datasets.Features(
            {
                "img": datasets.Array3D((32, 32, 3), "uint8"),
                label: datasets.ClassLabel(names=[f"class {k}" for k in range(classes)]),
            }
        )
        columns = {"img": images, label: rng.integers(0, classes, number).tolist()}
        parts[part] = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(folder / "uoft-cs" / name))


def make_leaf(folder: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    for part, number in (("train", 6), ("test", 3)):
        users: dict[str, Any] = {}
        for user in range(4):
            if name == "femnist":
                x: list[Any] = rng.random((number, 784)).round(3).tolist()
                y: list[Any] = rng.integers(0, 62, number).tolist()
            else:
                text = ["".join(rng.choice(list(SHAKESPEARE), 81)) for _ in range(number)]
                x, y = [one[:80] for one in text], [one[80] for one in text]
            users[f"user {user}"] = {"x": x, "y": y}
        path = folder / "data" / name / part / "all.json"
        path.parent.mkdir(parents=True)
        sizes = [number] * len(users)
        path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))


def small(text: str) -> str:
    """Return the text of a file with a small network, four agents and one short round."""
    for network, arguments in SMALL.items():
        text = text.replace(f'name = "{network}",', f'name = "{network}", {arguments},')
    text = re.sub(r"agents = 100\b", "agents = 4", text)
    for key, value in {"rounds": 1, "cohort": 2, "metrics_agents": 3, "iterations": 1, "batch": 2}.items():
        text = re.sub(rf"\b{key} = \d+", f"{key} = {value}", text)
    return text


FILE = pytest.mark.parametrize("file", sorted(FILES.glob("*.toml")), ids=lambda file: file.stem)
CLASSES = {"cifar10": 10, "cifar100": 100, "femnist": 62, "shakespeare": 80}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated data, where the files look for theirs."""
    folder = tmp_path_factory.mktemp("benchmarks")
    make_cifar(folder, "cifar10", "label", 10)
    make_cifar(folder, "cifar100", "fine_label", 100)
    make_leaf(folder, "femnist")
    make_leaf(folder, "shakespeare")
    return folder


def parsed(file: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> experiment.Experiment:
    monkeypatch.chdir(sources)
    return experiment.parse(small(file.read_text(encoding="utf-8")))


@pytest.mark.slow
@FILE
def test_a_benchmark_takes_data_of_its_shape(file: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.search(r"^# Follows: .+ \(\w+ \d{4}\)", text, re.MULTILINE)  # the paper whose setting it follows
    assert re.search(r"^# Source of the settings: .+\n?.*github\.com/", text, re.MULTILINE)
    assert "\n# Different here: " in text
    assert f"experiments/benchmarks/{file.name}" in text
    plan = parsed(file, sources, monkeypatch)
    assert [method.label for method in plan.methods] == ["FedAvg", "FedProx", "SCAFFOLD", "FedDyn", "FedPD"]
    assert plan.problem.agents == 4
    assert plan.problem.evaluation is not None
    assert plan.problem.evaluation.sizes.sum() in (12, 20)
    rows, _ = plan.problem.rows_of([0])
    losses = plan.problem.losses(plan.problem.start, jax.tree.map(lambda leaf: leaf[:2], rows))
    np.testing.assert_allclose(losses, np.log(CLASSES[file.stem.partition("_")[0]]), rtol=0.5)


@pytest.mark.slow
@FILE
def test_a_benchmark_runs(file: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = parsed(file, sources, monkeypatch)
    for method in plan.methods:
        run = simulate(method.algorithm, plan.problem, rounds=1, cohort=2)
        assert np.isfinite(run.history["loss"]).all()


def test_the_networks_have_their_usual_sizes() -> None:
    for network, shape, parameters in (
        (networks.CifarCNN(10), (1, 32, 32, 3), 797_962),
        (networks.LSTM(80), (1, 80), 817_872),
    ):
        made = jax.eval_shape(network.init, jax.random.key(0), np.zeros(shape, np.float32))
        assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(made)) == parameters
