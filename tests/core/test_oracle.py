"""The work of local solves is counted exactly beyond 32 bits, in every mode and on Flower."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Context
from hypothesis import given
from hypothesis import strategies as st

from fedpd import FedpdError, Oracle, Problem, algorithms, oracles, problems, simulate
from fedpd.base.process import use_cores
from fedpd.core import Work, count_samples
from fedpd.flower import InProcessGrid, Settings, client_app, federate
from tests.slow_cases import slow_but

use_cores()  # before JAX computes
AGENTS, SIZE, STEPS = 3, 28_000, 100_000  # 2.8e9 sample gradients per agent and round
GD = algorithms.fedavg(oracle=oracles.gd(step=1e-9, iterations=STEPS))


def cheap(agents: int = AGENTS) -> Problem:
    """Every agent has 28,000 samples, and F(x; a) = x, so that a gradient costs one operation."""
    rows = np.zeros((agents, SIZE, 1), np.float32)
    return problems.from_losses(lambda x, a: jnp.full(len(a), x), rows, np.zeros((), np.float32), check=False)


@given(st.integers(0, 2**30), st.integers(0, 2**30), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_counts_are_exact(gradients: int, samples: int, one: int, other: int) -> None:
    work = Work.of(1, gradients, samples)
    assert count_samples(work) == gradients * samples
    more = work.plus(Work(jnp.int32(2), jnp.int32(one))).plus(Work(jnp.int32(3), jnp.int32(other)))
    assert count_samples(more) == gradients * samples + one + other
    assert more.updates == 6


MODES: list[tuple[dict[str, Any], int]] = [
    ({}, AGENTS),
    ({"seed": [0, 1]}, AGENTS),
    ({"cohort": 2}, 2),
    ({"store": "folder"}, AGENTS),
    ({"devices": 2}, AGENTS),
    ({"execution": "parallel"}, AGENTS),
]


@pytest.mark.parametrize(("options", "agents"), slow_but([({}, AGENTS), ({"cohort": 2}, 2)], MODES))
def test_a_round_of_more_than_2_to_the_31_samples(options: dict[str, Any], agents: int, tmp_path: Path) -> None:
    options = {name: tmp_path if value == "folder" else value for name, value in options.items()}
    found: Any = simulate(GD, cheap(), rounds=2, **options)
    for run in found.runs if "seed" in options else [found]:
        assert run.history["samples"].tolist() == [0, agents * SIZE * STEPS, 2 * agents * SIZE * STEPS]
        assert run.history["local_updates"].tolist() == [0, STEPS, 2 * STEPS]


@pytest.mark.parametrize(
    ("oracle", "gradients"),
    [
        (oracles.gd(step=1e-9, iterations=STEPS, tolerance=1e-9), STEPS + 1),
        (oracles.sgd(step=1e-9, iterations=STEPS, batch=None), STEPS),
        (oracles.sgd(step=1e-9, iterations=STEPS, batch=None, tolerance=1e-9), STEPS + 2),
        (oracles.vr(gamma=1e-9, iterations=STEPS, refresh=1, batch=None), 2 * STEPS + 1),
    ],
)
def test_the_oracles_count_their_full_gradients(oracle: Oracle, gradients: int) -> None:
    run = simulate(algorithms.fedavg(oracle=oracle), cheap(), rounds=1)
    assert run.history["samples"][-1] == AGENTS * SIZE * gradients


def test_methods_add_the_work_of_several_solves() -> None:
    ditto = algorithms.ditto(rho=1.0, oracle=oracles.gd(step=1e-9, iterations=STEPS))
    assert simulate(ditto, cheap(), rounds=1).history["samples"][-1] == 2 * AGENTS * SIZE * STEPS


def test_a_client_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPD_STATE", str(tmp_path))
    whole = cheap()

    def local(context: Context) -> Problem:
        return whole.subset([int(context.node_config["partition-id"])])

    grid = InProcessGrid(client_app(lambda config: GD, lambda config: whole.start, local), agents=AGENTS, config={})
    found = federate(grid, GD, whole.start, Settings(agents=AGENTS, rounds=2, poll=0.001))
    assert found.history["samples"].tolist() == [0, AGENTS * SIZE * STEPS, 2 * AGENTS * SIZE * STEPS]


def test_an_oracle_of_ones_own_that_overflows_is_named() -> None:
    class Own(Oracle):
        def solve(self, phi: Any, x: Any, memory: None, r: Any, key: Any) -> Any:
            return x, None, Work(jnp.int32(STEPS), STEPS * phi.f.size)

    with pytest.raises(FedpdError, match=r"samples = -1494967296: .* counted 2\^31 sample gradients .*Return Work\.of"):
        simulate(algorithms.fedavg(oracle=Own()), cheap(), rounds=1)


@pytest.mark.parametrize("name", ["iterations", "batch"])
def test_steps_and_batches_fit_32_bits(name: str) -> None:
    with pytest.raises(FedpdError, match=rf"{name} = 2147483648: must be below 2\^31"):
        oracles.sgd(0.1, 2**31 if name == "iterations" else 2, 2**31 if name == "batch" else 1)


def test_debug_counts_too() -> None:
    class Own(Oracle):
        def solve(self, phi: Any, x: Any, memory: None, r: Any, key: Any) -> Any:
            return x, None, Work.of(STEPS, STEPS, phi.f.size)

    run = simulate(algorithms.fedavg(oracle=Own()), cheap(), rounds=1, execution="debug")
    assert run.history["samples"][-1] == AGENTS * SIZE * STEPS
