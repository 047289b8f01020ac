"""Train your own flax module with batch normalisation: four cameras, each with its own light, learn one model.

    python examples/own_network.py

The model is the module's parameters. Batch statistics stay with the agents: fedpd evaluates each agent with its own.
"""

import flax.linen as nn
import jax
import numpy as np

import fedpd
from fedpd import algorithms, data, networks, oracles, problems

rng = np.random.default_rng(0)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = networks.Conv(8, 3)(x[..., None])
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(3)(networks.max_pool(nn.relu(x)).reshape(len(x), -1))


def photographs(size: int, contrast: int, brightness: int) -> dict[str, np.ndarray]:
    """Return noisy images, (size, 8, 8) uint8, with a bright bar on the left, in the middle or on the right."""
    place = rng.integers(0, 3, size)
    bar = (np.arange(8) // 3 == place[:, None])[:, None, :]
    pixels = brightness + contrast * bar + rng.normal(0, 8, (size, 8, 8))
    return {"x": pixels.clip(0, 255).astype(np.uint8), "y": place}


def main() -> None:
    light = {"night": (15, 20), "dusk": (30, 60), "day": (50, 120), "snow": (20, 215)}
    train = {name: photographs(60, *one) for name, one in light.items()}
    test = {name: photographs(30, *one) for name, one in light.items()}
    problem = problems.network(Net(), data.from_arrays(train, test, name="four cameras"))
    method = algorithms.fedpd(eta=5.0, oracle=oracles.sgd(step=0.05, iterations=10, batch=10), start="server")
    run = fedpd.simulate(method, problem, rounds=10, metrics_every=5)
    for r, accuracy in zip(run.history["round"], run.history["test_accuracy"], strict=True):
        print(f"round {r:2}  test accuracy {accuracy:.2f}")
    means = problems.local_statistics(problem, run.model)["BatchNorm_0"]["mean"]
    for name, mean in zip(light, means, strict=True):
        print(f"{name:6} normalises by the means {np.round(mean[:4], 2)} ...")


if __name__ == "__main__":
    main()
