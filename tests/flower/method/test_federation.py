"""The folder of a run: one server at a time, the metadata of the model in it, and errors as sentences."""

import logging
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedpd import FedpdError
from fedpd.base import checkpoint
from fedpd.base.atomic import held
from fedpd.flower import InProcessGrid, server_app
from fedpd.flower.method.federation import check_folder
from tests.flower.federations import AGENTS, FEDPD, app, assert_same, run, start


def test_the_metadata_are_those_of_the_model_beside_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = run(FEDPD, 6, out=tmp_path).model
    assert_same(run(FEDPD, 3, out=tmp_path).model, model, rtol=0)
    _, meta = checkpoint.read(tmp_path / "model.safetensors")
    assert meta["rounds"] == 6
    assert "rounds = 3, but the run in" in caplog.text
    assert "has already done 6" in caplog.text


def test_two_servers_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(FedpdError, match="another process is writing to this folder"):
        run(FEDPD, 1, out=tmp_path)
    run(FEDPD, 1, out=tmp_path)


def test_a_mistake_in_the_configuration_is_a_sentence_in_flowers_log(caplog: pytest.LogCaptureFixture) -> None:
    server = server_app(lambda config: FEDPD, start)
    context = Context(1, 0, {}, RecordDict(), {"agents": AGENTS, "rounds": 0})
    with pytest.raises(FedpdError) as caught:
        server(InProcessGrid(app(FEDPD), AGENTS, {}), context)
    logging.getLogger("flwr").error("ServerApp raised an exception", exc_info=caught.value)  # as Flower does
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.getMessage() == "error: rounds = 0: must be an integer of at least 1. Give T, the number of rounds."
    assert record.exc_info is None


@pytest.mark.parametrize("out", ["../x", "/tmp/x", "a/../../x"])
def test_out_stays_inside_of_the_servers_folder(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.chdir(folder)
    server = server_app(lambda config: FEDPD, start)
    context = Context(1, 0, {}, RecordDict(), {"agents": AGENTS, "rounds": 1, "out": out})
    with pytest.raises(FedpdError, match=r"out = .*must be inside of the server's own folder"):
        server(InProcessGrid(app(FEDPD), AGENTS, {}), context)


def test_out_may_not_leave_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "results").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "server")
    with pytest.raises(FedpdError, match="must be inside"):
        check_folder(Path("results/x"))
    check_folder(Path("models/one"))
