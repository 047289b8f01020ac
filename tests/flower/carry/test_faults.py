"""After any fault of messages, clients or the server, the model is the same as without it, or an error says why."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Error, Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpd import Algorithm, algorithms, simulate
from fedpd.base.checkpoint import CheckpointError
from fedpd.flower import Federated, FederationError
from tests.algorithms.test_conformance import ROWS
from tests.flower.federations import AGENTS, FEDPD, GD, Deliver, Fallible, assert_same, order_of, run, whole
from tests.slow_cases import slow_but

ROUNDS = 6
VICTIM = 1


@cache
def undisturbed() -> Federated:
    return run(FEDPD, ROUNDS)


def clients() -> Path:
    return Path(os.environ["FEDPD_STATE"])


def state_file(agent: int) -> Path:
    (path,) = (clients() / str(agent)).glob("*.safetensors")
    return path


def test_a_repeated_order_is_answered_again_and_not_carried_out_twice() -> None:
    answers = []

    def twice(message: Message, deliver: Deliver) -> Message | None:
        first, second = deliver(message), deliver(message)
        assert first is not None
        assert second is not None
        if message.metadata.message_type == "train":
            answers.append((first.content, second.content))
        return second

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, twice))
    assert_same(there.model, undisturbed().model, rtol=0)
    assert len(answers) == AGENTS * ROUNDS
    for first, second in answers:
        assert first.object_id == second.object_id


def test_an_order_without_an_answer_is_sent_again() -> None:
    seen = set()

    def lose_first_reply(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)  # carried out, and the reply lost
        if message.metadata.message_type != "train" or order_of(message) in seen:
            return reply
        seen.add(order_of(message))
        return None

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, lose_first_reply), resend=0.01)
    assert_same(there.model, undisturbed().model, rtol=0)
    assert there.history["missing"][-1] == 0


def test_a_message_that_the_superlink_did_not_take_is_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    """As when it is killed between a message's head and its arrays, of the hellos and of the orders."""
    failures = {kind: iter([True, True]) for kind in ("query.hello", "train")}

    def take_later(message: Message, deliver: Deliver) -> Message | None:
        if next(failures[message.metadata.message_type], False):
            raise ObjectPushError("an array", run_id=1, session_id="of before")
        return deliver(message)

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, take_later), resend=0.01)
    assert_same(there.model, undisturbed().model, rtol=0)
    assert there.history["missing"][-1] == 0
    assert "did not accept a message to node 1: Failed to push object with ID 'an array'" in caplog.text


def test_a_client_that_fails_and_recovers_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True, True])

    def fail_twice(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (VICTIM, 2) and next(failures, False):
            return Message(Error(2, "disk full"), reply_to=message)
        return deliver(message)

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, fail_twice), resend=0.01)
    assert_same(there.model, undisturbed().model, rtol=0)
    assert "disk full" in caplog.text


