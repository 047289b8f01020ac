"""Runs on ragged and lazy data: cohorts load their own samples only, and give the numbers of data in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.engine.backends import lazy_rows
from fedpd.engine.participation import draw

N = 30
RNG = np.random.default_rng(0)
SIZES = np.minimum(1 / RNG.uniform(size=N), 40).astype(int)
TESTS = RNG.integers(0, 4, N)


def samples(sizes: np.ndarray) -> data.Ragged:
    x = RNG.standard_normal((sizes.sum(), 3)).astype(np.float32)
    return data.ragged({"x": x, "y": (x.sum(axis=1) > 0).astype(int)}, sizes)


TRAIN, TEST = samples(SIZES), samples(TESTS)
FLAT = problems.softmax_regression(data.from_rows(TRAIN, TEST), l2=0.1)
METHOD = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=2, batch=2))


def lazy_problem(load: Any = TRAIN.__getitem__) -> Any:
    tests = data.lazy(TEST.__getitem__, TESTS)
    return problems.softmax_regression(data.from_rows(data.lazy(load, SIZES), tests, classes=2), l2=0.1)


def test_cohorts_load_their_own_samples_only() -> None:
    loaded: list[int] = []

    def load(agent: int) -> Any:
        loaded.append(agent)
        return TRAIN[agent]

    options: Any = {"rounds": 4, "cohort": 3, "metrics_agents": 5, "devices": 1}
    flat = simulate(METHOD, FLAT, **options)
    problem = lazy_problem(load)
    loaded.clear()
    lazy = simulate(METHOD, problem, **options)
    np.testing.assert_array_equal(lazy.model["weights"], flat.model["weights"])
    for name in ("loss", "stationarity", "test_accuracy", "samples"):
        np.testing.assert_array_equal(lazy.history[name], flat.history[name])
    assert len(set(loaded)) <= 4 * 3 + 5


def test_lazy_data_are_measured_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_rows, "ROWS_BYTES", 2_000)  # several blocks, and chunks of a few rounds
    options: Any = {"rounds": 5, "cohort": 3, "metrics_every": 2, "devices": 2, "seed": 3}
    flat, lazy = simulate(METHOD, FLAT, **options), simulate(METHOD, lazy_problem(), **options)
    np.testing.assert_array_equal(lazy.model["weights"], flat.model["weights"])
    for name in ("loss", "stationarity", "test_accuracy", "test_accuracy_worst"):
        np.testing.assert_allclose(lazy.history[name], flat.history[name], rtol=2e-5)


def test_a_round_in_which_nobody_is_present_loads_nothing_and_changes_nothing() -> None:
    present = np.zeros((3, N), bool)
    present[1, :2] = True
    options: Any = {"rounds": 3, "participation": present, "devices": 1}
    flat, lazy = simulate(METHOD, FLAT, **options), simulate(METHOD, lazy_problem(), **options)
    np.testing.assert_array_equal(lazy.model["weights"], flat.model["weights"])
    np.testing.assert_allclose(lazy.history["loss"], flat.history["loss"], rtol=2e-5)
    assert lazy.history["samples"].tolist() == [0, 0, 2 * 2 * 2, 2 * 2 * 2]


def test_a_loader_that_fails_ends_the_run_and_a_resume_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_rows, "ROWS_BYTES", 1)  # chunks of one round
    broken = tmp_path / "broken"

    def load(agent: int) -> Any:
        if broken.exists():
            raise OSError("the disk is gone")
        return TRAIN[agent]

    options: Any = {"cohort": 3, "metrics_agents": 5, "devices": 1, "checkpoint_every": 1}
    whole = simulate(METHOD, lazy_problem(load), rounds=6, **options)
    problem = lazy_problem(load)
    folder = tmp_path / "run"
    simulate(METHOD, problem, rounds=6, checkpoints=folder, callback=lambda r, model, row: r >= 2, **options)
    broken.touch()
    with pytest.raises(FedpdError, match=r"load\(\d+\) failed with OSError: the disk is gone. Correct the source"):
        simulate(METHOD, problem, rounds=6, checkpoints=folder, **options)
    broken.unlink()
    resumed = simulate(METHOD, problem, rounds=6, checkpoints=folder, **options)
    np.testing.assert_array_equal(resumed.model["weights"], whole.model["weights"])


def test_a_loader_that_fails_for_one_of_ten_thousand_agents_ends_the_run_before_its_round(tmp_path: Path) -> None:
    drawn = draw(0, range(6), 10_000, 3)
    bad, mended = int(drawn[4, 1]), tmp_path / "mended"

    def load(agent: int) -> Any:
        if agent == bad and not mended.exists():
            raise OSError("no such file")
        return np.full((2, 1), float(agent))

    problem = problems.from_losses(lambda x, rows: (rows - x)[:, 0] ** 2, data.lazy(load, [2] * 10_000), np.zeros(1))
    options: Any = {"rounds": 6, "cohort": 3, "metrics_agents": 1, "devices": 1}
    folder: Any = {"checkpoints": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(FedpdError, match=rf"load\({bad}\) failed with OSError: no such file.*or leave the agent out"):
        simulate(METHOD, problem, **options, **folder)
    mended.touch()
    resumed = simulate(METHOD, problem, **options, **folder)
    np.testing.assert_array_equal(resumed.model, simulate(METHOD, problem, **options).model)


def test_what_needs_all_samples_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"not in memory.* Give simulate\(..., cohort=K\)"):
        simulate(METHOD, lazy_problem(), rounds=1)
    with pytest.raises(FedpdError, match=r"execution = 'debug': needs the samples of all agents in memory"):
        simulate(METHOD, lazy_problem(), rounds=1, cohort=1, execution="debug")
    with pytest.raises(FedpdError, match=r"record = '\w+': needs the samples of all agents several times"):
        simulate(METHOD, lazy_problem(), rounds=1, cohort=3, record=["heterogeneity"])


@pytest.mark.slow
def test_ragged_data_with_the_state_in_files(tmp_path: Path) -> None:
    method = algorithms.fedpd(oracle=oracles.gd(step=0.1, iterations=2), eta=0.05)
    files = simulate(method, FLAT, rounds=2, store=tmp_path, devices=2)
    memory = simulate(method, FLAT, rounds=2, devices=2)
    np.testing.assert_allclose(files.model["weights"], memory.model["weights"], rtol=1e-6)
