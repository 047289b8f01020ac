"""The two workloads that are timed, with the engine and the plain programs to compare it with."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fedpd
from benchmarks import plain
from fedpd import algorithms, data, oracles, problems

ALPHA, BETA = 1.0, 0.1
AGENTS, SAMPLES, DIMENSION = 100, 400, 100
CHECKED = 3  # rounds after which the iterates of all contenders are compared


class Contender(NamedTuple):
    """A program to time.

    play(rounds) returns seconds per round. iterates() returns the first iterates, on draws that all programs share.
    """

    name: str
    kind: str  # "engine", "vectorised", "tuned", "loop" or "torch"
    rounds: int  # rounds of a repetition
    play: Callable[[int], float]
    iterates: Callable[[], Sequence[np.ndarray]]


class Workload(NamedTuple):
    name: str
    about: str
    goal: float  # how many times as fast as the quickest vectorised NumPy, or PyTorch, the engine is to be
    contenders: tuple[Contender, ...]


def signed_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, labels and their product, on which alone the loss depends."""
    features, labels = data.weakly_noniid(AGENTS, SAMPLES, DIMENSION)
    features = features.astype(np.float32)
    return features, labels, features * labels[:, :, None].astype(np.float32)


def full_gradients() -> Workload:
    features, labels, signed = signed_data()
    setup = plain.Setup(signed, ALPHA, BETA, eta=0.08, step=0.08, iterations=8)
    problem = problems.penalized_logistic(features, labels, ALPHA, BETA)
    algorithm = algorithms.fedpd(eta=0.08, oracle=oracles.gd(step=0.08, iterations=8))
    ways = {"matmul": plain.by_matmul, "matvec": plain.by_matvec, "einsum": plain.by_einsum}
    contenders = (
        engine(problem, algorithm, algorithm, rounds=128),
        *(numpy(setup, name, "vectorised", plain.descent(way), rounds=16) for name, way in ways.items()),
        numpy(setup, "one agent after another", "loop", plain.one_by_one, rounds=4),
    )
    return Workload("W1", "FedPD-GD: 8 full gradients per round", 4.0, contenders)


def stochastic_gradients() -> Workload:
    features, labels, signed = signed_data()
    setup = plain.Setup(signed, ALPHA, BETA, eta=0.08, step=1 / 600, iterations=600)
    problem = problems.penalized_logistic(features, labels, ALPHA, BETA)
    draws = recorded_draws(setup)

    def recorded(key: Any, r: Any, agent: Any, size: Any, shape: tuple[int, ...]) -> Any:
        return jnp.asarray(draws, jnp.int32)[r, :, agent].reshape(shape)

    def algorithm(**draw: Any) -> fedpd.Algorithm:
        return algorithms.fedpd(eta=0.08, oracle=oracles.sgd(step=1 / 600, iterations=600, batch=1, **draw))

    ways = {"gather each step": plain.gather_each_step, "gather beforehand": plain.gather_beforehand}
    contenders = (
        engine(problem, algorithm(), algorithm(draw=recorded), rounds=64),
        *(numpy(setup, name, "vectorised", way, rounds=4, draws=draws) for name, way in ways.items()),
        numpy(setup, "in place, tuned by hand", "tuned", plain.in_place, rounds=4, draws=draws),
        numpy(setup, "one agent after another", "loop", plain.one_by_one, rounds=1, draws=draws),
    )
    return Workload("W2", "FedPD-SGD: 600 steps of one sample per round", 8.0, contenders)


def recorded_draws(setup: plain.Setup) -> np.ndarray:
    agents, samples, _ = setup.signed.shape
    return np.random.default_rng(1).integers(0, samples, (CHECKED, setup.iterations, agents))


def engine(problem: fedpd.Problem, algorithm: fedpd.Algorithm, replayed: fedpd.Algorithm, rounds: int) -> Contender:
    """Return this package as a contender. `replayed` is the algorithm on the recorded draws."""

    def play(rounds: int) -> float:
        return engine_seconds(algorithm, problem, rounds)

    def iterates() -> plain.Iterates:
        run = fedpd.simulate(replayed, problem, rounds=CHECKED, metrics_every=CHECKED, progress=False)
        x, x0, dual = (np.asarray(part.tree) for part in (run.agents.x, run.agents.x0, run.agents.dual))
        return plain.Iterates(x, x0[0], dual)

    return Contender("fedpd", "engine", rounds, play, iterates)


def engine_seconds(algorithm: fedpd.Algorithm, problem: fedpd.Problem, rounds: int) -> float:
    """Return seconds per round, from the engine's first report, after the first round, to its last.

    This excludes work that is done once per run, such as placing the data. Metrics are computed once, at the end: if a
    round takes as long as they do, the engine reports it by itself, and the last round is excluded with them. All
    repetitions reuse what the warm-up compiled.
    """
    reports: list[tuple[int, float]] = []

    def note(done: int, total: int, stationarity: float) -> None:
        reports.append((done, time.perf_counter()))

    fedpd.simulate(algorithm, problem, rounds=rounds, metrics_every=rounds, progress=note)
    by_itself = reports[-2][0] == rounds - 1 > 1
    (first, began), (last, ended) = reports[0], reports[-2 if by_itself else -1]
    return (ended - began) / (last - first)


def numpy(
    setup: plain.Setup, name: str, kind: str, one_round: plain.Round, rounds: int, draws: np.ndarray | None = None
) -> Contender:
    """Return a plain contender. If it is stochastic, its time includes drawing all samples of a round at once."""
    agents, samples, _ = setup.signed.shape
    rng = np.random.default_rng(0)

    def play(rounds: int) -> float:
        began, now = time.perf_counter(), plain.start(setup)
        for _ in range(rounds):
            indices = None if draws is None else rng.integers(0, samples, (setup.iterations, agents))
            now = one_round(setup, now, indices)
        return (time.perf_counter() - began) / rounds

    def iterates() -> plain.Iterates:
        now = plain.start(setup)
        for r in range(CHECKED):
            now = one_round(setup, now, None if draws is None else draws[r])
        return now

    return Contender(name, kind, rounds, play, iterates)


def largest_difference(contenders: tuple[Contender, ...]) -> float:
    """Return the largest difference of any iterates from the engine's, relative to the engine's largest entry."""
    ours, *others = (contender.iterates() for contender in contenders)
    differences = [
        float(np.abs(mine - theirs).max() / np.abs(mine).max())
        for other in others
        for mine, theirs in zip(ours, other, strict=True)
    ]
    return max(differences)
