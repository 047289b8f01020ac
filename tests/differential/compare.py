"""Run a case with fedpd, and find the first number that differs from the NumPy form."""

import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd import Algorithm, Problem, Run, simulate, sweep

from .draw import Case, build, draw
from .expected import EXACT, Expected, expected

EPSILON = float(np.finfo(np.float32).eps)
FACTOR, FLOOR = 50, 100  # see `tolerance`
FACTOR_SWEPT = 1.25  # the second point of a sweep, relative to the first


class Difference(NamedTuple):
    """The first number that differs."""

    column: str
    row: int
    found: Any
    wanted: Any
    allowed: float


def tolerance(exact: np.ndarray, rounded: np.ndarray, double: bool) -> float:
    """Return how far a column may differ from the NumPy form in float64.

    `rounded` is the NumPy form in float32: its distance from `exact` says how much this case amplifies rounding errors.
    A run in float64 has 2^-29 times these errors. Another order of operations may give FACTOR times as much, and at
    least FLOOR units in the last place.
    """
    unit = float(np.finfo(np.float64).eps) if double else EPSILON
    scale = float(np.max(np.abs(exact), initial=0))
    amplified = float(np.max(np.abs(exact - rounded), initial=0))
    return FACTOR * amplified * unit / EPSILON + FLOOR * unit * scale


def difference(run: Run, case: Case, exact: Expected, rounded: Expected) -> Difference | None:
    """Return the first number of a run that differs; None: all agree."""
    wrong = sorted(set(exact.history) ^ set(run.history))
    if wrong:
        return Difference("columns", 0, sorted(run.history), sorted(exact.history), 0)
    pairs = {name: (run.history[name], exact.history[name], rounded.history[name]) for name in exact.history}
    pairs["model"] = (case.objective.vector(run.model), exact.model, rounded.model)
    pairs["updates"] = (run.updates, exact.updates, exact.updates)
    for name, (found, wanted, near) in pairs.items():
        found, wanted = np.asarray(found, float), np.asarray(wanted, float)
        if found.shape != wanted.shape:
            return Difference(name, 0, found.shape, wanted.shape, 0)
        allowed = 0.0 if name in (*EXACT, "updates") else tolerance(wanted, np.asarray(near, float), case.double)
        if not case.double and "accuracy" in name:
            continue  # a tie may fall to the other side
        apart = ~(np.abs(found - wanted) <= allowed)
        if apart.any():
            row = int(np.flatnonzero(apart)[0])
            return Difference(name, row, found[row], wanted[row], allowed)
    return None


def check(seed: int, *replaced: str) -> str | None:
    """Return one line about the first difference of a case; None: all numbers agree. `replaced` is as for `draw`."""
    case = draw(seed, *replaced)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem, algorithm = build(case), case.pair.package(case.numbers)
        with tempfile.TemporaryDirectory() as folder:
            runs = run_mode(case, problem, algorithm, Path(folder))
    for run, own, seed_of_run in runs:
        own = until_target(own) if own.mode == "until" else own
        exact, rounded = (expected(own, seed_of_run, dtype) for dtype in (np.float64, np.float32))
        found = difference(run, own, exact, rounded)
        if found is not None:
            again = " ".join([str(seed), *map(repr, replaced)])
            return (
                f"seed {seed}, {own}: {found.column}[{found.row}] is {found.found} and {found.wanted} in NumPy "
                f"(allowed {found.allowed:.1e}). Repeat it with: python -m tests.differential {again}"
            )
    return None


Ran = tuple[Run, Case, int]  # the run, the case with its own numbers, and its seed


def run_mode(case: Case, problem: Problem, algorithm: Algorithm, folder: Path) -> list[Ran]:
    """Run a case in its mode, and return all runs that it gives."""
    options, seed, rounds = case.options, case.seed, case.rounds
    if case.mode in ("sequential", "parallel", "debug"):
        options = {**options, "execution": case.mode}
    elif case.mode == "store":
        options = {**options, "store": folder}
    elif case.mode == "devices":
        options = {**options, "devices": min(2, case.agents, len(jax.devices()))}
    elif case.mode == "seeds":
        several = simulate(algorithm, problem, rounds=rounds, seed=[seed, seed + 1], **options)
        return [(run, case, run.seed) for run in several.runs]
    elif case.mode == "sweep":
        return run_sweep(case, problem)
    elif case.mode == "resumed":
        options = {**options, "checkpoints": folder, "checkpoint_every": 1}
        first = max(1, rounds // 2)
        simulate(algorithm, problem, rounds=rounds, seed=seed, callback=lambda r, x, row: r >= first, **options)
    elif case.mode == "continued":
        first = max(1, rounds // 2)
        begun = simulate(algorithm, problem, rounds=first, seed=seed, **shortened(options, first))
        options = {**options, "start": begun}
    elif case.mode == "until":
        options = {**options, "until": {"stationarity": target_of(case)}}
    return [(simulate(algorithm, problem, rounds=rounds, seed=seed, **options), case, seed)]


def run_sweep(case: Case, problem: Problem) -> list[Ran]:
    """Run two points of a sweep."""
    name = case.pair.sweeps
    values = [case.numbers[name], case.numbers[name] * FACTOR_SWEPT]

    def build_point(value: Any) -> Algorithm:
        return case.pair.package(case.numbers | {name: value})

    tried = sweep(build_point, problem, {"value": values}, rounds=case.rounds, seeds=[case.seed], **case.options)
    found = zip(values, tried.runs, strict=True)
    return [(run, case._replace(numbers=case.numbers | {name: value}), case.seed) for value, (run,) in found]


def shortened(options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return the options of the first rounds of a run."""
    if np.ndim(options.get("participation", 1.0)) == 2:
        return {**options, "participation": options["participation"][:rounds]}
    return options


def target_of(case: Case) -> float:
    """Return a stationarity that a later row reaches and the start does not, or that none reaches."""
    first, *later = expected(case, case.seed, np.float64).history["stationarity"]
    lower = sorted([value for value in later if value < 0.99 * first], reverse=True)
    if not lower:
        return float(min(first, *later)) / 2
    return float((first + lower[0]) / 2 if len(lower) == 1 else (lower[-1] + lower[-2]) / 2)


def until_target(case: Case) -> Case:
    """Return the case that ends at the first measured row that reached the target."""
    history, target = expected(case, case.seed, np.float64).history, target_of(case)
    reached = history["round"][history["stationarity"] <= target]
    rounds = int(reached[0]) if len(reached) else case.rounds
    return case._replace(rounds=rounds, options=shortened(case.options, rounds))
