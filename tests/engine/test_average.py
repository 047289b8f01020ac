"""The running mean of the server's models, which `average=True` delivers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import fedpd
from fedpd import FedpdError, Method, algorithms, clock, oracles, problems, simulate, theory, transforms
from tests.slow_cases import slow_but

PROBLEM = problems.random_quadratic(6, 4, smoothness=1.0, convexity=0.2, seed=2)
SGD = oracles.sgd(step=0.2, iterations=3, batch=1)
FEDAVG = algorithms.fedavg(oracle=SGD)
FEDPD = algorithms.fedpd(eta=0.3, oracle=SGD, start="server")


def mean_of(method: Method, rounds: int = 9, **options: Any) -> np.ndarray:
    """Return w of the recursion, from the models of a plain run."""
    models: list[np.ndarray] = []
    plain = simulate(method, PROBLEM, rounds=rounds, callback=lambda r, model, row: models.append(model), **options)
    w, r = models[0], 0
    communications = itertools.pairwise(plain.history["communications"])
    for model, (before, after) in zip(models[1:], communications, strict=True):
        r += int(after - before)
        w = w + 5 / (r + 5) * (model - w) if after > before else w
    return w


NETWORK = clock.network(up="1 Mbit/s", down="1 Mbit/s", compute=clock.log_normal("1 s", 1.0))
SKIPPING = algorithms.fedpd(eta=0.3, oracle=SGD, p=0.5)
BOTH_WAYS = transforms.wrap(FEDAVG, up=transforms.quantize(8), down=transforms.quantize(8))
CASES: dict[str, tuple[Method, dict[str, Any]]] = {
    "everyone": (FEDAVG, {}),
    "a cohort": (FEDAVG, {"cohort": 2}),
    "rounds without agents": (FEDAVG, {"participation": 0.1}),
    "one agent": (FEDPD, {"cohort": 1}),
    "skips": (SKIPPING, {}),
    "skips of a cohort": (SKIPPING, {"cohort": 3}),
    "A-FedPD": (algorithms.a_fedpd(eta=0.3, oracle=SGD), {"cohort": 2}),
    "SCAFFOLD": (algorithms.scaffold(step=0.1, iterations=3, batch=1), {"cohort": 2}),
    "compressed messages": (transforms.wrap(FEDAVG, up=transforms.quantize(8)), {"cohort": 2}),
    "compressed broadcasts": (BOTH_WAYS, {}),
    "a server's optimizer": (transforms.wrap(FEDAVG, mean=transforms.server_optimizer(optax.adam(0.1))), {"cohort": 2}),
    "asynchronous": (FEDPD, {"clock": NETWORK, "buffer": 2}),
}


@pytest.mark.parametrize(
    "case", slow_but(["rounds without agents", "skips", "compressed broadcasts", "asynchronous"], CASES)
)
def test_the_model_is_the_recursion(case: str) -> None:
    method, options = CASES[case]
    run = simulate(method, PROBLEM, rounds=9, average=True, **options)
    np.testing.assert_allclose(run.model, mean_of(method, **options), rtol=1e-12, atol=1e-12)
    assert run.history["loss"][-1] == pytest.approx(theory.objective(PROBLEM, run.model), rel=1e-12)


def test_agents_one_after_another_have_the_same_mean() -> None:
    run = simulate(FEDAVG, PROBLEM, rounds=2, cohort=2, average=True, execution="debug")
    np.testing.assert_allclose(run.model, mean_of(FEDAVG, rounds=2, cohort=2), rtol=1e-12)


def test_it_changes_neither_the_rounds_nor_the_costs() -> None:
    plain, mean = (simulate(FEDPD, PROBLEM, rounds=9, cohort=2, average=average) for average in (False, True))
    for column in ("communications", "local_updates", "samples", "bytes_up", "bytes_down"):
        assert np.array_equal(plain.history[column], mean.history[column])
    assert np.array_equal(plain.agents.state.dual, mean.agents.state.dual)


def test_agents_in_files_have_the_same_mean(tmp_path: Path) -> None:
    run = simulate(FEDAVG, PROBLEM, rounds=9, average=True, store=tmp_path)
    np.testing.assert_allclose(run.model, mean_of(FEDAVG), rtol=1e-12)


def test_until_and_callbacks_see_the_mean() -> None:
    seen: list[float] = []
    target = simulate(FEDAVG, PROBLEM, rounds=9, average=True).history["loss"][4]
    run = simulate(
        FEDAVG,
        PROBLEM,
        rounds=9,
        average=True,
        until={"loss": target},
        callback=lambda r, model, row: seen.append(theory.objective(PROBLEM, model)),
    )
    assert run.history["round"][-1] == 4
    np.testing.assert_allclose(seen, run.history["loss"], rtol=1e-12)


def test_seeds_and_points_of_a_sweep_have_their_own_means() -> None:
    both = simulate(FEDAVG, PROBLEM, rounds=9, seed=[0, 3], cohort=2, average=True)
    alone = simulate(FEDAVG, PROBLEM, rounds=9, seed=3, cohort=2, average=True)
    np.testing.assert_allclose(both.runs[1].model, alone.model, rtol=1e-12)
    grid = {"step": [0.05, 0.2]}

    def build(step: float) -> Method:
        return algorithms.fedavg(oracle=oracles.sgd(step=step, iterations=3, batch=1))

    swept = fedpd.sweep(build, PROBLEM, grid, rounds=9, cohort=2, average=True)
    same = simulate(build(0.2), PROBLEM, rounds=9, cohort=2, average=True)
    assert swept.runs[1][0].history["loss"][-1] == pytest.approx(same.history["loss"][-1], rel=1e-12)


def test_a_run_resumes_and_continues_with_its_mean(tmp_path: Path) -> None:
    whole = simulate(FEDPD, PROBLEM, rounds=9, cohort=2, average=True)
    first = simulate(FEDPD, PROBLEM, rounds=5, cohort=2, average=True)
    assert np.array_equal(simulate(FEDPD, PROBLEM, rounds=9, cohort=2, average=True, start=first).model, whole.model)
    simulate(FEDPD, PROBLEM, rounds=5, cohort=2, average=True, checkpoints=tmp_path, checkpoint_every=5)
    with pytest.raises(FedpdError, match="average"):
        simulate(FEDPD, PROBLEM, rounds=9, cohort=2, start=first)


def test_a_method_without_a_server_that_knows_the_model_is_refused() -> None:
    mixing = algorithms.coop_sgd(oracle=SGD, mixing=np.full((6, 6), 1 / 6))
    memory = algorithms.fedpd(eta="auto", oracle=oracles.gd(step=0.1, iterations=3), memory=2)
    for method in (mixing, memory):
        with pytest.raises(FedpdError, match="needs a server that knows the model"):
            simulate(method, PROBLEM, rounds=2, average=True)
