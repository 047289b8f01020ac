"""kill -9 of every part of a real federation in the middle of a run: the model has the bits of an undisturbed run.

Minutes: `make test-faults`. Nothing outlives a test: the federation is ended by who its processes are.
"""

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from fedpd.flower import local
from fedpd.flower.local.processes import find
from tests.flower.deployment import Deployment, equal

pytestmark = pytest.mark.faults

ROUNDS = 4
SECONDS = 400.0


@pytest.fixture(scope="module", params=["jax", "numpy", "torch"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    if request.param == "torch":
        pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp(f"faults-{request.param}")
    made = Deployment(folder, request.param)
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


@pytest.fixture(scope="module")
def undisturbed(deployment: Deployment) -> dict[str, np.ndarray]:
    """The model of a run without faults; that of the JAX app is also the model of a simulation."""
    deployment.start(rounds=ROUNDS, out="undisturbed")
    model = deployment.model("undisturbed", SECONDS)
    if deployment.framework == "jax":
        equal(model, deployment.simulated(rounds=ROUNDS))
    return model


@pytest.mark.parametrize("target", ["clientapp", "supernode-0", "serverapp", "superlink"])
def test_the_model_is_that_of_an_undisturbed_run(
    deployment: Deployment, undisturbed: dict[str, np.ndarray], target: str
) -> None:
    config = {"rounds": ROUNDS, "out": target}
    deployment.start(**config)
    killed = victim(deployment, target)
    killed.kill()
    if target in ("supernode-0", "superlink"):
        deployment.wait(lambda: find(deployment.member(target)) is None, 30.0)
        deployment.repair()
    if target == "serverapp":
        deployment.start(**config)
    found = deployment.model(target, SECONDS)
    assert found.keys() == undisturbed.keys()
    for name, leaf in undisturbed.items():
        np.testing.assert_array_equal(found[name], leaf)
