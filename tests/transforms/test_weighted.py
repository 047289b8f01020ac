"""The server's mean weighted by the agents' numbers of samples: a NumPy program, partial participation, refusals."""

import tomllib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import Algorithm, FedpdError, algorithms, oracles, problems, simulate, transforms
from fedpd.algorithms.fedavg import FedAvg
from fedpd.experiments.calls import build_algorithm, table_of, toml_text

SIZES = (2, 7, 4, 1)
GD = oracles.gd(step=0.2, iterations=3)
FEDAVG = algorithms.fedavg(oracle=GD)
PRESENT = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1]], bool)


def samples(sizes: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    return [{"a": rng.standard_normal((n, 3)), "b": rng.standard_normal(n) + i} for i, n in enumerate(sizes)]


def losses(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["b"]) ** 2 / 2


def problem(sizes: tuple[int, ...] = SIZES, **options: Any) -> Any:
    return problems.from_losses(losses, samples(sizes), np.zeros(3), **options)


PROBLEM = problem()


def weighted(algorithm: Algorithm, *more: Any) -> Algorithm:
    return transforms.wrap(algorithm, mean=[transforms.weighted("samples"), *more])


def local(i: int, x: np.ndarray) -> np.ndarray:
    rows = samples(SIZES)[i]
    for _ in range(3):
        x = x - 0.2 * rows["a"].T @ (rows["a"] @ x - rows["b"]) / SIZES[i]
    return x


def numpy_mean(here: np.ndarray, x: np.ndarray) -> np.ndarray:
    agents = np.flatnonzero(here).tolist()
    return np.average([local(i, x) for i in agents], axis=0, weights=[SIZES[i] for i in agents])


@pytest.mark.parametrize("options", [{}, {"execution": "debug"}, {"execution": "sequential"}], ids=str)
@pytest.mark.parametrize("present", [np.ones((5, 4), bool), PRESENT], ids=["everyone", "some"])
def test_fedavg_is_a_numpy_program(present: np.ndarray, options: dict[str, Any]) -> None:
    x = np.zeros(3)
    for here in present:
        x = numpy_mean(here, x)
    run = simulate(weighted(FEDAVG), PROBLEM, rounds=5, participation=present, **options)
    np.testing.assert_allclose(run.model, x, rtol=1e-12)
    assert run.history["bytes_up"][-1] == present.sum() * (3 + 1) * 8  # a model, and n_i
    assert run.history["bytes_down"][-1] == present.sum() * 3 * 8


def test_servers_with_a_memory_get_the_weighted_mean() -> None:
    x, v = np.zeros(3), np.zeros(3)
    for here in PRESENT:
        v = 0.5 * v + numpy_mean(here, x) - x
        x = x + 0.8 * v
    fedavgm = weighted(algorithms.fedavgm(oracle=GD, step=0.8, momentum=0.5))
    stepped = weighted(FEDAVG, transforms.server_optimizer(optax.sgd(0.8, momentum=0.5)))
    for one in (fedavgm, stepped):
        np.testing.assert_allclose(simulate(one, PROBLEM, rounds=5, participation=PRESENT).model, x, rtol=1e-12)


@settings(deadline=None, max_examples=4)
@given(size=st.integers(1, 6), cohort=st.sampled_from([None, 2]), seed=st.integers(0, 99))
def test_agents_with_equally_many_samples_are_weighted_as_without(size: int, cohort: int | None, seed: int) -> None:
    algorithm = algorithms.fedavg(oracle=oracles.sgd(0.1, 3, batch=2))
    runs = [
        simulate(one, problem((size,) * 4), rounds=4, seed=seed, cohort=cohort)
        for one in (algorithm, weighted(algorithm))
    ]
    np.testing.assert_allclose(runs[1].history["loss"], runs[0].history["loss"], rtol=1e-12)


def test_fedpd_reaches_the_minimum_over_all_samples() -> None:
    fedpd = weighted(algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=20)))
    everything = {name: np.concatenate([one[name] for one in samples(SIZES)]) for name in ("a", "b")}
    best = np.linalg.lstsq(everything["a"], everything["b"], rcond=None)[0]
    np.testing.assert_allclose(simulate(fedpd, PROBLEM, rounds=1500, metrics_every=1500).model, best, atol=1e-9)
    with pytest.raises(FedpdError, match="needs all agents"):
        simulate(fedpd, PROBLEM, rounds=3, cohort=2)


def test_a_run_resumes_to_the_bit(tmp_path: Path) -> None:
    algorithm = weighted(algorithms.fedadam(oracle=oracles.sgd(0.1, 3, batch=1)))
    options: dict[str, Any] = {"rounds": 6, "cohort": 2}
    whole = simulate(algorithm, PROBLEM, **options)
    options |= {"checkpoints": tmp_path, "checkpoint_every": 1}
    simulate(algorithm, PROBLEM, callback=lambda r, model, row: r >= 3, **options)
    assert np.array_equal(simulate(algorithm, PROBLEM, **options).model, whole.model)


def test_an_experiment_file_has_it() -> None:
    algorithm = weighted(algorithms.fedadam(oracle=GD))
    text = toml_text(table_of(algorithm.spec))
    assert "weighted" in text
    again = build_algorithm(tomllib.loads(text), rounds=5)
    assert again.spec == algorithm.spec
    assert algorithm.changed({"step": 0.5}).description.startswith(
        "fedadam(oracle=gd(step=0.2, iterations=3), step=0.5"
    )


class Counting(FedAvg):
    """A method of the user's own whose server uses the share of the agents that sent."""

    def aggregate(self, server: Any, mean: Any, share: Any) -> Any:
        x = server + jnp.sqrt(share) * (mean - server)
        return x, x


@pytest.mark.parametrize(
    ("algorithm", "more", "words"),
    [
        (algorithms.scaffold(step=0.1, iterations=2), {}, r"sums over all agents.* weights=\"samples\""),
        (algorithms.feddyn(alpha=1.0, oracle=GD), {}, "in which each counts as 1/N"),
        (algorithms.tamuna(step=0.1, p=0.5, agents=4, copies=2), {}, "in which each counts as 1/N"),
        (Counting(oracle=GD), {}, "in which each counts as 1/N"),
        (FEDAVG, {"up": transforms.top_k(0.5)}, "does not go with up, because agents send n_i times their message"),
        (FEDAVG, {"mean": [transforms.weighted(), transforms.median()]}, "must have one rule of a kind"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: Algorithm, more: dict[str, Any], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        transforms.wrap(algorithm, **{"mean": transforms.weighted("samples")} | more)


def test_weights_are_not_counted_twice() -> None:
    with pytest.raises(FedpdError, match=r"the problem has weights, .* agents would count twice"):
        simulate(weighted(FEDAVG), problem(weights="samples"), rounds=1)


def test_there_is_one_choice() -> None:
    with pytest.raises(FedpdError, match="by = 'sample': there is no such choice"):
        transforms.weighted("sample")  # type: ignore[arg-type]