def test_a_client_that_comes_back_on_another_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpd.flower.carry.collect.REFRESH_SECONDS", 0.0)
    grid: Fallible

    def die_once(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (VICTIM, 2) and VICTIM + 1 in grid.contexts:
            grid.contexts[77] = grid.contexts.pop(VICTIM + 1)  # a SuperNode started anew has another id
            return None
        return deliver(message)

    grid = Fallible(FEDPD, die_once)
    assert_same(run(FEDPD, ROUNDS, grid, bind_names=False).model, undisturbed().model, rtol=0)


def when(number: int, what: Callable[[], None]) -> Fallible:
    """A grid in which `what` happens before the victim gets order `number` for the first time."""
    todo = [what]

    def fault(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (VICTIM, number) and todo:
            todo.pop()()
        return deliver(message)

    return Fallible(FEDPD, fault)


def lose() -> None:
    shutil.rmtree(clients() / str(VICTIM))


def tear() -> None:
    path = state_file(VICTIM)
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize("harm", [lose, tear])
def test_a_client_that_lost_its_state_rebuilds_its_dual_and_says_so(
    harm: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    there = run(FEDPD, 20, when(12, harm), evaluate_every=1)
    sound = run(FEDPD, 20, evaluate_every=1)
    assert there.history["rebuilt"].tolist() == [0] * 13 + [1] * 8
    assert "'1' had lost its state" in caplog.text
    # No setback beyond a round or two: lambda_i = -grad f_i(x_0) is what it had, nearly.
    after, before = there.history["stationarity"][13:], sound.history["stationarity"][11]
    assert (after <= before).all()


def test_a_state_that_is_too_old_is_a_lost_one() -> None:
    """As from a backup: the client notices that its state is older than the last reply that the server used."""
    kept: list[bytes] = []

    def fault(message: Message, deliver: Deliver) -> Message | None:
        agent, number = order_of(message)
        if (agent, number) == (VICTIM, 2):
            kept.append(state_file(VICTIM).read_bytes())
        if (agent, number) == (VICTIM, 4) and len(kept) == 1:
            state_file(VICTIM).write_bytes(kept[0])
            kept.append(b"")
        return deliver(message)

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, fault))
    assert there.history["rebuilt"][-1] == 1


def test_an_old_order_is_refused_and_harms_nothing() -> None:
    old: list[Message] = []
    refusals = []

    def replay(message: Message, deliver: Deliver) -> Message | None:
        if order_of(message) == (VICTIM, 1):
            old.append(message)
        if order_of(message) == (VICTIM, 4):
            late = deliver(old[0])
            assert late is not None
            refusals.append(late.content.config_records["config"]["fedpd-status"])
        return deliver(message)

    there = run(FEDPD, ROUNDS, Fallible(FEDPD, replay))
    assert refusals == ["refused"]
    assert_same(there.model, undisturbed().model, rtol=0)


def away(who: np.ndarray, *, computes: bool) -> Callable[[Message, Deliver], Message | None]:
    """Agents that are away when `who` (communications, N) says so: the order is lost, or the reply to it."""

    def fault(message: Message, deliver: Deliver) -> Message | None:
        agent, number = order_of(message)
        if number < 0 or who[number, agent]:
            return deliver(message)
        if computes:
            deliver(message)
        return None

    return fault


SKIPPING = algorithms.fedpd(eta=0.5, oracle=GD, p=0.5)
PRESENT = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
PARTIAL: dict[str, Callable[[], Algorithm]] = {
    "fedpd": lambda: FEDPD,
    "scaffold": lambda: algorithms.scaffold(step=0.2, iterations=3),
    "a_fedpd": ROWS["a_fedpd"].make,
}


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("name", slow_but(["scaffold"], PARTIAL))
def test_clients_away_are_a_simulations_participation(name: str, computes: bool) -> None:
    algorithm = PARTIAL[name]()
    grid = Fallible(algorithm, away(PRESENT, computes=computes))
    there = run(algorithm, len(PRESENT), grid, on_timeout="partial", deadline=0.01)
    here = simulate(algorithm, whole(), rounds=len(PRESENT), participation=PRESENT)
    assert_same(there.model, here.model, rtol=1e-11)
    for column in ("samples", "bytes_up", "bytes_down", "local_updates", "communications"):
        np.testing.assert_array_equal(there.history[column], here.history[column])
    assert there.history["missing"][-1] == (~PRESENT).sum()


@cache
def meetings(p: float) -> np.ndarray:
    """The rounds that end in a communication."""
    communicated = simulate(SKIPPING, whole(), rounds=20).history["communicated"]
    return np.flatnonzero(communicated) - 1 if p else np.arange(4)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    present=arrays(bool, (4, AGENTS)).map(lambda who: who | (np.arange(AGENTS) == 0)),
    computed=arrays(bool, (4, AGENTS)),
    p=st.sampled_from([0.0, 0.5]),
)
def test_any_absences_are_a_simulations_participation(present: np.ndarray, computed: np.ndarray, p: float) -> None:
    algorithm = FEDPD if p == 0 else SKIPPING
    inner = [away(present, computes=True), away(present, computes=False)]

    def fault(message: Message, deliver: Deliver) -> Message | None:
        agent, number = order_of(message)
        return inner[0 if computed[number, agent] else 1](message, deliver)

    met = meetings(p)
    last = met[3]
    there = run(algorithm, last + 1, Fallible(algorithm, fault), on_timeout="partial", deadline=0.01)
    stretches = np.searchsorted(met, np.arange(last + 1))
    here = simulate(algorithm, whole(), rounds=last + 1, participation=present[stretches])
    assert_same(there.model, here.model, rtol=1e-11)
    np.testing.assert_array_equal(there.history["samples"][-1], here.history["samples"][-1])


