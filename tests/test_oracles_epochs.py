"""Local epochs: a NumPy program with the same orders, the work, every execution, and what is refused."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, Problem, algorithms, clock, data, oracles, problems, schedules, simulate
from fedpd.base.precision import scope
from fedpd.core.agents import agent_key
from fedpd.core.sampling import shuffle
from fedpd.engine.plan import choose_layout
from tests.slow_cases import slow_but

SIZES, STEP, EPOCHS, BATCH = (7, 20, 3), 0.05, 2, 4
RNG = np.random.default_rng(0)
SAMPLES = [{"a": RNG.normal(size=(n, 4)), "b": i + RNG.normal(size=n)} for i, n in enumerate(SIZES)]
SGD = oracles.sgd(step=STEP, epochs=EPOCHS, batch=BATCH)
START = np.ones(4)


def losses(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["b"]) ** 2 / 2


def problem(samples: Any = SAMPLES, **options: Any) -> Problem:
    return problems.from_losses(losses, samples, START, check=False, **options)


def order(seed: int, r: int, agent: int, epoch: int) -> np.ndarray:
    with scope(True):
        key = agent_key(jax.random.key(seed, impl="threefry2x32"), r, agent)
        size = SIZES[agent]
        return np.asarray(shuffle(jax.random.fold_in(key, epoch), jnp.int32(size))(jnp.arange(size)))


def gradient(agent: int, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    a, b = SAMPLES[agent]["a"][rows], SAMPLES[agent]["b"][rows]
    return a.T @ (a @ x - b) / len(rows)


def batches(seed: int, r: int, agent: int) -> list[np.ndarray]:
    """The batches of a round, as DataLoader(shuffle=True, drop_last=False) makes them."""
    orders = [order(seed, r, agent, epoch) for epoch in range(EPOCHS)]
    return [rows[at : at + BATCH] for rows in orders for at in range(0, len(rows), BATCH)]


def fedavg(seed: int, rounds: int, step: Any = lambda r, q: STEP, scale: tuple[float, ...] = (1, 1, 1)) -> np.ndarray:
    x = START
    for r in range(rounds):
        ends = []
        for agent, weight in enumerate(scale):
            y = x
            for q, rows in enumerate(batches(seed, r, agent)):
                y = y - step(r, q) * weight * gradient(agent, y, rows)
            ends.append(y)
        x = np.mean(ends, axis=0)
    return x


@pytest.mark.parametrize("execution", ["auto", "sequential", "parallel", "debug"])
def test_fedavg_is_that_of_a_numpy_program(execution: Any) -> None:
    run = simulate(algorithms.fedavg(oracle=SGD), problem(), rounds=2, seed=3, execution=execution)
    np.testing.assert_allclose(run.model, fedavg(3, 2), rtol=1e-12)
    assert run.history["samples"].tolist() == [0, 60, 120]  # 2 epochs of 30 samples
    assert run.updates.tolist() == [8, 20, 4]  # 2 rounds of 2 epochs of 2, 5 and 1 batches
    assert run.history["local_updates"].tolist() == [0, 10, 20]


def test_ragged_and_lazy_data_weights_and_schedules() -> None:
    rows = {name: np.concatenate([one[name] for one in SAMPLES]) for name in "ab"}
    ragged = problem(data.ragged(rows, np.array(SIZES)))
    lazy = problem(data.lazy(lambda i: SAMPLES[i], np.array(SIZES))).in_memory()
    method = algorithms.fedavg(oracle=SGD)
    for one in (ragged, lazy):
        np.testing.assert_allclose(simulate(method, one, rounds=2, seed=3).model, fedavg(3, 2), rtol=1e-12)
    weighted = problem(weights="samples")
    scale = tuple(weighted.scale)
    np.testing.assert_allclose(simulate(method, weighted, rounds=2).model, fedavg(0, 2, scale=scale), rtol=1e-12)
    falling = algorithms.fedavg(oracle=oracles.sgd(lambda r, q: STEP / (1 + r + q), epochs=EPOCHS, batch=BATCH))
    expected = fedavg(0, 2, lambda r, q: STEP / (1 + r + q))
    np.testing.assert_allclose(simulate(falling, problem(), rounds=2).model, expected, rtol=1e-12)


def test_a_cohort_and_lazy_samples_give_the_same() -> None:
    whole = simulate(algorithms.fedavg(oracle=SGD), problem(), rounds=4, cohort=2, execution="debug")
    lazy = problem(data.lazy(lambda i: SAMPLES[i], np.array(SIZES)))
    for one in (problem(), lazy):
        run = simulate(algorithms.fedavg(oracle=SGD), one, rounds=4, cohort=2)
        np.testing.assert_allclose(run.model, whole.model, rtol=1e-12)
        assert run.history["samples"].tolist() == whole.history["samples"].tolist()


def test_one_epoch_of_all_samples_is_a_full_gradient() -> None:
    """A batch that no agent fills, and batch=None: both are gradient descent."""
    gd = simulate(algorithms.fedavg(oracle=oracles.gd(STEP, 3)), problem(), rounds=2)
    for batch in (None, 20, 64):
        run = simulate(algorithms.fedavg(oracle=oracles.sgd(STEP, epochs=3, batch=batch)), problem(), rounds=2)
        np.testing.assert_allclose(run.model, gd.model, rtol=1e-12)
        assert run.history["samples"].tolist() == gd.history["samples"].tolist()
        assert run.updates.tolist() == [6, 6, 6]


def test_optax_passes_over_the_same_batches() -> None:
    by_name = oracles.optax(oracles.optimizer("sgd", learning_rate=STEP), epochs=EPOCHS, batch=BATCH)
    run = simulate(algorithms.fedavg(oracle=by_name), problem(), rounds=2, seed=3)
    np.testing.assert_allclose(run.model, fedavg(3, 2), rtol=1e-12)


def test_stragglers_do_a_share_of_their_own_steps() -> None:
    method = algorithms.fedavg(oracle=SGD)
    run = simulate(method, problem(), rounds=6, stragglers=0.7, seed=1)
    debug = simulate(method, problem(), rounds=6, stragglers=0.7, seed=1, execution="debug")
    np.testing.assert_allclose(run.model, debug.model, rtol=1e-12)
    assert run.history["samples"].tolist() == debug.history["samples"].tolist()
    assert run.history["samples"][-1] < 6 * 60
    assert (run.updates < [24, 60, 12]).any()
    assert (run.updates >= 6).all()


def test_one_loss_per_agent_gets_the_mask_of_the_rest() -> None:
    def of_agent(x: Any, rows: Any, mask: Any) -> Any:
        return jnp.sum(mask * losses(x, rows)) / jnp.sum(mask)

    run = simulate(algorithms.fedavg(oracle=SGD), problems.from_agent_loss(of_agent, SAMPLES, START), rounds=2, seed=3)
    np.testing.assert_allclose(run.model, fedavg(3, 2), rtol=1e-12)


@pytest.mark.slow
def test_dropout_draws_by_step() -> None:
    """Random layers: the same in every execution, and another mask in every step."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))

    samples = {str(i): {"x": one["a"], "y": (one["b"] > 0).astype(int)} for i, one in enumerate(SAMPLES)}
    made = problems.network(Net(), data.from_arrays(samples, samples))
    runs = [
        simulate(algorithms.fedavg(oracle=SGD), made, rounds=2, execution=execution)
        for execution in ("sequential", "parallel", "debug")
    ]
    for run in runs[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), run.model, runs[0].model)


