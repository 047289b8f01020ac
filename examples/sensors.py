"""Regression by sensor: predict 50 measurements from 50 others, with one shared model and with a model per sensor.

    python examples/sensors.py [FILE]

FILE is LEAF's json of 100 numbers per sample, such as the Vehicle data of 23 sensors. Without it, the program makes up
data of the same shape: all sensors follow one law, and each adds an offset of its own.
"""

import sys

import numpy as np

import fedpd
from fedpd import algorithms, data, networks, oracles, problems

HALF = 50


def made_up(sensors: int = 23, seed: int = 0) -> dict[str, np.ndarray]:
    """Return 100 measurements per sample for each sensor, 20 to 200 samples each."""
    rng = np.random.default_rng(seed)
    law = rng.normal(0, 1 / np.sqrt(HALF), (HALF, HALF))
    found = {}
    for sensor in range(sensors):
        x = rng.normal(0, 1, (int(rng.integers(20, 200)), HALF))
        y = np.tanh(x @ law) + rng.normal(0, 0.5, HALF) + rng.normal(0, 0.1, x.shape)
        found[f"sensor {sensor}"] = np.concatenate([x, y], axis=1).astype(np.float32)
    return found


def measured(file: str) -> dict[str, np.ndarray]:
    """Return the measurements of each sensor of a file."""
    loaded = data.leaf(file)
    return {name: own["x"] for name, own in zip(loaded.names, loaded.train, strict=True)}


rows = measured(sys.argv[1]) if len(sys.argv) > 1 else made_up()
agents = {name: {"x": own[:, :HALF], "y": own[:, HALF:]} for name, own in rows.items()}
sensors = data.split(data.from_arrays(agents, classes=False, name="sensors"), 0.25)
problem = problems.regression(networks.MLP(HALF, hidden=(32,)), data.standardise(sensors)[0])

oracle = oracles.sgd(step=0.5, iterations=20, batch=10)
run = fedpd.simulate(algorithms.fedpd(eta=5.0, oracle=oracle, start="server"), problem, rounds=30, metrics_every=30)
ditto = fedpd.simulate(algorithms.ditto(rho=0.1, oracle=oracle), problem, rounds=30, metrics_every=30)
tuned, own = run.personalize(problem, steps=50, step=0.5), ditto.personal(problem)
print(f"{sensors.agents} sensors, {sensors.samples} samples, mean absolute errors as means over the sensors:")
print(f"FedPD, one model for all:     error {np.nanmean(tuned.shared['mae']):.3f}")
print(f"FedPD, fine-tuned per sensor: error {np.nanmean(tuned.own['mae']):.3f}, {tuned.share_of_gains:.0%} gain")
print(f"Ditto, a model per sensor:    error {np.nanmean(own.own['mae']):.3f}, {own.share_of_gains:.0%} gain")
