"""The simulated seconds of a run, by hand and by properties."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd import FedpdError, Run, algorithms, clock, oracles, problems, simulate
from fedpd.engine.measure.history import History
from fedpd.engine.participation import draw

BYTES = 3 * 8  # of a model
PROBLEM = problems.random_quadratic(agents=4, dimension=3)
SLOW = [1.0, 0.5, 0.25, 2.0]  # seconds per local step
CLOCK = clock.network(up=BYTES, down=2 * BYTES, latency=0.125, compute=SLOW)  # 1 s up, 0.5 s down, 0.25 s latency


@cache
def run(p: float = 0.0, **options: Any) -> Run:
    algorithm = algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.2, iterations=2), p=p)
    return simulate(algorithm, PROBLEM, rounds=12, progress=False, **options)


def test_a_round_lasts_as_long_as_its_slowest_agent() -> None:
    seconds = run().timed(CLOCK).history["network_seconds"]
    np.testing.assert_allclose(seconds, np.arange(13) * (2 * 2.0 + 1.75))


def test_the_clock_of_simulate_is_the_clock_of_a_finished_run() -> None:
    algorithm = algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.2, iterations=2))
    before = simulate(algorithm, PROBLEM, rounds=12, progress=False, clock=CLOCK)
    np.testing.assert_array_equal(before.history["network_seconds"], run().timed(CLOCK).history["network_seconds"])
    assert before.timed(CLOCK).history.keys() == before.history.keys()
    both = simulate(algorithm, PROBLEM, rounds=2, seed=[0, 1], progress=False).timed(CLOCK)
    assert both.mean["network_seconds"].tolist() == [0, 5.75, 11.5]


def test_only_agents_of_the_cohort_count() -> None:
    made = run(cohort=2).timed(CLOCK)
    lasted = [max(2 * SLOW[i] for i in here) + 1.75 for here in draw(0, range(12), 4, 2)]
    np.testing.assert_allclose(np.diff(made.history["network_seconds"]), lasted)


def test_agents_do_not_wait_in_rounds_without_a_communication() -> None:
    made = run(p=0.5)
    seconds, rounds = made.timed(CLOCK).history["network_seconds"], made.history["communicated"].astype(int)
    assert 0 < rounds.sum() < 12
    np.testing.assert_allclose(np.diff(seconds), 4.0 + 1.75 * rounds[1:])  # the same agent is always the slowest


def test_measuring_less_often_changes_nothing_if_rounds_are_equal() -> None:
    often, seldom = (run(metrics_every=every).timed(CLOCK).history for every in (1, 5))
    np.testing.assert_allclose(seldom["network_seconds"], often["network_seconds"][seldom["round"]])


@given(st.floats(0.1, 10), st.integers(0, 3))
def test_seconds_scale_with_the_clock_and_never_decrease(factor: float, seed: int) -> None:
    usual, slower = (
        clock.network(
            up=clock.log_normal(BYTES / scale, 1.0, "round"),
            down=BYTES / scale,
            latency=scale,
            compute=clock.log_normal(scale, 1.0),
            seed=seed,
        )
        for scale in (1.0, factor)
    )
    first, second = (run(cohort=2).timed(made).history["network_seconds"] for made in (usual, slower))
    np.testing.assert_allclose(second, factor * first)
    assert (np.diff(first) > 0).all()


def test_a_free_network_takes_no_time() -> None:
    free = clock.network(up=np.inf, down=np.inf)
    assert not run(cohort=2).timed(free).history["network_seconds"].any()


def test_another_clock_replaces_the_first() -> None:
    twice = run().timed(clock.network(up=1, down=1)).timed(CLOCK)
    assert list(twice.history)[-1] == "network_seconds"
    assert twice.history["network_seconds"][1] == 5.75


def test_runs_that_do_not_keep_who_took_part_are_refused() -> None:
    made = run()
    scheduled = replace(made, settings={**made.settings, "participation": ["schedule", None]})
    for one, message in [
        (scheduled, "does not keep who took part"),
        (replace(made, settings={}), "does not keep how many agents took part"),
        (replace(made, settings={**made.settings, "buffer": 2}), "buffer = 2: the rounds of this run depend on"),
    ]:
        with pytest.raises(FedpdError, match=message) as error:
            one.timed(CLOCK)
        assert "simulate(..., clock=clock)" in str(error.value)
    with pytest.raises(FedpdError, match="has numbers for 2 agents, and the run has 4"):
        made.timed(clock.network(up=[1, 2], down=1))


def test_an_axis_of_a_figure() -> None:
    history: History = {**run().history}
    history["network_seconds"] = np.arange(13) * 3600.0
    axes = replace(run(), history=history).plot(against="network_seconds").axes[0]
    assert axes.get_xlabel() == "hours on your network"
    assert axes.xaxis.get_major_formatter()(7200.0) == "2"
    with pytest.raises(FedpdError, match="a run has no clock"):
        run().plot(against="network_seconds")