# --- every method -----------------------------------------------------------------------------------------------------

OWN: dict[str, Algorithm] = {
    "scaffold": algorithms.scaffold(step=STEP, epochs=EPOCHS, batch=BATCH),
    "scaffold-1": algorithms.scaffold(step=STEP, epochs=EPOCHS, batch=BATCH, option=1),
    "fedlin": algorithms.fedlin(step=STEP, epochs=EPOCHS, batch=BATCH),
    "f_svrg": algorithms.f_svrg(step=STEP, epochs=EPOCHS, batch=BATCH),
    "mpr_sgd": algorithms.mpr_sgd(step=STEP, momentum=0.5, epochs=EPOCHS, batch=BATCH),
    "stem": algorithms.stem(step=STEP, a=0.5, epochs=EPOCHS, batch=BATCH),
    "pr_spider": algorithms.pr_spider(step=STEP, refresh=2, epochs=EPOCHS, batch=BATCH),
    "ri_sgd": algorithms.ri_sgd(step=STEP, epochs=EPOCHS, batch=BATCH),
    "fedpd": algorithms.fedpd(eta=0.3, oracle=SGD),
    "feddyn": algorithms.feddyn(alpha=2.0, oracle=SGD),
    "fedprox": algorithms.fedprox(rho=1.0, oracle=SGD),
    "a_fedpd": algorithms.a_fedpd(eta=0.3, oracle=SGD),
    "fedadmm": algorithms.fedadmm(rho=3.0, oracle=SGD),
    "feddr": algorithms.feddr(eta=0.3, oracle=SGD),
}


