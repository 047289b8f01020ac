"""Results and models from folders: which one is meant, and what a run folder gives."""

from pathlib import Path

import numpy as np
import pytest

import fedpd
from fedpd import Ensemble, FedpdError, Run, report
from fedpd.experiments import run_folder, runner

TEXT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = 6
seeds = [{seeds}]

[[algorithm]]
label = "FedPD"
name = "fedpd"
eta = 0.5
oracle = {{ name = "gd", step = 0.3, iterations = 2 }}

[[algorithm]]
label = "FedAvg"
name = "fedavg"
oracle = {{ name = "gd", step = 0.3, iterations = 2 }}
"""


def finished(folder: Path, seeds: str) -> list[runner.Result]:
    run_folder.create(folder, TEXT.format(seeds=seeds))
    return runner.run(runner.open_folder(folder), folder, lambda event: None)


def test_a_run_folder_is_a_dict_of_its_methods(tmp_path: Path) -> None:
    results = finished(tmp_path / "run", "3")
    loaded = fedpd.load(tmp_path / "run")
    assert list(loaded) == ["FedPD", "FedAvg"]
    for result in results:
        run, original = loaded[result.label], result.runs[0]
        assert isinstance(run, Run)
        assert (run.seed, run.algorithm, run.spec) == (3, original.algorithm, original.spec)
        assert np.array_equal(run.model, original.model)
        assert np.array_equal(run.updates, original.updates)
        assert all(np.array_equal(run.history[name], original.history[name]) for name in original.history)
        assert run.agents is None
    labels = [line.get_label() for line in report.figure(tmp_path / "run").axes[0].lines]
    assert labels == ["FedPD", "FedAvg"]
    problem = fedpd.problems.random_quadratic(agents=4, dimension=3)
    method = fedpd.algorithms.fedpd(eta=0.5, oracle=fedpd.oracles.gd(step=0.3, iterations=2))
    with pytest.raises(FedpdError, match=r"loaded from a run folder.*fedpd resume"):
        fedpd.simulate(method, problem, rounds=9, start=loaded["FedPD"])


def test_a_model_is_chosen_by_method_and_seed(tmp_path: Path) -> None:
    results = finished(tmp_path, "0, 1")
    assert isinstance(fedpd.load(tmp_path)["FedPD"], Ensemble)
    model = fedpd.load_model(tmp_path, method="FedAvg", seed=1)
    assert np.array_equal(model, results[1].runs[1].model)
    with pytest.raises(FedpdError, match=r"holds 4 models. Select one: method= one of 'FedPD', 'FedAvg'"):
        fedpd.load_model(tmp_path)
    with pytest.raises(FedpdError, match=r"none of its 4 models has seed=2.*seed= one of 0, 1"):
        fedpd.load_model(tmp_path, seed=2)


def test_a_folder_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="there is no such folder"):
        fedpd.load(tmp_path / "nothing")
    with pytest.raises(FedpdError, match="fedpd did not make this folder"):
        fedpd.load_model(tmp_path)
    run_folder.create(tmp_path / "new", TEXT.format(seeds="0"))
    for load in (fedpd.load, fedpd.load_model):
        with pytest.raises(FedpdError, match=r"holds an experiment file without results.* Run it: fedpd resume"):
            load(tmp_path / "new")
