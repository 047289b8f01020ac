"""A federation on Flower equals a simulation: the same model and the same costs, for every method."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from flwr.app import Context

from fedpd import Algorithm, FedpdError, Problem, algorithms, data, load_model, oracles, problems, schedules, simulate
from fedpd.algorithms.fedavg import FedAvg
from fedpd.base.checkpoint import CheckpointError
from fedpd.core import Evaluation
from fedpd.engine.measure.columns import RECORDABLE
from fedpd.engine.measure.history import COLUMNS
from fedpd.flower import FederationError, InProcessGrid, Local, Settings, client_app, federate
from tests.algorithms.test_conformance import ROWS
from tests.flower.federations import AGENTS, DIMENSION, FEDPD, GD, app, assert_same, run, samples, start, whole
from tests.slow_cases import slow_but

ROUNDS = 8
ACCURACY = tuple(column.name for column in RECORDABLE["accuracy"])
PROMISED = (
    "fedpd",
    "fedpd-vr",
    "fedpd-auto",
    "fedpd-memory",
    "fedavg",
    "fedprox",
    "feddyn",
    "scaffold",
    "a_fedpd",
    "fedpd_n",
)
OTHERS = ("feddane", "pr_spider", "lag")  # two exchanges; one that is not always due; agents that stay silent
APART = ("coop_sgd-elastic", "coop_sgd-mixing")  # every agent has a model of its own
METHODS = [
    pytest.param(name, marks=() if name in PROMISED + OTHERS else pytest.mark.slow)
    for name in ROWS
    if name not in (*APART, "locodl")
]


def compare(algorithm: Algorithm, rounds: int, sizes: tuple[int, ...] = (6,) * AGENTS, **both: Any) -> None:
    grid = InProcessGrid(app(algorithm, sizes), AGENTS, {})
    there = run(algorithm, rounds, grid, seed=3, evaluate_every=1, **both)
    here = simulate(algorithm, whole(sizes), rounds=rounds, seed=3, **both)
    rows = here.history["communicated"].copy()
    rows[0] = True
    assert rows.sum() > 2
    for name in COLUMNS:
        np.testing.assert_allclose(there.history[name], here.history[name][rows], rtol=1e-9, atol=1e-13, err_msg=name)
    if rows[-1]:
        assert_same(there.model, here.model)


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str) -> None:
    compare(ROWS[name].make(), ROUNDS)


def test_a_schedule_of_skips_and_agents_of_unequal_sizes() -> None:
    skips = schedules.decreasing_skips(rounds=10)
    compare(algorithms.fedpd(eta=0.5, oracle=oracles.sgd(0.1, 3, batch=2), p=skips), 10, (5, 8, 3))


def test_local_epochs_by_the_clients_own_sizes() -> None:
    """Orders, steps and work depend on (seed, round, agent) and the client's own samples alone."""
    oracle = oracles.sgd(schedules.exponential(0.1, 0.9), epochs=2, batch=3, momentum=0.5)
    compare(algorithms.fedpd(eta=0.5, oracle=oracle), 6, (5, 8, 3))
    compare(algorithms.scaffold(step=schedules.exponential(0.1, 0.9), epochs=2, batch=3), 6, (5, 8, 3))


# A server of models, coins, a server that keeps more, two exchanges, a server that decides itself when to wait.
@pytest.mark.parametrize("name", slow_but(["dane", "fedpd-auto"], ["fedavg", "fedpd", "a_fedpd", "dane", "fedpd-auto"]))
def test_the_running_mean_of_the_servers_models(name: str) -> None:
    compare(ROWS[name].make(), ROUNDS, average=True)


SGD = oracles.sgd(0.1, 3, batch=2)
NOISY = algorithms.fedavg(oracle=SGD)