def test_stale_counts_the_last_message_again(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = algorithms.fedavg(oracle=GD)
    sent: dict[tuple[int, int], Any] = {}
    inner = away(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool), computes=False)

    def record(message: Message, deliver: Deliver) -> Message | None:
        reply = inner(message, deliver)
        if reply is not None and order_of(message)[1] >= 0:
            sent[order_of(message)] = reply.content.array_records["arrays"]["w"].numpy()
        return reply

    there = run(algorithm, 2, Fallible(algorithm, record), on_timeout="stale", deadline=0.01)
    assert (VICTIM, 1) not in sent
    np.testing.assert_allclose(there.model["w"], (sent[0, 1] + sent[VICTIM, 0] + sent[2, 1]) / 3, rtol=1e-14)
    assert "Communication 1 does not use client '1'" in caplog.text


def test_a_run_that_fails_is_resumed_from_where_it_was(tmp_path: Path) -> None:
    broken = Fallible(FEDPD, away(np.arange(ROUNDS * AGENTS).reshape(ROUNDS, AGENTS) != 3 * AGENTS + 1, computes=True))
    with pytest.raises(FederationError, match=r"communication 3 lacks 1 of 3 clients \('1': no reply in 0.01 s"):
        run(FEDPD, ROUNDS, broken, out=tmp_path, deadline=0.01)
    grid = Fallible(FEDPD, lambda message, deliver: deliver(message))
    grid.contexts = {node + 10: context for node, context in grid.contexts.items()}
    there = run(FEDPD, ROUNDS, grid, out=tmp_path)
    assert grid.pushed == AGENTS * (1 + ROUNDS - 3)
    assert_same(there.model, undisturbed().model, rtol=0)
    for name in ("round", "samples", "bytes_up", "local_updates"):
        np.testing.assert_array_equal(there.history[name], undisturbed().history[name])
    assert (tmp_path / "history.parquet").exists()
    again = run(FEDPD, ROUNDS, grid, out=tmp_path)  # finished: nothing is left to do
    assert_same(again.model, there.model, rtol=0)
    with pytest.raises(CheckpointError, match="another run"):
        run(FEDPD, ROUNDS, grid, out=tmp_path, seed=1)


def test_the_same_run_again_begins_again() -> None:
    assert_same(run(FEDPD, ROUNDS).model, run(FEDPD, ROUNDS).model, rtol=0)


def spoil(name: str, array: np.ndarray) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        reply.content.array_records["arrays"][name] = Array(array)

    return change


def drop_key(reply: Message) -> None:
    del reply.content.array_records["arrays"]["b"]


def drop_arrays(reply: Message) -> None:
    del reply.content["arrays"]


def pickled(reply: Message) -> None:
    reply.content.array_records["arrays"]["w"] = Array("object", (4,), "numpy.ndarray", b"\x80\x04N.")


def entry(record: str, name: str, value: Any) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        found: Any = reply.content[record]
        found[name] = value

    return change


