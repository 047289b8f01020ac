"""`fedpd reproduce` lists items, refuses wrong input, runs items and keeps their results."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedpd.checks import FedpdError
from fedpd.reproduce import ITEMS, Check, Verdict, reproduce
from fedpd.reproduce.command import Item, load, wanted_items
from fedpd.reproduce.session import Findings, Outcome, Session
from tests.cli.test_cli import fedpd


def item(outcome: Outcome, table: bool = False) -> Item:
    def run(session: Session) -> Findings:
        session.on_progress("counting", 1, 1)
        rows = (("method", "cost"), ("a|b", "1")) if table else ()
        checks = [Check(what, "1", "2", outcome, "So it is.") for what in ("a | b", "c")]
        return Findings(checks, "small", Figure(), rows)

    return Item("an item", run)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ITEMS, "fig1", item(Outcome.AGREES))
    monkeypatch.setitem(ITEMS, "table2", item(Outcome.DIFFERS, table=True))


def test_items_are_those_of_the_paper() -> None:
    figures = ["fig1", "fig2a", "fig2b", "fig2c", "fig2d", "fig3a", "fig3b", "fig4", "fig5"]
    others = ["table1", "table2", "claim2.1", "claim2.2", "theorem1", "theorem3", "remarks", "better"]
    assert sorted(ITEMS) == sorted(figures + others)
    assert wanted_items([]) == list(ITEMS)
    assert wanted_items(["fig2a", "fig1"]) == ["fig1", "fig2a"]  # in the order of the paper


def test_the_list(tmp_path: Path) -> None:
    shown = fedpd("reproduce", "--list", folder=tmp_path).stdout
    for name in ITEMS:
        assert name in shown


def test_an_unknown_item_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match=r"ITEM = 'fig2': there is no such choice\. Did you mean 'fig2"):
        reproduce(["fig2"])
    outcome = fedpd("reproduce", "theorem2", folder=tmp_path)
    assert outcome.returncode == 2
    assert "Did you mean 'theorem" in outcome.stderr
    assert not list(tmp_path.iterdir())


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="there is no such file"):
        reproduce(["fig1"], out=tmp_path, data=tmp_path / "nowhere")


@pytest.mark.usefixtures("quick")
def test_what_is_written(tmp_path: Path) -> None:
    found = reproduce(["table2", "fig1"], out=tmp_path)
    assert [one.verdict for one in found] == [Verdict.REPRODUCED, Verdict.NOT]
    text = (tmp_path / "reproduction.md").read_text()
    assert "| [fig1](#fig1) | an item | reproduced |" in text
    assert "| a \\| b | 1 | 2 | differs | So it is. |\n| c | 1 | 2 | differs | as above |" in text
    assert "| a\\|b | 1 |" in text
    assert "![an item](fig1.png)" in text
    stored = json.loads((tmp_path / "reproduction.json").read_text())
    assert [one["name"] for one in stored["items"]] == ["fig1", "table2"]
    assert (tmp_path / "fig1.png").stat().st_size > 0


@pytest.mark.usefixtures("quick")
def test_items_of_earlier_runs_stay(tmp_path: Path) -> None:
    reproduce(["table2"], out=tmp_path)
    reproduce(["fig1"], out=tmp_path)
    assert [(one.name, one.verdict) for one in load(tmp_path)] == [
        ("fig1", Verdict.REPRODUCED),
        ("table2", Verdict.NOT),
    ]
    assert load(tmp_path)[1].checks[0].outcome is Outcome.DIFFERS


def test_a_broken_store_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "reproduction.json").write_text("{")
    with pytest.raises(FedpdError, match="is not a file of fedpd reproduce"):
        load(tmp_path)


@pytest.mark.slow
def test_the_command_shows_tables_and_keeps_them(tmp_path: Path) -> None:
    outcome = fedpd("reproduce", "fig1", "remarks", "--out", "found", folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    for words in ("with a", "corrected", "agrees", "found/reproduction.md"):
        assert words in outcome.stdout
    assert (tmp_path / "found" / "fig1.png").exists()
    assert [one.name for one in load(tmp_path / "found")] == ["fig1", "remarks"]
