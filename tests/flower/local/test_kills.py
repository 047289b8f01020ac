"""kill -9 of every part of a real federation in the middle of a run: the model has the bits of an undisturbed run.

Minutes: `make test-faults`. Nothing outlives a test: the federation is ended by who its processes are.
"""

from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from fedpd.flower import local
from fedpd.flower.local.programs import find
from fedpd.flower.warm.supervisor import SUPEREXEC
from tests.flower.deployment import Deployment, equal, words_of

pytestmark = pytest.mark.faults

ROUNDS = 4
SECONDS = 400.0
STARTED = {  # the program, and the member that has started it
    "clientapp": ("supernode-0", "flwr-clientapp"),
    "serverapp": ("superexec", "flwr-serverapp"),
    "superexec": ("superexec", SUPEREXEC),
    "superexec of a client": ("supernode-0", SUPEREXEC),
}


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


def process(deployment: Deployment, target: str) -> psutil.Process:
    """The process to kill: a member of the federation, or one that a member has started."""
    if target not in STARTED:
        return psutil.Process(deployment.member(target).pid)
    return deployment.wait(lambda: deployment.child(*STARTED[target]), SECONDS)


@pytest.fixture(scope="module")
def undisturbed(deployment: Deployment) -> dict[str, np.ndarray]:
    """The model of a run without faults; that of the JAX app is also the model of a simulation."""
    deployment.start(rounds=ROUNDS, out="undisturbed")
    model = deployment.model("undisturbed", SECONDS)
    if deployment.framework == "jax":
        equal(model, deployment.simulated(rounds=ROUNDS))
    return model


@pytest.mark.parametrize("target", [*STARTED, "supernode-0", "superlink"])
def test_the_model_is_that_of_an_undisturbed_run(
    deployment: Deployment, undisturbed: dict[str, np.ndarray], target: str
) -> None:
    out = target.replace(" ", "-")
    deployment.start(rounds=ROUNDS, out=out)
    deployment.wait(lambda: deployment.communications(out) >= 1, SECONDS)
    process(deployment, "clientapp")  # client 0 computes
    server, killed = process(deployment, "serverapp"), process(deployment, target)
    killed.kill()
    if target in ("supernode-0", "superlink"):
        deployment.wait(lambda: find(deployment.member(target)) is None, 30.0)
        deployment.repair()
    if target == "superexec":  # it starts again by itself, but its ServerApp ends
        deployment.wait(lambda: not words_of(server), 30.0)
    if target in ("serverapp", "superexec"):
        deployment.start(rounds=ROUNDS, out=out)
    found = deployment.model(out, SECONDS)
    assert found.keys() == undisturbed.keys()
    for name, leaf in undisturbed.items():
        np.testing.assert_array_equal(found[name], leaf)
