"""The server's clipping, against the same rounds in plain NumPy and against `transforms.clip` in a simulation."""

from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, algorithms, simulate, transforms
from fedpd.core import Unbiased, message_kinds
from tests.algorithms.test_conformance import ROWS
from tests.flower.federations import AGENTS, GD, assert_same, run, samples, whole

STEP, STEPS, ETA, BOUND = 0.2, 3, 0.5, 0.4
SEED = 1  # with which no method skips the first round
FIRST = np.array([1.0, 0, 0, 0, 0])  # b and w of `start`
UNSENT = "have no types, so they must arrive as they were sent. Leave clip out"


def gradients(x: np.ndarray) -> np.ndarray:
    """grad f_i at the row x_i of each agent, or at one x for all."""
    found = []
    for one, own in zip(samples(), np.broadcast_to(x, (AGENTS, len(FIRST))), strict=True):
        rows = np.column_stack([np.ones(len(one["y"])), one["a"]])
        found.append(rows.T @ (rows @ own - one["y"]) / len(rows))
    return np.array(found)


def clipped(vectors: np.ndarray, centre: Any = 0) -> np.ndarray:
    """Each row at most BOUND away from the centre."""
    lengths = np.linalg.norm(vectors - centre, axis=1, keepdims=True)
    return centre + (vectors - centre) * np.minimum(1, BOUND / lengths)


def descent(x: np.ndarray, further: Any) -> np.ndarray:
    """STEPS local gradient steps of every agent from x or x_i, with the gradient of a further term."""
    y = np.broadcast_to(x, (AGENTS, len(FIRST)))
    for _ in range(STEPS):
        y = y - STEP * (gradients(y) + further(y))
    return y


def gradient_descent(rounds: int) -> np.ndarray:
    x = FIRST
    for _ in range(rounds):
        x = x - STEP * clipped(gradients(x)).mean(0)
    return x


def fedavg(rounds: int) -> np.ndarray:
    x = FIRST
    for _ in range(rounds):
        x = clipped(descent(x, lambda y: 0), x).mean(0)
    return x


def lagrangian(x0: np.ndarray, dual: np.ndarray) -> Any:
    return lambda y: dual + (y - x0) / ETA


def fedpd(rounds: int) -> np.ndarray:
    """Messages are x_{0,i}^+ = x_i + eta lambda_i, iterates: clipped around x_0."""
    x0, x, dual = FIRST, FIRST, np.zeros((AGENTS, 5))
    for _ in range(rounds):
        x = descent(x, lagrangian(x0, dual))
        dual = dual + (x - x0) / ETA
        x0 = clipped(x + ETA * dual, x0).mean(0)
    return x0


def fedpd_with_absent(rounds: int) -> np.ndarray:
    """Messages are x_i, a model, and the change of lambda_i, each clipped for itself."""
    x0, x, dual, mean_dual = FIRST, FIRST, np.zeros((AGENTS, 5)), np.zeros(5)
    for _ in range(rounds):
        x = descent(x, lagrangian(x0, dual))
        change = (x - x0) / ETA
        dual, mean_dual = dual + change, mean_dual + clipped(change).mean(0)
        x0 = clipped(x, x0).mean(0) + ETA * mean_dual
    return x0


def a_fedpd(rounds: int) -> np.ndarray:
    """Messages are models, broadcasts are a model and a sum."""
    x0, dual, mean_dual = FIRST, np.zeros((AGENTS, 5)), np.zeros(5)
    for _ in range(rounds):
        x = descent(x0, lagrangian(x0, dual))
        dual = dual + (x - x0) / ETA
        mean = clipped(x, x0).mean(0)
        mean_dual = mean_dual + (mean - x0) / ETA
        x0 = mean + ETA * mean_dual
    return x0


def scaffold(rounds: int) -> np.ndarray:
    """Messages are two changes, y_i - x and c_i+ - c_i, each clipped for itself."""
    x, c, own = FIRST, np.zeros(5), np.zeros((AGENTS, 5))
    for _ in range(rounds):
        shift = c - own
        y = descent(x, lambda y, shift=shift: shift)
        new = own - c + (x - y) / (STEPS * STEP)
        x, c = x + clipped(y - x).mean(0), c + clipped(new - own).mean(0)
        own = new
    return x


def dane(rounds: int) -> np.ndarray:
    """The first exchange sends gradients, the second one models."""
    x = FIRST
    for _ in range(rounds):
        own = gradients(x)
        mean, at = clipped(own).mean(0), x
        y = descent(x, lambda y, own=own, mean=mean, at=at: mean - own + 0.1 * (y - at))
        x = clipped(y, x).mean(0)
    return x


PLAIN: dict[Any, Algorithm] = {
    gradient_descent: algorithms.gradient_descent(step=STEP),
    fedavg: algorithms.fedavg(oracle=GD),
    fedpd: algorithms.fedpd(eta=ETA, oracle=GD),
    fedpd_with_absent: algorithms.fedpd(eta=ETA, oracle=GD, p=1e-6),
    a_fedpd: algorithms.a_fedpd(eta=ETA, oracle=GD),
    scaffold: algorithms.scaffold(step=STEP, iterations=STEPS),
    dane: algorithms.dane(mu=0.1, oracle=GD),
}


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain.__name__)
def test_clipped_rounds_are_those_of_numpy(plain: Any) -> None:
    there = run(PLAIN[plain], 2, clip=BOUND, on_timeout="partial" if plain is fedpd_with_absent else "fail")
    np.testing.assert_allclose(np.append(there.model["b"], there.model["w"]), plain(2), rtol=1e-12)
    assert there.history["clipped"][-1] > 0


def typed() -> list[Any]:
    found = []
    for name, row in ROWS.items():
        algorithm = row.make()
        kinds = message_kinds(algorithm)
        known = all(kinds) and not algorithm.copies_differ and not any(Unbiased in parts for parts in kinds)
        known = known and name != "fedpd_n"  # its agents do not move in the first round
        few = name in ("admm", "lag", "five_gcs", "giant", "fedpd-auto", "fedosaa-scaffold")
        found += [pytest.param(algorithm, id=name, marks=() if few else pytest.mark.slow)] if known else []
    return found


@pytest.mark.parametrize("algorithm", typed())
def test_the_first_communication_is_that_of_clipping_agents(algorithm: Algorithm) -> None:
    """Later, `transforms.clip` sends what was cut off, which a server cannot know."""
    bound = BOUND / 10  # below the norms of the messages of all methods
    there = run(algorithm, 1, clip=bound, seed=SEED)
    here = simulate(transforms.wrap(algorithm, up=transforms.clip(bound)), whole(), rounds=1, seed=SEED)
    assert_same(there.model, here.model)
    assert there.history["clipped"][-1] > 0


@pytest.mark.parametrize("name", ["fedbuff", "fedpd-memory", "stem"])
def test_messages_without_types_are_not_clipped(name: str) -> None:
    with pytest.raises(FedpdError, match=f"clip = 0.4: messages of .* {UNSENT}"):
        run(ROWS[name].make(), 1, clip=BOUND)
