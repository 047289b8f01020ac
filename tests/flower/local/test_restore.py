"""A server that resumes from a backup, with clients that have done more."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpd import Algorithm, FedpdError, algorithms
from fedpd.cli import app as command_line
from fedpd.flower import FederationError, InProcessGrid
from tests.flower.federations import AGENTS, FEDPD, GD, app, assert_same, run

FEDAVG = algorithms.fedavg(oracle=GD)
ROUNDS = 12
RUN = "0" * 16 + "-" + "a" * 32


def grid_of(algorithm: Algorithm, states: Path) -> InProcessGrid:
    return InProcessGrid(app(algorithm), AGENTS, {}, **{"fedpd-state": str(states)})


def invoke(*words: object) -> str:
    result = CliRunner().invoke(command_line, ["restore", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def with_backup(algorithm: Algorithm, folder: Path) -> None:
    """Make a backup of server and clients at round 3, and go on to round 9; then the server's folder is lost."""
    run(algorithm, 3, grid_of(algorithm, folder / "states"), out=folder / "out")
    shutil.copytree(folder / "out", folder / "backup" / "out")
    shutil.copytree(folder / "states", folder / "backup" / "states")
    run(algorithm, 9, grid_of(algorithm, folder / "states"), out=folder / "out")
    shutil.rmtree(folder / "out")


def restored_command(folder: Path) -> list[str]:
    """Restore the server's folder elsewhere, and return the words of the command that it shows for clients."""
    said = invoke(folder / "elsewhere", "--from", folder / "backup" / "out")
    assert "after 3 communications" in said
    (line,) = re.findall(r"fedpd restore STATE (.*)", said)
    return line.split()


def test_without_the_command_the_clients_refuse_and_say_what_to_run(tmp_path: Path) -> None:
    with_backup(FEDPD, tmp_path)
    words = " ".join(restored_command(tmp_path))
    with pytest.raises(FederationError, match=f"number 3 came after number 8 was done.*fedpd restore STATE {words}"):
        run(FEDPD, ROUNDS, grid_of(FEDPD, tmp_path / "states"), out=tmp_path / "elsewhere")


@pytest.mark.parametrize(("algorithm", "copies"), [(FEDPD, True), (FEDAVG, False)])
def test_the_restored_run_has_the_numbers_of_an_uninterrupted_one(
    algorithm: Algorithm, copies: bool, tmp_path: Path
) -> None:
    """With copies of the clients' states; without copies, for a method whose clients keep no state."""
    with_backup(algorithm, tmp_path)
    words = restored_command(tmp_path)
    said = invoke(tmp_path / "states", *words, *(["--from", tmp_path / "backup" / "states"] if copies else []))
    assert ("continues from its copy, of communication 2" in said) == copies
    found = run(algorithm, ROUNDS, grid_of(algorithm, tmp_path / "states"), out=tmp_path / "elsewhere")
    assert_same(found.model, run(algorithm, ROUNDS).model, rtol=0.0)
    assert found.history["rebuilt"][-1] == (0 if copies else AGENTS)


@pytest.mark.slow
def test_without_copies_fedpd_rebuilds_and_finds_the_same_minimiser(tmp_path: Path) -> None:
    with_backup(FEDPD, tmp_path)
    said = invoke(tmp_path / "states", *restored_command(tmp_path))
    assert said.count("there is no copy of its state") == AGENTS
    found = run(FEDPD, 100, grid_of(FEDPD, tmp_path / "states"), out=tmp_path / "elsewhere")
    plain = run(FEDPD, 100)
    assert found.history["rebuilt"][-1] == AGENTS
    assert_same(found.model, plain.model, rtol=1e-6)
    kept = sorted((tmp_path / "states").glob("*/*.number-8"))
    assert len(kept) == AGENTS


def test_a_state_that_is_not_newer_stays(tmp_path: Path) -> None:
    run(FEDPD, 3, grid_of(FEDPD, tmp_path / "states"), out=tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "states").glob("*/*")}
    (name,) = {path.stem for path in before}
    assert invoke(tmp_path / "states", "--run", name, "--number", "3").count("it needs no restore") == AGENTS
    assert {path: path.read_bytes() for path in (tmp_path / "states").glob("*/*")} == before


def test_a_copy_that_is_too_new_is_not_used(tmp_path: Path) -> None:
    with_backup(FEDPD, tmp_path)
    words = restored_command(tmp_path)
    shutil.copytree(tmp_path / "states", tmp_path / "late")
    said = invoke(tmp_path / "states", *words, "--from", tmp_path / "late")
    assert said.count("its copy is of communication 8, which is later") == AGENTS


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    run(FEDPD, 1, grid_of(FEDPD, tmp_path / "states"), out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    run_words = ("--run", RUN, "--number", "3")
    for words, message in (
        ((tmp_path / "nothing",), "is not a folder"),
        ((tmp_path / "empty",), "has no intact checkpoint of a federation"),
        ((tmp_path / "out", "--from", tmp_path / "out"), "has checkpoints already"),
        ((tmp_path / "states", *run_words), "has no state of run"),
        ((tmp_path / "states", "--run", "../x", "--number", "3"), "is not the identity of a run"),
        ((tmp_path / "states", "--run", RUN), "needs --number"),
        ((tmp_path / "states", "--run", RUN, "--number", "-1"), "must be a number of communications"),
    ):
        with pytest.raises(FedpdError, match=message):
            invoke(*words)
    (path,) = (tmp_path / "out" / "checkpoints").glob("*")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(FedpdError, match="has no intact checkpoint"):
        invoke(tmp_path / "out")
    assert np.all([state.is_file() for state in (tmp_path / "states").glob("*/*")])
