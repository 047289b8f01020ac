"""Run FedPD-N on network problems that are changed, and without each of its parts: final test accuracies.

    python -m benchmarks.network_stress stress|parts PROBLEM ...       needs the data of `fedpd benchmark networks`

`stress` changes the cohort, the local steps, the rounds, the scale of the inputs or the first step. FedAvg takes the
best of five steps, by validation samples, and the running mean where it is better. `parts` leaves out or changes one
part of FedPD-N. Prints Markdown. DATA is the folder of some problems' data.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpd import simulate
from fedpd.algorithms.fedpd_n import FedPDN
from fedpd.core import Method, Tree
from fedpd.report.tables import markdown_table
from fedpd.search.tuned import LAST
from fedpd.suite.networks import TASKS, Task
from fedpd.suite.networks_methods import FEDPD_N, REFERENCE, RIVALS, settings
from fedpd.suite.networks_watch import Split, curves, split

SEEDS = (10, 11, 12)  # the benchmark has others
STEPS = (0.05, 0.1, 0.2, 0.4, 0.8)
MODELS = ("newest", "mean")
FAR = 16  # how far off a first step is
PARTS: dict[str, dict[str, Any]] = {
    FEDPD_N: {},
    "no duals (ρ = 0)": {"rho": 0.0},
    "whole duals (ρ = 1)": {"rho": 1.0},
    "no momentum (β = 0)": {"beta": 0.0},
    "β of the first rounds always": {"beta": None},
    "β = 0.8 always": {"beta": 0.8},
    "penalty 1": {"penalty": 1.0},
    "first step kept (no later trials, no guard)": {"adapt": False},
}


def finals(task: Task, method: Method, seed: int, parts: Split, tuning: bool = False) -> dict[str, float]:
    """Return the final accuracies of the newest model and of the running mean."""
    found = curves(task, method, seed, parts.train, parts.validation if tuning else parts.test)
    return {model: float(np.mean(found[model][-LAST:])) for model in MODELS}


def several(task: Task, method: Method, parts: Split, model: str = "mean") -> str:
    """Return the mean and the standard deviation over the seeds."""
    values = [finals(task, method, seed, parts)[model] for seed in SEEDS]
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def tuned_fedavg(task: Task, parts: Split) -> str:
    """Return the accuracies of FedAvg with the step and the model that are best on validation samples."""
    tries = [RIVALS[REFERENCE].make(task, step, 1.0) for step in STEPS]
    tuned = [finals(task, method, 0, parts, tuning=True) for method in tries]
    at, model = max(((i, model) for i in range(len(tries)) for model in MODELS), key=lambda one: tuned[one[0]][one[1]])
    return f"{several(task, tries[at], parts, model)}, step {STEPS[at]}{', mean' if model == 'mean' else ''}"


def untuned(task: Task, parts: Split, **chosen: Any) -> FedPDN:
    (method,) = settings(FEDPD_N, task, parts.train.agents, 0)
    assert isinstance(method, FedPDN)
    return replace(method, **chosen)


def found_step(task: Task, parts: Split) -> float:
    """Return the step of the first trials."""
    method = untuned(task, parts)
    train = replace(parts.train, evaluation=None)
    run = simulate(method, train, rounds=max(1, method.first_rounds), cohort=task.cohort, seed=SEEDS[0], progress=False)
    return float(run.server.orders.step)


def scaled(parts: Split, factor: float) -> Split:
    """Return a problem whose inputs are multiplied by a factor."""

    def of(samples: Tree) -> Tree:
        return samples | {"x": factor * samples["x"]}

    train = replace(parts.train, data=of(parts.train.data))
    return Split(train, of(parts.validation), of(parts.test))


def cases(task: Task, parts: Split) -> Iterator[tuple[str, Task, Split]]:
    """Yield each change in words, with the task and the samples."""
    yield "as it is", task, parts
    for cohort in (1, 3, 10):
        if cohort not in (task.cohort, parts.train.agents):
            yield f"{cohort} of {parts.train.agents} agents", task._replace(cohort=cohort), parts
    if task.cohort is not None:
        yield f"all {parts.train.agents} agents", task._replace(cohort=None), parts
    for factor, words in ((5.0, "inputs times 5"), (0.2, "inputs divided by 5")):
        yield words, task, scaled(parts, factor)
    for iterations in (3, 50):
        yield f"Q = {iterations}", task._replace(iterations=iterations), parts
    yield "400 rounds", task._replace(rounds=400), parts


def stress(name: str, task: Task, parts: Split) -> None:
    for words, changed, samples in cases(task, parts):
        own = several(changed, untuned(changed, samples), samples)
        show(name, words, own, tuned_fedavg(changed, samples))
        jax.clear_caches()
    step = found_step(task, parts)
    for factor, words in ((FAR, f"first step times {FAR}"), (1 / FAR, f"first step divided by {FAR}")):
        show(name, words, several(task, untuned(task, parts, step=factor * step), parts), "")


def ablate(name: str, task: Task, parts: Split) -> None:
    cohort = untuned(task, parts).cohort
    for words, chosen in PARTS.items():
        values = dict(chosen)
        if "beta" in values and values["beta"] is None:
            values["beta"] = min(0.8, (cohort - 1) / (cohort + 1))
        if "adapt" in values:
            values["step"] = found_step(task, parts)
        method = untuned(task, parts, **values)
        show(name, words, *(several(task, method, parts, model) for model in reversed(MODELS)))


def show(*cells: str) -> None:
    print(markdown_table(cells, []).splitlines()[0], flush=True)


def main(what: str, names: Sequence[str]) -> None:
    folder = Path(os.environ.get("DATA", "."))
    stressed, parts = ("problem", "change", FEDPD_N, REFERENCE), ("problem", "form", "delivered mean", "newest model")
    heads = stressed if what == "stress" else parts
    print(markdown_table(heads, []), end="", flush=True)
    for name in names:
        (stress if what == "stress" else ablate)(name, TASKS[name], split(TASKS[name].make(folder)))
        jax.clear_caches()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
