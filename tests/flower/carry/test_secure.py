"""Secure aggregation: the model is a plain run's up to fixed point, and the server sees no client's own message."""

import hashlib
import hmac
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import Array, Error, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common.constant import ErrorCode

from fedpd import Algorithm, FedpdError, algorithms
from fedpd.core import Tree
from fedpd.flower import FederationError, InProcessGrid, Settings, Strategy
from fedpd.flower.carry.masks import MESSAGES, PURPOSE, keystream, neighbourhood
from fedpd.flower.carry.secure import fixed_point
from tests.flower.federations import AGENTS, DIMENSION, FEDPD, GD, Deliver, Fallible, app, order_of, run, start

ROUNDS, BOUND = 6, 16.0
CONFIGS, MODULUS = "masks", 2**32
METHODS = {
    "fedpd": FEDPD,
    "fedpd, skipping": algorithms.fedpd(eta=0.5, p=0.5, oracle=GD),
    "fedavg": algorithms.fedavg(oracle=GD),
    "scaffold": algorithms.scaffold(step=0.2, iterations=3),
    "feddyn": algorithms.feddyn(alpha=2.0, oracle=GD),
}


def assert_close(model: Tree, other: Tree) -> None:
    """Up to fixed point: entries are rounded at random to multiples of 2 BOUND / 2^30, 3e-8, in every communication."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6), model, other)


class Listening(InProcessGrid):
    """Keeps every message to the server, and lets a test change a stage's message before delivery."""

    def __init__(self, algorithm: Algorithm, **options: Any) -> None:
        super().__init__(app(algorithm, **({"secure": True} | options)), AGENTS, {})
        self.told: list[RecordDict] = []
        self.meddle: Any = None

    def deliver(self, message: Message) -> Message | None:
        if self.meddle is not None:
            self.meddle(message)
        reply = super().deliver(message)
        if reply is not None and reply.has_content():
            self.told.append(reply.content)
        return reply


def stage_of(message: Message) -> str:
    record: Any = message.content.config_records.get(CONFIGS, {})
    return str(record.get("stage", ""))


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_that_of_a_plain_run_up_to_fixed_point(method: str) -> None:
    algorithm = METHODS[method]
    plain, secure = run(algorithm, ROUNDS), run(algorithm, ROUNDS, Listening(algorithm), secure_range=BOUND)
    assert_close(secure.model, plain.model)
    for column in ("round", "communications", "samples", "bytes_up"):
        np.testing.assert_array_equal(secure.history[column], plain.history[column])


def test_the_server_is_told_no_array_and_no_gradient() -> None:
    grid = Listening(FEDPD)
    found = run(FEDPD, ROUNDS, grid, secure_range=BOUND, evaluate_every=2)
    assert grid.told
    assert not any(array for content in grid.told for array in content.array_records.values())
    assert np.isfinite(found.history["loss"][[0, 2, 4]]).all()
    assert np.isnan(found.history["stationarity"]).all()


def test_what_the_server_is_told_fills_the_masks_range() -> None:
    """Messages themselves are below the levels of fixed point, a quarter of the modulus here."""
    grid = Listening(FEDPD)
    run(FEDPD, ROUNDS, grid, secure_range=BOUND)
    records: list[Any] = [content.config_records.get(CONFIGS, {}) for content in grid.told]
    entries = np.concatenate([np.frombuffer(record["vector"], "<u4") for record in records if "vector" in record])
    assert len(entries) == ROUNDS * AGENTS * (1 + DIMENSION + 1)  # the weight, w and b
    share = np.mean(entries > fixed_point(BOUND, AGENTS).levels)
    assert share == pytest.approx(3 / 4, abs=0.2)


def test_a_range_that_would_cut_is_refused_by_name_and_says_what_is_enough() -> None:
    with pytest.raises(
        FederationError, match=r"exceeds secure-range = 0.001 and would be clipped. Try \d+ or more.*resume it\.$"
    ):
        run(FEDPD, ROUNDS, Listening(FEDPD), secure_range=0.001)


def test_an_order_without_masks_is_refused() -> None:
    with pytest.raises(
        FederationError, match="client '0': this client's app masks its messages, but the run has no secure"
    ):
        run(FEDPD, ROUNDS, Listening(FEDPD))


