"""Asynchronous runs and deadlines: the events by hand, the iterates by hand, and convergence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, Run, algorithms, clock, oracles, problems, simulate, sweep
from fedpd.engine.clock import Tasks, buffered, on_time

ETA, STEP, Q, D = 0.5, 0.4, 3, 2
PROBLEM = problems.random_quadratic(agents=4, dimension=D)
GD = oracles.gd(step=STEP, iterations=Q)
FEDPD = algorithms.fedpd(eta=ETA, oracle=GD)
SECONDS = np.array([1.0, 2.5, 4.0, 7.0])  # of a task of each agent
CLOCK = clock.network(up=np.inf, down=np.inf, compute=(SECONDS / Q).tolist())


def go(algorithm: Algorithm = FEDPD, rounds: int = 20, **options: Any) -> Run:
    return simulate(algorithm, PROBLEM, rounds=rounds, progress=False, **{"clock": CLOCK, **options})


def test_the_server_steps_when_k_agents_have_returned() -> None:
    tasks = Tasks(np.full(4, Q), 0, 0)
    one = buffered(CLOCK, tasks, 1, 8)
    assert one.present.argmax(axis=1).tolist() == [0, 0, 1, 0, 0, 2, 0, 1]  # agents 0 and 2 both return at 4
    np.testing.assert_allclose(one.seconds, [1, 2, 2.5, 3, 4, 4, 5, 5])
    two = buffered(CLOCK, tasks, 2, 4)
    # 0 and 1 return at 1 and 2.5; 0 at 3.5, 2 at 4; 0 and 1 at 5; 0 at 6, 3 at 7
    assert [np.flatnonzero(row).tolist() for row in two.present] == [[0, 1], [0, 2], [0, 1], [0, 3]]
    np.testing.assert_allclose(two.seconds, [2.5, 4, 5, 7])


def test_more_steps_begin_with_the_same_events() -> None:
    drawn = clock.network(up=np.inf, down=np.inf, compute=clock.log_normal(1.0, 1.0, "round"))
    tasks = Tasks(np.full(50, Q), 0, 0)
    short, long = (buffered(drawn, tasks, 7, steps) for steps in (20, 60))
    np.testing.assert_array_equal(short.present, long.present[:20])
    np.testing.assert_array_equal(short.seconds, long.seconds[:20])
    assert (long.present.sum(axis=1) == 7).all()
    assert not np.array_equal(buffered(drawn._replace(seed=1), tasks, 7, 20).present, short.present)


def gradient(i: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(PROBLEM.data["hessian"][i, 0]) @ x - np.asarray(PROBLEM.data["linear"][i, 0])


def by_hand(buffer: int, rounds: int) -> np.ndarray:
    """Return x_0 after asynchronous FedPD, from the equations of asyncFedDR with alpha = 1."""
    x, y, model, last = np.zeros((4, D)), np.zeros((4, D)), np.zeros((4, D)), np.zeros((4, D))
    x[:] = y[:] = model[:] = last[:] = np.asarray(PROBLEM.start)
    events = buffered(CLOCK, Tasks(np.full(4, Q), 0, 0), buffer, rounds)
    for here in events.present:
        for i in np.flatnonzero(here).tolist():
            y[i] = y[i] + model[i] - x[i]
            for _ in range(Q):
                x[i] = x[i] - STEP * (gradient(i, x[i]) + (x[i] - y[i]) / ETA)
            last[i] = 2 * x[i] - y[i]
        model[here] = last.mean(axis=0)
    return last.mean(axis=0)


@pytest.mark.parametrize("buffer", [1, 2])
def test_fedpd_is_async_feddr_by_hand(buffer: int) -> None:
    expected = by_hand(buffer, 20)
    for algorithm in (FEDPD, algorithms.feddr(eta=ETA, oracle=GD)):
        np.testing.assert_allclose(go(algorithm, buffer=buffer).model, expected, rtol=1e-9)


def test_a_buffer_of_all_agents_is_the_synchronous_method() -> None:
    together, waiting = go(buffer=4), go()
    for column in ("stationarity", "network_seconds", "bytes_up", "bytes_down", "samples"):
        np.testing.assert_allclose(together.history[column], waiting.history[column], rtol=1e-9)


def test_fedpd_converges_on_heterogeneous_quadratics() -> None:
    until = {"stationarity": 1e-20}
    run = go(rounds=3000, buffer=1, until=until, metrics_every=50)
    assert run.history["stationarity"][-1] <= 1e-20
    assert run.history["consensus"][-1] == 0.0
    waiting = go(rounds=3000, until=until, metrics_every=5)
    assert run.history["network_seconds"][-1] < 0.8 * waiting.history["network_seconds"][-1]


def test_bytes_are_those_of_the_agents_that_returned() -> None:
    run = go(buffer=2, rounds=5)
    assert run.history["bytes_up"].tolist() == [2 * D * 8 * r for r in range(6)]
    assert run.updates.sum() == 5 * 2 * Q


def test_fedbuff_weighs_old_messages() -> None:
    for a in (0.0, 0.5):
        x = np.asarray(PROBLEM.start)
        models, versions = dict.fromkeys(range(4), x), dict.fromkeys(range(4), 0)
        events = buffered(CLOCK, Tasks(np.full(4, Q), 0, 0), 2, 9)
        for r, here in enumerate(events.present):
            changes = []
            for i in np.flatnonzero(here).tolist():
                y = models[i]
                for _ in range(Q):
                    y = y - STEP * gradient(i, y)
                changes.append((y - models[i]) * (1 + r - versions[i]) ** -a)
            x = x + 0.7 * np.mean(changes, axis=0)
            for i in np.flatnonzero(here).tolist():
                models[i], versions[i] = x, r + 1
        run = go(algorithms.fedbuff(oracle=GD, server_step=0.7, staleness=a), rounds=9, buffer=2)
        np.testing.assert_allclose(run.model, x, rtol=1e-9)


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    whole = go(buffer=2)

    def stop(r: int, *_: Any) -> bool:
        return r == 7

    options: dict[str, Any] = {"buffer": 2, "checkpoints": tmp_path, "checkpoint_every": 3}
    go(callback=stop, **options)
    resumed = go(**options)
    for column, values in whole.history.items():
        np.testing.assert_array_equal(resumed.history[column], values)
    for buffer, message in ((3, "its buffer is 2, not 3"), (None, r"its participation is .*, not None")):
        with pytest.raises(FedpdError, match=f"it belongs to another run: {message}.*Choose another folder"):
            go(**options | {"buffer": buffer})


@pytest.mark.slow
def test_seeds_debugging_and_continuing_give_the_same_run() -> None:
    sgd = algorithms.fedpd(eta=ETA, oracle=oracles.sgd(step=0.1, iterations=Q, batch=1))
    whole, half = go(sgd, rounds=9, buffer=2), go(sgd, rounds=4, buffer=2)
    rest = go(sgd, rounds=9, buffer=2, start=half)
    for column, values in whole.history.items():
        np.testing.assert_array_equal(rest.history[column], values)
    both = simulate(sgd, PROBLEM, rounds=9, seed=[3, 0], clock=CLOCK, buffer=2, progress=False)
    for other in (both.runs[1], go(sgd, rounds=9, buffer=2, execution="debug")):
        np.testing.assert_allclose(other.history["stationarity"], whole.history["stationarity"], rtol=1e-9)
    assert repr(whole).count(" on the network") == 1


def test_fedbuff_without_delays_is_fedavg() -> None:
    waiting = go(algorithms.fedbuff(oracle=GD, staleness=0.5))
    np.testing.assert_allclose(waiting.model, go(algorithms.fedavg(oracle=GD)).model, rtol=1e-12)


def test_events_that_do_not_fit_into_memory_are_refused() -> None:
    many, free = Tasks(np.full(10**6, Q), 0, 0), clock.network(up=1, down=1)
    with pytest.raises(FedpdError, match="Give fewer rounds"):
        buffered(free, many, 1, 2**31 - 1)
    with pytest.raises(FedpdError, match="Give fewer rounds"):
        on_time(free, many, 1.0, 2**31 - 1)


def test_late_agents_are_absent() -> None:
    tasks = Tasks(np.full(4, Q), 0, 0)
    events = on_time(CLOCK, tasks, 4.0, 3)
    assert events.present.tolist() == [[True, True, True, False]] * 3
    np.testing.assert_allclose(events.seconds, [4, 8, 12])
    np.testing.assert_allclose(on_time(CLOCK, tasks, 9.0, 3).seconds, [7, 14, 21])  # nobody is late
    run = go(algorithms.feddr(eta=ETA, oracle=GD), deadline="4 s", rounds=3)
    assert run.history["network_seconds"].tolist() == [0, 4, 8, 12]
    assert run.history["bytes_up"].tolist() == [3 * D * 8 * r for r in range(4)]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "clock": ({"clock": None, "buffer": 1}, "buffer = 1: needs a clock"),
    "no clock": ({"clock": "3 Mbit/s"}, "clock = '3 Mbit/s': must be"),
    "many": ({"buffer": 5}, "buffer = 5: must be at most 4, the number of agents"),
    "none": ({"buffer": 0}, "buffer = 0: must be an integer of at least 1"),
    "cohort": ({"buffer": 1, "cohort": 2}, "all agents of an asynchronous run take part"),
    "both": ({"buffer": 1, "deadline": 3}, "does not go with a buffer"),
    "stragglers": ({"buffer": 1, "stragglers": 0.5}, "does not go with stragglers"),
    "method": ({"buffer": 1, "algorithm": algorithms.fedavg(oracle=GD)}, "cannot use messages that agents computed"),
    "skips": ({"buffer": 1, "algorithm": algorithms.fedpd(eta=ETA, oracle=GD, p=0.5)}, "cannot use messages"),
    "tolerance": (
        {"buffer": 1, "algorithm": algorithms.fedbuff(oracle=oracles.gd(STEP, Q, tolerance=1e-3))},
        "needs a fixed number of local steps",
    ),
    "exchanges": (
        {"deadline": 9, "algorithm": algorithms.fedlin(step=STEP, iterations=Q)},
        "needs one message per agent and round",
    ),
    "deadline": ({"deadline": "x"}, "deadline = 'x': must be a number and a unit"),
    "impossible": ({"deadline": 0.5}, "no agent returns in time. Give at least 1 seconds."),
    "agents": ({"clock": clock.network(up=[1, 2], down=1)}, "has numbers for 2 agents, and the run has 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_with_a_sentence(name: str) -> None:
    options, message = WRONG[name]
    with pytest.raises(FedpdError) as error:
        go(**options)
    assert message in str(error.value)


def test_a_sweep_cannot_be_asynchronous() -> None:
    with pytest.raises(FedpdError, match="Call simulate for each point"):
        sweep(FEDPD, PROBLEM, {"eta": [0.1, 0.2]}, rounds=3, clock=CLOCK, buffer=2)
