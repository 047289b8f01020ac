"""Runs: rows, costs, reproducibility, seeds, resume, divergence, compilation."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.engine import driver as engine
from fedpd.engine.measure.history import COLUMNS

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(agents=6, samples=20, dimension=4, seed=1))
GD = oracles.gd(step=0.4, iterations=3)
FEDPD = algorithms.fedpd(eta=0.5, oracle=GD, p=0.4)
SGD = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=5, batch=2), p=0.4)


def same(a: fedpd.Run, b: fedpd.Run) -> bool:
    """Bit for bit."""
    states = zip(jax.tree.leaves((a.model, a.agents)), jax.tree.leaves((b.model, b.agents)), strict=True)
    rows = all(np.array_equal(a.history[name], b.history[name]) for name in COLUMNS)
    return rows and all(np.array_equal(x, y) for x, y in states)


def test_rows_are_the_start_and_every_round() -> None:
    run = simulate(FEDPD, PROBLEM, rounds=7)
    assert list(run.history) == list(COLUMNS)
    assert run.history["round"].tolist() == list(range(8))
    assert run.history["stationarity"][0] > 0
    assert all(run.history[name][0] == 0 for name in ("communications", "samples", "bytes_up", "local_updates"))
    assert run.updates.tolist() == [21] * 6


def test_costs_are_counted_exactly() -> None:
    history = simulate(FEDPD, PROBLEM, rounds=50, seed=3).history
    communications = np.cumsum(history["communicated"])
    assert 0 < communications[-1] < 50
    assert np.array_equal(history["communications"], communications)
    assert np.array_equal(history["bytes_up"], communications * 6 * 4 * 8)
    assert np.array_equal(history["bytes_down"], history["bytes_up"])
    assert np.array_equal(history["samples"], np.arange(51) * 6 * 20 * 3)
    assert np.array_equal(history["local_updates"], np.arange(51) * 3)


def test_metrics_every_keeps_rows_and_numbers() -> None:
    every, all_ = simulate(SGD, PROBLEM, rounds=25, metrics_every=10), simulate(SGD, PROBLEM, rounds=25)
    kept = [0, 10, 20, 25]
    assert every.history["round"].tolist() == kept
    assert all(np.array_equal(every.history[name], all_.history[name][kept]) for name in COLUMNS)
    assert np.array_equal(every.model, all_.model)


def test_chunk_size_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(SGD, PROBLEM, rounds=23)
    monkeypatch.setattr(engine, "LONGEST_CHUNK", 4)  # simulate chooses it: users should not have to
    assert same(whole, simulate(SGD, PROBLEM, rounds=23))


@pytest.mark.parametrize("algorithm", [FEDPD, SGD])
def test_layouts_agree_to_rounding(algorithm: fedpd.Algorithm) -> None:
    runs = [
        simulate(algorithm, PROBLEM, rounds=20, execution=execution, devices=devices)
        for execution in ("sequential", "parallel")
        for devices in (1, min(2, len(jax.devices())))
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.model, runs[0].model, atol=1e-14)
        np.testing.assert_allclose(run.history["consensus"], runs[0].history["consensus"], atol=1e-14)
        assert np.array_equal(run.history["communicated"], runs[0].history["communicated"])


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
@pytest.mark.parametrize("seed", [0, [0, 1]])
def test_agents_that_do_not_divide_among_devices(tmp_path: Path, seed: Any) -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(agents=5, samples=9, dimension=3))
    one = simulate(SGD, problem, rounds=12, seed=seed, devices=1)
    two = simulate(SGD, problem, rounds=12, seed=seed, devices=2, checkpoints=tmp_path, checkpoint_every=5)
    back = simulate(SGD, problem, rounds=12, seed=seed, devices=1, checkpoints=tmp_path, checkpoint_every=5)
    for a, b, c in zip(*(getattr(runs, "runs", (runs,)) for runs in (one, two, back)), strict=True):
        np.testing.assert_allclose(a.model, b.model, atol=1e-14)
        np.testing.assert_allclose(a.history["consensus"], b.history["consensus"], atol=1e-14)
        np.testing.assert_allclose(a.history["loss"], b.history["loss"], rtol=1e-14)
        assert np.array_equal(a.history["samples"], b.history["samples"])
        assert a.updates.tolist() == b.updates.tolist() == [60] * 5
        assert same(b, c)


def test_one_seed_is_one_result_and_another_is_another() -> None:
    assert same(simulate(SGD, PROBLEM, rounds=9, seed=5), simulate(SGD, PROBLEM, rounds=9, seed=5))
    assert not same(simulate(SGD, PROBLEM, rounds=9, seed=5), simulate(SGD, PROBLEM, rounds=9, seed=6))


def test_seeds_at_once_equal_one_by_one_to_rounding() -> None:
    ensemble = simulate(SGD, PROBLEM, rounds=30, seed=[0, 4, 9])
    for run, seed in zip(ensemble.runs, (0, 4, 9), strict=True):
        alone = simulate(SGD, PROBLEM, rounds=30, seed=seed)
        assert run.seed == seed
        np.testing.assert_allclose(run.model, alone.model, rtol=1e-12)
        np.testing.assert_allclose(run.history["stationarity"], alone.history["stationarity"], rtol=1e-9)
        assert np.array_equal(run.history["communications"], alone.history["communications"])
    finals = [run.history["stationarity"][-1] for run in ensemble.runs]
    assert ensemble.mean["stationarity"][-1] == pytest.approx(np.mean(finals))
    assert ensemble.spread["stationarity"][-1] == pytest.approx(np.std(finals))


def test_600_rounds_compile_once() -> None:
    calls = []

    def losses(x: jax.Array, batch: jax.Array) -> jax.Array:
        calls.append(1)
        return (batch @ x - 1) ** 2 / 2

    rows = np.random.default_rng(0).standard_normal((4, 5, 3))
    problem = problems.from_losses(losses, rows, np.zeros(3))
    algorithm = algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=0.05, iterations=2), p=0.5)
    simulate(algorithm, problem, rounds=600)
    traced = len(calls)
    assert traced < 12
    simulate(algorithm, problem, rounds=400, seed=8)
    assert len(calls) == traced


class KilledError(Exception):
    pass


@pytest.mark.parametrize("seed", [2, [2, 3]])
@pytest.mark.parametrize("killed_at", [3, 10, 24])
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path, seed: Any, killed_at: int) -> None:
    def kill(done: int, rounds: int, stationarity: float) -> None:
        if done >= killed_at:
            raise KilledError

    vr = oracles.vr(gamma=0.5, iterations=3, refresh=7)
    algorithm = algorithms.fedpd(eta=0.5, oracle=vr, p=0.4)
    whole = simulate(algorithm, PROBLEM, rounds=30, seed=seed)
    with pytest.raises(KilledError):
        simulate(algorithm, PROBLEM, rounds=30, seed=seed, checkpoints=tmp_path, checkpoint_every=5, progress=kill)
    resumed = simulate(algorithm, PROBLEM, rounds=30, seed=seed, checkpoints=tmp_path, checkpoint_every=5)
    pairs = zip(getattr(whole, "runs", (whole,)), getattr(resumed, "runs", (resumed,)), strict=True)
    assert all(same(a, b) for a, b in pairs)


def test_a_finished_run_is_read_back(tmp_path: Path) -> None:
    first = simulate(FEDPD, PROBLEM, rounds=12, checkpoints=tmp_path)
    again = simulate(FEDPD, PROBLEM, rounds=12, checkpoints=tmp_path)
    assert same(first, again)
    assert again.seconds == first.seconds


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    simulate(FEDPD, PROBLEM, rounds=5, checkpoints=tmp_path)
    with pytest.raises(FedpdError, match="belongs to another run: its seeds"):
        simulate(FEDPD, PROBLEM, rounds=5, seed=1, checkpoints=tmp_path)
    with pytest.raises(FedpdError, match="belongs to another run: its algorithm"):
        simulate(SGD, PROBLEM, rounds=5, checkpoints=tmp_path)
    with pytest.raises(FedpdError, match=r"rounds = 4: must be at least 5, .* already holds"):
        simulate(FEDPD, PROBLEM, rounds=4, checkpoints=tmp_path)


@pytest.mark.parametrize("every", [1, 4])
def test_more_rounds_continue_a_finished_run(tmp_path: Path, every: int) -> None:
    simulate(FEDPD, PROBLEM, rounds=5, checkpoints=tmp_path, metrics_every=every)
    more = simulate(FEDPD, PROBLEM, rounds=9, checkpoints=tmp_path, metrics_every=every)
    assert same(more, simulate(FEDPD, PROBLEM, rounds=9, metrics_every=every))


def test_divergence_is_an_answer() -> None:
    problem = problems.random_quadratic(4, 3, smoothness=2.0)
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=5.0, iterations=10)), problem, rounds=400)
    assert run.diverged is not None
    last = run.history["round"][-1]
    assert run.diverged.round == last < 400
    assert f"diverged at round {last}" in run.diverged.message
    assert "L = 2 (exact), below 1/L = 0.5" in run.diverged.message


def test_divergence_where_the_smoothness_is_zero_at_the_start() -> None:
    problem = problems.from_losses(lambda x, rows: rows * (abs(x) ** 3 + x), np.ones((1, 1)), np.float64(0))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=1.0, iterations=5)), problem, rounds=20)
    assert run.diverged is not None
    assert "an estimate with a safety factor 1.1; the true L may be larger), below 1/L" in run.diverged.message


def test_divergence_where_no_smoothness_can_be_estimated() -> None:
    def losses(x: Any, rows: Any) -> Any:  # f'' is infinite at 0
        return rows * (jnp.maximum(x, 0) ** 1.5 + x**4 - x)

    problem = problems.from_losses(losses, np.ones((1, 1)), np.float64(0))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=9.0, iterations=5)), problem, rounds=20)
    assert run.diverged is not None
    assert "Try a smaller local step size. If" in run.diverged.message


def test_a_diverging_seed_does_not_stop_the_others() -> None:
    """Steps of one sample each: one that grows x by far more than float64 holds, and one that leaves it where it is."""
    problem = problems.from_losses(lambda x, rows: rows @ x**2, np.array([[[-1e60], [0.0]]]), np.array([1.0]))
    draws = algorithms.fedavg(oracle=oracles.sgd(step=1.0, iterations=1))
    ensemble = simulate(draws, problem, rounds=2, seed=range(12))
    runs = ensemble.runs
    lengths = {len(run.history["round"]) for run in runs if run.diverged is None}
    assert 0 < sum(run.diverged is None for run in runs) < 12
    assert lengths == {3}
    assert all(len(run.history["round"]) == run.diverged.round + 1 for run in runs if run.diverged)
    assert len(ensemble.mean["round"]) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rounds": 0}, "rounds = 0: must be an integer of at least 1"),
        ({"rounds": 2.5}, "rounds = 2.5: must be an integer"),
        ({"rounds": 3, "seed": -1}, "seed = -1: must be an integer of at least 0"),
        ({"rounds": 3, "seed": 2**31}, "must be below 2"),
        ({"rounds": 3, "seed": []}, "must hold at least one seed"),
        ({"rounds": 3, "metrics_every": 0}, "metrics_every = 0"),
        ({"rounds": 3, "execution": "paralel"}, "Did you mean 'parallel'?"),
        ({"rounds": 3, "devices": 5}, "devices = 5: must be at most "),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        simulate(FEDPD, PROBLEM, **arguments)


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int, float]] = []
    simulate(FEDPD, PROBLEM, rounds=5, progress=lambda *report: told.append(report))
    assert told[-1][:2] == (5, 5)
    simulate(FEDPD, PROBLEM, rounds=5, progress=True)
    assert "5/5 rounds" in capsys.readouterr().err


def test_delta_and_smoothness_along_a_run() -> None:
    """Quadratics of curvature 2 and 3, and f_1 - f = -(x^2)/4 - c x: both are known at every x."""
    problem = problems.quadratic(np.array([[[2.0]], [[3.0]]]), np.array([[1.0], [-3.0]]))
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=3), p=0.3)
    plain = simulate(algorithm, problem, rounds=8, metrics_every=2)
    run = simulate(algorithm, problem, rounds=8, metrics_every=2, record=["heterogeneity", "smoothness"])
    assert np.array_equal(run.model, plain.model)
    assert list(run.history) == [*COLUMNS, "heterogeneity", "smoothness"]
    np.testing.assert_allclose(run.history["smoothness"], 3.0)
    # grad f_1 - grad f_2 = -x - 4, half of it from the mean; f' = 2.5 x + 1 gives x.
    assert run.history["heterogeneity"][0] == pytest.approx(2.0)
    x = float(run.model[0])
    assert run.history["heterogeneity"][-1] == pytest.approx(abs(x + 4) / 2)
    several = simulate(algorithm, problem, rounds=8, seed=[0, 1], record=["heterogeneity"])
    assert several.mean["heterogeneity"].shape == (9,)


def test_what_is_recorded_survives_a_checkpoint(tmp_path: Path) -> None:
    problem = problems.random_quadratic(3, 2)
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=3))
    options: dict[str, Any] = {"record": ["smoothness"], "checkpoints": tmp_path, "checkpoint_every": 2}
    simulate(algorithm, problem, rounds=4, **options)
    resumed = simulate(algorithm, problem, rounds=8, **options)
    whole = simulate(algorithm, problem, rounds=8, record=["smoothness"])
    assert np.array_equal(resumed.history["smoothness"], whole.history["smoothness"])


def test_an_unknown_record_is_refused() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=3))
    with pytest.raises(FedpdError, match="record = 'delta': there is no such choice"):
        simulate(algorithm, problems.random_quadratic(3, 2), rounds=1, record=["delta"])
