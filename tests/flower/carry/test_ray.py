"""Flower's own simulation, with its processes and its transport."""

import gc
from typing import Any

import jax
import numpy as np
import pytest
from flwr.simulation import run_simulation

from fedpd import simulate
from fedpd.flower import Federated, server_app
from tests.flower.federations import AGENTS, FEDPD, app, assert_same, start, whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, when Ray starts after it
def test_flowers_simulation_equals_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    results: list[Federated] = []
    # Ray took over two minutes to start on busy cores.
    defaults = {"agents": AGENTS, "rounds": 4, "poll": 0.05, "deadline": 400.0}
    server = server_app(lambda config: FEDPD, start, defaults=defaults, done=results.append)
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, app(FEDPD), num_supernodes=AGENTS, backend_config=resources)
    gc.collect()  # files that Ray did not close: here, where their warnings are ignored, and not in a later test
    (there,) = results
    here = simulate(FEDPD, whole(), rounds=4)
    assert_same(there.model, here.model)
    np.testing.assert_allclose(there.history["loss"], here.history["loss"], rtol=1e-12)
    assert jax.tree.leaves(there.model)[0].dtype == np.float64
