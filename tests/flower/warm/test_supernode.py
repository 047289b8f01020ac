"""A SuperNode whose connection fails tries again; one whose loop ends starts again, as the same process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection, start_client_internal

from fedpd.flower.warm import supernode
from fedpd.flower.warm.supernode import NotAdmittedError, PatientHeartbeat, patient_invoker, persist

LOOP = """
import subprocess, sys
from pathlib import Path
from fedpd.flower.warm import supernode
from fedpd.flower.warm.supernode import NotAdmittedError

supernode.SHORTEST, supernode.LONGEST = 0.1, 0.2

def loop():
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    with Path(sys.argv[1]).open("a") as file:
        print(child.pid, file=file)
    if child.pid % 2:
        raise NotAdmittedError("not now")

supernode.run(loop)
"""


@pytest.mark.slow
def test_a_loop_that_ends_starts_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seen, script = tmp_path / "children", tmp_path / "loop.py"
    script.write_text(LOOP)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(script), str(seen)], stderr=log)
    try:
        until = time.monotonic() + 60
        while not (seen.exists() and len(seen.read_text().split()) >= 3):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        assert psutil.Process(process.pid).name().startswith("python")
        first, second, *_ = map(int, seen.read_text().split())
        assert not psutil.pid_exists(first)
        assert not psutil.pid_exists(second)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        for pid in map(int, seen.read_text().split()):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
    assert "It starts again in 0.1 s." in (tmp_path / "log").read_text()
    assert process.returncode == -signal.SIGTERM


def test_errors_of_tls_are_tried_again() -> None:
    """Flower gives up after an error that names ssl, tls or certificate."""
    give_up = patient_invoker().should_giveup
    assert give_up is not None
    assert not give_up(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"))
    assert not give_up(httpx.ReadError("[SSL: TLSV1_ALERT_INTERNAL_ERROR] tls alert"))
    request = httpx.Request("POST", "http://127.0.0.1")
    for code, ends in ((401, True), (413, True), (502, False)):
        assert give_up(httpx.HTTPStatusError("", request=request, response=httpx.Response(code))) is ends


def test_heartbeats_go_on_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[None] = []

    def beat() -> bool:
        beats.append(None)
        if len(beats) < 3:
            raise RuntimeError("Heartbeat failed unexpectedly.")
        return True

    sender = PatientHeartbeat(beat)
    sender._retry_invoker.wait_function = lambda _: None
    monkeypatch.setattr(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", 6.0)
    sender.start()
    until = time.monotonic() + 10
    while len(beats) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert sender.is_running
    sender.stop()


def test_a_supernode_that_is_not_admitted_does_not_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("make_simple_http_retry_invoker", "HeartbeatSender", "flwr_exit"):
        monkeypatch.setattr(fleet_http_connection, name, getattr(fleet_http_connection, name))
    persist()

    def refuse(*_: object) -> None:
        raise httpx.ConnectError("no server")

    monkeypatch.setattr(fleet_http_connection.FleetHttpClient, "RegisterNode", refuse)
    invoker = supernode.patient_invoker()
    invoker.max_tries = 1
    monkeypatch.setattr(fleet_http_connection, "make_simple_http_retry_invoker", lambda: invoker)
    with (
        pytest.raises(NotAdmittedError, match="no server"),
        start_client_internal._init_connection("127.0.0.1:1", insecure=True),
    ):
        pass
