"""Agents of a round that are dealt to the cores: the run stays the same, and the cores share the samples."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import problems, simulate
from fedpd.engine import plan
from fedpd.engine.participation import Participation
from fedpd.engine.plan import choose_layout
from tests.engine.backends.test_cohort import METHODS, PRESENT, PROBLEM, ROUNDS, same_bits


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
@pytest.mark.parametrize("name", ["fedavg", "fedpd-skips"])
def test_agents_that_are_dealt_to_two_devices_give_the_same_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, one = METHODS[name], simulate(METHODS[name], PROBLEM, rounds=ROUNDS, cohort=3, devices=1)
    monkeypatch.setattr(plan, "LONG_ROUND", 0)  # simulate chooses whether to deal: users should not have to
    options: dict[str, Any] = {"rounds": ROUNDS, "cohort": 3, "devices": 2, "execution": "sequential"}
    two = simulate(method, PROBLEM, **options)
    assert one.agents.agent.tolist() == two.agents.agent.tolist()
    assert one.updates.tolist() == two.updates.tolist()
    np.testing.assert_allclose(one.model, two.model, rtol=1e-12)
    np.testing.assert_allclose(one.history["loss"], two.history["loss"], rtol=1e-12)
    simulate(method, PROBLEM, **options | {"rounds": 4}, checkpoints=tmp_path, checkpoint_every=2)
    same_bits(two, simulate(method, PROBLEM, **options, checkpoints=tmp_path, checkpoint_every=2))
    given = simulate(method, PROBLEM, **options | {"cohort": None}, participation=PRESENT)  # 0 to 6 agents per round
    masked = simulate(method, PROBLEM, rounds=ROUNDS, participation=PRESENT, devices=1)
    np.testing.assert_allclose(given.model, masked.model, rtol=1e-12)
    assert given.updates.tolist() == masked.updates.tolist()
    layout = choose_layout(method, PROBLEM, "sequential", 2)
    assert plan.is_dealt(method, PROBLEM, layout, Participation("cohort", np.int32(3)))


def test_devices_share_the_samples_of_dealt_agents() -> None:
    unaligned = np.ones(2**18 + 1, np.float32)[1:].reshape(2, -1, 1)
    problem = problems.from_losses(lambda x, row: row["a"] @ x, {"a": unaligned}, np.zeros(1, np.float32))
    held = plan.shared_arrays(problem)
    address = held.data["a"].ctypes.data
    assert address % 64 == 0
    copies = jax.device_put(held.data["a"], jax.devices()[0]), jax.device_put(held.data["a"], jax.devices()[-1])
    assert [copy.unsafe_buffer_pointer() for copy in copies] == [address, address]
