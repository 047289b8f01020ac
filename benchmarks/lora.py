"""Compare ways to average the factors of LoRA: FedIT, FFA-LoRA and the exact mean of the products, on one linear layer.

Run `python -m benchmarks.lora`: 8 agents with 3 of 10 classes each, features of 32 numbers, W = W_0 + B A with rank 4,
full-gradient local steps, 60 rounds. FedIT and FFA-LoRA are FedAvg of fedpd; "exact" adds
mean(B_i A_i) - mean(B) mean(A) to W_0 after each round, as FedEx-LoRA does, in plain JAX. For every number of local
steps, each method has the best of the steps in STEPS.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd import algorithms, oracles, problems, simulate

AGENTS, SAMPLES, FEATURES, CLASSES, RANK, ROUNDS = 8, 60, 32, 10, 4, 60
STEPS = (0.03, 0.1, 0.3, 1.0)


def agents(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the samples of all agents: classes are shifted clusters, and each agent has three of them."""
    centres = rng.normal(size=(CLASSES, FEATURES))
    found = []
    for i in range(AGENTS):
        y = (i + rng.integers(0, 3, SAMPLES)) % CLASSES
        found.append({"x": centres[y] + 2 * rng.normal(size=(SAMPLES, FEATURES)), "y": y.astype(np.int32)})
    return found


def losses(frozen: Any, model: Any, rows: Any) -> Any:
    factors = frozen | model
    scores = rows["x"] @ (factors["W"] + factors["B"] @ factors["A"]).T
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), rows["y"][:, None], 1)[:, 0]


@partial(jax.jit, static_argnums=2)
def exact(start: Any, data: Any, steps: int, step: float) -> tuple[Any, Any]:
    """Return the losses of all rounds, and the relative error that averaging the factors would make in each."""
    W, factors = start

    def loss(W: Any, factors: Any, rows: Any) -> Any:
        return losses({"W": W}, factors, rows).mean()

    def local(W: Any, factors: Any, rows: Any) -> Any:
        def descend(x: Any, _: Any) -> Any:
            return jax.tree.map(lambda leaf, g: leaf - step * g, x, jax.grad(partial(loss, W))(x, rows)), None

        return jax.lax.scan(descend, factors, length=steps)[0]

    def round_(state: Any, _: Any) -> Any:
        W, factors = state
        own = jax.vmap(partial(local, W, factors))(data)
        mean = jax.tree.map(lambda leaf: leaf.mean(0), own)
        product = jnp.einsum("nir,nrj->ij", own["B"], own["A"]) / AGENTS
        off = product - mean["B"] @ mean["A"]
        change = product - factors["B"] @ factors["A"]
        state = W + off, mean
        value = jax.vmap(partial(loss, W + off, mean))(data).mean()
        return state, (value, jnp.linalg.norm(off) / jnp.linalg.norm(change))

    return jax.lax.scan(round_, (W, factors), length=ROUNDS)[1]


def main() -> None:
    rng = np.random.default_rng(0)
    data = agents(rng)
    W = 0.05 * rng.normal(size=(CLASSES, FEATURES))
    A, B = rng.normal(size=(RANK, FEATURES)) / np.sqrt(FEATURES), np.zeros((CLASSES, RANK))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *data)
    print("local steps | FedIT | FFA-LoRA | exact | error of the mean factors: round 1, last round")
    for steps in (1, 5, 20, 100):
        best: dict[str, float] = {}
        for step in STEPS:
            method = algorithms.fedavg(oracle=oracles.gd(step=step, iterations=steps))
            for name, frozen, start in (
                ("FedIT", {"W": W}, {"A": A, "B": B}),
                ("FFA-LoRA", {"W": W, "A": A}, {"B": B}),
            ):
                problem = problems.from_losses(partial(losses, frozen), data, start, check=False)
                value = simulate(method, problem, rounds=ROUNDS, progress=False).history["loss"][-1]
                best[name] = min(best.get(name, np.inf), value)
            with jax.enable_x64(True):
                values, errors = jax.device_get(exact((W, {"A": A, "B": B}), stacked, steps, step))
            if values[-1] < best.get("exact", np.inf):
                best |= {"exact": float(values[-1]), "first": float(errors[0]), "last": float(errors[-1])}
        print(steps, *(f"{best[name]:.4g}" for name in ("FedIT", "FFA-LoRA", "exact", "first", "last")))


if __name__ == "__main__":
    main()
