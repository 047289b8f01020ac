"""Runs that end at a target, begin at a model, or continue a finished run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import Column, Ensemble, FedpdError, Measure, Run, algorithms, data, oracles, problems, simulate, sweep

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3))
OTHER = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3, seed=1))
FEDPD = algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.3, iterations=2, batch=2), p=0.3)
EXACT = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.3, iterations=2))


def same(one: Run, other: Run) -> bool:
    columns = all(np.array_equal(one.history[name], other.history[name]) for name in one.history)
    return columns and np.array_equal(one.model, other.model) and np.array_equal(one.updates, other.updates)


@pytest.mark.parametrize(("seed", "participation"), [(5, 0.5), ([0, 3], 1.0)])
def test_a_continued_run_is_one_long_run_to_the_bit(seed: Any, participation: float) -> None:
    options: dict[str, Any] = {"seed": seed, "metrics_every": 4, "participation": participation}
    short: Any = simulate(FEDPD, PROBLEM, rounds=13, **options)
    first = short.runs[0] if isinstance(short, Ensemble) else short
    state = first.agents if participation == 1 else first.agents.state
    before = state.x.tree.copy()
    long: Any = simulate(FEDPD, PROBLEM, rounds=30, **options)
    more: Any = simulate(FEDPD, PROBLEM, rounds=30, start=short, **options)
    pairs = zip(long.runs, more.runs, strict=True) if isinstance(long, Ensemble) else [(long, more)]
    assert all(same(one, other) for one, other in pairs)
    assert np.array_equal(state.x.tree, before)  # the finished run keeps its own state
    assert (np.diff(more.runs[0].elapsed if isinstance(more, Ensemble) else more.elapsed) >= 0).all()


def test_a_start_is_the_first_model_and_part_of_the_identity(tmp_path: Path) -> None:
    start = np.array([1.0, -2.0, 0.5])
    run = simulate(EXACT, PROBLEM, rounds=3, start=start, checkpoints=tmp_path)
    own = simulate(EXACT, PROBLEM, rounds=3)
    assert run.history["loss"][0] != own.history["loss"][0]
    again = simulate(EXACT, PROBLEM, rounds=3, start=own.model)
    assert again.history["loss"][0] == pytest.approx(own.history["loss"][-1])
    assert np.array_equal(simulate(EXACT, PROBLEM, rounds=3, start=start, checkpoints=tmp_path).model, run.model)
    with pytest.raises(FedpdError, match=r"another run: its problem.start"):
        simulate(EXACT, PROBLEM, rounds=3, checkpoints=tmp_path)
    more = simulate(EXACT, PROBLEM, rounds=6, start=run)  # a run with a start of its own is continued too
    assert same(more, simulate(EXACT, PROBLEM, rounds=6, start=start))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.zeros(4), r"start = 'float64\[4\]': must be float64\[3\]"),
        (np.zeros(3, np.float32), r"start = 'float32\[3\]': must be float64\[3\]"),
        ([np.zeros(3)], "must have the structure of problem.start"),
    ],
)
def test_a_start_that_is_no_model_of_the_problem(start: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        simulate(EXACT, PROBLEM, rounds=1, start=start)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"seed = \[1\]: the run to continue has \[0\]"),
        ({"metrics_every": 2}, "metrics_every = 2: the run to continue has 1"),
        ({"participation": 0.5}, "participation"),
        ({"rounds": 2}, "must be at least 3, the rounds that the run already has"),
        ({"algorithm": algorithms.fedpd(eta=0.4, oracle=oracles.gd(step=0.3, iterations=2))}, "is of fedpd"),
        ({"problem": OTHER}, "its problem.data is another"),
    ],
)
def test_what_cannot_continue_a_run_is_refused(change: dict[str, Any], message: str) -> None:
    run = simulate(EXACT, PROBLEM, rounds=3)
    call: dict[str, Any] = {"algorithm": EXACT, "problem": PROBLEM, "rounds": 9, "start": run} | change
    with pytest.raises(FedpdError, match=message):
        simulate(**call)


def test_a_run_ends_at_the_first_row_that_reaches_all_targets() -> None:
    whole = simulate(EXACT, PROBLEM, rounds=100, metrics_every=3)
    loss = float(whole.history["loss"][2])
    good = (whole.history["stationarity"] <= 1e-4) & (whole.history["loss"] <= loss)
    first = int(np.flatnonzero(good)[0])
    run = simulate(EXACT, PROBLEM, rounds=100, metrics_every=3, until={"stationarity": 1e-4, "loss": loss})
    assert run.history["round"].tolist() == whole.history["round"][: first + 1].tolist()
    assert all(np.array_equal(run.history[name], whole.history[name][: first + 1]) for name in run.history)
    assert simulate(EXACT, PROBLEM, rounds=9, until={"loss": 1e9}).history["round"].tolist() == [0]
    assert same(simulate(EXACT, PROBLEM, rounds=100, metrics_every=3, start=run), whole)


def test_a_column_of_ones_own_can_be_a_target() -> None:
    def column(better: Any) -> Column:
        measure = Measure(agent=lambda view, x: (view.f.value(x), None))
        return Column("own", "own", better=better, measure=measure, merge=lambda total, each, agents: -total)

    run = simulate(EXACT, PROBLEM, rounds=9, record=[column("more")], until={"own": -2.7})
    own = run.history["own"]
    assert own[-1] >= -2.7 > own[-2]
    with pytest.raises(FedpdError, match="does not say whether less or more is better"):
        simulate(EXACT, PROBLEM, rounds=9, record=[column(None)], until={"own": 1.0})


def test_several_seeds_sweeps_and_checkpoints_have_targets(tmp_path: Path) -> None:
    until = {"stationarity": 1e-3}
    both = simulate(FEDPD, PROBLEM, rounds=500, seed=[0, 1], until=until)
    assert max(len(run.history["round"]) for run in both.runs) < 500
    assert all((run.history["stationarity"] <= 1e-3).any() for run in both.runs)
    swept = sweep(
        lambda eta: algorithms.fedpd(eta=eta, oracle=oracles.gd(step=0.3, iterations=2)),
        PROBLEM,
        {"eta": [0.2, 0.5]},
        rounds=500,
        until=until,
    )
    assert all(run.history["stationarity"][-1] <= 1e-3 for (run,) in swept.runs)
    saved = simulate(EXACT, PROBLEM, rounds=500, until=until, checkpoints=tmp_path)
    again = simulate(EXACT, PROBLEM, rounds=500, until=until, checkpoints=tmp_path)
    assert same(saved, again)
    assert same(simulate(EXACT, PROBLEM, rounds=40, checkpoints=tmp_path), simulate(EXACT, PROBLEM, rounds=40))


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ({"stationarty": 1.0}, "does not measure this column. Did you mean 'stationarity'"),
        ({"test_accuracy": 0.9}, "Choose from: loss, stationarity, consensus"),
        ({}, "must map names of columns to values"),
        ({"loss": "small"}, "must be a number"),
        ({"loss": float("nan")}, "not NaN"),
    ],
)
def test_targets_that_there_are_not(until: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        simulate(EXACT, PROBLEM, rounds=1, until=until)


def test_a_run_that_a_callback_ends_has_its_costs_and_is_continued() -> None:
    whole = simulate(EXACT, PROBLEM, rounds=12, metrics_every=5)
    run = simulate(EXACT, PROBLEM, rounds=12, metrics_every=5, callback=lambda number, model, row: number == 5)
    assert run.history["round"].tolist() == [0, 5]
    assert run.updates.tolist() == [10] * 4  # two local steps in each of five rounds
    assert run.history["samples"][-1] == whole.history["samples"][1] == 10 * 40
    assert same(simulate(EXACT, PROBLEM, rounds=12, metrics_every=5, start=run), whole)


def test_a_longer_schedule_continues_a_run_and_another_one_does_not() -> None:
    present = np.random.default_rng(0).integers(0, 2, (9, 4))
    run = simulate(EXACT, PROBLEM, rounds=3, participation=present[:3])
    long = simulate(EXACT, PROBLEM, rounds=9, participation=present)
    assert same(simulate(EXACT, PROBLEM, rounds=9, participation=present, start=run), long)
    other = present.copy()
    other[1] = 1 - other[1]
    with pytest.raises(FedpdError, match=r"its participation\.schedule is another"):
        simulate(EXACT, PROBLEM, rounds=9, participation=other, start=run)


def test_another_cohort_by_size_does_not_continue_a_run() -> None:
    agents = [np.ones((n, 2)) * n for n in (1, 2, 3, 4)]
    problem = problems.from_losses(lambda x, rows: (rows @ x - 1) ** 2, agents, np.zeros(2))
    run = simulate(EXACT, problem, rounds=3, cohort=2, sampling="size")
    with pytest.raises(FedpdError, match="participation"):
        simulate(EXACT, problem, rounds=6, cohort=3, sampling="size", start=run)


def test_agents_that_come_later_begin_where_the_run_began() -> None:
    start = np.array([1.0, -2.0, 0.5])
    run = simulate(EXACT, PROBLEM, rounds=1, cohort=1, start=start)
    with pytest.raises(FedpdError, match=r"its problem\.start is another"):
        simulate(EXACT, PROBLEM, rounds=9, cohort=1, start=run)
    more = simulate(EXACT, replace(PROBLEM, start=start), rounds=9, cohort=1, start=run)
    assert same(more, simulate(EXACT, PROBLEM, rounds=9, cohort=1, start=start))


def test_another_problem_with_almost_the_same_loss_does_not_continue_a_run() -> None:
    nearly = replace(PROBLEM, data=jax.tree.map(lambda leaf: leaf * (1 + 1e-6), PROBLEM.data))
    run = simulate(EXACT, PROBLEM, rounds=3)
    with pytest.raises(FedpdError, match=r"its problem\.data is another"):
        simulate(EXACT, nearly, rounds=6, start=run)