@pytest.mark.parametrize("algorithm", [NOISY, algorithms.a_fedpd(eta=0.5, oracle=SGD)], ids=["fedavg", "a_fedpd"])
def test_the_running_mean_with_a_cohort_and_after_a_resume(algorithm: Algorithm, tmp_path: Path) -> None:
    options: dict[str, Any] = {"seed": 3, "cohort": 2, "average": True}
    rows: list[Any] = []
    models: list[Any] = []
    grid = InProcessGrid(app(algorithm), AGENTS, {})
    run(algorithm, ROUNDS // 2, grid, out=tmp_path, evaluate_every=1, **options)
    given = Settings(AGENTS, ROUNDS, out=tmp_path, evaluate_every=1, poll=0.001, **options)
    there = federate(grid, algorithm, start(), given, callback=lambda r, model, row: rows.append((r, model, row)))
    options["callback"] = lambda r, model, row: models.append(model)
    here = simulate(algorithm, whole(), rounds=ROUNDS, **options)
    for name in ("loss", "stationarity", "samples", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-9, atol=1e-13, err_msg=name)
    assert [r for r, *_ in rows] == list(range(ROUNDS // 2 + 1, ROUNDS + 1))
    for r, model, row in rows:
        assert_same(model, models[r])
        assert row["loss"] == pytest.approx(here.history["loss"][r], rel=1e-9)
    assert_same(there.model, here.model)
    assert_same(load_model(tmp_path), here.model)
    assert_same(load_model(tmp_path / "best.safetensors"), models[int(np.argmin(here.history["loss"]))])
    newest = simulate(algorithm, whole(), rounds=ROUNDS, seed=3, cohort=2)
    assert not np.allclose(newest.model["w"], there.model["w"], rtol=1e-3)


def test_a_run_resumes_with_the_mean_or_without_it_as_it_began(tmp_path: Path) -> None:
    for average in (True, False):
        out = tmp_path / str(average)
        run(NOISY, 1, out=out, average=average)
        with pytest.raises(CheckpointError, match=f"its average is {average or None}, not {not average or None}"):
            run(NOISY, 2, out=out, average=not average)


def test_the_running_mean_by_hand() -> None:
    models: list[Any] = []
    settings = Settings(AGENTS, 3, poll=0.001, evaluate_every=0)
    grid = InProcessGrid(app(NOISY), AGENTS, {})
    federate(grid, NOISY, start(), settings, callback=lambda r, model, row: models.append(model["w"]))
    w = models[0]
    for r in (1, 2, 3):
        w = w + 5 / (r + 5) * (models[r] - w)
    np.testing.assert_allclose(run(NOISY, 3, average=True).model["w"], w, rtol=1e-12)


def test_a_server_that_cannot_know_the_model_has_no_mean() -> None:
    with pytest.raises(FedpdError, match="average = True: needs a server that knows the model"):
        run(ROWS["fedpd-memory"].make(), 1, average=True)


class Doubling(FedAvg):
    """FedAvg whose server delivers twice its model, and sends the model alone."""

    def server(self, x: Any) -> Any:
        return x, x

    def aggregate(self, server: Any, mean: Any, share: Any) -> Any:
        return (mean, 2 * mean), mean

    def delivers(self, server: Any) -> Any:
        return server[1]


def test_what_a_method_delivers_is_the_model() -> None:
    doubling, plain = Doubling(oracle=GD), algorithms.fedavg(oracle=GD)
    there, models = run(doubling, 2, evaluate_every=1), run(plain, 2).model
    assert_same(there.model, jax.tree.map(lambda leaf: 2 * leaf, models))
    here = simulate(doubling, whole(), rounds=2)
    np.testing.assert_allclose(there.history["loss"], here.history["loss"], rtol=1e-12)
    assert_same(there.model, here.model)


def test_clipping_is_around_the_model_that_clients_have() -> None:
    """Not around what the server delivers."""
    models = [run(one, 2, clip=0.3).model for one in (Doubling(oracle=GD), algorithms.fedavg(oracle=GD))]
    assert_same(models[0], jax.tree.map(lambda leaf: 2 * leaf, models[1]))


def test_a_skipped_communication_costs_no_message() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=GD, p=0.6)
    grid = InProcessGrid(app(algorithm), AGENTS, {})
    there = run(algorithm, 12, grid)
    communications = int(there.history["communications"][-1])
    assert 1 < communications < 8
    assert grid.pushed == AGENTS * (1 + communications)  # one hello
    assert there.history["local_updates"][-1] == 3 * there.history["round"][-1]


@pytest.mark.parametrize("name", APART)
def test_methods_without_a_model_of_the_server_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="its own model"):
        run(ROWS[name].make(), 1)


def test_a_model_that_the_server_cannot_know_is_refused() -> None:
    """Agents of LoCoDL change y by themselves, and a broadcast is only the step of y: the server's model was wrong."""
    with pytest.raises(FedpdError, match="the server knows only its broadcasts"):
        run(ROWS["locodl"].make(), 1)


def test_float32_is_computed_in_float32() -> None:
    small: Any = jax.tree.map(lambda leaf: leaf.astype(np.float32), samples())
    algorithm = algorithms.fedpd(eta=0.5, oracle=GD)

    def begin(config: Any) -> np.ndarray:
        return np.zeros(DIMENSION, np.float32)

    def losses(model: Any, batch: Any) -> Any:
        return (batch["a"] @ model - batch["y"]) ** 2

    def part(context: Context) -> Local:
        return Local(losses, small[int(context.node_config["partition-id"])])

    grid = InProcessGrid(client_app(lambda config: algorithm, begin, part), AGENTS, {})
    there = federate(grid, algorithm, begin({}), Settings(agents=AGENTS, rounds=4, evaluate_every=0, poll=0.001))
    here = simulate(algorithm, problems.from_losses(losses, small, begin({})), rounds=4)
    assert there.model.dtype == np.float32
    np.testing.assert_allclose(there.model, here.model, rtol=1e-5)


@pytest.mark.slow
def test_accuracies_are_those_of_a_simulation() -> None:
    rng = np.random.default_rng(1)
    parts: list[Any] = [
        {"x": rng.normal(size=(6, 2)), "y": rng.integers(0, 2, 6).astype(np.int32)} for _ in range(AGENTS)
    ]
    tests = [{name: leaf[:4] for name, leaf in one.items()} for one in parts]

    def losses(model: Any, batch: Any) -> Any:
        return jax.numpy.logaddexp(0, (1 - 2 * batch["y"]) * (batch["x"] @ model))

    def correct(model: Any, batch: Any) -> Any:
        return 1.0 * ((batch["x"] @ model > 0) == (batch["y"] > 0))

    stacked: Any = {name: np.stack([one[name] for one in tests]) for name in ("x", "y")}
    problem = problems.from_losses(losses, parts, np.ones(2))
    problem = replace(problem, evaluation=Evaluation(correct, stacked, np.full(AGENTS, 4, np.int32)))
    algorithm = algorithms.fedavg(oracle=GD)

    def part(context: Context) -> Local:
        i = int(context.node_config["partition-id"])
        return Local(losses, parts[i], correct=correct, test=tests[i])

    grid = InProcessGrid(client_app(lambda config: algorithm, lambda config: np.ones(2), part), AGENTS, {})
    there = federate(grid, algorithm, np.ones(2), Settings(agents=AGENTS, rounds=2, poll=0.001))
    here = simulate(algorithm, problem, rounds=2)
    for name in ACCURACY:
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-12, err_msg=name)


