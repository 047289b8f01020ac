"""Run a federation of hospitals that keep their patients' data on Flower, and compare it with a simulation.

    python examples/own_federation.py

A Flower app names a client and a server. Here both run in one process, and messages are serialised as on a network.
`fedpd new-app` writes such an app for `flwr run`, and `fedpd up` starts a federation with TLS and node keys for it.
"""

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context

import fedpd
from fedpd import algorithms, oracles, problems
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate

HOSPITALS, ROUNDS = 4, 40


def patients(hospital: int) -> dict[str, np.ndarray]:
    """Return a hospital's measurements, and which patients were ill. The mix of patients differs by hospital."""
    rng = np.random.default_rng(hospital)
    measured = rng.normal(hospital / 2 - 0.75, 1, (40 + 30 * hospital, 3))
    ill = measured @ [1.5, -1.0, 0.5] + 0.3 * hospital > rng.logistic(size=len(measured))
    return {"measured": measured, "ill": np.where(ill, 1.0, -1.0)}


def losses(model: dict, batch: dict) -> jnp.ndarray:
    """Return the logistic loss of each sample, (B,)."""
    return jnp.logaddexp(0, -batch["ill"] * (batch["measured"] @ model["w"] + model["b"]))


def start(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {"w": np.zeros(3), "b": np.zeros(())}


def algorithm(config: Mapping[str, Any]) -> fedpd.Algorithm:
    return algorithms.fedpd(eta=2.0, oracle=oracles.gd(step=0.5, iterations=10), p=0.5, drift="corrected")


def local(context: Context) -> Local:
    return Local(losses, patients(int(context.node_config["partition-id"])))


def main() -> None:
    os.environ["FEDPD_STATE"] = tempfile.mkdtemp()  # the folder in which clients keep their duals
    grid = InProcessGrid(client_app(algorithm, start, local), agents=HOSPITALS, config={})
    result = federate(grid, algorithm({}), start({}), Settings(agents=HOSPITALS, rounds=ROUNDS, poll=0.01))
    whole = problems.from_losses(losses, [patients(i) for i in range(HOSPITALS)], start({}))
    last = {name: column[-1] for name, column in result.history.items()}
    run = fedpd.simulate(algorithm({}), whole, rounds=int(last["round"]))  # up to the last communication
    print(f"{last['communications']} communications in {last['round']} rounds, stationarity {last['stationarity']:.1e}")
    print(f"largest difference to a simulation {np.abs(result.model['w'] - run.model['w']).max():.1e}")


if __name__ == "__main__":
    main()
