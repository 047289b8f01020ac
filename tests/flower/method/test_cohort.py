"""A federation with a cohort asks the clients that a simulation draws, and gives the simulation's model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedpd import Algorithm, FedpdError, algorithms, simulate
from fedpd.base import checkpoint
from fedpd.base.checkpoint import CheckpointError
from fedpd.engine.cohorts import draw
from fedpd.flower import Federated, FederationError, InProcessGrid, Settings, Strategy, read_settings
from tests.algorithms.test_conformance import ROWS
from tests.flower.federations import FEDPD, GD, app, assert_same, order_of, run, start, whole

CLIENTS, COHORT, ROUNDS, SEED = 7, 3, 9, 5
SIZES = (6,) * CLIENTS
FEDAVG = algorithms.fedavg(oracle=GD)
ASKED = draw(SEED, range(ROUNDS), CLIENTS, COHORT)
COSTS = ("samples", "bytes_up", "bytes_down", "local_updates", "communications", "round")


def schedule() -> np.ndarray:
    who = np.zeros((ROUNDS, CLIENTS), int)
    np.put_along_axis(who, ASKED, 1, axis=1)
    return who


class Recording(InProcessGrid):
    """Records the names of the arrays of each order, by (number, agent), and loses orders to clients that are away."""

    def __init__(self, algorithm: Algorithm, away: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(app(algorithm, SIZES), CLIENTS, {})
        self.away, self.evaluations = away, 0
        self.orders: dict[tuple[int, int], list[str]] = {}

    def deliver(self, message: Message) -> Message | None:
        agent, number = order_of(message)
        self.evaluations += message.metadata.message_type == "evaluate"
        if agent >= 0:
            self.orders[number, agent] = list(message.content.array_records)
        return None if (number, agent) in self.away else super().deliver(message)


def federation(algorithm: Algorithm, grid: InProcessGrid | None = None, **settings: Any) -> Federated:
    given: dict[str, Any] = {"agents": CLIENTS, "cohort": COHORT, "seed": SEED, **settings}
    return run(algorithm, given.pop("rounds", ROUNDS), grid or Recording(algorithm), **given)


# A server that keeps a sum of duals, agents that know what they missed, absent agents that change, and two exchanges of
# which one is not always due.
METHODS = {"fedpd": FEDPD} | {name: ROWS[name].make() for name in ("fedpd-memory", "a_fedpd", "pr_spider")}


@pytest.mark.parametrize("name", METHODS)
def test_the_model_is_the_simulations_and_only_the_cohort_is_asked(name: str) -> None:
    algorithm = METHODS[name]
    grid = Recording(algorithm)
    there = federation(algorithm, grid)
    here = simulate(algorithm, whole(SIZES), rounds=ROUNDS, seed=SEED, participation=schedule())
    assert_same(there.model, here.model, rtol=1e-11)
    for column in COSTS:
        np.testing.assert_array_equal(there.history[column], here.history[column], err_msg=column)
    assert {agent for _, agent in grid.orders} == set(ASKED.ravel())
    assert grid.pushed == CLIENTS + len(grid.orders)  # one hello per client, and one order per client that is asked
    assert there.history["missing"][-1] == 0


def test_a_client_gets_one_broadcast_unless_the_method_needs_the_one_that_it_missed(tmp_path: Path) -> None:
    def arrays(name: str) -> list[str]:
        grid = Recording(METHODS[name])
        federation(METHODS[name], grid, out=tmp_path / name)
        return [array for names in grid.orders.values() for array in names if array not in ("arrays", "start")]

    assert arrays("fedpd") == arrays("fedpd-memory") == []
    assert arrays("a_fedpd")  # its absent agents add the difference to the broadcast before
    kept = checkpoint.peek(tmp_path / "fedpd" / "checkpoints")
    assert kept is not None
    assert list(kept[1]["outcomes"]) == [str(ROUNDS - 1)]


def test_a_cohort_of_all_clients_is_full_participation() -> None:
    automatic = algorithms.fedpd(eta=0.5, oracle=GD, p="auto")
    for algorithm in (FEDPD, automatic):
        everyone = federation(algorithm, cohort=CLIENTS, rounds=3)
        assert_same(everyone.model, federation(algorithm, cohort=None, rounds=3).model, rtol=0)


def test_a_client_that_is_asked_but_away_is_absent_and_the_others_are_not_missing() -> None:
    gone = ((2, int(ASKED[2, 0])), (5, int(ASKED[5, 1])))
    grid = Recording(FEDPD, gone)
    there = federation(FEDPD, grid, on_timeout="partial", deadline=0.01)
    who = schedule()
    for r, agent in gone:
        who[r, agent] = 0
    here = simulate(FEDPD, whole(SIZES), rounds=ROUNDS, seed=SEED, participation=who)
    assert_same(there.model, here.model, rtol=1e-11)
    assert there.history["missing"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_stale_uses_the_last_message_of_a_client_that_is_asked_but_away() -> None:
    again, agent = next((r, int(one)) for r in range(1, ROUNDS) for one in ASKED[r] if one in ASKED[:r])
    before = max(r for r in range(again) if agent in ASKED[r])
    grid, sent = Recording(FEDAVG, ((again, agent),)), {}
    deliver = grid.deliver

    def record(message: Message) -> Message | None:
        reply = deliver(message)
        if reply is not None and order_of(message)[1] >= 0:
            sent[order_of(message)] = reply.content.array_records["arrays"]["w"].numpy()
        return reply

    grid.deliver = record  # type: ignore[method-assign]
    there = federation(FEDAVG, grid, on_timeout="stale", deadline=0.01, rounds=again + 1)
    messages = [sent[one, before if one == agent else again] for one in ASKED[again].tolist()]
    np.testing.assert_allclose(there.model["w"], np.mean(messages, axis=0), rtol=1e-14)
    assert there.history["missing"][-1] == 1
    first = int(ASKED[0, 0])
    with pytest.raises(FederationError, match="has sent no message yet"):
        federation(FEDAVG, Recording(FEDAVG, ((0, first),)), on_timeout="stale", deadline=0.01)
    with pytest.raises(FedpdError, match=r"messages of fedpd.* are changes, or its server adds them up"):
        federation(FEDPD, on_timeout="stale")


def test_a_client_that_fails_is_named_among_those_asked_and_the_run_resumes(tmp_path: Path) -> None:
    lost = (4, int(ASKED[4, 0]))
    with pytest.raises(FederationError, match=rf"communication 4 lacks 1 of {COHORT} clients \('{lost[1]}': no reply"):
        federation(FEDPD, Recording(FEDPD, (lost,)), out=tmp_path, deadline=0.01)
    grid = Recording(FEDPD)
    there = federation(FEDPD, grid, out=tmp_path)
    assert len(grid.orders) == COHORT * (ROUNDS - 4)
    assert_same(there.model, federation(FEDPD).model, rtol=0)
    for other in ({"cohort": 2}, {"cohort": None, "on_timeout": "partial"}):
        with pytest.raises(CheckpointError, match=f"its cohort is {COHORT}, not"):
            federation(FEDPD, grid, out=tmp_path, **other)


def test_evaluations_ask_all_clients_every_n_over_k_communications() -> None:
    grid = Recording(FEDPD)
    there = federation(FEDPD, grid, evaluate_every=None)
    here = simulate(FEDPD, whole(SIZES), rounds=ROUNDS, seed=SEED, participation=schedule())
    rows = [0, 3, 6, 9]  # 7 clients in cohorts of 3
    assert grid.evaluations == CLIENTS * len(rows)
    assert np.flatnonzero(~np.isnan(there.history["loss"])).tolist() == rows
    for column in ("loss", "stationarity"):
        np.testing.assert_allclose(there.history[column][rows], here.history[column][rows], rtol=1e-9)


def test_flowers_loop_asks_the_same_clients() -> None:
    settings = Settings(CLIENTS, ROUNDS, SEED, poll=0.001, evaluate_every=0, cohort=COHORT)
    strategy, grid = Strategy(FEDPD, start(), settings), Recording(FEDPD)
    strategy.start(grid, strategy.arrays, num_rounds=ROUNDS)
    assert_same(strategy.result().model, federation(FEDPD).model, rtol=0)


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        (8, "cohort = 8: must be at most 7, the number of agents"),
        (0, "cohort = 0: must be an integer of at least 1"),
        ("half", "cohort = 'half': must be an integer"),
        (2.5, "cohort = 2.5: must be an integer"),
        (True, "cohort = True: must be an integer"),
    ],
)
def test_a_cohort_that_cannot_be_drawn_is_refused_before_the_first_message(cohort: Any, message: str) -> None:
    grid = Recording(FEDPD)
    with pytest.raises(FedpdError, match=message):
        federation(FEDPD, grid, cohort=cohort)
    with pytest.raises(FedpdError, match=message):
        read_settings({"agents": CLIENTS, "rounds": 1, "cohort": cohort})
    assert grid.pushed == 0


def test_settings_that_need_all_clients_are_refused() -> None:
    automatic = algorithms.fedpd(eta=0.5, oracle=GD, p="auto")
    with pytest.raises(FedpdError, match=r"needs all agents in every communication\. Leave cohort out"):
        federation(automatic)
    with pytest.raises(FedpdError, match="skips communications, and every round has another cohort"):
        federation(algorithms.fedpd(eta=0.5, oracle=GD, p=0.5))
    with pytest.raises(FedpdError, match="cohort = 3: sums over different clients would reveal single messages"):
        federation(FEDPD, secure_range=16.0)
