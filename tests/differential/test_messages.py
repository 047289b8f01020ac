"""Transforms and means of messages against a few lines of NumPy, alone and in a run with error feedback."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import Problem, algorithms, oracles, problems, simulate, transforms
from fedpd.base.precision import scope
from fedpd.transforms._ways import pack_values, unpack_values

from .seeds import same, seeds

SIZES, SENDERS = (1, 9, 33), (1, 4, 9)  # few, because every shape is compiled
KEY = jax.random.key(0, impl="threefry2x32")
Rule = Callable[[np.ndarray], np.ndarray]


def largest(share: float) -> Rule:
    def keep(v: np.ndarray) -> np.ndarray:
        kept = np.argsort(-np.abs(v), kind="stable")[: max(1, int(np.ceil(share * len(v) - 1e-9)))]
        return np.where(np.isin(np.arange(len(v)), kept), v, 0)

    return keep


def signs(v: np.ndarray) -> np.ndarray:
    return np.where(v >= 0, 1, -1) * float(np.float32(np.abs(v).mean()))


def shortened(norm: float) -> Rule:
    return lambda v: v * min(1, norm / np.linalg.norm(v)) if v.any() else v


def drawn_transform(rng: np.random.Generator) -> tuple[list[Any], list[Rule]]:
    """Return a chain of transforms in both forms."""
    share, norm = rng.choice([0.05, 0.4, 1.0]).item(), rng.choice([0.1, 2.0]).item()
    chains: list[tuple[list[Any], list[Rule]]] = [
        ([transforms.top_k(share)], [largest(share)]),
        ([transforms.sign()], [signs]),
        ([transforms.clip(norm)], [shortened(norm)]),
        ([transforms.clip(norm), transforms.top_k(share)], [shortened(norm), largest(share)]),
    ]
    return chains[rng.integers(len(chains))]


def test_a_chain_of_transforms_delivers_what_numpy_says() -> None:
    for seed in seeds(12):
        rng = np.random.default_rng(seed)
        chain, rules = drawn_transform(rng)
        values = wanted = rng.normal(size=rng.choice(SIZES)) * 10.0 ** rng.integers(-6, 6)
        for rule in rules:
            wanted = rule(wanted)
        with scope(True):
            packed = pack_values(tuple(chain), values, KEY)
            found = unpack_values(tuple(chain), packed, jax.ShapeDtypeStruct(values.shape, values.dtype))
        same(seed, str([one.spec for one in chain]), found, wanted, atol=0)


def test_quantize_sends_a_neighbour_among_its_levels() -> None:
    for seed in seeds(6):
        rng = np.random.default_rng(seed)
        bits = int(rng.integers(1, 17))
        values = rng.normal(size=rng.choice(SIZES))
        chain = (transforms.quantize(bits, unbiased=True),)
        with scope(True):
            like = jax.ShapeDtypeStruct(values.shape, values.dtype)
            found = np.asarray(unpack_values(chain, pack_values(chain, values, KEY), like))
        top = float(np.float32(np.abs(values).max()))
        gap = 2 * top / (2**bits - 1)
        places = (found / max(top, 1e-300) + 1) * (2**bits - 1) / 2
        assert np.abs(places - places.round()).max() < 1e-6 * 2**bits, f"seed {seed}: {found} is not on the levels"
        assert (np.abs(found - values) <= gap * (1 + 1e-6)).all(), f"seed {seed}: {found} is far from {values}"


def trimmed(rows: np.ndarray, share: float) -> np.ndarray:
    cut = min(int(np.ceil(share * len(rows) - 1e-9)), (len(rows) - 1) // 2)
    return np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0)


def krum(rows: np.ndarray, f: int, m: int) -> np.ndarray:
    squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=-1)
    scores = [np.sort(np.delete(row, i))[: len(rows) - f - 2].sum() for i, row in enumerate(squares)]
    return rows[np.argsort(scores, kind="stable")[:m]].mean(axis=0)


def clipped_around(rows: np.ndarray, radius: float, times: int) -> np.ndarray:
    centre = np.median(rows, axis=0)
    for _ in range(times):
        away = rows - centre
        centre = centre + (away * (radius / np.maximum(radius, np.linalg.norm(away, axis=1)))[:, None]).mean(axis=0)
    return centre


def drawn_mean(rng: np.random.Generator, senders: int) -> tuple[Any, Rule]:
    """Return a mean in both forms, which fits this number of senders."""
    share, f, radius = float(rng.uniform(0, 0.49)), int(rng.integers(0, 3)), 0.7
    m = min(senders, int(rng.integers(1, 4)))
    rules: list[tuple[Any, Rule]] = [
        (transforms.median(), lambda rows: np.median(rows, axis=0)),
        (transforms.trimmed_mean(share), lambda rows: trimmed(rows, share)),
        (transforms.centered_clipping(radius, 4), lambda rows: clipped_around(rows, radius, 4)),
    ]
    if senders >= 2 * f + 3:
        rules.append((transforms.krum(f, m), lambda rows: krum(rows, f, m)))
    return rules[rng.integers(len(rules))]


def test_a_mean_of_the_messages_that_were_sent_is_that_of_numpy() -> None:
    for seed in seeds(6):
        rng = np.random.default_rng(seed)
        sent = rng.random(rng.choice(SENDERS)) < 0.7
        sent[rng.integers(len(sent))] = True
        rows = rng.normal(size=(len(sent), 5)) * 10.0 ** rng.integers(-3, 3)
        rule, wanted = drawn_mean(rng, int(sent.sum()))
        with scope(True):
            found = rule.mean({"a": rows[:, :2], "b": rows[:, 2:].reshape(-1, 3, 1)}, sent)
        together = np.concatenate([found["a"], found["b"].reshape(-1)])
        same(seed, f"{rule.spec} of {sent.sum()} of {len(sent)}", together, wanted(rows[sent]), atol=1e-9)


# --- in a run -------------------------------------------------------------------------------------------------------

N, D, T, STEP = 5, 6, 4, 0.05


def losses(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["y"]) ** 2 / 2


def drawn_run(seed: int) -> tuple[Problem, Any, np.ndarray, dict[str, Any]]:
    """Return a least-squares problem, the gradient of agent i, who is present, and the options of the run."""
    rng = np.random.default_rng(seed)
    data = [{"a": rng.normal(size=(n, D)), "y": rng.normal(size=n)} for n in (4, 4, 7, 3, 5)]
    problem = problems.from_losses(losses, data, rng.normal(size=D), check=False)
    present = rng.random((T, N)) < 0.7
    present[:, 0] = True
    present[0, 1:] = [False, True, True, True]

    def gradient(i: int, x: np.ndarray) -> np.ndarray:
        return (data[i]["a"] @ x - data[i]["y"]) @ data[i]["a"] / len(data[i]["y"])

    return problem, gradient, present, {"rounds": T, "participation": present, "devices": 1}


@pytest.mark.parametrize("name", ["top_k", "sign", "clip"])
def test_error_feedback_of_models(name: str) -> None:
    """q = C(x_i - y + e_i), e_i keeps the rest, and the server's model is y + mean_S q."""
    chains: dict[str, tuple[Any, Rule, int]] = {
        "top_k": (transforms.top_k(0.5), largest(0.5), 0),
        "sign": (transforms.sign(), signs, 1 + 4),  # bytes: six signs and a float32
        "clip": (transforms.clip(0.1), shortened(0.1), 8 * D),
    }
    transform, rule, size = chains[name]
    algorithm = transforms.wrap(algorithms.fedavg(oracle=oracles.gd(STEP, 2)), up=transform)
    for seed in seeds(3):
        problem, gradient, present, options = drawn_run(seed)
        run = simulate(algorithm, problem, **options)
        y, rest = problem.start, np.zeros((N, D))
        for r in range(T):
            sent = []
            for i in np.flatnonzero(present[r]):
                x = y
                for _ in range(2):
                    x = x - STEP * gradient(i, x)
                change = x - y + rest[i]
                sent.append(rule(change))
                rest[i] = change - sent[-1]
            y = y + np.mean(sent, axis=0)
        same(seed, f"the model with {name}", run.model, y)
        if size:
            same(seed, "bytes_up", run.history["bytes_up"], np.cumsum([0, *present.sum(axis=1)]) * size)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum"])
def test_a_robust_mean_of_the_agents_that_are_present(name: str) -> None:
    rules: dict[str, tuple[Any, Rule]] = {
        "median": (transforms.median(), lambda rows: np.median(rows, axis=0)),
        "trimmed_mean": (transforms.trimmed_mean(0.3), lambda rows: trimmed(rows, 0.3)),
        "krum": (transforms.krum(0, 2), lambda rows: krum(rows, 0, 2)),
    }
    mean, rule = rules[name]
    algorithm = transforms.wrap(algorithms.fedavg(oracle=oracles.gd(STEP, 2)), mean=mean)
    for seed in seeds(3):
        problem, gradient, present, options = drawn_run(seed)
        present[:, 1:3] = True  # krum needs three messages
        run = simulate(algorithm, problem, **options)
        y = problem.start
        for r in range(T):
            found = []
            for i in np.flatnonzero(present[r]):
                x = y
                for _ in range(2):
                    x = x - STEP * gradient(i, x)
                found.append(x)
            y = rule(np.array(found))
        same(seed, f"the model with {name}", run.model, y)
