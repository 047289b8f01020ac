"""Columns over the agents: how much the accuracies of single agents differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems, simulate

METHOD = algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=3))


def linear(model: Any, x: Any) -> Any:
    return x @ model


def drawn(number: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 3))
    return {"x": x, "y": (x[:, 0] + (1 + seed % 3) * rng.normal(size=number) > 0).astype(int)}


TRAIN = {str(i): drawn(10, i) for i in range(23)}
TESTS = {str(i): drawn(7 + i, 100 + i) for i in range(22)}  # the last agent has none
PROBLEM = problems.classification(
    linear,
    data.from_arrays(TRAIN, TESTS),
    np.zeros((3, 2)),
    l2=0.1,
    metrics={"margin": lambda scores, y: scores[:, 1] - scores[:, 0]},
    check=False,
)


def accuracies(model: np.ndarray, samples: dict[str, dict[str, np.ndarray]]) -> np.ndarray:
    return np.array([np.mean((one["x"] @ model).argmax(axis=1) == one["y"]) for one in samples.values()])


def test_fairness_is_the_spread_and_the_tenths_of_the_accuracies() -> None:
    run = simulate(METHOD, PROBLEM, rounds=3, record=["accuracy", "fairness"])
    own = np.sort(accuracies(run.model, TESTS))
    ends = {name: column[-1] for name, column in run.history.items()}
    np.testing.assert_allclose(ends["test_accuracy_std"], own.std())
    np.testing.assert_allclose(ends["test_accuracy_worst"], own[:3].mean())  # 3 is a tenth of 22, rounded up
    np.testing.assert_allclose(ends["test_accuracy_best"], own[-3:].mean())
    np.testing.assert_allclose(ends["test_accuracy_agents"], own.mean())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cohort": 5},
        {"average": True},
        {"devices": 2},
        pytest.param({"execution": "debug"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_run_keeps_what_its_model_reaches_on_each_agent(options: dict[str, Any], tmp_path: Path) -> None:
    run = simulate(METHOD, PROBLEM, rounds=3, **options)
    own = run.per_agent("test_accuracy")
    assert own.shape == (23,)
    np.testing.assert_allclose(own[:22], accuracies(run.model, TESTS))
    assert np.isnan(own[22])
    np.testing.assert_allclose(run.per_agent("train_accuracy"), accuracies(run.model, TRAIN))
    np.testing.assert_allclose(run.per_agent("loss").mean(), run.history["loss"][-1])
    margins = [np.mean(one["x"] @ (run.model[:, 1] - run.model[:, 0])) for one in TESTS.values()]
    np.testing.assert_allclose(run.per_agent("margin")[:22], margins)
    np.testing.assert_array_equal(run.per_agent("margin", PROBLEM), run.per_agent("margin"))
    run.save(tmp_path / "run")
    loaded = fedpd.load(tmp_path / "run")
    for name in run.by_agent:
        np.testing.assert_array_equal(loaded.per_agent(name), run.per_agent(name))


def test_runs_that_keep_no_values_need_the_problem() -> None:
    quadratic = problems.opposing_quadratics()
    run = simulate(METHOD, quadratic, rounds=2)
    with pytest.raises(FedpdError, match=r"keeps no values of single agents.*run.per_agent\('loss', problem\)"):
        run.per_agent("loss")
    np.testing.assert_allclose(run.per_agent("loss", quadratic).mean(), run.history["loss"][-1])
    sampled = simulate(METHOD, PROBLEM, rounds=2, metrics_agents=3)
    assert sampled.by_agent == {}
    np.testing.assert_allclose(sampled.per_agent(problem=PROBLEM)[:22], accuracies(sampled.model, TESTS))
    (several,) = {len(run.per_agent()) for run in simulate(METHOD, PROBLEM, rounds=2, seed=[0, 1]).runs}
    assert several == 23


def test_wrong_names_are_refused() -> None:
    run = simulate(METHOD, PROBLEM, rounds=1)
    with pytest.raises(FedpdError, match=r"name = 'test_acuracy'.*test_accuracy"):
        run.per_agent("test_acuracy")
    with pytest.raises(FedpdError, match="must be a problem"):
        run.per_agent("loss", "problem")  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match="record = 'fairness': needs a problem with test samples"):
        simulate(METHOD, problems.opposing_quadratics(), rounds=1, record=["fairness"])
    one = {"x": np.eye(3), "y": np.zeros(3)}
    both = data.from_arrays({"a": one}, {"a": one}, classes=False)
    regression = problems.regression(lambda x, a: a @ x, both, np.zeros(3))
    with pytest.raises(FedpdError, match="needs a problem that knows which predictions are correct"):
        simulate(METHOD, regression, rounds=1, record=["fairness"])
