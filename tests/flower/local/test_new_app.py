"""Apps written by `fedpd new-app`: complete, in order, and the same numbers for every framework."""

import importlib
import tomllib
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.cli.config_utils import load_and_validate

from fedpd.checks import FedpdError
from fedpd.flower import Federated, InProcessGrid, Local, client_app, federate, read_settings
from fedpd.flower.local import programs
from fedpd.flower.local.federation import free_ports
from fedpd.flower.local.new_app import EXTRAS, new_app
from fedpd.flower.local.programs import Member, end, start, wait_until


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, dict[str, Any]]:
    """The app's task, and its settings."""
    monkeypatch.syspath_prepend(str(folder))
    package = folder.name.replace("-", "_")
    task = importlib.import_module(f"{package}.task")
    for side in ("client_app", "server_app"):
        assert importlib.import_module(f"{package}.{side}").app
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return task, config


def run(task: ModuleType, config: dict[str, Any]) -> Federated:
    config = config | {"out": "", "poll": 0.001, "deadline": 120.0}
    grid = InProcessGrid(client_app(task.algorithm, task.start, task.local), config["agents"], config)
    return federate(grid, task.algorithm(config), task.start(config), read_settings(config))


@pytest.mark.parametrize("framework", EXTRAS)
def test_an_app_is_in_order_and_learns(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"toy-{framework}-app"
    written = new_app(folder, framework)
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == sorted(
        path.relative_to(folder).as_posix() for path in written
    )
    assert "$" not in "".join(path.read_text() for path in written)
    _, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings
    task, config = load(folder, monkeypatch)
    history = run(task, config | {"rounds": 6, "evaluate-every": 6, "p": 0.3}).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert history["loss"][0] == pytest.approx(np.log(task.CLASSES), rel=0.3)


@pytest.mark.parametrize("framework", EXTRAS)
def test_a_node_needs_only_a_name(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on several machines, whose nodes have no partition-id."""
    folder = tmp_path / f"named-{framework}-app"
    new_app(folder, framework)
    task, config = load(folder, monkeypatch)
    contexts = [Context(1, node, {"name": f"hospital-{node}"}, RecordDict(), config) for node in (1, 2)]
    assert all(isinstance(task.local(context), Local) for context in contexts)
    assert [task.number_of(context) for context in contexts] == [245, 607]


def test_numpy_and_jax_give_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for framework in ("jax", "numpy"):
        folder = tmp_path / f"same-{framework}"
        new_app(folder, framework)
        task, config = load(folder, monkeypatch)
        models.append(run(task, config | {"rounds": 3, "evaluate-every": 0}).model)
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Toy", "lower-case"),
        ("2toy", "lower-case"),
        ("class", "must not be a Python keyword"),
        ("jax", "a Python package jax exists already"),
        ("a" * 33, "at most 32 characters"),
    ],
)
def test_names_that_cannot_be_an_apps(name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match=sentence):
        new_app(tmp_path / name, "jax")
    assert not (tmp_path / name).exists()


def test_a_folder_in_use_and_a_framework_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(FedpdError, match="not empty"):
        new_app(folder, "jax")
    with pytest.raises(FedpdError, match="Did you mean 'torch'"):
        new_app(tmp_path / "other", "pytorch")


@pytest.mark.slow
def test_flwr_run_in_flowers_simulation(tmp_path: Path) -> None:
    """As a user runs it, with a SuperLink for simulations that the test starts and ends itself."""
    folder, home = tmp_path / "toy-simulated", tmp_path / "home"
    new_app(folder, "jax")
    home.mkdir()
    (port,) = free_ports(1)
    address = ("--host", programs.HOST, "--port", str(port))
    command = [str(programs.bin_folder() / "flower-superlink"), "--insecure", "--simulation", *address]
    link = Member("superlink", command, str(home), str(tmp_path / "superlink.log"))
    link = start(link, programs.environment(home) | {"RAY_USAGE_STATS_ENABLED": "0"}, tmp_path)
    settings = f'[superlink.simulation]\naddress = "{programs.HOST}:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(settings)
    try:
        wait_until(lambda: _answers(port), link, 120.0, "ready")
        overrides = ("--run-config", "agents=3 rounds=2", "--federation-config", "num-supernodes=3")
        programs.flwr(home, "run", str(folder), "simulation", *overrides)
        wait_until((tmp_path / "results" / "model.safetensors").exists, link, 400.0, "done")
    finally:
        end([link])


def _answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://{programs.HOST}:{port}/health", timeout=1.0) as answer:
        return answer.status == 200
    return False