@pytest.mark.parametrize("name", slow_but(["fedpd", "pr_spider", "scaffold"], OWN))
def test_every_method_runs_epochs_alike_in_every_execution(name: str) -> None:
    runs = [simulate(OWN[name], problem(), rounds=3, execution=one) for one in ("sequential", "parallel")]
    np.testing.assert_allclose(runs[1].model, runs[0].model, rtol=1e-11)
    assert runs[1].history["samples"].tolist() == runs[0].history["samples"].tolist()
    assert runs[0].updates.tolist() == [12, 30, 6]
    assert runs[0].history["stationarity"][-1] < runs[0].history["stationarity"][0]


def scaffold(rounds: int, step: Any, clip: float = np.inf, decay: float = 0.0) -> np.ndarray:
    x, c, own = START, np.zeros(4), np.zeros((3, 4))
    for r in range(rounds):
        ends, new = [], []
        for agent in range(3):
            y, length = x, 0.0
            for q, rows in enumerate(batches(0, r, agent)):
                g = gradient(agent, y, rows) - own[agent] + c
                g = g * min(1, clip / (np.linalg.norm(g) + 1e-6)) + decay * y
                y, length = y - step(r, q) * g, length + step(r, q)
            ends.append(y)
            new.append(own[agent] - c + (x - y) / length)
        x, c, own = np.mean(ends, axis=0), c + np.mean(new - own, axis=0), np.array(new)
    return x


def test_scaffold_divides_by_the_sum_of_the_agents_own_steps() -> None:
    run = simulate(OWN["scaffold"], problem(), rounds=3)
    np.testing.assert_allclose(run.model, scaffold(3, lambda r, q: STEP), rtol=1e-12)
    falling = algorithms.scaffold(step=lambda r, q: STEP / (1 + r + q), epochs=EPOCHS, batch=BATCH)
    run = simulate(falling, problem(), rounds=3)
    np.testing.assert_allclose(run.model, scaffold(3, lambda r, q: STEP / (1 + r + q)), rtol=1e-12)


def test_scaffold_clips_and_decays_as_sgd_does() -> None:
    clipped = algorithms.scaffold(step=STEP, epochs=EPOCHS, batch=BATCH, weight_decay=0.1, clip=0.5)
    expected = scaffold(3, lambda r, q: STEP, clip=0.5, decay=0.1)
    np.testing.assert_allclose(simulate(clipped, problem(), rounds=3).model, expected, rtol=1e-12)


# --- where agents run -------------------------------------------------------------------------------------------------


def test_agents_of_unequal_sizes_do_not_wait_for_the_largest() -> None:
    even = problem([SAMPLES[0]] * 3)
    method, fixed = algorithms.fedavg(oracle=SGD), algorithms.fedavg(oracle=oracles.sgd(STEP, 10, BATCH))
    assert choose_layout(method, even).parallel
    assert not choose_layout(method, problem()).parallel
    assert choose_layout(fixed, problem()).parallel


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"iterations = None: must be given, unless epochs is\. Give the number of local steps"),
        (
            {"iterations": 3, "epochs": 2},
            r"epochs = 2: does not go with iterations = 3, which counts steps\. Leave one",
        ),
        ({"epochs": 0}, r"epochs = 0: must be an integer of at least 1\. Give the passes"),
        ({"epochs": 1.5}, r"epochs = 1\.5: must be an integer"),
        ({"epochs": 2, "tolerance": 1e-3}, r"epochs = 2: does not go with tolerance = 0\.001"),
        ({"epochs": 2, "batch": 0}, r"batch = 0: must be an integer of at least 1"),
        ({"epochs": 2, "draw": lambda *_: None}, r"draw = .*: draws with replacement, and epochs have an order"),
    ],
)
@pytest.mark.parametrize("make", [oracles.sgd, oracles.optax], ids=["sgd", "optax"])
def test_what_does_not_fit_is_refused(make: Any, settings: dict[str, Any], message: str) -> None:
    first = 0.1 if make is oracles.sgd else oracles.optimizer("sgd", learning_rate=0.1)
    with pytest.raises(FedpdError, match=message):
        make(first, **settings)


