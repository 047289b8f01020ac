"""A warm process ends if it would wait in vain."""

import socket
import subprocess
import sys
import threading

import pytest

from fedpd.flower.warm import process


def test_a_process_whose_message_never_comes_makes_way_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a run that is ended while it sends would leave the process waiting, and later messages run cold."""
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.05)
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with process.leaving_if_superseded(server, lambda code: left.set()):
            assert not left.wait(0.2), "no other message waits"
            with socket.create_connection(server.getsockname()):
                assert left.wait(10.0)
        left.clear()
        with process.leaving_if_superseded(server, lambda code: left.set()):
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