def test_clients_that_do_not_mask_are_refused() -> None:
    with pytest.raises(FederationError, match="client '0': this client's app does not mask its messages, but"):
        run(FEDPD, ROUNDS, InProcessGrid(app(FEDPD), AGENTS, {}), secure_range=BOUND, deadline=10.0)


def test_a_node_that_comes_back_amid_the_stages_begins_them_anew() -> None:
    """It loses its keys with Flower's context, but keeps its own state in its file."""
    grid, fresh = Listening(FEDPD), {"shares", "vectors"}

    def restart(message: Message) -> None:
        if message.metadata.dst_node_id == 2 and stage_of(message) in fresh:
            fresh.discard(stage_of(message))
            grid.contexts[2].state = RecordDict()

    grid.meddle = restart
    assert_close(run(FEDPD, ROUNDS, grid, secure_range=BOUND).model, run(FEDPD, ROUNDS).model)
    assert not fresh


def test_shares_are_asked_for_only_when_all_have_answered() -> None:
    def fault(message: Message, deliver: Deliver) -> Message | None:
        asked.append(stage_of(message))
        absent = stage_of(message) == "vectors" and message.metadata.dst_node_id == 3
        return None if absent else deliver(message)

    asked: list[str] = []
    grid = Fallible(FEDPD, fault, secure=True)
    with pytest.raises(FederationError, match="'2': no reply"):
        run(FEDPD, ROUNDS, grid, secure_range=BOUND, deadline=1.0)
    assert "vectors" in asked
    assert "unmask" not in asked


@pytest.mark.parametrize(
    ("stage", "field", "value", "why"),
    [
        ("keys", "keys", ["not bytes"], "must have keys of 32 bytes"),
        ("shares", "sealed", [], "must have to, sealed"),
        ("vectors", "vector", b"not a vector", "has 12 bytes, but must have 24"),
        ("unmask", "shares", [1, 2, 3], "must have names, shares"),
    ],
)
def test_a_client_that_breaks_a_stage_is_named(stage: str, field: str, value: Any, why: str) -> None:
    def fault(message: Message, deliver: Deliver) -> Message | None:
        here = stage_of(message) == stage and message.metadata.dst_node_id == 1
        reply = deliver(message)
        if reply is not None and here:
            reply.content.config_records[CONFIGS][field] = value
        return reply

    with pytest.raises(FederationError, match=f"'0': secure aggregation: .*{why}"):
        run(FEDPD, ROUNDS, Fallible(FEDPD, fault, secure=True), secure_range=BOUND)


def test_a_share_that_is_not_ones_own_ends_the_run() -> None:
    def fault(message: Message, deliver: Deliver) -> Message | None:
        here = stage_of(message) == "unmask" and message.metadata.dst_node_id == 1
        reply = deliver(message)
        if reply is not None and here:
            record: Any = reply.content.config_records[CONFIGS]
            record["shares"] = [bytes(len(share)) for share in record["shares"]]
        return reply

    with pytest.raises(FederationError, match=r"secure aggregation: .* Start the run again"):
        run(FEDPD, ROUNDS, Fallible(FEDPD, fault, secure=True), secure_range=BOUND)


