"""The server and its clients run the same method, exactly; a run resumes from its own checkpoint alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optax
import pytest

from fedpd import Algorithm, FedpdError, algorithms, oracles
from fedpd.base import checkpoint
from fedpd.base.checkpoint import CheckpointError
from fedpd.base.spec import named
from fedpd.flower import FederationError, InProcessGrid
from fedpd.flower.method.identity import check_same_method, spec_text
from tests.flower.federations import AGENTS, FEDPD, GD, app, assert_same, run


def skipping(p: Any) -> Algorithm:
    return algorithms.fedpd(eta=0.5, oracle=GD, p=p)


def optimising(rate: float) -> Algorithm:
    return algorithms.fedpd(eta=0.5, oracle=oracles.optax(optax.sgd(rate), iterations=2, label="mine"))


PAIRS: dict[str, tuple[Algorithm, Algorithm, str]] = {
    "eta": (
        algorithms.fedpd(eta=0.08, oracle=GD),
        algorithms.fedpd(eta=0.0800000001, oracle=GD),
        r"order: its eta is 0\.08, not 0\.0800000001, as at this client",
    ),
    "two lambdas": (skipping(lambda r: 0.0), skipping(lambda r: 0.5), r"order: its p\.sha256 is "),
    "two optimisers": (optimising(0.1), optimising(0.2), r"order: its oracle\.optimizer\.sha256 is "),
    "another oracle": (
        FEDPD,
        algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.2, iterations=4)),
        r"order: its oracle\.iterations is 3, not 4",
    ),
    "another method": (FEDPD, algorithms.fedavg(oracle=GD), "order: its name is 'fedpd', not 'fedavg'"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_client_of_another_method_refuses_and_names_the_setting(pair: str) -> None:
    servers, clients, sentence = PAIRS[pair]
    with pytest.raises(FederationError, match=f"client '0': {sentence}"):
        run(servers, 1, InProcessGrid(app(clients), AGENTS, {}))


def test_two_processes_make_the_same_spec() -> None:
    check_same_method(spec_text(skipping(lambda r: 0.5)), spec_text(skipping(lambda r: 0.5)))
    with pytest.raises(FedpdError, match="the server runs another version of fedpd"):
        check_same_method("fedpd(eta=0.5)", spec_text(FEDPD))


def unidentified() -> Callable[[Any], Any]:
    """A function that holds something that only this process has."""

    def p(r: Any, own: object = object()) -> float:
        return 0.0 if own else 0.5

    return p


def test_what_cannot_be_identified_is_refused_before_anything_runs() -> None:
    algorithm = skipping(unidentified())
    grid = InProcessGrid(app(algorithm), AGENTS, {})
    with pytest.raises(FedpdError, match=r"cannot be deployed.*Use the same name at the server and all clients"):
        run(algorithm, 1, grid)
    assert grid.pushed == 0
    run(skipping(named("never", unidentified())), 1)


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    servers, others, _ = PAIRS["eta"]
    run(servers, 1, out=tmp_path)
    with pytest.raises(CheckpointError, match=r"0\.0800000001"):
        run(others, 1, out=tmp_path)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata of the checkpoints in a folder."""
    for path in (folder / "checkpoints").iterdir():
        arrays, meta = checkpoint.read(path)
        change(meta)
        checkpoint.write(path, arrays, meta)


def test_a_checkpoint_records_the_method_and_the_versions(tmp_path: Path) -> None:
    there = run(FEDPD, 2, out=tmp_path)
    assert_same(run(FEDPD, 2, out=tmp_path).model, there.model, rtol=0)
    _, meta = checkpoint.peek(tmp_path / "checkpoints") or (None, {})
    assert meta["algorithm"] == json.loads(spec_text(FEDPD))
    assert meta["versions"]["fedpd"]
