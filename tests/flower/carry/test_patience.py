"""A SuperLink that answers with errors, nodes that are gone, and lost messages under secure aggregation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import jax
import numpy as np
import pytest
from flwr.app import Message

from fedpd import simulate
from fedpd.flower import FederationError, Settings, read_settings
from fedpd.flower.carry import collect as collecting
from fedpd.flower.carry import records
from fedpd.flower.method import server
from tests.flower.carry.test_secure import stage_of
from tests.flower.federations import AGENTS, FEDPD, Deliver, Fallible, assert_same, order_of, run, whole

ROUNDS = 3


def server_error(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://127.0.0.1/v1/runtime")
    return httpx.HTTPStatusError("database is locked", request=request, response=httpx.Response(code, request=request))


def sound(message: Message, deliver: Deliver) -> Message | None:
    return deliver(message)


class Locked(Fallible):
    """Every third request of each kind is answered with an error, and its replies are lost."""

    def __init__(self, code: int = 500) -> None:
        super().__init__(FEDPD, sound)
        self.code, self.requests = code, dict.fromkeys(("pull", "push", "nodes"), 0)

    def fail(self, kind: str) -> None:
        self.requests[kind] += 1
        if self.requests[kind] % 3 == 2:
            raise server_error(self.code)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = super().pull_messages(message_ids)
        self.fail("pull")
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.fail("push")
        return super().push_messages(messages)

    def get_node_ids(self) -> Iterable[int]:
        self.fail("nodes")
        return super().get_node_ids()


def test_a_run_survives_errors_of_the_superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "REFRESH_SECONDS", 0.01)  # deep inside of a run, and no choice of users
    found = run(FEDPD, ROUNDS, Locked(), resend=0.05)
    assert_same(found.model, simulate(FEDPD, whole(), rounds=ROUNDS).model)


def test_an_error_that_time_does_not_mend_ends_the_run() -> None:
    with pytest.raises(httpx.HTTPStatusError) as error:
        run(FEDPD, ROUNDS, Locked(403))
    assert error.value.response.status_code == 403


class Leaving(Fallible):
    """Client 1 leaves after its first communication, and Flower says so. It returns when order `back` is sent."""

    def __init__(self, back: int) -> None:
        super().__init__(FEDPD, self.absent)
        self.back, self.number = back, 0

    @property
    def away(self) -> bool:
        return 1 <= self.number < self.back

    def absent(self, message: Message, deliver: Deliver) -> Message | None:
        self.number = max(self.number, order_of(message)[1])
        if self.away and message.metadata.dst_node_id == 2:
            return None
        return deliver(message)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if not (self.away and node == 2)]


@pytest.mark.parametrize("policy", ["partial", "stale"])
def test_the_server_does_not_wait_for_a_client_that_is_gone(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is 20 s. It evaluates over those present, and the client joins again when it returns."""
    monkeypatch.setattr(collecting, "REFRESH_SECONDS", 0.01)
    found = run(FEDPD, 5, Leaving(back=3), on_timeout=policy, min_clients=2, evaluate_every=1)
    assert found.history["metrics_agents"].tolist() == [
        3,
        3,
        2,
        2,
        2,
        3,
    ]  # asked again in the communication after its return
    assert found.history["missing"][-1] == 3
    assert np.isfinite(found.history["loss"]).all()
    assert found.history["bytes_up"].tolist()[-1] == (AGENTS * 5 - 3) * found.history["bytes_up"][1] / AGENTS


def test_a_communication_below_the_quorum_ends_the_run_at_the_deadline() -> None:
    with pytest.raises(FederationError, match=r"2 clients replied, but min-clients is 3 \('1': .*start the run again"):
        run(FEDPD, 5, Leaving(back=9), on_timeout="partial", min_clients=3, deadline=0.3)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"min-clients": 5, "on-timeout": "partial"}, "the server asks 4 clients"),
        ({"min-clients": 3, "cohort": 2, "on-timeout": "partial"}, "the server asks 2 clients"),
        ({"min-clients": 2}, "needs the replies of all clients"),
        ({"best": "loss"}, 'must be "min" or "max"'),
    ],
)
def test_settings_that_cannot_be(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_settings({"agents": 4, "rounds": 2, **config})


def test_without_a_quorum_the_server_waits_for_all() -> None:
    assert Settings(agents=4, rounds=2).quorum is None
    assert Settings(agents=4, rounds=2, on_timeout="stale").quorum == 1


def test_secure_aggregation_survives_a_lost_message() -> None:
    """The attempts share the deadline, so that the first one does not take all of it."""
    lost: list[str] = []

    def lose(message: Message, deliver: Deliver) -> Message | None:
        if message.metadata.dst_node_id == 1 and stage_of(message) == "keys" and not lost:
            lost.append("keys")
            return None
        return deliver(message)

    grid = Fallible(FEDPD, lose, secure=True)
    found = run(FEDPD, 2, grid, secure_range=8.0, deadline=3.0)
    assert lost == ["keys"]
    assert_same(found.model, simulate(FEDPD, whole(), rounds=2).model, rtol=1e-4)


def is_mapped(array: Any) -> bool:
    """Whether the bytes of an array are those of a file."""
    return isinstance(array, np.memmap) or (getattr(array, "base", None) is not None and is_mapped(array.base))


@pytest.mark.slow
def test_large_messages_are_fetched_one_by_one_and_wait_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the same to the last bit, and the files disappear."""
    pulled: list[int] = []
    expected = run(FEDPD, 2).model

    class Counting(Fallible):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            pulled.append(len(list(message_ids)))
            return super().pull_messages(message_ids)

    kept: list[Any] = []

    def keep(tree: Any, folder: Path | None) -> Any:
        kept.append(records.stored(tree, folder))
        return kept[-1]

    monkeypatch.setattr(collecting, "LARGE", 0)  # the server handles a message of any size: users choose no limit
    monkeypatch.setattr(records, "LARGE", 0)
    monkeypatch.setattr(server, "stored", keep)
    found = run(FEDPD, 2, Counting(FEDPD, sound), out=tmp_path)
    assert set(pulled[AGENTS:]) == {1}
    assert all(is_mapped(leaf) for tree in kept for leaf in jax.tree.leaves(tree))
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found.model[name], leaf)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoints",
        "clients",
        "history.parquet",
        "log.txt",
        "model.safetensors",
    }
