"""Transformed messages on Flower: the same model and bytes as in a simulation, and sentences where they do not fit."""

import shutil
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedpd import Algorithm, FedpdError, algorithms, oracles, simulate, transforms
from fedpd.engine.measure.history import COLUMNS
from fedpd.flower import FederationError, InProcessGrid
from tests.flower.carry.test_faults import clients
from tests.flower.federations import AGENTS, FEDPD, GD, Deliver, Fallible, app, assert_same, order_of, run, whole
from tests.slow_cases import slow_but

SPARSE = [transforms.top_k(0.4), transforms.quantize(6)]
CASES = {
    "both ways": transforms.wrap(FEDPD, up=SPARSE, down=transforms.quantize(8)),
    "skipping": transforms.wrap(
        algorithms.fedpd(eta=0.5, oracle=GD, p=0.4, drift="corrected-exact"), up=transforms.top_k(0.4)
    ),
    "changes": transforms.wrap(algorithms.scaffold(step=0.2, iterations=3), up=[transforms.random_k(0.5)]),
    "models": transforms.wrap(algorithms.fedavg(oracle=GD), up=[transforms.clip(0.5), transforms.sign()]),
    "median": transforms.wrap(algorithms.fedavg(oracle=GD), mean=transforms.median()),
    "weighted": transforms.wrap(algorithms.fedadam(oracle=GD, tau=0.01), mean=transforms.weighted("samples")),
}


QUICK = [("both ways", {}), ("changes", {}), ("weighted", {"cohort": 2})]


@pytest.mark.parametrize(
    ("name", "options"), slow_but(QUICK, [*((name, {}) for name in CASES), ("weighted", {"cohort": 2})])
)
def test_a_federation_equals_a_simulation(name: str, options: dict[str, Any]) -> None:
    algorithm, sizes = CASES[name], (5, 8, 3)
    grid = InProcessGrid(app(algorithm, sizes), AGENTS, {})
    there = run(algorithm, 8, grid, seed=3, evaluate_every=1, **options)
    here = simulate(algorithm, whole(sizes), rounds=8, seed=3, **options)
    rows = here.history["communicated"].copy()
    rows[0] = True
    for column in COLUMNS:
        found, expected = there.history[column], here.history[column][rows]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13, err_msg=column)
    if rows[-1]:
        assert_same(there.model, here.model)


def test_packed_arrays_are_what_travels() -> None:
    algorithm, seen = CASES["both ways"], list[Any]()

    def listen(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if order_of(message)[1] == 2 and reply is not None:
            seen.append((message.content["arrays"], reply.content["arrays"]))
        return reply

    run(algorithm, 4, Fallible(algorithm, listen))
    down, up = seen[0]
    assert {name: array.numpy().nbytes for name, array in down.items()} == {
        "broadcast/quantize.codes": 5,
        "broadcast/quantize.scale": 4,
        "reset": 1,
    }
    assert {name: array.numpy().nbytes for name, array in up.items()} == {
        "parts/top_k.positions": 1,
        "parts/quantize.codes": 2,  # 2 codes of 6 bits
        "parts/quantize.scale": 4,
        "factors/along": 4,
        "fresh/fresh": 1,
    }


@pytest.mark.slow
def test_cohorts_equal_a_simulation() -> None:
    algorithm = transforms.wrap(FEDPD, up=SPARSE)
    there = run(algorithm, 8, seed=3, cohort=2)
    here = simulate(algorithm, whole(), rounds=8, seed=3, cohort=2)
    assert_same(there.model, here.model)


def test_a_client_that_lost_its_state_gets_the_whole_broadcast(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, todo = transforms.wrap(FEDPD, down=transforms.quantize(8)), [1]

    def lose(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (1, 12) and todo:
            todo.pop()
            shutil.rmtree(clients() / "1")
        return deliver(message)

    there = run(algorithm, 30, Fallible(algorithm, lose), evaluate_every=1)
    assert "'1' had lost its state" in caplog.text
    assert there.history["stationarity"][-1] < 1e-2 * there.history["stationarity"][13]


@pytest.mark.slow
@pytest.mark.parametrize("down", [(), transforms.quantize(8)], ids=["up", "both ways"])
def test_a_lost_state_leaves_no_offset_in_what_the_server_holds(down: Any) -> None:
    """The server's H has the lost H_i in it; all start again from the last broadcast, and reach the solution."""
    plain = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.3, iterations=8))
    algorithm, todo = transforms.wrap(plain, up=SPARSE, down=down), [1]

    def lose(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (1, 12) and todo:
            todo.pop()
            shutil.rmtree(clients() / "1")
        return deliver(message)

    there = run(algorithm, 60, Fallible(algorithm, lose), evaluate_every=60)
    assert not todo
    assert there.history["stationarity"][-1] < 1e-10


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (transforms.wrap(FEDPD, up=SPARSE), {"secure_range": 8.0}, "cannot be added while they are masked"),
        (transforms.wrap(FEDPD, up=SPARSE), {"clip": 1.0}, "must not be changed at the server"),
        (CASES["median"], {"secure_range": 8.0}, "can form no other mean"),
        (CASES["both ways"], {"cohort": 2}, "needs all agents in every communication"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: Algorithm, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((FedpdError, FederationError), match=sentence):
        run(algorithm, 2, InProcessGrid(app(algorithm), AGENTS, {}), **settings)
