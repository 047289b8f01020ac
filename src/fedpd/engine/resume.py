"""Save a run and resume it bit for bit. The identity of a run decides which checkpoints it can resume from."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import refuse
from fedpd.base.errors import warn
from fedpd.base.identity import fingerprint
from fedpd.base.versions import versions
from fedpd.core import Method, Problem
from fedpd.engine.driver import Driver
from fedpd.engine.measure.columns import COLUMNS
from fedpd.engine.measure.divergence import Divergence
from fedpd.engine.measure.history import History
from fedpd.engine.measure.measurements import Measurements
from fedpd.engine.participation import Participation
from fedpd.engine.plan import Plan


def identity(plan: Plan) -> dict[str, Any]:
    """Return the identity of a run. A run can resume from a checkpoint that has the same identity.

    Raises:
        UnidentifiedError: Another process could not identify a function of the user's own.
    """
    grid = {jax.tree_util.keystr(path): leaf.tolist() for path, leaf in jax.tree.leaves_with_path(plan.variants)}
    return run_identity(plan, plan.algorithm, plan.rounds) | {"seeds": list(plan.seeds), "grid": grid}


def run_identity(plan: Plan, algorithm: Method, rounds: int) -> dict[str, Any]:
    """Return the identity of the first rounds of one variant, without its seed. A run with the same one continues it.

    Raises:
        UnidentifiedError: Another process could not identify a function of the user's own.
    """
    buffer = None if plan.timing is None else plan.timing.buffer
    options: dict[str, Any] = ({} if buffer is None else {"buffer": buffer}) | (
        {"average": True} if plan.average else {}
    )
    if plan.central is not None:
        options["test"] = plan.central.identity()
    return options | {
        "algorithm": algorithm.spec.plain(),
        "problem": problem_identity(plan.problem),
        "metrics_every": plan.every,
        "participation": _rule(plan.participation, rounds),
        "stragglers": None if plan.stragglers is None else float(plan.stragglers),
        "record": {column.name: fingerprint(column.measure, column.merge) for column in plan.recorded},
        "sample": None if plan.sample is None else checkpoint.fingerprint(plan.sample),
    }


def problem_identity(problem: Problem) -> dict[str, Any]:
    """Return the identity of a problem: hashes of its functions' code and captured values, and of its arrays."""
    judge = problem.evaluation
    judged = () if judge is None else (judge.correct, judge.losses, *([judge.metrics] if judge.metrics else ()))
    loaders = (problem.load, None if judge is None else judge.load)
    return (
        ({} if loaders == (None, None) else {"loaders": fingerprint(*loaders)})
        | {
            "name": problem.name,
            "data": problem.data_hash,
            "start": checkpoint.fingerprint(problem.start),
            "tests": problem.tests_hash,
            "losses": fingerprint(problem.losses),
            "penalty": fingerprint(problem.penalty),
            "judged by": fingerprint(*judged, problem.block, problem.statistics),
        }
        | ({} if problem.random is None else {"random": fingerprint(problem.random)})
    )


def _rule(rule: Participation | None, rounds: int) -> Any:
    """Return what identifies who is present in the first rounds. A longer schedule may begin with the same rows."""
    if rule is None:
        return None
    return {rule.kind: checkpoint.fingerprint(rule.numbers[:rounds] if rule.kind == "schedule" else rule.numbers)}


def save(driver: Driver, folder: Path, identified: dict[str, Any]) -> None:
    """Write a checkpoint of a run."""
    arrays = checkpoint.flatten("state", (driver.backend.agents(), driver.backend.state.server))
    arrays |= {"updates": np.stack([one.updates for one in driver.measurements]), "clock": np.array(driver.clock)}
    for i, one in enumerate(driver.measurements):
        arrays |= {f"history.{i}.{name}": column for name, column in one.history.items()}
    meta = {
        "round": driver.done,
        "seconds": driver.seconds,
        "totals": [one.totals for one in driver.measurements],
        "diverged": [None if one.diverged is None else list(one.diverged) for one in driver.measurements],
        "versions": versions(),
        "layout": _layout(driver.plan),
    }
    if jax.process_index() == 0:
        checkpoint.save_round(folder, driver.done, arrays, identified | meta)