def test_wrong_shares_cost_their_sender_and_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """Of five clients, four have enough shares; hashes of the secrets show whose shares are wrong."""

    class Lying(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if reply is not None and stage_of(message) == "unmask" and message.metadata.dst_node_id == 2:
                record: Any = reply.content.config_records[CONFIGS]
                record["shares"] = [bytes(len(share)) for share in record["shares"]]
            return reply

    sizes, options = (6,) * 5, {"agents": 5}
    found = run(FEDPD, 1, Lying(app(FEDPD, sizes, secure=True), 5, {}), secure_range=BOUND, **options)
    assert_close(found.model, run(FEDPD, 1, InProcessGrid(app(FEDPD, sizes), 5, {}), **options).model)
    assert "client '1' sent wrong shares, which are not used" in caplog.text


@pytest.mark.slow
def test_a_sparse_graph_gives_the_same_sum_and_survives_drop_outs() -> None:
    """Of 24 clients, each has 12 neighbours; six drop out after the others masked their messages with their keys."""

    class Sparse(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            node = message.metadata.dst_node_id
            if absent and (stage_of(message) in ("vectors", "unmask") or not masked) and node in absent:
                return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "gone"), reply_to=message)
            return super().deliver(message)

    assert neighbourhood(24).neighbours == 12
    sizes, absent = (6,) * 24, set[int]()
    options: dict[str, Any] = {"agents": 24, "deadline": 60.0}
    masked = True
    found = run(FEDPD, 1, Sparse(app(FEDPD, sizes, secure=True), 24, {}), secure_range=BOUND, **options)
    plain = run(FEDPD, 1, InProcessGrid(app(FEDPD, sizes), 24, {}), **options)
    assert_close(found.model, plain.model)
    absent = {2, 3, 5, 11, 17, 20}
    options |= {"on_timeout": "partial", "min_clients": 17}
    found = run(FEDPD, 1, Sparse(app(FEDPD, sizes, secure=True), 24, {}), secure_range=BOUND, **options)

    class Refusing(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            ordered = message.metadata.message_type == "train" and message.metadata.dst_node_id in absent
            if reply is not None and ordered:
                reply.content.config_records["config"]["fedpd-status"] = "refused"
            return reply

    plain = run(FEDPD, 1, Refusing(app(FEDPD, sizes), 24, {}), **options)
    assert_close(found.model, plain.model)


def test_differential_privacy_composes_inside_of_the_masks() -> None:
    plain = run(FEDPD, ROUNDS)
    for noise in (1e-12, 0.1):
        mod = LocalDpMod(clipping_norm=1e6, sensitivity=noise, epsilon=1.0, delta=1e-5)
        found = run(FEDPD, ROUNDS, secure_range=BOUND, grid=Listening(FEDPD, mods=[mod]))
        off = np.abs(found.model["w"] - plain.model["w"]).max()
        assert (off < 1e-6) == (noise < 1e-6)


def test_what_a_mod_says_against_an_order_is_heard() -> None:
    """Flower's clipping at the client needs a norm from the server's wrapper, which is not there."""
    with pytest.raises(FederationError, match="clipping"):
        run(FEDPD, ROUNDS, secure_range=BOUND, grid=Listening(FEDPD, mods=[fixedclipping_mod]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_timeout": "stale"}, "on-timeout = 'stale'.*cannot use one again"),
        ({"clip": 1.0}, "clip = 1.0.*sees no client's own message"),
        ({"agents": 2}, "secure-range.*does not hide"),
    ],
)
def test_what_sums_are_not_enough_for_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        run(FEDPD, ROUNDS, Listening(FEDPD), secure_range=BOUND, **settings)


def test_a_method_whose_agents_may_be_silent_is_refused() -> None:
    lag = algorithms.lag(step=0.1)
    with pytest.raises(FedpdError, match="do not always send"):
        run(lag, ROUNDS, Listening(lag), secure_range=BOUND)


def test_flowers_loop_has_no_room_for_the_stages() -> None:
    with pytest.raises(FedpdError, match="Use server_app"):
        Strategy(FEDPD, start(), Settings(agents=AGENTS, rounds=1, secure_range=BOUND))


@pytest.mark.parametrize("clients", [3, 4, 5, 64, 90, 1000])
def test_the_sum_of_all_clients_stays_below_the_modulus(clients: int) -> None:
    levels = fixed_point(1.0, clients).levels
    assert clients * levels < MODULUS
    assert levels == 2**30 or 2 * clients * levels >= MODULUS


def test_a_client_that_drops_out_after_its_message_is_not_missed() -> None:
    """Three of four clients have enough shares to remove all masks, so the sum still has the fourth."""

    class Dropping(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            asked.append(stage_of(message))
            gone = stage_of(message) == "unmask" and message.metadata.dst_node_id == 4
            return None if gone else super().deliver(message)

    asked: list[str] = []
    sizes, options = (6,) * 4, {"agents": 4, "evaluate_every": 0}
    plain = run(FEDPD, 1, InProcessGrid(app(FEDPD, sizes), 4, {}), **options)
    grid = Dropping(app(FEDPD, sizes, secure=True), 4, {})
    found = run(FEDPD, 1, grid, secure_range=BOUND, deadline=3.0, **options)
    assert_close(found.model, plain.model)
    assert asked.count("keys") == 4  # there was one attempt


class Dropping(InProcessGrid):
    """Four clients, of which some fail in the first communication, at a stage or (without masks) at their order."""

    def __init__(self, algorithm: Algorithm, stage: str, nodes: tuple[int, ...] = (4,)) -> None:
        super().__init__(app(algorithm, (6,) * 4, secure=bool(stage)), 4, {})
        self.stage, self.failing, self.asked = stage, set(nodes), list[str]()

    def deliver(self, message: Message) -> Message | None:
        self.asked.append(stage_of(message))
        node = message.metadata.dst_node_id
        if self.stage and stage_of(message) == self.stage and node in self.failing:
            self.failing.discard(node)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "gone"), reply_to=message)
        reply = super().deliver(message)
        if not self.stage and message.metadata.message_type == "train" and order_of(message) == (3, 0):
            assert reply is not None
            reply.content.config_records["config"]["fedpd-status"] = "refused"
        return reply


