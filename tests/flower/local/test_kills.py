"""kill -9 of every part of a real federation in the middle of a run: the final model is the undisturbed one.

Minutes: `make test-faults`. Nothing outlives a test: the federation is ended by who its processes are.
"""

from collections.abc import Iterator

import psutil
import pytest

from fedpd.flower import local
from fedpd.flower.local.processes import find
from tests.flower.deployment import Deployment, equal

pytestmark = pytest.mark.faults

ROUNDS = 4
SECONDS = 400.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("faults")
    made = Deployment(folder)
    try:
        yield made
    finally:
        local.down(folder / "federation")
        assert not made.federation.running


def victim(deployment: Deployment, target: str) -> psutil.Process:
    """The process to kill, in the middle of a round: while client 0 computes, after the first communication."""
    out = target
    deployment.wait(lambda: deployment.communications(out) >= 1, SECONDS)
    client = deployment.wait(lambda: deployment.child("supernode-0", "flwr-clientapp"), SECONDS)
    if target == "clientapp":
        return client
    if target == "serverapp":
        return deployment.wait(lambda: deployment.child("superexec", "flwr-serverapp"), SECONDS)
    return psutil.Process(deployment.member(target).pid)


@pytest.mark.parametrize("target", ["clientapp", "supernode-0", "serverapp", "superlink"])
def test_the_model_is_that_of_an_undisturbed_run(deployment: Deployment, target: str) -> None:
    config = {"rounds": ROUNDS, "out": target}
    deployment.start(**config)
    killed = victim(deployment, target)
    killed.kill()
    if target in ("supernode-0", "superlink"):
        deployment.wait(lambda: find(deployment.member(target)) is None, 30.0)
        deployment.repair()
    if target == "serverapp":
        deployment.start(**config)
    equal(deployment.model(target, SECONDS), deployment.simulated(rounds=ROUNDS))
