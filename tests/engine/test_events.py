"""The user's own callbacks and columns: their arguments, and that they can stop a run."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedpd import (
    Algorithm,
    Column,
    FedpdError,
    Measure,
    Problem,
    algorithms,
    clock,
    data,
    oracles,
    problems,
    simulate,
    solve,
    sweep,
)

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3))
CLOCK = clock.network(up=100.0, down=100.0, compute=[0.1, 0.2, 0.4, 1.6])
FEDPD = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.3, iterations=2))


def test_a_callback_hears_every_row_with_its_model_and_stops_the_run(tmp_path: Path) -> None:
    seen: list[tuple[int, np.ndarray, dict[str, Any]]] = []

    def callback(number: int, model: np.ndarray, row: dict[str, Any]) -> bool:
        seen.append((number, model, row))
        return number >= 6

    options: dict[str, Any] = {"metrics_every": 2, "checkpoints": tmp_path, "checkpoint_every": 50}
    run = simulate(FEDPD, PROBLEM, rounds=20, callback=callback, **options)
    assert [number for number, _, _ in seen] == [0, 2, 4, 6]
    assert run.history["round"].tolist() == [0, 2, 4, 6]
    assert np.array_equal(seen[-1][1], run.model)
    assert seen[2][2]["stationarity"] == run.history["stationarity"][2]
    whole = simulate(FEDPD, PROBLEM, rounds=20, metrics_every=2)
    resumed = simulate(FEDPD, PROBLEM, rounds=20, **options)  # it was saved where it stopped
    assert np.array_equal(resumed.model, whole.model)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])


def falling() -> Problem:
    """f(w) = w, which falls by 1 per step of size 1."""
    rows = np.ones((2, 1, 1))
    return problems.from_losses(lambda w, row: row["a"][..., 0] * w, {"a": rows}, np.zeros(()))


def test_every_row_comes_with_the_model_of_its_round() -> None:
    seen: list[tuple[int, float, float]] = []

    def callback(number: int, model: np.ndarray, row: dict[str, Any]) -> None:
        seen.append((number, float(model), row["loss"]))

    simulate(algorithms.gradient_descent(step=1.0), falling(), rounds=3, callback=callback)
    assert seen == [(0, 0.0, 0.0), (1, -1.0, -1.0), (2, -2.0, -2.0), (3, -3.0, -3.0)]


SAMPLED = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.3, iterations=2))
SKIPPING = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.3, iterations=2), p=0.5)
MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "every": {"metrics_every": 3},
    "seeds": {"seed": [0, 1, 2]},
    "cohort": {"cohort": 2},
    "seeds and cohort": {"seed": [3, 1], "cohort": 2, "metrics_every": 2},
    "store": {"store": "folder"},
    "store and cohort": {"store": "folder", "cohort": 2},
    "debug": {"execution": "debug", "rounds": 4},
    "until": {"until": {"loss": 0.6}},
    "devices": {"devices": 2},
    "checkpoints": {"checkpoints": "folder", "checkpoint_every": 2, "metrics_every": 3},
    "clock": {"clock": CLOCK},
    "deadline": {"clock": CLOCK, "deadline": 2.5},
    "asynchronous": {"clock": CLOCK, "buffer": 2},
}


QUICK = ("every", "seeds and cohort", "store", "until", "deadline", "asynchronous")
CASES = [(mode, SAMPLED if "clock" in options else SKIPPING) for mode, options in MODES.items()]
CASES += [("cohort", SAMPLED), ("store and cohort", SAMPLED)]


@pytest.mark.parametrize(
    ("mode", "method"),
    [pytest.param(*case, marks=() if case[0] in QUICK else pytest.mark.slow, id=case[0]) for case in CASES],
)
def test_the_model_of_a_row_has_the_loss_of_the_row(mode: str, method: Algorithm, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: tmp_path if value == "folder" else value for name, value in MODES[mode].items()}
    seen: list[tuple[int, np.ndarray, dict[str, Any]]] = []
    found: Any = simulate(
        method,
        PROBLEM,
        **{"rounds": 9} | options,
        callback=lambda *told: seen.append(told),
    )
    runs = found.runs if "seed" in options else [found]
    rows = [(run.seed, number) for run in runs for number in run.history["round"].tolist()]
    assert sorted((row["seed"], number) for number, _, row in seen) == sorted(rows)
    assert len({(row["seed"], row["loss"]) for _, _, row in seen}) > 2 * len(runs)
    for number, model, row in seen:
        assert row["round"] == number
        assert loss(model) == pytest.approx(row["loss"], rel=1e-9)


def loss(model: np.ndarray) -> float:
    """f at a model, from the row of a run that starts there."""
    return float(simulate(FEDPD, PROBLEM, rounds=1, start=model).history["loss"][0])


def test_resumed_and_continued_runs_and_sweeps_have_the_models_of_their_rows(tmp_path: Path) -> None:
    seen: list[tuple[np.ndarray, dict[str, Any]]] = []

    def callback(number: int, model: np.ndarray, row: dict[str, Any]) -> None:
        seen.append((model, row))

    options: dict[str, Any] = {"metrics_every": 2, "callback": callback}
    simulate(SAMPLED, PROBLEM, rounds=8, checkpoints=tmp_path, **options | {"callback": lambda r, *_: r == 4})
    simulate(SAMPLED, PROBLEM, rounds=8, checkpoints=tmp_path, **options)
    assert [row["round"] for _, row in seen] == [6, 8]
    half = simulate(SAMPLED, PROBLEM, rounds=4, metrics_every=2)
    simulate(SAMPLED, PROBLEM, rounds=8, start=half, **options)
    assert [row["round"] for _, row in seen[2:]] == [6, 8]
    sweep(SAMPLED, PROBLEM, {"eta": [0.5, 1.0]}, rounds=2, seeds=[0, 1], **options)
    assert [(row["seed"], row["round"]) for _, row in seen[4:]] == [(0, 0), (1, 0)] * 2 + [(0, 2), (1, 2)] * 2
    assert ["eta=1" in row["algorithm"] for _, row in seen[4:]] == [False, False, True, True] * 2
    for model, row in seen:
        assert loss(model) == pytest.approx(row["loss"], rel=1e-9)


def test_solve_returns_the_model_of_its_last_row() -> None:
    run = solve(PROBLEM, target=1e-2)
    assert loss(run.model) == pytest.approx(run.history["loss"][-1], rel=1e-9)


@pytest.mark.parametrize("true", [True, np.True_, np.array(True), jnp.array(True), torch.tensor(True)], ids=type)
def test_every_kind_of_true_stops_a_run(true: Any) -> None:
    run = simulate(FEDPD, PROBLEM, rounds=9, callback=lambda number, model, row: (number == 2) & true)
    assert run.history["round"].tolist() == [0, 1, 2]


def test_a_callback_ends_a_run_at_its_start() -> None:
    run = simulate(FEDPD, PROBLEM, rounds=9, callback=lambda number, model, row: True)
    assert run.history["round"].tolist() == [0]
    assert np.array_equal(run.model, PROBLEM.start)


@pytest.mark.parametrize("answer", [1, 0, "stop", np.array([True]), 1.0])
def test_another_answer_of_a_callback_is_refused_at_the_start(answer: Any) -> None:
    rounds: list[int] = []

    def callback(number: int, model: np.ndarray, row: dict[str, Any]) -> Any:
        rounds.append(number)
        return answer

    with pytest.raises(FedpdError, match=r"callback = .*: the callback returned neither True, False nor None\. Return"):
        simulate(FEDPD, PROBLEM, rounds=9, callback=callback)
    assert rounds == [0]


def test_observers_hear_of_a_start_that_has_reached_its_targets() -> None:
    logged: list[dict[str, Any]] = []
    simulate(FEDPD, PROBLEM, rounds=9, until={"loss": 100.0}, log=logged.extend)
    assert [row["round"] for row in logged] == [0]


def test_an_unknown_option_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'seeds'"):
        simulate(FEDPD, PROBLEM, rounds=1, seeds=3)  # type: ignore[call-overload]


def largest_entry(name: str = "largest") -> Column:
    """max_i |largest entry of grad f_i|, from what each agent keeps."""
    return Column(
        name,
        "largest entry of an agent's gradient",
        measure=Measure(agent=lambda view, x: (None, abs(view.f.gradient(x).tree).max())),
        merge=lambda total, each, agents: each.max(),
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_a_column_of_ones_own_is_one_object(devices: int) -> None:
    run = simulate(FEDPD, PROBLEM, rounds=3, record=[largest_entry(), "heterogeneity"], devices=devices)
    assert list(run.history)[-2:] == ["largest", "heterogeneity"]
    features, labels = data.strongly_noniid(agents=4, samples=10, dimension=3)
    # At x = 0 the gradient of log(1 + exp(-b a^T x)) is -b a / 2, and the penalty's is 0.
    gradients = -(labels[..., None] * features).mean(axis=1) / 2
    assert run.history["largest"][0] == pytest.approx(abs(gradients).max())


@pytest.mark.parametrize("record", [[largest_entry("loss")], [largest_entry(), largest_entry()]])
def test_columns_need_names_of_their_own(record: list[Column]) -> None:
    with pytest.raises(FedpdError, match=r"a name that no other column has|recorded twice"):
        simulate(FEDPD, PROBLEM, rounds=1, record=record)


def test_results_show_themselves_in_a_few_lines() -> None:
    run, several = simulate(FEDPD, PROBLEM, rounds=3), simulate(FEDPD, PROBLEM, rounds=3, seed=[0, 1])
    assert repr(run).startswith("Run of fedpd(eta=0.5, oracle=gd(step=0.3, iterations=2)), seed 0\n  3 rounds, ")
    assert repr(several).startswith("Ensemble of fedpd(")
    assert max(len(repr(run)), len(repr(several))) < 400
    assert run.spec == FEDPD.spec


@pytest.mark.parametrize("execution", ["auto", "debug"])
@pytest.mark.parametrize("value", [lambda t, each, n: each, lambda t, each, n: each[:1], lambda t, each, n: None])
def test_a_column_must_be_one_number(value: Any, execution: Any) -> None:
    wrong = largest_entry()._replace(merge=value)
    with pytest.raises(FedpdError, match=r"value of column 'largest' = .*must be one real number\. Return a scalar"):
        simulate(FEDPD, PROBLEM, rounds=1, record=[wrong], execution=execution)
