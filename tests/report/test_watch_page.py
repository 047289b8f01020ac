"""The live page of a run: what it serves, whom it answers, and that its curves grow in a real browser."""

import http.client
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fedpd import FedpdError
from fedpd.base.progress import Event
from fedpd.experiments import experiment, run_folder, runner
from fedpd.report.watch import serve, server, state
from tests.report.test_watch import EXPERIMENT, StopError

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run that was stopped after ten rounds of its first method."""
    folder = tmp_path / "<b>half"
    run_folder.create(folder, EXPERIMENT)

    def stop(event: Event) -> None:
        if event.done > 10:
            raise StopError

    with pytest.raises(StopError):
        runner.run(experiment.parse(EXPERIMENT), folder, stop)
    return folder


@pytest.fixture
def address(half: Path) -> Iterator[str]:
    """The page of the half run, on a free port."""
    page = server(partial(state, half), "127.0.0.1", 0, 0.1)
    thread = threading.Thread(target=page.run, daemon=True)
    thread.start()
    while not page.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"127.0.0.1:{page.servers[0].sockets[0].getsockname()[1]}"
    page.should_exit = True
    thread.join(10)


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_it_serves_the_state_its_own_files_and_nothing_else(half: Path, address: str) -> None:
    status, headers, _ = ask(address, "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    now = json.loads(ask(address, "/state")[2])
    assert [(one["label"], one["state"], one["done"]) for one in now["progress"]] == [
        ("First", "running", 10),
        ("Explodes", "waiting", 0),
    ]
    assert len(now["entries"][0]["y"]["stationarity"]["mean"]) == 11
    assert [ask(address, f"/{name}")[0] for name in ("plotly.js", "live.js", "page.css")] == [200] * 3
    assert [ask(address, f"/{name}")[0] for name in ("pages.py", "..%2Fpages.py", "experiment.toml")] == [404] * 3
    assert ask(address, "/state", "POST")[0] == 405, "it is read-only"
    assert ask(address, "/state", Host="evil.example")[0] == 400


def test_the_page_begins_with_what_the_experiment_asks_for(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("[run]", "[run]\nuntil = { loss = -1e9 }")
    run_folder.create(tmp_path / "run", text)
    runner.run(experiment.parse(text), tmp_path / "run", lambda event: None)
    assert [one["name"] for one in state(tmp_path / "run")["quantities"]][:2] == ["loss", "stationarity"]


def test_a_folder_that_goes_away_is_said(half: Path) -> None:
    shutil.rmtree(half)
    assert "half" in state(half)["problem"]
    with pytest.raises(FedpdError, match=r"half: there is no such folder\. Start a run: fedpd run FILE"):
        serve(half, "127.0.0.1", 8050, 1.0)


def test_a_port_in_use_is_a_sentence(half: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(FedpdError, match="Choose another --port"):
        serve(half, "127.0.0.1", taken.getsockname()[1], 1.0)
    capfd.readouterr()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
def test_curves_grow_in_a_browser(half: Path, address: str) -> None:
    driver = pytest.importorskip("playwright.sync_api")
    complaints: list[str] = []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://{address}")
        page.wait_for_selector("#figure .main-svg")
        page.wait_for_selector("#status:has-text('First: round 10 of')")
        assert page.inner_text("#name") == "<b>half"
        assert page.inner_text("#newest") == "stationarity"
        assert re.fullmatch(r"\d\.\d\de[+-]\d+", page.inner_text("#rows tr:first-child td:nth-of-type(2)"))
        runner.run(experiment.parse(EXPERIMENT), half, lambda event: None)
        page.wait_for_selector("#status:text-is('Finished.')")  # has-text would find "methods finished." too
        assert "diverged" in page.inner_text("#rows")
        assert "communications; Explodes did not reach it." in page.inner_text("#finding")
        page.click("text=loss")
        assert page.get_attribute("#y button:nth-of-type(2)", "aria-pressed") == "true"
        browser.close()
    assert complaints == []
