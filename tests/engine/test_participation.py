"""Partial participation and stragglers."""

import warnings
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, problems, simulate

AGENTS = 8
PROBLEM = problems.random_quadratic(AGENTS, 4, smoothness=1.0, convexity=0.2, seed=2)
FEDAVG = algorithms.fedavg(oracle=oracles.gd(step=0.2, iterations=6))


def test_a_share_of_the_agents_works_and_pays() -> None:
    run = simulate(FEDAVG, PROBLEM, rounds=40, participation=0.25)
    assert run.updates.sum() == 40 * 2 * 6
    assert run.history["samples"][-1] == 40 * 2 * 6
    assert run.history["bytes_up"][-1] == run.history["bytes_down"][-1] == 40 * 2 * 4 * 8
    assert np.array_equal(run.history["local_updates"], 6 * np.arange(41))


def test_every_agent_comes_equally_often() -> None:
    updates = simulate(FEDAVG, PROBLEM, rounds=2000, participation=0.5, metrics_every=2000).updates / 6
    assert abs(updates - 1000).max() < 4 * np.sqrt(2000 / 4)


def test_probabilities_are_each_agents_own() -> None:
    probabilities = np.linspace(0.1, 1, AGENTS)
    updates = simulate(FEDAVG, PROBLEM, rounds=2000, participation=probabilities, metrics_every=2000).updates / 6
    assert updates[-1] == 2000
    assert abs(updates - 2000 * probabilities).max() < 4 * np.sqrt(2000 / 4)


def test_a_schedule_is_followed() -> None:
    present = np.zeros((4, AGENTS), int)
    present[0, [0, 3]] = present[2, 5] = present[3] = 1
    run = simulate(FEDAVG, PROBLEM, rounds=4, participation=present)
    assert (run.updates / 6).tolist() == present.sum(0).tolist()
    assert run.history["communicated"].tolist() == [False, True, False, True, True]
    assert run.history["loss"][1] == run.history["loss"][2], "where nobody is present, nothing happens"
    assert run.history["bytes_up"].tolist() == [32 * n for n in (0, 2, 2, 3, 11)]


def test_who_is_present_depends_on_the_seed_alone() -> None:
    algorithm = algorithms.feddyn(alpha=2.0, oracle=oracles.gd(0.3, 2))
    a = simulate(FEDAVG, PROBLEM, rounds=20, participation=0.5, seed=4).updates / 6
    b = simulate(algorithm, PROBLEM, rounds=20, participation=0.5, seed=4).updates / 2
    assert np.array_equal(a, b)


def test_stragglers_do_some_of_their_steps() -> None:
    for oracle in (oracles.gd(0.2, 6), oracles.sgd(0.2, 6), oracles.sgd(0.2, 6, batch=None)):
        run = simulate(algorithms.fedavg(oracle=oracle), PROBLEM, rounds=300, stragglers=0.5, metrics_every=300)
        mean = run.updates / 300
        assert (mean > 3.5).all()  # half of the time 6, half of the time (1 + ... + 6)/6 = 3.5
        assert abs(mean.mean() - 4.75) < 0.1
        assert run.history["samples"][-1] == run.updates.sum()


def test_a_straggler_stops_where_it_is() -> None:
    always = simulate(algorithms.fedavg(oracle=oracles.sgd(0.2, 6, batch=None)), PROBLEM, rounds=5, stragglers=1.0)
    again = simulate(algorithms.fedavg(oracle=oracles.gd(0.2, 6)), PROBLEM, rounds=5, stragglers=1.0)
    assert np.array_equal(always.updates, again.updates)
    np.testing.assert_allclose(always.model, again.model, atol=1e-14)
    assert always.updates.max() < 30


def test_the_published_rule_stalls_and_says_so() -> None:
    solve = oracles.gd(step=1 / 3, iterations=60)
    with pytest.warns(UserWarning, match="stalls away from the solution"):
        naive = algorithms.fedpd(eta=0.5, oracle=solve, absent="naive")
    stalled = simulate(naive, PROBLEM, rounds=300, participation=0.5).history["stationarity"]
    assert stalled[200:].min() > 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = algorithms.fedpd(eta=0.5, oracle=solve)
    assert simulate(good, PROBLEM, rounds=300, participation=0.5).history["stationarity"][-1] < 1e-15


def test_skipping_while_agents_come_and_go_sends_two_models() -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=oracles.gd(1 / 3, 5), p=0.5)
    history = simulate(algorithm, PROBLEM, rounds=30, participation=0.5).history
    assert history["bytes_up"][-1] == history["communications"][-1] * 4 * 2 * 32
    assert history["bytes_down"][-1] == history["communications"][-1] * 4 * 32


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"participation": 0}, "participation = 0: must be positive"),
        ({"participation": 1.5}, "participation = 1.5: must be at most 1"),
        ({"participation": [0.5, 0.5]}, r"array of shape \(2,\)': must have the shape \(8,\), or \(3, 8\)"),
        ({"participation": [2.0] * 8}, r"probabilities must lie in \(0, 1\]"),
        ({"participation": np.full((3, 8), 0.5)}, "with entries 0 and 1"),
        ({"stragglers": 1.5}, "stragglers = 1.5: must be at most 1"),
    ],
)
def test_wrong_attendance_is_answered_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        simulate(FEDAVG, PROBLEM, rounds=3, **options)


def test_an_agent_that_first_appears_between_two_full_gradients_begins_with_one() -> None:
    """On all samples g_i stays grad f_i, so it does not matter how often it is renewed."""
    present = np.ones((6, AGENTS), int)
    present[:3, 1] = 0
    runs = [
        simulate(
            algorithms.fedpd(eta=0.1, oracle=oracles.vr(gamma=0.1, iterations=3, refresh=refresh, batch=None)),
            PROBLEM,
            rounds=6,
            participation=present,
        )
        for refresh in (1, 100)
    ]
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-12)
    work = 2 * 3 * present.sum()  # two gradients a step; an agent is one sample
    assert runs[0].history["samples"][-1] == work + present.sum()
    assert runs[1].history["samples"][-1] == work + AGENTS, "the gradient that each begins with is counted once"


def test_a_masked_schedule_or_start_is_refused() -> None:
    with pytest.raises(FedpdError, match="participation must not be masked"):
        simulate(FEDAVG, PROBLEM, rounds=1, participation=np.ma.masked_less(np.linspace(0.1, 1, AGENTS), 0.2))
    with pytest.raises(FedpdError, match="start must not be masked"):
        simulate(FEDAVG, PROBLEM, rounds=1, start=np.ma.masked_array(np.ones(4), [True, False, False, False]))
    plain = simulate(FEDAVG, PROBLEM, rounds=1, participation=np.full(AGENTS, 0.5), start=np.ones(4))
    unmasked: Any = {"participation": np.ma.masked_array(np.full(AGENTS, 0.5)), "start": np.ma.masked_array(np.ones(4))}
    assert simulate(FEDAVG, PROBLEM, rounds=1, **unmasked).model.tolist() == plain.model.tolist()
