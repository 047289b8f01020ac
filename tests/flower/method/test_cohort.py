"""A federation with a cohort asks the clients that a simulation draws, and gives the simulation's model."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import Message

from fedpd import Algorithm, FedpdError, algorithms, simulate
from fedpd.algorithms.a_fedpd import AFedPD
from fedpd.algorithms.fedavg import FedAvg
from fedpd.algorithms.pr_spider import PRSpider
from fedpd.base import checkpoint
from fedpd.base.checkpoint import CheckpointError
from fedpd.core import Exchange
from fedpd.engine.participation import draw
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


@pytest.mark.slow
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


class EveryThirdRound(FedAvg):
    def exchanges(self) -> tuple[Exchange, ...]:
        (exchange,) = super().exchanges()
        return (exchange._replace(when=lambda r: r % 3 == 2),)


class SkippingAFedPD(AFedPD):
    def skip_probability(self, r: Any) -> Any:
        return 0.6


class SkippingPRSpider(PRSpider):
    def skip_probability(self, r: Any) -> Any:
        return 0.6


class RareAverages(PRSpider):
    def exchanges(self) -> tuple[Exchange, ...]:
        first, second = super().exchanges()
        return first, second._replace(when=lambda r: r % 4 > 1)


def as_class(kind: type[Algorithm], name: str) -> Algorithm:
    """The method of this row with the same settings, as another class."""
    made = ROWS[name].make()
    return kind(**{field.name: getattr(made, field.name) for field in fields(made)})


SKIPPING = {
    "fedpd": algorithms.fedpd(eta=0.5, oracle=GD, p=0.6),
    "fedpd, from the server's model": algorithms.fedpd(eta=0.5, oracle=GD, p=0.6, start="server"),
    "a_fedpd": as_class(SkippingAFedPD, "a_fedpd"),
    "a due time of its own": EveryThirdRound(oracle=GD),
    "two exchanges": as_class(SkippingPRSpider, "pr_spider"),
}


@pytest.mark.parametrize("name", SKIPPING)
def test_clients_of_skipped_rounds_do_their_steps_before_the_next_communication(name: str) -> None:
    algorithm, rounds = SKIPPING[name], 16
    grid = Recording(algorithm)
    there = federation(algorithm, grid, rounds=rounds)
    done = int(there.history["round"][-1])
    here = simulate(algorithm, whole(SIZES), rounds=done, seed=SEED, cohort=COHORT)
    rows = here.history["communicated"].copy()
    rows[0] = True
    assert 3 < rows.sum() < rounds
    assert_same(there.model, here.model, rtol=1e-11)
    for column in COSTS:
        np.testing.assert_array_equal(there.history[column], here.history[column][rows], err_msg=column)
    assert there.history["missing"][-1] == 0


def test_a_client_of_a_skipped_round_that_is_away_has_not_done_its_steps() -> None:
    algorithm = SKIPPING["fedpd"]
    grid = Recording(algorithm)
    whole_run = federation(algorithm, grid)
    number, agent, skipped, r = only_in_a_skipped_round(whole_run.history["round"], grid)
    with pytest.raises(FederationError, match=rf"communication {number} lacks 1 of \d clients \('{agent}': no reply"):
        federation(algorithm, Recording(algorithm, ((number, agent),)), deadline=0.01)
    there = federation(
        algorithm, Recording(algorithm, ((number, agent),)), on_timeout="partial", deadline=0.01, rounds=r
    )
    who = schedule()[:r]
    who[skipped, agent] = 0
    here = simulate(algorithm, whole(SIZES), rounds=r, seed=SEED, participation=who)
    assert_same(there.model, here.model, rtol=1e-11)
    assert there.history["missing"][-1] == 1


def only_in_a_skipped_round(communicated: np.ndarray, grid: "Recording") -> tuple[int, int, int, int]:
    """Return (n, agent, skipped round, rounds after n) of an order that asks for no message."""
    for number, agent in grid.orders:
        last, before = int(communicated[number + 1]), int(communicated[number])
        asked = [r for r in range(before, last) if agent in ASKED[r]]
        if len(asked) == 1 and asked[0] < last - 1:
            return number, agent, asked[0], last
    raise AssertionError


def test_a_run_that_skips_resumes_exactly(tmp_path: Path) -> None:
    algorithm = SKIPPING["fedpd"]
    federation(algorithm, out=tmp_path, rounds=5)
    assert_same(federation(algorithm, out=tmp_path).model, federation(algorithm).model, rtol=0)


@pytest.mark.parametrize("p", [0.0, 0.6])
def test_masked_messages_of_a_cohort_give_the_plain_model(p: float) -> None:
    algorithm = algorithms.fedpd(eta=0.5, oracle=GD, p=p)
    grid = InProcessGrid(app(algorithm, SIZES, secure=True), CLIENTS, {})
    secure, plain = federation(algorithm, grid, secure_range=16.0), federation(algorithm)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6), secure.model, plain.model)
    for column in COSTS:
        np.testing.assert_array_equal(secure.history[column], plain.history[column], err_msg=column)


def test_a_cohort_drawn_by_size_is_that_of_a_simulation(tmp_path: Path) -> None:
    sizes = (2, 30, 4, 5, 12, 3, 8)

    def by_size(grid: InProcessGrid, **settings: Any) -> Federated:
        return federation(FEDPD, grid, sampling="size", **settings)

    there = by_size(InProcessGrid(app(FEDPD, sizes), CLIENTS, {}), out=tmp_path)
    here = simulate(FEDPD, whole(sizes), rounds=ROUNDS, seed=SEED, cohort=COHORT, sampling="size")
    assert_same(there.model, here.model, rtol=1e-11)
    np.testing.assert_array_equal(there.history["samples"], here.history["samples"])
    # The sizes of the first start hold for the whole run, whatever clients say later.
    longer = by_size(InProcessGrid(app(FEDPD, sizes[::-1]), CLIENTS, {}), out=tmp_path, rounds=ROUNDS + 1)
    assert longer.history["round"][-1] == ROUNDS + 1
    kept = checkpoint.peek(tmp_path / "checkpoints")
    assert kept is not None
    assert kept[1]["sizes"] == list(sizes)
    with pytest.raises(CheckpointError, match="its sampling is 'size', not None"):
        federation(FEDPD, out=tmp_path)


def test_sampling_that_cannot_work_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"sampling = 'size': needs a cohort\. Set cohort"):
        federation(FEDPD, sampling="size", cohort=None)
    with pytest.raises(FedpdError, match="sampling = 'weight': there is no such choice"):
        read_settings({"agents": CLIENTS, "rounds": 1, "cohort": 2, "sampling": "weight"})

    def says_nothing(message: Message) -> Message | None:
        reply = InProcessGrid.deliver(grid, message)
        if reply is not None and message.metadata.dst_node_id == 2:
            reply.content.config_records["config"].pop("fedpd-samples", None)
        return reply

    grid = Recording(FEDPD)
    grid.deliver = says_nothing  # type: ignore[method-assign]
    with pytest.raises(FederationError, match="did not say how many samples it has"):
        federation(FEDPD, grid, sampling="size")


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
    with pytest.raises(FedpdError, match="its later exchanges do not take place in every round"):
        federation(as_class(RareAverages, "pr_spider"))
    with pytest.raises(FedpdError, match="a sum over 2 clients does not hide a client's message"):
        federation(FEDPD, secure_range=16.0, cohort=2)
