"""Bars: what a terminal and a notebook show."""

import io
import sys
import time
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedpd import algorithms, oracles, problems, simulate
from fedpd.base.progress import Event, Pace, plain_lines, terminal_bars

LONG = "FedPD-GD with a long name, half the communications"


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_each_method_and_the_time_that_is_left(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=False)
    with terminal_bars(console, ["first", LONG], 1000) as listen:
        listen(Event("first", 0, 1000, compiling=True))
        now[0] = 1.0
        listen(Event("first", 1, 1000, 1.0))
        now[0] = 10.0
        listen(Event("first", 1000, 1000, 1.2e-10))
        listen(Event(LONG, 0, 1000, compiling=True))
    lines = file.getvalue().rstrip().splitlines()
    assert [line.split()[0] for line in lines] == ["first", "FedPD-GD", "all"]
    assert lines[0].rstrip().endswith("1,000/1,000 111/s ‖∇f‖² 1.20e-10")  # 999 rounds in 9 seconds
    assert lines[1].rstrip().endswith("0/1,000 compiling")
    assert lines[2].rstrip().endswith("1,000/2,000 rounds, 10 s left")
    assert max(map(len, lines)) <= width


def test_the_time_left_counts_only_what_this_process_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    assert Pace(0.0, 500).left(600, 1000) == "3 min left"  # 100 rounds in 50 seconds, 400 to go
    assert Pace(0.0, 500).left(500, 1000) == ""
    assert Pace(49.0, 0).left(60, 100) == "1 s left"


class Handle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, content: dict[str, str], raw: bool) -> None:
        self.shown.append(content["text/plain"])


def test_a_notebook_updates_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(f"new line: {content['text/plain']}")
        assert "<progress" in content["text/html"]
        return Handle(shown)

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    as_any: Any = ipython
    as_any.get_ipython = lambda: SimpleNamespace(kernel=object())
    displays.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    algorithm = algorithms.fedpd(eta=0.2, oracle=oracles.gd(0.1, 5))
    simulate(algorithm, problems.opposing_quadratics(), rounds=20, progress=True)
    assert shown[0] == "new line: fedpd  0/20 rounds  compiling"
    assert shown[-1].startswith("fedpd  20/20 rounds")
    assert sum(line.startswith("new line") for line in shown) == 1
    before = len(shown)
    simulate(algorithm, problems.opposing_quadratics(), rounds=20)  # over in less than two seconds
    assert len(shown) == before


def test_without_a_terminal_a_run_writes_a_line_per_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [0.0], list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with plain_lines(lines.append, ["test_accuracy"]) as listen:
        for second in range(0, 200, 10):
            now[0] = float(second)
            rows = [{"test_accuracy": second / 1000}]
            listen(Event("FedPD", second, 200, 0.5, rows=partial(list, rows)))
        now[0] = 200.0
        for _ in range(2):  # the end is written once
            listen(Event("FedPD", 200, 200, 0.25))
    assert [line.partition(",")[0] for line in lines] == [
        "FedPD: 60/200 rounds", "FedPD: 120/200 rounds", "FedPD: 180/200 rounds", "FedPD: 200/200 rounds",
    ]  # fmt: skip
    assert lines[0].endswith("test_accuracy 0.06")