def test_metrics_are_those_of_a_simulation() -> None:
    """A regression without accuracies: clients send sums, and the server makes means, roots and exponentials."""
    rng = np.random.default_rng(1)
    everyone = {str(i): {"x": rng.normal(size=(6, 2)), "y": rng.normal(size=6)} for i in range(AGENTS)}
    everyone["0"]["y"][0] = np.nan

    def problem_of(parts: Any) -> Problem:
        own = {"growth": problems.Metric(lambda outputs, targets: outputs, of_mean="exp")}
        found = data.from_arrays(parts, parts, classes=False)
        return problems.regression(lambda model, x: x @ model, found, np.ones(2), metrics=own)

    algorithm = algorithms.fedavg(oracle=GD)

    def part(context: Context) -> Problem:
        name = str(context.node_config["partition-id"])
        return problem_of({name: everyone[name]})

    grid = InProcessGrid(client_app(lambda config: algorithm, lambda config: np.ones(2), part), AGENTS, {})
    there = federate(grid, algorithm, np.ones(2), Settings(agents=AGENTS, rounds=2, poll=0.001))
    here = simulate(algorithm, problem_of(everyone), rounds=2)
    for name in ("loss", "test_loss", "mae", "rmse", "growth"):
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-12, err_msg=name)


def test_metrics_that_are_no_means_are_means_over_the_clients() -> None:
    rng = np.random.default_rng(1)
    everyone = {str(i): {"x": rng.normal(size=(9, 2)), "y": np.arange(9) % 3 * (i > 0)} for i in range(AGENTS)}
    start = np.array([[1.0, 0.5, 0.0], [0.0, -1.0, 0.5]])
    algorithm = algorithms.fedavg(oracle=GD)

    def problem_of(parts: Any, over: Any) -> Problem:
        own = {"auc": problems.auc(over=over), "f1": problems.f1(over=over)}
        found = data.from_arrays(parts, parts, classes=3)
        return problems.classification(lambda model, x: x @ model, found, start, metrics=own)

    def federated(over: str) -> Any:
        def part(context: Context) -> Problem:
            name = str(context.node_config["partition-id"])
            return problem_of({name: everyone[name]}, over)

        grid = InProcessGrid(client_app(lambda config: algorithm, lambda config: start, part), AGENTS, {})
        return federate(grid, algorithm, start, Settings(agents=AGENTS, rounds=1, poll=0.001))

    there, here = federated("agents"), simulate(algorithm, problem_of(everyone, "agents"), rounds=1)
    for name in ("auc", "f1"):  # the first client has one class, and no AUC
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-12, err_msg=name)
    with pytest.raises(FedpdError, match=r'metric = .auc.: is no mean over samples.*over="agents"'):
        federated("samples")


