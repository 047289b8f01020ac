"""Runs in which some of the agents take part in a round, against a reference that holds all agents under a mask."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import Algorithm, Exchange, FedpdError, Run, algorithms, load, oracles, problems, simulate, sweep, theory
from fedpd.algorithms.feddane import FedDane
from fedpd.engine.backends import compiled as engine_present
from fedpd.engine.backends.cohort import AgentsSeen
from fedpd.engine.participation import draw
from tests.engine.masked import masked_run
from tests.slow_cases import slow_but

AGENTS, ROUNDS, SAMPLES = 8, 10, 6
GD, SGD = oracles.gd(step=0.2, iterations=2), oracles.sgd(0.1, 2, batch=2)


def make_problem(agents: int = AGENTS, sizes: tuple[int, ...] = ()) -> Any:
    rng = np.random.default_rng(0)
    features = [rng.standard_normal((size, 3)) for size in sizes or (SAMPLES,) * agents]
    labels = [np.where(rows @ rng.standard_normal(3) > 0, 1.0, -1.0) for rows in features]
    return problems.penalized_logistic(features, labels)


PROBLEM = make_problem()
PRESENT = np.random.default_rng(1).random((ROUNDS, AGENTS)) < 0.35
PRESENT[3], PRESENT[:, 6] = False, False  # a round without agents, and an agent that never comes
METHODS: dict[str, Algorithm] = {
    "fedavg": algorithms.fedavg(oracle=SGD),
    "fedpd": algorithms.fedpd(eta=0.5, oracle=SGD),
    "fedpd-skips": algorithms.fedpd(eta=0.5, oracle=GD, p=0.4),
    "fedpd-server": algorithms.fedpd(eta=0.5, oracle=SGD, start="server"),
    "fedpd-vr": algorithms.fedpd(eta=0.5, oracle=oracles.vr(gamma=0.5, iterations=2, refresh=3)),
    "fedpd-exact": algorithms.fedpd(eta=0.5, oracle=GD, p=0.4, drift="corrected-exact"),
    "feddyn": algorithms.feddyn(alpha=2.0, oracle=GD),
    "fedadmm": algorithms.fedadmm(rho=2.0, oracle=GD),
    "scaffold": algorithms.scaffold(step=0.2, iterations=2, batch=2),
    "a_fedpd": algorithms.a_fedpd(eta=0.5, oracle=GD),
    "pr_spider": algorithms.pr_spider(step=0.1, iterations=2, refresh=4, batch=2),
    "coop_sgd": algorithms.coop_sgd(oracle=GD, alpha=0.1, beta=0.3),
    "lag": algorithms.lag(step=0.5),
    "cola": algorithms.cola(eta=1.0, smoothness=1.0),
    "proxskip": algorithms.proxskip(step=0.3, p=0.5),
}
KEPT = {  # the fields of an agent's state that must be kept
    "fedavg": [],
    "fedpd": ["x", "dual"],
    "fedpd-skips": ["x", "x0", "dual", "sent"],
    "fedpd-server": ["dual"],
    "fedpd-vr": ["x", "dual", "memory"],
    "fedpd-exact": ["x", "x0", "dual", "sent", "mean"],
    "scaffold": ["own"],
    "a_fedpd": ["dual", "received"],
    "pr_spider": [],
}
SUMS = {"a_fedpd", "cola"}  # the reference adds their missed broadcasts one by one, which rounds differently


def assert_equals_reference(name: str, present: np.ndarray, run: Run, ulps: int, problem: Any = PROBLEM) -> None:
    """Compare the server, and what is kept of the agents, with the masked reference."""
    algorithm = METHODS[name]
    agents, server = masked_run(algorithm, problem, present)
    assert run.agents.agent.tolist() == np.flatnonzero(present.any(axis=0)).tolist()
    last = ROUNDS - np.argmax(present[::-1], axis=0)
    assert run.agents.last.tolist() == last[run.agents.agent].tolist()
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(server))
    for found, wanted in zip(jax.tree.leaves(run.server), jax.tree.leaves(server), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=ulps * scale * 2.0**-52)
    copies = jax.vmap(algorithm.partial().model)(agents)
    np.testing.assert_allclose(run.model, np.asarray(copies.tree).mean(axis=0), rtol=0, atol=4 * scale * 2.0**-52)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "execution"),
    [*((name, "sequential") for name in METHODS), ("fedpd", "parallel"), ("scaffold", "parallel")],
)
def test_an_agent_that_returns_is_where_a_masked_run_would_have_it(name: str, execution: Any) -> None:
    run = simulate(METHODS[name], PROBLEM, rounds=ROUNDS, participation=PRESENT, execution=execution, devices=1)
    assert_equals_reference(name, PRESENT, run, ulps=16 if name in SUMS else 4)
    pairs = zip(run.agents.state._fields, run.agents.state, strict=True)
    assert name not in KEPT or [field for field, value in pairs if jax.tree.leaves(value)] == KEPT[name]


UNEQUAL = make_problem(sizes=(1, 6, 3, 2, 6, 5, 1, 4))


@pytest.mark.parametrize("name", slow_but(["fedpd-skips"], ["fedpd", "fedpd-skips", "feddyn", "fedadmm", "scaffold"]))
@settings(max_examples=4, deadline=None)
@given(
    bits=st.lists(st.lists(st.booleans(), min_size=AGENTS, max_size=AGENTS), min_size=ROUNDS, max_size=ROUNDS),
    problem=st.sampled_from([PROBLEM, UNEQUAL]),
)
def test_any_attendance_gives_what_a_masked_run_gives(bits: list[list[bool]], name: str, problem: Any) -> None:
    present = np.array(bits)
    present[0, 0], present[1] = True, False  # at least one agent, and not all of them always
    run = simulate(METHODS[name], problem, rounds=ROUNDS, participation=present, execution="sequential", devices=1)
    assert_equals_reference(name, present, run, ulps=4, problem=problem)


def same_bits(one: Run, other: Run) -> None:
    for a, b in zip(
        jax.tree.leaves((one.model, one.server, one.history, one.agents)),
        jax.tree.leaves((other.model, other.server, other.history, other.agents)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.updates, other.updates)


@pytest.mark.parametrize("name", slow_but(["fedavg", "fedpd-skips"], ["fedavg", "fedpd", "fedpd-skips"]))
def test_a_cohort_is_the_same_run_as_its_schedule(name: str) -> None:
    drawn = draw(3, range(ROUNDS), AGENTS, 2)
    present = np.zeros((ROUNDS, AGENTS), bool)
    present[np.arange(ROUNDS)[:, None], drawn] = True
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": 3, "devices": 1}
    run = simulate(METHODS[name], PROBLEM, cohort=2, **options)
    same_bits(run, simulate(METHODS[name], PROBLEM, participation=present, **options))
    same_bits(run, simulate(METHODS[name], PROBLEM, participation=0.25, **options))
    assert run.updates.sum() == run.history["local_updates"][-1] * 2 == ROUNDS * 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["sequential", "parallel"])
def test_samples_that_are_read_in_place_give_the_run_of_samples_that_are_copied(
    execution: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"rounds": ROUNDS, "cohort": 3, "execution": execution, "devices": 1}
    copied = [simulate(METHODS[name], make_problem(), **options) for name in ("fedavg", "fedpd-vr")]
    monkeypatch.setattr(engine_present, "COPIED_BYTES", 0)  # as if the samples of three agents took more than 8 MB
    jax.clear_caches()
    for name, run in zip(("fedavg", "fedpd-vr"), copied, strict=True):
        same_bits(run, simulate(METHODS[name], make_problem(), **options))
    jax.clear_caches()


def test_costs_are_those_of_the_agents_that_are_present() -> None:
    run = simulate(METHODS["fedavg"], PROBLEM, rounds=ROUNDS, cohort=3)
    assert run.history["samples"][-1] == ROUNDS * 3 * 2 * 2
    assert run.history["bytes_up"][-1] == run.history["bytes_down"][-1] == ROUNDS * 3 * 3 * 8
    expected = np.bincount(draw(0, range(ROUNDS), AGENTS, 3).ravel(), minlength=AGENTS) * 2
    assert run.updates.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "options",
    slow_but([{"cohort": 1}], [{"cohort": 2}, {"participation": list(np.linspace(0.1, 0.9, 8))}, {"cohort": 1}]),
)
def test_fedpd_converges_to_the_minimiser_with_few_agents(options: dict[str, Any]) -> None:
    solve = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.5, iterations=40))
    run = simulate(solve, PROBLEM, rounds=800, metrics_every=800, **options)
    assert run.history["stationarity"][-1] < 1e-16


@pytest.mark.parametrize("cohort", slow_but([1], [2, 1]))
@pytest.mark.parametrize(
    "method",
    [
        algorithms.feddyn(alpha=2.0, oracle=oracles.gd(step=0.4, iterations=30)),
        algorithms.fedadmm(rho=2.0, oracle=oracles.gd(step=0.4, iterations=30)),
        algorithms.scaffold(step=0.5, iterations=5),
    ],
    ids=lambda method: method.name,
)
def test_methods_with_memory_converge_with_a_quarter_of_the_agents_and_with_one(method: Algorithm, cohort: int) -> None:
    run = simulate(method, PROBLEM, rounds=1600, metrics_every=1600, cohort=cohort)
    assert run.history["stationarity"][-1] < 1e-18


@pytest.mark.parametrize("name", slow_but(["fedpd-skips"], ["fedpd", "fedpd-skips"]))
@pytest.mark.parametrize("seed", [1, [0, 1]])
def test_a_resumed_run_is_the_same_to_the_bit(name: str, seed: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seed": seed, "cohort": 2, "metrics_every": 2, "metrics_agents": 5}
    whole = simulate(METHODS[name], PROBLEM, rounds=12, **options)
    folder: dict[str, Any] = {"checkpoints": tmp_path / "run", "checkpoint_every": 5}
    simulate(METHODS[name], PROBLEM, rounds=7, **options, **folder)
    resumed = simulate(METHODS[name], PROBLEM, rounds=12, **options, **folder)
    continued = simulate(
        METHODS[name], PROBLEM, rounds=12, **options, start=simulate(METHODS[name], PROBLEM, rounds=7, **options)
    )
    for other in (resumed, continued):
        runs = [(whole, other)] if isinstance(whole, Run) else zip(whole.runs, other.runs, strict=True)
        for one, again in runs:
            same_bits(one, again)


def killed_run(folder: str) -> None:
    """Run with a store, and kill the process after seven rounds."""

    def kill(r: int, model: Any, row: Any) -> None:
        if r == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    stored_run(Path(folder), callback=kill)


def stored_run(folder: Path, **options: Any) -> Run:
    paths: dict[str, Any] = {"checkpoints": folder / "run", "store": folder / "store", "checkpoint_every": 3}
    return simulate(METHODS["fedpd"], PROBLEM, rounds=ROUNDS, cohort=2, devices=1, **paths, **options)


def test_a_killed_run_with_a_store_resumes_to_the_bit(tmp_path: Path) -> None:
    program = "import sys; from tests.engine.backends.test_cohort import killed_run as run; run(sys.argv[1])"
    killed = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=Path(__file__).parents[3], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list((tmp_path / "store").iterdir()), "the files of a killed run disappear"
    same_bits(stored_run(tmp_path), simulate(METHODS["fedpd"], PROBLEM, rounds=ROUNDS, cohort=2, devices=1))


def test_seeds_together_are_seeds_alone() -> None:
    together = simulate(METHODS["fedpd"], PROBLEM, rounds=ROUNDS, seed=[0, 5], cohort=2)
    for run in together.runs:
        alone = simulate(METHODS["fedpd"], PROBLEM, rounds=ROUNDS, seed=run.seed, cohort=2)
        assert run.agents.agent.tolist() == alone.agents.agent.tolist()
        np.testing.assert_allclose(run.model, alone.model, rtol=1e-12)


@pytest.mark.parametrize("name", slow_but(["fedpd-skips"], ["fedpd", "fedpd-skips"]))
def test_rows_in_files_are_rows_in_memory(name: str, tmp_path: Path) -> None:
    memory = simulate(METHODS[name], PROBLEM, rounds=ROUNDS, cohort=3)
    same_bits(memory, simulate(METHODS[name], PROBLEM, rounds=ROUNDS, cohort=3, store=tmp_path / "store"))
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.parametrize("name", slow_but(["fedpd-skips"], ["fedpd", "fedpd-skips"]))
def test_two_devices_give_the_same_run(name: str) -> None:
    problem = make_problem(7)  # one device has a padding agent
    one = simulate(METHODS[name], problem, rounds=ROUNDS, cohort=3, devices=1)
    two = simulate(METHODS[name], problem, rounds=ROUNDS, cohort=3, devices=2)
    assert one.agents.agent.tolist() == two.agents.agent.tolist()
    assert one.updates.tolist() == two.updates.tolist()
    np.testing.assert_allclose(one.model, two.model, rtol=1e-12)


def test_a_saved_run_keeps_the_agents_seen(tmp_path: Path) -> None:
    run = simulate(METHODS["fedpd"], PROBLEM, rounds=ROUNDS, cohort=2)
    loaded = load(run.save(tmp_path / "saved"))
    assert isinstance(loaded.agents, AgentsSeen)
    same_bits(run, loaded)


@pytest.mark.parametrize("options", slow_but([{"cohort": 2}], [{}, {"cohort": 2}]))
def test_metrics_of_a_sample_are_those_of_the_problem_of_these_agents(options: dict[str, Any]) -> None:
    run = simulate(METHODS["fedavg"], PROBLEM, rounds=3, metrics_agents=3, **options)
    assert run.history["metrics_agents"].tolist() == [3] * 4
    sample = PROBLEM.subset(draw(0, [2**63], AGENTS, 3)[0])
    np.testing.assert_allclose(run.history["loss"][-1], theory.objective(sample, run.model), rtol=1e-12)
    np.testing.assert_allclose(simulate(METHODS["fedavg"], PROBLEM, rounds=3, **options).model, run.model, rtol=1e-13)


@pytest.mark.slow
def test_a_sweep_over_cohorts_is_its_single_runs() -> None:
    tried = sweep(METHODS["fedpd"], PROBLEM, {"eta": [0.5, 0.7], "cohort": [2, 3]}, rounds=4, metrics_agents=3)
    for point, (run,) in zip(tried.points, tried.runs, strict=True):
        method = algorithms.fedpd(eta=point["eta"], oracle=SGD)
        alone = simulate(method, PROBLEM, rounds=4, cohort=point["cohort"], metrics_agents=3)
        np.testing.assert_allclose(run.history["loss"], alone.history["loss"], rtol=1e-12)
        assert run.agents.agent.tolist() == alone.agents.agent.tolist()


def test_an_exchange_of_some_rounds_must_come_first() -> None:
    class Odd(FedDane):
        factory = None

        def exchanges(self) -> tuple[Exchange, Exchange]:
            first, second = super().exchanges()
            return first, second._replace(when=lambda r: r % 2 == 0)

    odd = Odd(mu=1.0, oracle=GD)
    with pytest.raises(FedpdError, match=r"Odd.*an absent agent misses them in any order"):
        simulate(odd, PROBLEM, rounds=2, cohort=2)


def test_larger_agents_come_more_often_with_sampling_by_size() -> None:
    problem = problems.from_losses(
        lambda x, rows: (rows - x) ** 2, [np.arange(size, dtype=float) for size in (1, 2, 3, 4)], np.zeros(())
    )
    run = simulate(METHODS["fedavg"], problem, rounds=4000, cohort=1, sampling="size", metrics_every=4000)
    assert abs(run.updates / 2 - np.array([400, 800, 1200, 1600])).max() < 5 * np.sqrt(1000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cohort": 9}, "cohort = 9: must be at most 8, the number of agents. Give the number of agents per round"),
        ({"cohort": 0}, "cohort = 0: must be"),
        ({"cohort": 2.5}, "cohort = 2.5: must be"),
        ({"cohort": 2, "participation": 0.5}, "cohort = 2: must not be given together with participation"),
        ({"sampling": "size"}, "sampling = 'size': needs a cohort"),
        ({"cohort": 2, "sampling": "sizes"}, "sampling = 'sizes'"),
        ({"metrics_agents": 9}, "metrics_agents = 9: must be at most 8"),
        ({"metrics_agents": 0}, "metrics_agents = 0: must be"),
    ],
)
def test_a_wrong_cohort_is_answered_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        simulate(METHODS["fedavg"], PROBLEM, rounds=2, **options)
    needs_all = algorithms.fedpd(eta=0.5, oracle=GD, p="auto")
    with pytest.raises(FedpdError, match="needs all agents in every communication"):
        simulate(needs_all, PROBLEM, rounds=2, cohort=2)
