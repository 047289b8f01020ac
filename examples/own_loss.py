"""Minimise your own loss: robust regression of agents whose data differ, with FedPD and with FedAvg.

    python examples/own_loss.py

A problem needs a function that returns one loss per sample, the data of each agent, and a starting model.
"""

import jax.numpy as jnp
import numpy as np

import fedpd
from fedpd import algorithms, oracles, problems

rng = np.random.default_rng(0)


def agent(size: int) -> dict[str, np.ndarray]:
    """Return the samples of an agent that has its own slope and features; some samples are outliers."""
    features = rng.uniform(0.5, 2) * rng.standard_normal((size, 3)) + rng.standard_normal(3)
    targets = features @ (np.array([1.0, -2.0, 0.5]) + rng.standard_normal(3)) + 3.0
    return {"features": features, "target": targets + 20 * (rng.random(size) < 0.05)}


def huber(model: dict, batch: dict) -> jnp.ndarray:
    """Return the Huber loss of each sample, (B,): quadratic up to 1, linear beyond."""
    error = jnp.abs(batch["features"] @ model["slope"] + model["offset"] - batch["target"])
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


def ridge(model: dict) -> jnp.ndarray:
    return 0.005 * jnp.sum(model["slope"] ** 2)


def main() -> None:
    agents = [agent(size) for size in (20, 300, 50, 120, 8)]
    start = {"slope": np.zeros(3), "offset": np.zeros(())}
    problem = problems.from_losses(huber, agents, start, penalty=ridge, name="robust regression")
    oracle = oracles.gd(step=0.1, iterations=10)
    for method in (algorithms.fedpd(eta=1.0, oracle=oracle), algorithms.fedavg(oracle=oracle)):
        run = fedpd.simulate(method, problem, rounds=200)
        loss, slope = run.history["loss"][-1], run.model["slope"].round(2)
        stationarity = run.history["stationarity"][-1]
        print(f"{method.description}: loss {loss:.4f}, stationarity {stationarity:.1e}, slope {slope}")


if __name__ == "__main__":
    main()