class SavedRun(NamedTuple):
    """One variant of a run up to its last checkpoint."""

    history: History  # the measured rows
    elapsed: np.ndarray  # (rows,) seconds at each row
    diverged: Divergence | None  # when and why it diverged; None: it did not


class SavedRuns(NamedTuple):
    """The runs of a checkpoint."""

    runs: list[SavedRun]  # one per seed
    versions: dict[str, str]  # the versions that wrote it
    algorithm: Any  # the spec of the method, as plain values
    seeds: list[int]  # the seeds
    agents: int  # N


def peek(folder: Path) -> SavedRuns | None:
    """Return the runs of the newest intact checkpoint, without resuming the run."""
    found = checkpoint.peek(folder, "history.", "clock", "updates")
    if found is None:
        return None
    arrays, meta = found
    runs = []
    for i, diverged in enumerate(meta["diverged"]):
        history = _history(arrays, i)
        elapsed = np.interp(history["round"], *arrays["clock"].T)
        runs.append(SavedRun(history, elapsed, None if diverged is None else Divergence(*diverged)))
    return SavedRuns(runs, meta["versions"], meta["algorithm"], meta["seeds"], arrays["updates"].shape[1])


def _history(arrays: checkpoint.Arrays, i: int) -> History:
    """Return the history of variant i. The columns that every history has come first."""
    prefix = f"history.{i}."
    columns = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: columns[name] for name in (*COLUMNS, *sorted(set(columns) - set(COLUMNS)))}


def restore(driver: Driver, folder: Path, identified: dict[str, Any]) -> None:
    """Set a driver to the newest checkpoint of the folder, if there is one."""
    found = checkpoint.load_newest(folder, identified)
    if found is None:
        return
    arrays, meta = found
    rounds, every = driver.plan.rounds, driver.plan.every
    if meta["round"] > rounds:
        rule = f"must be at least {meta['round']}, the rounds that {folder} already holds"
        refuse("rounds", rounds, rule, "Give more rounds, or choose another folder")
    _warn_of_other_bits(folder, meta, driver.plan)
    like = driver.backend.like([len(arrays.get(f"state[0][{i}].agent", ())) for i in range(len(driver.measurements))])
    agents, server = checkpoint.unflatten("state", (like, driver.backend.state.server), arrays)
    driver.restore(agents, server, meta["round"])
    driver.seconds = meta["seconds"]
    driver.clock = [(int(done), seconds) for done, seconds in arrays["clock"].tolist()]
    for i, measurements in enumerate(driver.measurements):
        diverged = None if meta["diverged"][i] is None else Divergence(*meta["diverged"][i])
        numbers = arrays[f"history.{i}.round"]
        keep = rows_to_keep(numbers, every, rounds, diverged)
        history = {name: arrays[f"history.{i}.{name}"][keep] for name in measurements.history}
        driver.measurements[i] = Measurements(history, meta["totals"][i], arrays["updates"][i], diverged)


def _layout(plan: Plan) -> dict[str, Any]:
    """Return how the loop over agents runs, which decides the order of its sums and so their last bits."""
    mesh = plan.layout.mesh
    return {"devices": 1 if mesh is None else int(mesh.size), "at once": plan.layout.parallel}


def _warn_of_other_bits(folder: Path, meta: dict[str, Any], plan: Plan) -> None:
    """Warn if the packages, the machine or the devices are not those of the checkpoint."""
    if meta["round"] >= plan.rounds:
        return
    now = {**versions(), **_layout(plan)}
    before = {**meta.get("versions", {}), **meta.get("layout", {})}
    changed = [f"{name} was {before[name]}, and is {now[name]}" for name in before if before[name] != now.get(name)]
    if changed:
        warn(
            f"{folder}: {'; '.join(changed)}. The run resumes, but the result may differ in its last digits from that "
            "of a run without interruption. To have the same bits, resume with the same packages, machine and devices."
        )


def rows_to_keep(numbers: np.ndarray, every: int, rounds: int, diverged: Divergence | None) -> np.ndarray:
    """Return which rows a continued run keeps. It drops an earlier last round that it would not have measured."""
    return (numbers % every == 0) | (numbers == rounds) | (diverged is not None)
