"""What a SuperLink stores of a client: no more than the run of its order allows."""

import inspect
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from fastapi import FastAPI, HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.superlink import extensions, main
from flwr.superlink.routers.fleet import router
from flwr.superlink.servicer.fleet import fleet_handlers

from fedpd.flower.method.shapes import entries_of
from fedpd.flower.warm import limits
from fedpd.flower.warm.limits import ROOM, declare_limit, largest_reply, read_limit
from fedpd.flower.warm.program import STATUS
from fedpd.flower.warm.superlink import ReplyLimits, prepare

RUN, LIMIT = 2**63 + 1, 1000


def reply_to(order: str, node: int = 7) -> PushMessagesRequest:
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[Message(metadata=Metadata(run_id=RUN, reply_to_message_id=order))]
    )


def part(size: int, session: str = "1", node: int = 7, run: int = RUN) -> PushObjectRequest:
    return PushObjectRequest(node=Node(node_id=node), run_id=run, session_id=session, object_content=bytes(size))


def accepting(*known: str) -> Any:
    """Stands for Flower's handler: it opens a session for a reply to one of these orders."""
    sessions = iter("123456789")

    def handle(request: PushMessagesRequest, state: Any) -> PushMessagesResponse:
        missing = ["object"] if request.messages_list[0].metadata.reply_to_message_id in known else []
        return PushMessagesResponse(session_id=next(sessions), objects_to_push=missing)

    return handle


def test_a_reply_ends_where_its_order_says_and_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    stored: list[int] = []
    deleted: list[str] = []
    counts = ReplyLimits({RUN: LIMIT}.get)
    state = SimpleNamespace(_cleanup_push_session=lambda session, cleanup_messages: deleted.append(session))
    assert set(inspect.signature(SqlLinkState._cleanup_push_session).parameters) >= {"session_id", "cleanup_messages"}
    take = partial(counts.messages(accepting("order-1", "order-2")), state=state)
    store = partial(counts.objects(lambda request, state: stored.append(len(request.object_content))), state=state)
    take(reply_to("order-1"))
    store(part(500))
    with caplog.at_level(logging.WARNING), pytest.raises(HTTPException) as refusal:
        store(part(600))
    assert (refusal.value.status_code, refusal.value.detail) == (413, "A reply of this run has at most 1000 bytes.")
    assert "Node 7 sends 1" in caplog.text
    with pytest.raises(HTTPException):  # to say it again opens no new account
        take(reply_to("order-1"))
    store(part(900, node=8))  # another client
    take(reply_to("order-2"))
    store(part(900, "2"))
    store(part(10**6, run=5, node=8))  # an app that did not say
    assert stored == [500, 900, 900, 10**6]
    assert deleted == ["1"]


def test_no_other_message_of_a_node_opens_a_new_account_for_its_reply() -> None:
    """To begin a reply to another order, or to one that does not exist, set the count of the first reply to zero."""
    stored: list[int] = []
    counts = ReplyLimits({RUN: LIMIT}.get)
    state = SimpleNamespace(_cleanup_push_session=lambda session, cleanup_messages: None)
    take = partial(counts.messages(accepting("order-1", "order-2")), state=state)
    store = partial(counts.objects(lambda request, state: stored.append(len(request.object_content))), state=state)
    take(reply_to("order-1"))
    store(part(600))
    take(reply_to("made-up"))
    with pytest.raises(HTTPException):
        store(part(600))
    take(reply_to("order-2"))
    store(part(600, "3"))
    for order in ("order-1", "order-2"):
        with pytest.raises(HTTPException):  # also in another session
            take(reply_to(order)), store(part(600, {"order-1": "1", "order-2": "4"}[order]))
    store(part(600, ""))  # which Flower takes for any session
    with pytest.raises(HTTPException):
        store(part(600, ""))
    assert stored == [600, 600, 600]
    assert set(counts.received) == {(7, "order-1"), (7, "order-2"), (7, "")}


def test_the_limit_of_a_run_follows_from_its_model_and_outlives_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(limits.OWNERS, raising=False)
    declare_limit(RUN, LIMIT)
    assert read_limit(RUN) is None
    monkeypatch.setenv(limits.OWNERS, str(tmp_path / "clients.json"))
    assert read_limit(RUN) is None
    model = {"w": np.zeros((100, 5)), "b": np.zeros(())}
    assert largest_reply(entries_of(jax.eval_shape(lambda: model))) == ROOM + 4 * 8 * 501
    declare_limit(RUN, LIMIT)
    for run in range(150):
        declare_limit(run, run)
    assert read_limit(149) == 149
    assert read_limit(RUN) is None  # only the newest are kept
    declare_limit(RUN, LIMIT)
    assert read_limit(RUN) == LIMIT
    (tmp_path / "limits.json").write_text("{")
    assert read_limit(RUN) is None


def test_flower_calls_the_functions_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails if a new version of Flower has them elsewhere."""
    assert router.fleet_handlers is fleet_handlers
    assert main.extensions is extensions
    for name in ("push_messages", "push_object"):
        monkeypatch.setattr(fleet_handlers, name, getattr(fleet_handlers, name))
    monkeypatch.setattr(extensions, "configure_app", extensions.configure_app)
    before: Any = fleet_handlers.push_object
    prepare(ReplyLimits())
    assert fleet_handlers.push_object is not before
    app = FastAPI()
    extensions.configure_app(app)
    assert STATUS in {getattr(route, "path", "") for route in app.routes}
