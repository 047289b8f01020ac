"""Measure what robust means save when some agents attack, and what they cost when nobody does.

    python -m benchmarks.robust          needs scikit-learn, for its digits

20 agents hold the digits of scikit-learn, spread over the agents by a Dirichlet distribution (1.0: their labels differ
mildly, 0.1: strongly). Every method takes 40 rounds of 10 stochastic steps. The tables have the test accuracy of the
last model in per cent; a model that is not finite counts as 10, like a guess.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np
from sklearn.datasets import load_digits

from fedpd import Algorithm, FedpdError, Problem, algorithms, data, oracles, problems, simulate, transforms

AGENTS, ROUNDS, CLASSES, TEST = 20, 40, 10, 360
SGD = oracles.sgd(step=0.1, iterations=10, batch=16)
METHODS: dict[str, Algorithm] = {
    "FedAvg": algorithms.fedavg(oracle=SGD),
    "SCAFFOLD": algorithms.scaffold(step=0.1, iterations=10, batch=16),
    "FedPD": algorithms.fedpd(eta=1.0, oracle=SGD, start="server"),
}
Mean = transforms.MeanRule | None
MEANS: dict[str, Mean] = {
    "mean": None,
    "median": transforms.median(),
    "trimmed mean": transforms.trimmed_mean(0.4),
    "Krum": transforms.krum(8),
    "multi-Krum": transforms.krum(8, m=6),
    "geometric median": transforms.geometric_median(8),
    "centred clipping": transforms.centered_clipping(1.0),
}
ATTACKS: dict[str, transforms.Attack | None] = {
    "sign flip": transforms.sign_flip(2.0),
    "noise": transforms.noise(1.0),
    "a little": transforms.little(1.0),
    "flipped labels": None,
    "false dual": transforms.false_dual(-5.0),
}
SHARES = (0.1, 0.2, 0.4)


def digits(concentration: float, wrong: int = 0) -> tuple[Problem, np.ndarray, np.ndarray]:
    """Return the problem, in which the first `wrong` agents have labels 9 - y, and the test images and labels."""
    table = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(table.target))
    images, labels = table.data[order].astype(np.float32) / 16, table.target[order]
    rest = np.arange(TEST, len(labels))
    owners = np.empty(len(rest), int)
    for label in range(CLASSES):
        rows = np.flatnonzero(labels[rest] == label)
        shares = rng.dirichlet(np.full(AGENTS, concentration)) + 0.1 / AGENTS
        owners[rows] = rng.choice(AGENTS, len(rows), p=shares / shares.sum())
    parts = [rest[owners == i] for i in range(AGENTS)]
    targets = [CLASSES - 1 - labels[part] if i < wrong else labels[part] for i, part in enumerate(parts)]
    agents = {f"{i:02}": {"x": images[parts[i]], "y": targets[i]} for i in range(AGENTS)}
    return problems.softmax_regression(data.from_arrays(agents)), images[:TEST], labels[:TEST]


def accuracy(
    method: Algorithm, mean: transforms.MeanRule | None, name: str, share: float, concentration: float
) -> float:
    """Return the test accuracy in per cent under an attack; NaN if the method cannot be attacked like this."""
    attackers = round(share * AGENTS)
    problem, images, labels = digits(concentration, attackers if name == "flipped labels" else 0)
    attack = ATTACKS.get(name)
    if attack is not None and attackers:
        method = transforms.attack(method, attack, agents=range(attackers))
    if mean is not None:
        method = transforms.wrap(method, mean=mean)
    try:
        model = simulate(method, problem, rounds=ROUNDS, metrics_every=ROUNDS, progress=False).model
    except FedpdError:
        return np.nan
    scores = images.reshape(len(images), -1) @ model["weights"] + model["bias"]
    return 100 * float(np.mean(scores.argmax(axis=1) == labels)) if np.isfinite(scores).all() else 100 / CLASSES


def table(title: str, rows: Iterator[tuple[str, Callable[[Mean], float]]]) -> None:
    """Print a Markdown table with one column per mean."""
    print(f"| {title} | {' | '.join(MEANS)} |")
    print("|---" * (1 + len(MEANS)) + "|")
    for label, measure in rows:
        cells = [measure(mean) for mean in MEANS.values()]
        jax.clear_caches()  # each cell is a program of its own, and a process can hold only so many
        print(f"| {label} | {' | '.join('-' if np.isnan(one) else f'{one:.0f}' for one in cells)} |", flush=True)
    print()


def main() -> None:
    """Print the tables: no attack, one attack by share, all attacks."""
    for concentration in (1.0, 0.1):
        name = f"nobody attacks, Dirichlet {concentration:g}"
        rows = ((label, lambda mean, m=m, c=concentration: accuracy(m, mean, "", 0, c)) for label, m in METHODS.items())
        table(name, rows)
    shares = (
        (f"{label}, {share:.0%}", lambda mean, m=m, s=share: accuracy(m, mean, "sign flip", s, 1.0))
        for label, m in METHODS.items()
        for share in SHARES
    )
    table("sign flip", shares)
    attacks = (
        (f"{label}, {name}", lambda mean, m=m, n=name: accuracy(m, mean, n, 0.2, 1.0))
        for name in ATTACKS
        if name != "sign flip"
        for label, m in METHODS.items()
        if name != "false dual" or label == "FedPD"
    )
    table("20 % attack", attacks)


if __name__ == "__main__":
    main()