@pytest.mark.parametrize("make", [algorithms.vrl_sgd, algorithms.scallion, algorithms.scafcom])
def test_methods_that_need_one_number_of_steps_refuse_epochs(make: Any) -> None:
    with pytest.raises(FedpdError, match=r"epochs = 5: gives each agent a Q of its own, and .* Give iterations"):
        make(step=0.1, epochs=5, batch=50)
    with pytest.raises(FedpdError, match=r"iterations = None: must be given"):
        make(step=0.1, batch=50)


def test_an_automatic_eta_needs_one_number_of_steps() -> None:
    with pytest.raises(
        FedpdError, match=r"eta = 'auto': .* each agent of sgd\(.*\) has a Q of its own\. Give a number"
    ):
        algorithms.fedpd(eta="auto", oracle=SGD)


def test_more_epochs_than_are_counted_are_refused() -> None:
    many = algorithms.fedavg(oracle=oracles.sgd(STEP, epochs=2**30, batch=BATCH))
    with pytest.raises(FedpdError, match=r"epochs = 1073741824: with 20 samples of the largest agent, must be below"):
        simulate(many, problem(), rounds=1)


# --- batch normalisation, clocks, resumed runs ------------------------------------------------------------------------


def test_the_rest_of_an_epoch_is_normalised_with_samples_of_its_own_agent() -> None:
    """One agent, five samples in batches of three: the second batch is [3, 4, 0] of the order, and 0 does not count."""
    x, y = RNG.normal(size=(5, 2)), RNG.normal(size=5)

    def normalised(model: Any, rows: Any) -> Any:
        scaled = (rows["x"] - rows["x"].mean(0)) / jnp.sqrt(rows["x"].var(0) + 1e-5)
        return (scaled @ model - rows["y"]) ** 2 / 2

    made = problems.from_losses(normalised, [{"x": x, "y": y}], np.ones(2), block=3)
    run = simulate(algorithms.fedavg(oracle=oracles.sgd(STEP, epochs=1, batch=3)), made, rounds=1)
    with scope(True):
        key = agent_key(jax.random.key(0, impl="threefry2x32"), 0, 0)
        first = np.asarray(shuffle(jax.random.fold_in(key, 0), jnp.int32(5))(jnp.arange(5)))
    model = np.ones(2)
    for rows, counted in ((first[:3], 3), (np.array([*first[3:], first[0]]), 2)):
        scaled = (x[rows] - x[rows].mean(0)) / np.sqrt(x[rows].var(0) + 1e-5)
        slopes = scaled * (scaled @ model - y[rows])[:, None]
        model = model - STEP * slopes[:counted].mean(0)
    np.testing.assert_allclose(run.model, model, rtol=1e-12)


def test_a_clock_knows_the_steps_of_each_agent() -> None:
    """The deadline of six steps keeps agent 1 away, which has ten."""
    exact = clock.network(up=np.inf, down=np.inf, latency=0.0, compute=1.0)
    timed = simulate(algorithms.fedavg(oracle=SGD), problem(), rounds=2, clock=exact, deadline=6.0)
    assert timed.updates.tolist() == [8, 0, 4]


def test_a_run_resumes_to_the_bit(tmp_path: Path) -> None:
    method = algorithms.scaffold(step=schedules.exponential(STEP, 0.9), epochs=EPOCHS, batch=BATCH)
    whole = simulate(method, problem(), rounds=6)
    simulate(method, problem(), rounds=3, checkpoints=tmp_path)
    again = simulate(method, problem(), rounds=6, checkpoints=tmp_path)
    np.testing.assert_array_equal(again.model, whole.model)