PARTIAL: dict[str, Any] = {"agents": 4, "on_timeout": "partial", "min_clients": 3}


@pytest.mark.parametrize("stage", ["keys", "shares", "vectors"])
@pytest.mark.parametrize("method", ["fedpd", "scaffold"])
def test_a_client_that_drops_out_before_its_message_is_left_out_without_another_attempt(
    method: str, stage: str
) -> None:
    algorithm, grid = METHODS[method], Dropping(METHODS[method], stage)
    found = run(algorithm, 3, grid, secure_range=BOUND, **PARTIAL)
    plain = run(algorithm, 3, Dropping(algorithm, ""), **PARTIAL)
    assert_close(found.model, plain.model)
    np.testing.assert_array_equal(found.history["samples"], plain.history["samples"])
    assert grid.asked.count("keys") == 3 * 4  # one attempt per communication
    assert grid.asked.count("unmask") == 3 + 2 * 4


@pytest.mark.parametrize("absent", [False, True])
def test_a_client_may_drop_out_between_the_evaluation_of_a_model_and_the_order_with_it(absent: bool) -> None:
    """Clients took the order's arrays for the evaluated model, and refused a sum of messages over fewer clients."""

    class Later(Dropping):
        def deliver(self, message: Message) -> Message | None:
            trains = stage_of(message) == "vectors" and message.metadata.message_type == "train"
            if absent and trains and order_of(message) == (3, 1):
                return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "gone"), reply_to=message)
            return InProcessGrid.deliver(self, message)

    found = run(FEDPD, 3, Later(FEDPD, "vectors"), secure_range=BOUND, **PARTIAL | {"evaluate_every": 1})
    assert found.history["missing"][-1] + found.history["refused"][-1] == absent
    assert np.isfinite(found.history["loss"]).all()


def test_a_server_does_not_find_a_message_by_asking_how_far_it_is_from_other_arrays() -> None:
    """A refusal tells the power of two above the largest change, from arrays that the server chose anew each time."""

    class Searching(Dropping):
        def deliver(self, message: Message) -> Message | None:
            asked = stage_of(message) == "vectors" and message.metadata.dst_node_id == 1
            if asked and len(told) in (1, 2):
                message.content.array_records["arrays"]["w"] = Array(np.array([1000.0 * len(told), 0, 0, 0]))
            reply = super().deliver(message)
            if asked and reply is not None:
                records: Any = reply.content.config_records
                told.append((records.get("config", {}).get("fedpd-status"), records.get(CONFIGS, {}).get("note")))
            return reply

    told: list[Any] = []
    with suppress(FederationError):
        run(FEDPD, 1, Searching(FEDPD, "vectors", nodes=(2,)), agents=4, secure_range=BOUND)
    assert told[0] == ("done", None)
    assert told[1] == ("lost", None)


def test_with_too_few_clients_nothing_is_unmasked_and_the_server_starts_again() -> None:
    grid = Dropping(FEDPD, "vectors", nodes=(3, 4))
    found = run(FEDPD, 1, grid, secure_range=BOUND, **PARTIAL)
    assert_close(found.model, run(FEDPD, 1, InProcessGrid(app(FEDPD, (6,) * 4), 4, {}), **PARTIAL).model)
    assert (grid.asked.count("keys"), grid.asked.count("unmask")) == (8, 4)


