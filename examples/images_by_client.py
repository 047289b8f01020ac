"""A small network of your own, on images by client.

python examples/images_by_client.py
"""

import flax.linen as nn
import jax
import numpy as np

import fedpd
from fedpd import algorithms, data, oracles, problems


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(8, (3, 3))(x[..., None]))
        return nn.Dense(2)(nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1))


def pictures(rng: np.random.Generator, brightness: int) -> dict[str, np.ndarray]:
    """Return 60 images (8, 8) of a bar, which is horizontal (0) or vertical (1); put your own images here."""
    label, place = rng.integers(0, 2, 60), rng.integers(0, 8, 60)
    bars = [np.eye(8)[[p] * 8] if vertical else np.eye(8)[[p] * 8].T for vertical, p in zip(label, place, strict=True)]
    return {"x": (brightness + 60 * np.stack(bars)).astype(np.uint8), "y": label}


clients = {f"camera {i}": pictures(np.random.default_rng(i), 40 * i) for i in range(4)}
images = data.split(data.from_arrays(clients), 0.25)
method = algorithms.fedpd(eta=5.0, oracle=oracles.sgd(step=0.1, iterations=10, batch=10), start="server")
run = fedpd.simulate(method, problems.network(Net(), images), rounds=20)
print(run)
run.plot("test_accuracy").savefig("images.png")
