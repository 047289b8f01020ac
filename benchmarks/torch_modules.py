"""Time LEAF's network: as a flax module in fedpd, as a PyTorch module in fedpd, and in a plain PyTorch loop.

    python -m benchmarks.torch_modules

It times local steps, and whole rounds of FedAvg and FedPD by `fedpd.simulate`, on one core and in turns, and prints the
quickest of the repetitions in processor time and on the clock. Other load on the machine changes the processor time
less. The time of a round is the difference of a long and a short run, so that it excludes what a run does once: it
compiles, measures before the first and after the last round, and copies the data.
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
from fedpd import algorithms, data, networks, oracles, problems

CLASSES, BATCH, STEPS, REPETITIONS, STEP = 62, 2, 10, 5, 0.01
AGENTS, SHORT, LONG, ETA = 4, 2, 8, 1.0
SLOWER, FASTER = 1.2, 1.5  # the goals: at most so many times flax's time, PyTorch at least so many times fedpd's


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    images, labels = rng.random((AGENTS, BATCH, 28, 28), np.float32), rng.integers(0, CLASSES, (AGENTS, BATCH))
    flax = networks.LeafCNN(CLASSES)
    module = torch_loop.CNN(flax.channels, flax.width, CLASSES)
    in_flax = problems.network(flax, federated(images, labels))
    in_torch = problems.network(module, federated(images[:, :, None], labels))
    compare(
        f"{STEPS} steps on {BATCH} images",
        steps_of(in_flax),
        steps_of(in_torch),
        steps_in_torch(module, images[0, :, None], labels[0]),
    )
    oracle = oracles.sgd(STEP, STEPS, BATCH)
    methods = {"FedAvg": algorithms.fedavg(oracle=oracle), "FedPD": algorithms.fedpd(eta=ETA, oracle=oracle)}
    for name, method in methods.items():
        compare(
            f"a round of {name}, {AGENTS} agents, {STEPS} steps",
            rounds_of(method, in_flax),
            rounds_of(method, in_torch),
            rounds_in_torch(name, module, images[:, :, None], labels),
        )


Rounds = Callable[[int], None]  # computes this number of rounds


def compare(title: str, *runs: Rounds) -> None:
    """Print the times per round of the flax module, of the PyTorch module and of PyTorch, and their ratios."""
    times: list[list[list[tuple[float, float]]]] = [[] for _ in runs]
    for _ in range(REPETITIONS):
        for run, own in zip(runs, times, strict=True):
            own.append([seconds(run, SHORT), seconds(run, LONG)])
    short, long = np.moveaxis(np.array(times)[:, 1:].min(axis=1), 1, 0)  # the first repetition compiles
    kept = 1e3 * (long - short) / (LONG - SHORT)
    print(title)
    for name, (processor, clock) in zip(("fedpd, flax module", "fedpd, PyTorch module", "PyTorch"), kept, strict=True):
        print(f"  {name:22} {processor:8.2f} ms of a processor {clock:8.2f} ms on the clock")
    for unit, (flax, ours, theirs) in zip(("processor time", "time on the clock"), kept.T, strict=True):
        slower, faster = ours / flax, theirs / ours
        print(f"  {unit}: the PyTorch module takes {slower:.2f} times flax's: {met(slower <= SLOWER)} ({SLOWER})")
        print(f"  {unit}: PyTorch takes {faster:.2f} times the PyTorch module's: {met(faster >= FASTER)} ({FASTER})")


def seconds(run: Rounds, number: int) -> tuple[float, float]:
    """Return the processor time and the time on the clock of a run."""
    processor, clock = time.process_time(), time.perf_counter()
    run(number)
    return time.process_time() - processor, time.perf_counter() - clock


def met(reached: bool) -> str:
    return "the goal is met" if reached else "the goal is missed"


def federated(images: np.ndarray, labels: np.ndarray) -> data.Federated:
    own = {str(i): {"x": x, "y": y} for i, (x, y) in enumerate(zip(images, labels, strict=True))}
    return data.from_arrays(own, classes=CLASSES)


def rounds_of(method: fedpd.Algorithm, problem: fedpd.Problem) -> Rounds:
    """Return a function that runs the rounds by the engine, which measures only before the first and after the last."""

    def run(number: int) -> None:
        fedpd.simulate(method, problem, rounds=number, metrics_every=number, progress=False)

    return run


def rounds_in_torch(name: str, module: torch_loop.CNN, images: np.ndarray, labels: np.ndarray) -> Rounds:
    """Return a function that runs the rounds in a plain loop, without any measurement."""
    own = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(images, labels, strict=True)]
    start = [leaf.detach().clone() for leaf in module.parameters()]
    rng = np.random.default_rng(2)

    def run(number: int) -> None:
        x0 = [leaf.clone() for leaf in start]
        models = [[leaf.clone() for leaf in start] for _ in own]
        duals = [[torch.zeros_like(leaf) for leaf in start] for _ in own]
        for _ in range(number):
            draws = rng.integers(0, BATCH, (AGENTS, STEPS, BATCH))
            if name == "FedPD":
                x0 = torch_loop.fedpd_round(module, x0, models, duals, own, draws, STEP, ETA)
            else:
                x0 = torch_loop.fedavg_round(module, x0, own, draws, STEP)

    return run


def steps_of(problem: fedpd.Problem) -> Rounds:
    """Return a function that takes the steps of one agent's rounds, compiled as the engine compiles them."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), problem.data)

    def descend(model: Any) -> Any:
        def step(model: Any, _: None) -> tuple[Any, None]:
            gradient = jax.grad(lambda model: problem.losses(model, batch).mean())(model)
            return jax.tree.map(lambda leaf, slope: leaf - STEP * slope, model, gradient), None

        return jax.lax.scan(step, model, None, length=STEPS)[0]

    options = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
    compiled = jax.jit(descend, donate_argnums=0, compiler_options=options)
    models = [jax.tree.map(jnp.asarray, problem.start)]

    def run(number: int) -> None:
        for _ in range(number):
            models[0] = jax.block_until_ready(compiled(models[0]))

    return run


def steps_in_torch(module: torch_loop.CNN, images: np.ndarray, labels: np.ndarray) -> Rounds:
    x, y, draws = torch.tensor(images), torch.tensor(labels), np.tile(np.arange(BATCH), (STEPS, 1))

    def run(number: int) -> None:
        for _ in range(number):
            torch_loop.local_steps(module, x, y, draws, STEP, None)

    return run


if __name__ == "__main__":
    main()