BAD: dict[str, tuple[Callable[[Message], None], str]] = {
    "nan": (spoil("w", np.array([0, 1, np.nan, 0])), "NaN or infinity"),
    "infinity": (spoil("w", np.array([0, 1, np.inf, 0])), "NaN or infinity"),
    "shape": (spoil("w", np.zeros(5)), r"float64\[5\], but must be float64\[4\]"),
    "type": (spoil("w", np.zeros(4, np.float32)), r"float32\[4\], but must be float64\[4\]"),
    "another array": (spoil("x", np.zeros(4)), "do not belong"),
    "an array less": (drop_key, "lacks the arrays"),
    "no arrays": (drop_arrays, "has no arrays"),
    "pickle": (pickled, "is not an array"),
    "another run": (entry("config", "fedpd-run", "abc"), "expected number 1 of run"),
    "another number": (entry("metrics", "fedpd-number", 0), "expected number 1 of run"),
    "another name": (entry("config", "fedpd-name", "0"), "expected number 1 of run"),
    "work": (entry("metrics", "fedpd-updates", [1, 2]), "updates are not 1 counts"),
    "negative work": (entry("metrics", "fedpd-samples", [-5]), "samples are not 1 counts"),
    "work without end": (entry("metrics", "fedpd-samples", [2**52]), "samples are not 1 counts"),
    "a count of its own": (entry("metrics", "fedpd-rebuilt", 2**63 - 1), "rebuilt = 9223372036854775807 is not 0 or 1"),
    "a field": (entry("metrics", "fedpd-rebuilt", 0.5), "another version of fedpd"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused_and_named_and_the_round_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    change, why = BAD[name]

    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if reply is not None and order_of(message) == (VICTIM, 1):
            change(reply)
        return reply

    there = run(FEDPD, 3, Fallible(FEDPD, fault), on_timeout="partial")
    assert there.history["refused"].tolist() == [0, 0, 1, 1]
    who = np.ones((3, AGENTS), bool)
    who[1, VICTIM] = False
    assert_same(there.model, simulate(FEDPD, whole(), rounds=3, participation=who).model)
    (line,) = [record.getMessage() for record in caplog.records if "does not use" in record.getMessage()]
    assert line.startswith("Communication 1 does not use client '1': ")
    with pytest.raises(FederationError, match=why):
        run(FEDPD, 3, Fallible(FEDPD, fault))


def judged(reply: Message) -> None:
    numbers: Any = reply.content["metrics"]
    for name in ("trained", "samples", "right", "loss", "tests"):
        numbers[f"judged-{name}"] = 1.0
    numbers["judged-tests"] = -5.0


BAD_EVALUATIONS: dict[str, tuple[Callable[[Message], None], str]] = {
    "nan": (entry("metrics", "loss", float("nan")), "must all be finite numbers"),
    "no number": (entry("metrics", "loss", [1.0]), "must all be finite numbers"),
    "no gradient": (drop_arrays, "must have a loss, a gradient and their counts"),
    "a gradient with nan": (spoil("w", np.array([0, 1, np.nan, 0])), "NaN or infinity"),
    "a metric": (entry("metrics", "metric-mae", [1.0, -1.0]), "the sum and the number of a metric's values"),
    "half of the counts": (entry("metrics", "judged-samples", 3.0), "must have a loss, a gradient and their counts"),
    "a negative count": (judged, "1 and -5 are not numbers of samples"),
    "another nonce": (entry("config", "fedpd-nonce", "0" * 32), "does not repeat the nonce"),
}


@pytest.mark.parametrize("name", BAD_EVALUATIONS)
def test_a_bad_evaluation_is_refused_and_named_and_the_run_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    change, why = BAD_EVALUATIONS[name]

    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if reply is not None and message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == 2:
            change(reply)
        return reply

    there = run(FEDPD, 2, Fallible(FEDPD, fault), evaluate_every=2)
    assert_same(there.model, simulate(FEDPD, whole(), rounds=2).model)
    assert np.isnan(there.history["stationarity"]).all()
    lines = [text for text in caplog.messages if "The evaluation lacks client '1'" in text]
    assert len(lines) == there.history["refused"][-1]
    assert all(why in line for line in lines)
    assert lines


def test_updates_are_clipped_where_that_is_asked_for() -> None:
    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if reply is not None and order_of(message) == (VICTIM, 1):
            spoil("w", np.full(4, 1e9))(reply)
        return reply

    there = run(FEDPD, 2, Fallible(FEDPD, fault), clip=10.0)
    assert there.history["clipped"].tolist() == [0, 0, 1]
    assert np.abs(there.model["w"]).max() < 10
    assert_same(run(FEDPD, 2, clip=1e6).model, run(FEDPD, 2).model, rtol=0)


def test_policies_that_a_method_cannot_follow_are_refused() -> None:
    with pytest.raises(ValueError, match="would use a message twice"):
        run(algorithms.scaffold(step=0.1, iterations=1), 1, on_timeout="stale")
    with pytest.raises(ValueError, match="needs all agents"):
        run(algorithms.fedpd(eta=0.5, oracle=GD, p="auto"), 1, on_timeout="partial")
