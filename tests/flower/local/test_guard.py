"""A SuperNode runs only the apps on its client's list."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower

from fedpd import FedpdError
from fedpd.flower.local.new_app import new_app
from fedpd.flower.local.sites import app_hash, guarded

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # flwr uses an old name of pathspec
APP = b"the bytes of an app"


def message() -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    made = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    made.metadata.__dict__.update(_run_id=7, _message_id="m")
    return made


def receive_app(
    policy: Path | None, monkeypatch: pytest.MonkeyPatch, content: bytes = APP
) -> tuple[Any, list[Message]]:
    """What Flower's function returns when a message with a new app arrives, and the replies that it has stored."""
    replies: list[Message] = []
    monkeypatch.setattr(flower, "_insert_message", lambda reply, state, store: replies.append(reply))

    def pull(*, receive: Any, get_fab: Any, **_: Any) -> int:
        found, _ = receive()
        get_fab("the hash that the server says", found.metadata.run_id)
        return 99  # the app would run now

    arguments = {
        "receive": lambda: (message(), None),
        "get_fab": lambda fab_hash, run_id: SimpleNamespace(content=content, hash_str=fab_hash),
        "state": None,
        "object_store": None,
    }
    run = guarded(pull, policy, "hospital-1")(**arguments)
    assert run is not None
    return run, replies


def test_an_app_that_is_not_listed_is_answered_with_an_error_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'apps = ["{"0" * 64}"]')
    run, (reply,) = receive_app(policy, monkeypatch)
    assert run == 7
    assert reply.error.code == ErrorCode.INVALID_FAB
    assert "client 'hospital-1' does not run this app: its hash" in str(reply.error.reason)
    assert str(policy) in str(reply.error.reason)


def test_a_listed_app_and_any_app_without_a_list_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tmp_path / "toy-app"
    new_app(app, "numpy")
    policy = tmp_path / "policy.toml"
    policy.write_text(f'apps = ["{app_hash(app)}"]')
    assert receive_app(policy, monkeypatch, build_fab_from_disk(app)) == (99, [])
    assert receive_app(policy, monkeypatch)[0] == 7
    policy.write_text("secure = true")
    assert receive_app(policy, monkeypatch) == (99, [])
    assert receive_app(None, monkeypatch) == (99, [])


def test_the_hash_changes_with_the_app(tmp_path: Path) -> None:
    app = tmp_path / "toy-app"
    new_app(app, "numpy")
    before = app_hash(app)
    assert before == app_hash(app)
    task = app / "toy_app" / "task.py"
    task.write_text(task.read_text() + "# changed\n")
    assert app_hash(app) != before
    with pytest.raises(FedpdError, match=r"has no pyproject\.toml"):
        app_hash(tmp_path)


def test_flowers_function_takes_the_arguments_that_the_guard_replaces() -> None:
    names = set(inspect.signature(flower._pull_and_store_message).parameters)
    assert {"receive", "get_fab", "state", "object_store"} <= names
    assert "_pull_and_store_message(\n                state=state," in inspect.getsource(flower.start_client_internal)
