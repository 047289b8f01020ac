"""Workloads of convolutional networks: the engine, and a plain PyTorch loop over agents."""

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

import fedpd
from benchmarks import torch_loop
from benchmarks.workloads import Contender, Workload, engine_seconds
from fedpd import algorithms, data, networks, oracles, problems

AGENTS, SAMPLES, CLASSES = 8, 64, 62
STEP, ETA = 0.01, 1.0


def workloads() -> list[Workload]:
    leaf, small = networks.LeafCNN(CLASSES), networks.SmallCNN(CLASSES)
    return [
        _workload("LEAF CNN, FedAvg", leaf, 2, 10, 1.0, fedpd_too=False),
        _workload("LEAF CNN, FedPD", leaf, 2, 10, 1.8, fedpd_too=True),
        _workload("small CNN, FedAvg", small, 10, 10, 1.0, fedpd_too=False),
        _workload("small CNN, FedPD", small, 10, 10, 1.0, fedpd_too=True),
    ]


def _workload(name: str, module: Any, batch: int, steps: int, goal: float, *, fedpd_too: bool) -> Workload:
    # Not seed 0: there, rounding puts a pixel on the other side of a kink (a maximum, a ReLU), and biases differ by
    # 1e-2; with most seeds everyone agrees to 1e-6.
    rng = np.random.default_rng(1)
    images = rng.random((AGENTS, SAMPLES, 28, 28), np.float32)
    labels = rng.integers(0, CLASSES, (AGENTS, SAMPLES))
    draws = rng.integers(0, SAMPLES, (AGENTS, steps, batch))
    agents = {f"agent {i}": {"x": images[i], "y": labels[i]} for i in range(AGENTS)}
    problem = problems.network(module, data.from_arrays(agents, classes=CLASSES))

    def recorded(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
        return jnp.asarray(draws, jnp.int32)[agent].reshape(shape)

    oracle = oracles.sgd(step=STEP, iterations=steps, batch=batch, draw=recorded)
    method = algorithms.fedpd(eta=ETA, oracle=oracle) if fedpd_too else algorithms.fedavg(oracle=oracle)
    one = torch_loop.CNN(module.channels, module.width, CLASSES)
    arrays = [(torch.tensor(x[:, None]), torch.tensor(y)) for x, y in zip(images, labels, strict=True)]
    start = torch_loop.from_flax(problem.start, one)

    def torch_rounds(rounds: int) -> tuple[float, torch_loop.Parameters]:
        x0 = [leaf.clone() for leaf in start]
        models = [[leaf.clone() for leaf in start] for _ in range(AGENTS)]
        duals = [[torch.zeros_like(leaf) for leaf in start] for _ in range(AGENTS)]
        began = time.perf_counter()
        for _ in range(rounds):
            if fedpd_too:
                x0 = torch_loop.fedpd_round(one, x0, models, duals, arrays, draws, STEP, ETA)
            else:
                x0 = torch_loop.fedavg_round(one, x0, arrays, draws, STEP)
        return (time.perf_counter() - began) / rounds, x0

    about = f"{AGENTS} agents, {steps} steps of {batch} images per round, {problem.dimension / 1e6:.1f} M parameters"
    contenders = (_engine(problem, method, one), *(_torch(number, torch_rounds) for number in (1, 2)))
    return Workload(name, about, goal, contenders)


def _engine(problem: fedpd.Problem, method: fedpd.Algorithm, module: torch_loop.CNN) -> Contender:
    def play(rounds: int) -> float:
        return engine_seconds(method, problem, rounds)

    def iterates() -> list[np.ndarray]:
        run = fedpd.simulate(method, problem, rounds=1, progress=False)
        return [leaf.numpy() for leaf in torch_loop.from_flax(run.model, module)]

    return Contender("fedpd", "engine", 5, play, iterates)


def _torch(threads: int, rounds_of: Callable[[int], tuple[float, torch_loop.Parameters]]) -> Contender:
    def play(rounds: int) -> float:
        torch.set_num_threads(threads)
        return rounds_of(rounds)[0]

    def iterates() -> list[np.ndarray]:
        torch.set_num_threads(threads)
        return [leaf.numpy() for leaf in rounds_of(1)[1]]

    return Contender(f"{threads} thread{'s' * (threads > 1)}", "torch", 3, play, iterates)
