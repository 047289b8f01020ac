"""What users learn during a federation, and the folder that it leaves: as in a simulation."""

import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpd
from fedpd import loggers
from fedpd.cli import app as command_line
from fedpd.core import Tree
from fedpd.flower import InProcessGrid
from fedpd.flower.method.federation import federate
from fedpd.flower.method.settings import Settings
from tests.flower.federations import AGENTS, FEDPD, app, assert_same, run, start

ROUNDS = 4


def watched(rounds: int = ROUNDS, **options: Any) -> Any:
    functions = {name: options.pop(name) for name in ("callback", "log", "until", "test") if name in options}
    settings = Settings(agents=AGENTS, rounds=rounds, deadline=20.0, poll=0.001, **options)
    return federate(InProcessGrid(app(FEDPD), AGENTS, {}), FEDPD, start(), settings, **functions)


def test_the_callback_gets_every_row_with_its_model_and_can_end_the_run(tmp_path: Path) -> None:
    seen: list[tuple[int, Tree, dict[str, Any]]] = []

    def callback(r: int, model: Tree, row: dict[str, Any]) -> Any:
        seen.append((r, model, row))
        return np.bool_(r == 2)

    found = watched(callback=callback, out=tmp_path)
    assert [r for r, _, _ in seen] == found.history["round"].tolist() == [0, 1, 2]
    assert_same(seen[0][1], start())
    assert_same(seen[-1][1], found.model)
    assert seen[-1][2]["loss"] == found.history["loss"][-1]
    assert seen[0][2]["algorithm"] == found.algorithm
    assert_same(watched(out=tmp_path).model, run(FEDPD, ROUNDS).model)  # started again, it goes on to the end


def test_another_answer_of_a_callback_is_refused() -> None:
    with pytest.raises(fedpd.FedpdError, match=r"callback = 1: the callback returned neither True, False nor None"):
        watched(callback=lambda r, model, row: 1)


def test_targets_end_the_run_and_a_run_that_has_reached_them_does_not_go_on(tmp_path: Path) -> None:
    losses = watched().history["loss"]
    target = {"loss": float(losses[2])}
    assert len(watched(until=target, out=tmp_path).history["round"]) == 3
    assert len(watched(until=target, out=tmp_path).history["round"]) == 3
    with pytest.raises(fedpd.FedpdError, match="the run does not measure this column"):
        watched(until={"los": 1.0})


def test_the_servers_own_evaluation_becomes_columns_of_the_history() -> None:
    found = watched(rounds=3, test=lambda model: {"server_norm": np.sum(model["w"] ** 2)}, evaluate_every=2)
    assert np.isnan(found.history["server_norm"]).tolist() == [False, True, False, True]
    assert found.history["server_norm"][0] == 0.0
    alone = watched(rounds=2, test=lambda model: {"server_norm": float(model["b"])}, evaluate_every=0)
    assert np.isfinite(alone.history["server_norm"]).all()
    assert alone.history["server_norm"][-1] == alone.model["b"]


def test_the_best_model_is_kept_beside_the_last(tmp_path: Path) -> None:
    values = iter([0.0, 1.0, 3.0, 2.0, 0.5])
    models: list[Tree] = []
    found = watched(
        test=lambda model: {"score": next(values)},
        callback=lambda r, model, row: models.append(model),
        best="max score",
        out=tmp_path,
    )
    assert_same(fedpd.load_model(tmp_path / "best.safetensors"), models[2])
    assert_same(fedpd.load_model(tmp_path), found.model)
    with pytest.raises(fedpd.FedpdError, match="the history has no column 'scores'"):
        watched(best="max scores", out=tmp_path / "other")


def test_a_finished_run_takes_more_rounds_and_never_fewer(tmp_path: Path) -> None:
    watched(rounds=2, out=tmp_path)
    assert_same(watched(rounds=5, out=tmp_path).model, run(FEDPD, 5).model)
    assert watched(rounds=3, out=tmp_path).history["round"][-1] == 5
    assert int(fedpd.load(tmp_path)[FEDPD.description].history["round"][-1]) == 5


def test_the_folder_is_loaded_reported_and_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(r: int, model: Tree, row: dict[str, Any]) -> None:
        if r == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(callback=stop, out=tmp_path)
    with pytest.raises(fedpd.FedpdError, match="there is no model yet"):
        fedpd.load_model(tmp_path)
    seen = CliRunner().invoke(command_line, ["watch", str(tmp_path), "--once"])
    assert seen.exit_code == 0
    assert "finished" not in seen.output
    found = watched(out=tmp_path, label="mine")
    loaded = fedpd.load(tmp_path)["mine"]
    assert_same(loaded.model, found.model)
    np.testing.assert_array_equal(loaded.history["loss"], found.history["loss"])
    assert loaded.spec == FEDPD.spec
    seen = CliRunner().invoke(command_line, ["watch", str(tmp_path)])
    assert "finished" in seen.output
    written = CliRunner().invoke(command_line, ["report", str(tmp_path)])
    assert written.exit_code == 0, written.output
    assert "mine" in (tmp_path / "report.html").read_text()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert any("Round 4 of 4" in line for line in lines)
    assert f"fedpd.load_model({str(tmp_path)!r})" in lines[-1]
    assert "Model: " in lines[-2]


def test_rows_go_to_loggers_and_to_prometheus() -> None:
    rows: list[Any] = []
    texts: list[str] = []
    (port,) = _free()

    def ask(r: int, model: Tree, row: dict[str, Any]) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            texts.append(answer.read().decode())

    watched(rounds=1, log=rows.extend, callback=ask, metrics_port=port)
    assert [row["round"] for row in rows] == [0, 1]
    assert "# TYPE fedpd_loss gauge" in texts[-1]
    assert f'fedpd_round{{algorithm="{FEDPD.description}",seed="0"}} 1.0' in texts[-1]
    with pytest.raises(OSError, match="refused"):
        ask(0, None, {})


def test_a_port_in_use_is_named() -> None:
    (port,) = _free()
    with loggers.prometheus(port), pytest.raises(fedpd.FedpdError, match=rf"port = {port}: cannot be used"):
        watched(rounds=1, metrics_port=port)


def test_the_program_of_the_page_on_running_is_sound() -> None:
    page = (Path(__file__).parents[3] / "docs/deploy/running.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[2].split("```")[0], names)
    assert names["callback"](1, names["start"]({}), names["test"]({"w": np.full(20, 3.0)}))


def _free() -> list[int]:
    from fedpd.flower.local.federation import free_ports

    return free_ports(1)