def test_a_client_s_own_metrics() -> None:
    def losses(model: Any, batch: Any) -> Any:
        return (batch["a"] @ model["w"] - batch["y"]) ** 2

    def error(model: Any, batch: Any) -> Any:
        return abs(batch["a"] @ model["w"] - batch["y"])

    def part(context: Context) -> Local:
        own: Any = samples()[int(context.node_config["partition-id"])]
        return Local(losses, own, test=own, metrics={"error": error})

    grid = InProcessGrid(client_app(lambda config: FEDPD, start, part), AGENTS, {})
    there = federate(grid, FEDPD, start(), Settings(agents=AGENTS, rounds=1, poll=0.001))
    whole: Any = {name: np.concatenate([one[name] for one in samples()]) for name in ("a", "y")}
    assert there.history["error"][0] == pytest.approx(np.mean(error(start(), whole)), rel=1e-12)
    assert there.history["test_loss"][0] == pytest.approx(np.mean(losses(start(), whole)), rel=1e-12)


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))


@pytest.mark.slow
def test_a_client_may_be_a_problem_of_one_agent() -> None:
    """The client's problem is `problems.network` of its data: a flax module with batch statistics."""
    rng = np.random.default_rng(1)
    everyone = {
        str(i): {"x": rng.normal(i, 1, (6, 2)).astype(np.float32), "y": rng.integers(0, 2, 6)} for i in range(AGENTS)
    }
    whole = problems.network(Normalised(), data.from_arrays(everyone, everyone, classes=2))
    algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.sgd(step=0.1, iterations=2, batch=3))

    def part(context: Context) -> Problem:
        own = {"own": everyone[str(context.node_config["partition-id"])]}
        return problems.network(Normalised(), data.from_arrays(own, own, classes=2))

    grid = InProcessGrid(client_app(lambda config: algorithm, lambda config: whole.start, part), AGENTS, {})
    there = federate(grid, algorithm, whole.start, Settings(agents=AGENTS, rounds=2, poll=0.001))
    here = simulate(algorithm, whole, rounds=2)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), there.model, here.model)
    for name in ("loss", "stationarity", *ACCURACY):
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-4, err_msg=name)


def test_a_problem_of_several_agents_is_not_a_client() -> None:
    grid = InProcessGrid(client_app(lambda config: FEDPD, start, lambda context: whole()), AGENTS, {})
    with pytest.raises(FederationError, match="must be a problem with one agent, but has 3"):
        federate(grid, FEDPD, start(), Settings(agents=AGENTS, rounds=1, poll=0.001))
