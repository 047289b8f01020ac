"""Time a local step of LEAF's network: as a PyTorch module in fedpd, as a flax module in fedpd, and in PyTorch itself.

    python -m benchmarks.torch_modules

It measures the processor time of one core, in turns, and prints the quickest of the repetitions. Other load on the
machine changes these times less than it changes the time on the clock.
"""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import fedpd
from benchmarks import torch_loop
from fedpd import data, networks, problems

CLASSES, BATCH, STEPS, REPETITIONS, STEP = 62, 2, 10, 8, 0.01
SLOWER, FASTER = 1.2, 1.5  # the goals: at most so many times flax's time, PyTorch at least so many times fedpd's


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    images, labels = rng.random((BATCH, 28, 28), np.float32), rng.integers(0, CLASSES, BATCH)
    flax = networks.LeafCNN(CLASSES)
    module = torch_loop.CNN(flax.channels, flax.width, CLASSES)
    runs = {
        "fedpd, flax module": steps_of(problems.network(flax, one_agent(images, labels))),
        "fedpd, PyTorch module": steps_of(problems.network(module, one_agent(images[:, None], labels))),
        "PyTorch": steps_in_torch(module, images[:, None], labels),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPETITIONS):
        for name, run in runs.items():
            began = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - began) / STEPS)
    quickest = {name: min(values[1:]) for name, values in times.items()}  # the first repetition compiles
    for name, value in quickest.items():
        print(f"{name:22} {value:6.2f} ms per step of {BATCH} images")
    flax_time, ours, theirs = quickest.values()
    slower, faster = ours / flax_time, theirs / ours
    print(f"the PyTorch module takes {slower:.2f} times the flax module's time: {met(slower <= SLOWER)} ({SLOWER})")
    print(f"PyTorch itself takes {faster:.2f} times fedpd's time: {met(faster >= FASTER)} ({FASTER})")


def met(reached: bool) -> str:
    return "the goal is met" if reached else "the goal is missed"


def one_agent(images: np.ndarray, labels: np.ndarray) -> data.Federated:
    return data.from_arrays({"agent": {"x": images, "y": labels}}, classes=CLASSES)


def steps_of(problem: fedpd.Problem) -> Callable[[], None]:
    """Return a function that takes the steps of stochastic gradient descent, compiled as the engine compiles them."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), problem.data)

    def descend(model: Any) -> Any:
        def step(model: Any, _: None) -> tuple[Any, None]:
            gradient = jax.grad(lambda model: problem.losses(model, batch).mean())(model)
            return jax.tree.map(lambda leaf, slope: leaf - STEP * slope, model, gradient), None

        return jax.lax.scan(step, model, None, length=STEPS)[0]

    options = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
    compiled = jax.jit(descend, donate_argnums=0, compiler_options=options)
    models = [jax.tree.map(jnp.asarray, problem.start)]

    def run() -> None:
        models[0] = jax.block_until_ready(compiled(models[0]))

    return run


def steps_in_torch(module: torch_loop.CNN, images: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    x, y, draws = torch.tensor(images), torch.tensor(labels), np.tile(np.arange(BATCH), (STEPS, 1))
    return lambda: torch_loop.local_steps(module, x, y, draws, STEP, None)


if __name__ == "__main__":
    main()
