"""Measure what each rule of FedPD-M saves: communications to 1e-10 of the start's ||grad f||^2 without that rule.

    python -m benchmarks.ablation [problem ...]       needs scikit-learn, for its data

Prints a Markdown table with "communications / gradients per communication and agent"; "-" where a run did not get there
in 200.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

from fedpd import Algorithm, Problem, data, oracles, problems, sweep
from fedpd.algorithms._memory import FedPDM
from fedpd.algorithms._memory_parts import Rules
from fedpd.search.sweep import first_below

ROUNDS, MEMORY, PRECISION = 200, 30, 1e-10


class Variant(NamedTuple):
    rules: Rules = Rules()
    tolerance: float = 3e-3


VARIANTS = {
    "FedPD-M": Variant(),
    "nothing mixed": Variant(Rules(mixes=0.0)),
    "without nu": Variant(Rules(bend=0.0)),
    "s = eta": Variant(Rules(longest=1.0)),
    "eta = 1/L": Variant(Rules(change=1.0)),
    "eta by at most 2": Variant(Rules(change=2.0)),
    "no descent": Variant(Rules(patience=np.inf)),
    "any eta if not convex": Variant(Rules(convex=np.inf)),
    "duals begin at 0": Variant(Rules(informed=0.0)),
    "tolerance 0.1": Variant(tolerance=1e-1),
    "tolerance 1e-2": Variant(tolerance=1e-2),
    "tolerance 1e-4": Variant(tolerance=1e-4),
}

Loss = Callable[[Any, Any, Any], Any]


def by_label(
    loss: Loss, penalty: Any, rows: Any, targets: Any, agents: int, size: int = 0, order: Any = None
) -> Problem:
    """Return a problem whose agents hold consecutive rows in the order of their targets."""
    sequence = np.argsort(targets if order is None else order, kind="stable")
    parts = [{"a": rows[i], "b": targets[i]} for i in np.array_split(sequence, agents)]
    start = np.zeros(size or rows.shape[1])
    return problems.from_losses(lambda x, part: loss(x, part["a"], part["b"]) + penalty(x), parts, start)


def quadratics(condition: float, *, equal: bool = False, steep: float = 1.0, least: float = 0.0) -> Problem:
    """Return 20 quadratics in 30 dimensions with their own eigenvectors, eigenvalues from least + 1/condition to 1."""
    rng, size, agents = np.random.default_rng(0), 30, 20
    bases = [np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(agents)]
    eigenvalues = least + (1 - least) * np.logspace(-np.log10(condition), 0, size)
    H = np.array([(basis * eigenvalues) @ basis.T for basis in (bases[:1] * agents if equal else bases)])
    H[0] *= steep
    return problems.quadratic(H, rng.standard_normal((agents, size)))


def autoencoder() -> Problem:
    """Return the reconstruction of rows of rank 3 by a linear encoder and decoder: a product, not convex."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 10)) + 0.1 * rng.standard_normal((40, 10))

    def losses(x: Any, part: Any) -> Any:
        there, back = x[:30].reshape(10, 3), x[30:].reshape(3, 10)
        return jnp.sum((part["y"] @ there @ back - part["y"]) ** 2, axis=1) / 2 + 5e-3 * (x @ x)

    parts = [{"y": rows[i]} for i in np.array_split(np.argsort(rows[:, 0]), 8)]
    return problems.from_losses(losses, parts, 0.3 * rng.standard_normal(60))


def squared(x: Any, a: Any, b: Any) -> Any:
    return (a @ x - b) ** 2 / 2


def logistic(x: Any, a: Any, b: Any) -> Any:
    return jnp.logaddexp(0.0, -b * (a @ x))


def softmax(classes: int) -> Loss:
    def losses(x: Any, a: Any, b: Any) -> Any:
        scores = a @ x.reshape(a.shape[1], classes)
        own = jnp.take_along_axis(scores, b[:, None].astype(int), 1)[:, 0]
        return jax.nn.logsumexp(scores, axis=1) - own

    return losses


def ridge(weight: float) -> Callable[[Any], Any]:
    return lambda x: weight / 2 * (x @ x)


def standard(rows: np.ndarray) -> np.ndarray:
    spread = rows.std(0)
    return (rows - rows.mean(0)) / np.where(spread > 0, spread, 1)


def suite() -> dict[str, Callable[[], Problem]]:
    """Return the problems by name."""
    diabetes, wine, cancer, digits = (
        getattr(datasets, f"load_{name}")() for name in ("diabetes", "wine", "breast_cancer", "digits")
    )
    progress, benign = standard(diabetes.target), 2.0 * cancer.target - 1
    pixels, large = digits.data / 16, np.where(digits.target >= 5, 1.0, -1.0)
    cells, weak = standard(cancer.data), ridge(1e-3)
    return {
        "condition 10": lambda: quadratics(10),
        "condition 100": lambda: quadratics(100),
        "condition 1e4": lambda: quadratics(1e4),
        "one 100x steeper": lambda: quadratics(10, steep=100),
        "equal, 100": lambda: quadratics(100, equal=True),
        "each indefinite": lambda: quadratics(100, least=-0.1),
        "ridge, diabetes": lambda: by_label(squared, weak, standard(diabetes.data), progress, 10),
        "softmax, wine": lambda: by_label(softmax(3), ridge(1e-2), standard(wine.data), wine.target, 6, 39),
        "logistic, cancer": lambda: by_label(logistic, weak, cells, benign, 10),
        "logistic, cancer unscaled": lambda: by_label(logistic, weak, cancer.data / cancer.data.std(), benign, 10),
        "softmax, digits": lambda: by_label(softmax(10), weak, pixels, digits.target, 10, 640),
        "pseudo-Huber, diabetes": lambda: by_label(
            lambda x, a, b: jnp.sqrt(1 + (a @ x - b) ** 2) - 1, weak, standard(diabetes.data), progress, 10
        ),
        "non-convex penalty, digits": lambda: by_label(
            logistic, lambda x: 0.05 * jnp.sum(x**2 / (1 + x**2)), pixels, large, 10, order=digits.target
        ),
        "non-convex tanh, cancer": lambda: by_label(
            lambda x, a, b: 1 - jnp.tanh(b * (a @ x)), ridge(1e-2), cells, benign, 10
        ),
        "linear autoencoder": autoencoder,
        "strongly non-iid": lambda: problems.penalized_logistic(*data.strongly_noniid()),
    }


def build(variant: str) -> Algorithm:
    """Return the variant of this name."""
    rules, tolerance = VARIANTS[variant]
    oracle = oracles.lbfgs(tolerance, 200)
    return FedPDM(eta="auto", oracle=oracle, memory=MEMORY, start="local", rules=rules)


def cells_of(problem: Problem) -> list[str]:
    """Return one cell per variant."""
    tried = sweep(build, problem, {"variant": list(VARIANTS)}, rounds=ROUNDS, progress=False)

    def cell(run: Any) -> str:
        target = PRECISION * run.history["stationarity"][0]
        communications, samples = (first_below(run, target, name) for name in ("communications", "samples"))
        return (
            "-"
            if np.isnan(communications)
            else f"{communications:.0f} / {samples / problem.samples / communications:.1f}"
        )

    return [cell(run) for (run,) in tried.runs]


def main(names: list[str]) -> None:
    made = suite()
    print("| problem | " + " | ".join(VARIANTS) + " |\n|---" + "|---" * len(VARIANTS) + "|")
    for name in names or made:
        print(f"| {name} | " + " | ".join(cells_of(made[name]())) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