def test_after_an_unmasked_sum_failed_the_communication_is_not_repeated_with_others() -> None:
    class Failing(Dropping):
        def deliver(self, message: Message) -> Message | None:
            if stage_of(message) == "unmask" and message.metadata.dst_node_id == 1:
                return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "gone"), reply_to=message)
            return super().deliver(message)

    grid = Failing(FEDPD, "vectors")
    with pytest.raises(FederationError, match="2 clients sent their shares, but 3 are needed"):
        run(FEDPD, 1, grid, secure_range=BOUND, **PARTIAL)
    assert grid.asked.count("keys") == 4


@pytest.mark.parametrize(("active", "missing"), [(["0", "1", "2"], ["2"]), (["0", "1"], ["2"])])
def test_a_client_reveals_neither_two_secrets_nor_a_smaller_sum(active: list[str], missing: list[str]) -> None:
    """A server that asks for them gets a refusal from every client, and no share."""

    def lie(message: Message) -> None:
        if stage_of(message) == "unmask":
            message.content.config_records[CONFIGS].update({"active": active, "missing": missing})

    grid = Listening(FEDPD)
    grid.meddle = lie
    with pytest.raises(FederationError, match="0 clients sent their shares, but 3 are needed"):
        run(FEDPD, 1, grid, secure_range=BOUND)
    assert not any("shares" in content.config_records.get(CONFIGS, {}) for content in grid.told)


@pytest.mark.parametrize("also", [(), ("sign",)])
def test_a_server_that_tells_two_sets_of_one_sum_gets_no_two_secrets(also: tuple[str, ...]) -> None:
    """Half of the clients are told that client 3 has dropped out: the others' shares would show its own mask, and
    theirs its masks with its neighbours."""

    class Splitting(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            half = message.metadata.dst_node_id % 2
            if stage_of(message) in ("unmask", *also) and half and message.metadata.dst_node_id != 4:
                record: Any = message.content.config_records[CONFIGS]
                record.update({"active": [one for one in record["active"] if one != "3"], "missing": ["3"]})
            reply = super().deliver(message)
            if stage_of(message) == "unmask" and reply is not None:
                revealed: Any = reply.content.config_records[CONFIGS]
                told[half] += revealed.get("names", [])
            return reply

    number, told = 20, {0: list[str](), 1: list[str]()}
    assert neighbourhood(number).neighbours < number - 1
    grid = Splitting(app(FEDPD, (6,) * number, secure=True), number, {})
    with suppress(FederationError):  # the shares of the others may be enough for the sum that they have signed
        run(FEDPD, 1, grid, secure_range=BOUND, agents=number, on_timeout="partial", min_clients=14, deadline=60.0)
    assert not told[1]
    assert bool(told[0]) == (not also)


# RFC 8439, appendix A.1, test vectors 1 and 2: key 0, nonce 0, block counters 0 and 1
FIRST = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)
SECOND = (
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_keystream_is_that_of_rfc_8439() -> None:
    assert keystream(bytes(32), 128).hex() == FIRST + SECOND


def test_mask_is_the_keystream_of_a_key_from_the_whole_seed() -> None:
    seed = bytes(range(44))
    extracted = hmac.new(bytes(32), seed, hashlib.sha256).digest()  # RFC 5869, without a salt
    key = hmac.new(extracted, PURPOSE + b"\x01", hashlib.sha256).digest()
    numbers = np.frombuffer(keystream(key, 4 * 7), "<u4")
    found = MESSAGES.mask(seed, 7)
    np.testing.assert_array_equal(found, numbers)
    assert found.dtype == np.uint32


def test_every_bit_of_a_seed_matters_and_masks_fill_the_range() -> None:
    seeds = [bytes(32), bytes(31) + b"\x01", b"\x01" + bytes(31), b"\x01\0\0\0\x01" + bytes(27)]
    masks = [MESSAGES.mask(seed, 4000) for seed in seeds]
    assert len({tuple(one[:8]) for one in masks}) == len(seeds)
    assert 0 <= masks[0].min() < 0.01 * MODULUS < 0.99 * MODULUS < masks[0].max() < MODULUS
    assert abs(masks[0].mean() / MODULUS - 0.5) < 0.02
