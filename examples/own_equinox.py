"""Train your own equinox model: agents learn its arrays, and the rest stays in the function.

python examples/own_equinox.py        (needs pip install equinox)
"""

import equinox as eqx
import jax
import numpy as np

import fedpd
from fedpd import algorithms, data, oracles, problems

rng = np.random.default_rng(0)


def spiral(size: int, turn: float) -> dict[str, np.ndarray]:
    """Return points of a spiral with three arms, from one part of each arm: the parts differ between agents."""
    arm, along = rng.integers(0, 3, size), rng.uniform(turn, turn + 0.5, size)
    angle = 2 * np.pi * arm / 3 + 4 * along + rng.normal(0, 0.1, size)
    x = (0.2 + along)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return {"x": x.astype(np.float32), "y": arm}


def main() -> None:
    turns = {f"from {turn:.1f}": turn for turn in (0.0, 0.2, 0.4, 0.6)}
    train = {name: spiral(200, turn) for name, turn in turns.items()}
    test = {name: spiral(50, turn) for name, turn in turns.items()}

    model = eqx.nn.MLP(in_size=2, out_size=3, width_size=32, depth=2, key=jax.random.key(0))
    start, static = eqx.partition(model, eqx.is_inexact_array)

    def apply(arrays: eqx.nn.MLP, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(arrays, static))(x)  # an equinox model takes one sample

    problem = problems.classification(apply, data.from_arrays(train, test, name="spirals"), start)
    method = algorithms.fedpd(eta=10.0, oracle=oracles.sgd(step=0.2, iterations=30, batch=20), start="server")
    run = fedpd.simulate(method, problem, rounds=40, metrics_every=10)
    for r, accuracy in zip(run.history["round"], run.history["test_accuracy"], strict=True):
        print(f"round {r:2}  test accuracy {accuracy:.2f}")
    trained = eqx.combine(run.model, static)
    print("scores of one point:", np.asarray(trained(test["from 0.6"]["x"][0])).round(1))


if __name__ == "__main__":
    main()
