"""The warm process, with Flower's requests to the SuperNode replaced by a list of messages; and when it ends itself."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpd.flower.warm import process, shim, supernode

ARGUMENTS = ["--runtime-api-address", "127.0.0.1:1", "--insecure", "--token", "abc", "--parent-pid", "77"]


def task(run: int) -> process.Task:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 5, 9
    message = Message(RecordDict({"config": ConfigRecord({"n": 1})}), 5, "query")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(run, 5, {}, RecordDict(), {})
    return process.Task(message, context, Run.create_empty(run), Fab("hash", b"", {}))


class Node:
    """A SuperNode that passes on messages and keeps the replies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Callable[..., Message]) -> None:
        self.replies: list[Message] = []
        self.statuses: list[str] = []
        self.loaded = 0
        self.run = 1
        quiet = SimpleNamespace(start=lambda: None, stop=lambda: None)
        monkeypatch.setattr(process, "HeartbeatSender", lambda _: quiet)
        monkeypatch.setattr(process, "pull_task_input", lambda _: tuple(task(self.run)))
        monkeypatch.setattr(process, "push_message", lambda _, reply, __: self.replies.append(reply))
        monkeypatch.setattr(process, "push_task_output", lambda *parts: self.statuses.append(parts[2]))
        monkeypatch.setattr(process, "install_from_fab", lambda *_, **__: None)

        def load(*_: Any, **__: Any) -> Any:
            self.loaded += 1
            return lambda *_: app

        monkeypatch.setattr(process, "get_load_client_app_fn", load)


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def test_the_app_is_loaded_once_and_answers_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    node, warm = Node(monkeypatch, echo), process.WarmProcess("/flower")
    for _ in range(3):
        warm.answer(ARGUMENTS, process.Connection(None))
    assert (node.loaded, len(node.replies), warm.is_worn()) == (1, 3, False)
    assert set(node.statuses) == {"completed"}


def test_a_process_is_replaced_after_many_messages_after_growth_and_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Node(monkeypatch, echo)
    warm = process.WarmProcess("/flower")
    warm.answer(ARGUMENTS, process.Connection(None))
    assert warm.is_worn(messages=1)
    assert not warm.is_worn()
    warm.first_size = 1
    assert warm.is_worn(growth=0)


def test_an_exception_of_the_app_becomes_an_error_reply_and_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def app(message: Message, context: Context) -> Message:
        raise ZeroDivisionError("by zero")

    node, warm = Node(monkeypatch, app), process.WarmProcess("/flower")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        warm.answer(ARGUMENTS, process.Connection(theirs))
        assert ours.recv(2) == shim.TAKEN + shim.FAILED
    assert "by zero" in str(node.replies[0].error.reason)
    assert node.statuses == ["failed"]
    assert warm.is_worn()


def test_a_message_of_another_run_is_handed_to_a_new_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message and the connection survive the exec, and the new program does not pull it again."""
    node, warm = Node(monkeypatch, echo), process.WarmProcess("/flower")
    warm.answer(ARGUMENTS, process.Connection(None))
    node.run = 2
    ours, theirs = socket.socketpair()

    def run(program: str, arguments: list[str]) -> None:  # what an exec inherits
        copies = [os.dup(int(word)) for word in os.environ[process.HANDED_OVER].split(",")]
        monkeypatch.setenv(process.HANDED_OVER, ",".join(map(str, copies)))
        raise SystemExit(" ".join(arguments))

    monkeypatch.setattr(shim, "run", run)
    with ours, theirs:
        with pytest.raises(SystemExit, match=r"-m fedpd\.flower.warm\.process /flower --runtime-api-address"):
            warm.answer(ARGUMENTS, process.Connection(theirs))
        TaskIdentity.task_id = 0
        handed, connection = process.take_handed_over()
        assert handed is not None
        assert (handed.origin, handed.message.content["config"]["n"], TaskIdentity.task_id) == ((2, "hash"), 1, 9)
        node.run = 3
        process.WarmProcess("/flower").answer(ARGUMENTS, connection, handed)
        assert ours.recv(3) == shim.TAKEN + shim.DONE
        assert connection.to_shim is not None
        connection.to_shim.close()
    assert process.HANDED_OVER not in os.environ
    assert len(node.replies) == 2


def test_pauses_are_short_after_a_message_and_as_flowers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    pauses = supernode.Pauses()
    for seconds in (3, 3, 3, 3, 3, 3, 0.5, 3):
        pauses.sleep(seconds)
    assert slept == [0.25, 0.5, 1.0, 2.0, 3, 3, 0.1, 0.25]


def test_a_process_whose_message_never_comes_makes_way_for_the_next() -> None:
    """Without it, a run that is ended while it sends would leave the process waiting, and later messages run cold."""
    left = threading.Event()
    leaving = partial(process.leaving_if_superseded, leave=lambda code: left.set(), look=0.01, grace=0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with leaving(server):
            assert not left.wait(0.2), "no other message waits"
            with socket.create_connection(server.getsockname()):
                assert left.wait(10.0)
        left.clear()
        with leaving(server):
            pass
        assert not left.wait(0.2), "the message had come"


def test_it_ends_with_its_supernode_while_it_waits_for_a_message() -> None:
    code = (
        "import signal, socket, sys; from fedpd.flower.warm import process\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "server = socket.create_server(('127.0.0.1', 0)); process.end_with(int(sys.argv[1])); print(flush=True)\n"
        "server.accept()"
    )
    parent = subprocess.Popen(["sleep", "600"])
    try:
        warm = subprocess.Popen([sys.executable, "-c", code, str(parent.pid)], stdout=subprocess.PIPE)
        assert warm.stdout is not None
        with warm.stdout:
            warm.stdout.readline()
            assert warm.poll() is None
    finally:
        parent.kill()
        parent.wait()
    assert warm.wait(20) == 7
