"""The federation as a Strategy in Flower's own loop, alone and inside of Flower's wrappers for differential privacy."""

from typing import Any

import numpy as np
import pytest
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as ClientClipping
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as ServerClipping

from fedpd import Algorithm, algorithms
from fedpd.flower import FederationError, InProcessGrid, Settings, Strategy
from tests.flower.federations import AGENTS, FEDPD, GD, app, assert_same, run, start

ROUNDS = 5


def strategy(algorithm: Algorithm, **settings: Any) -> Strategy:
    quick: dict[str, Any] = {"poll": 0.001, "evaluate_every": 2, "deadline": 5.0}
    return Strategy(algorithm, start(), Settings(agents=AGENTS, rounds=ROUNDS, **{**quick, **settings}))


@pytest.mark.parametrize("average", [False, True])
def test_flowers_loop_gives_the_same(average: bool) -> None:
    chosen = strategy(FEDPD, average=average)
    chosen.start(InProcessGrid(app(FEDPD), AGENTS, {}), chosen.arrays, num_rounds=ROUNDS + 2)
    there, here = chosen.result(), run(FEDPD, ROUNDS, evaluate_every=2, average=average)
    assert_same(there.model, here.model, rtol=0)
    for name in ("round", "communications", "samples", "bytes_up"):
        np.testing.assert_array_equal(there.history[name], here.history[name])
    np.testing.assert_array_equal(there.history["loss"][1:], here.history["loss"][1:])  # it does not ask at the start


@pytest.mark.parametrize("wrapper", [ClientClipping, ServerClipping])
def test_differential_privacy_composes(wrapper: Any) -> None:
    mods = [fixedclipping_mod] if wrapper is ClientClipping else []
    grid = InProcessGrid(app(FEDPD, mods=mods), AGENTS, {})
    inner = strategy(FEDPD, evaluate_every=0)
    silent = wrapper(inner, noise_multiplier=0.0, clipping_norm=1e6, num_sampled_clients=AGENTS)
    silent.start(grid, inner.arrays, num_rounds=ROUNDS)
    assert_same(inner.result().model, run(FEDPD, ROUNDS).model, rtol=1e-9)

    noisy = strategy(FEDPD, evaluate_every=0)
    wrapped = wrapper(noisy, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=AGENTS)
    wrapped.start(grid, noisy.arrays, num_rounds=ROUNDS)
    assert np.abs(noisy.result().model["w"] - inner.result().model["w"]).max() > 1e-3


def test_noise_that_would_not_reach_the_servers_state_is_refused() -> None:
    algorithm = algorithms.feddyn(alpha=2.0, oracle=GD)
    inner = strategy(algorithm, evaluate_every=0)
    wrapped = ServerClipping(inner, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=AGENTS)
    with pytest.raises(FederationError, match="this method's server keeps more than the model"):
        wrapped.start(InProcessGrid(app(algorithm), AGENTS, {}), inner.arrays, num_rounds=ROUNDS)


def test_before_the_start_there_is_no_result() -> None:
    with pytest.raises(FederationError, match="has not started"):
        strategy(FEDPD).result()
