"""Save a run and resume it bit for bit, continue a finished run, or start at a given model.

The identity of a run decides which checkpoints it can resume from, and which finished runs it can continue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd import theory
from fedpd.base import checkpoint
from fedpd.base.arrays import as_array, owned
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import warn
from fedpd.base.process import versions
from fedpd.base.spec import differences
from fedpd.core import Problem, Tree
from fedpd.engine.driver import Driver
from fedpd.engine.measure.columns import COLUMNS, NETWORK
from fedpd.engine.measure.history import Divergence, History, Measurements
from fedpd.engine.plan import Plan
from fedpd.engine.run import Ensemble, Run, identity_of, settings_of


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


Start = Tree | Run | Ensemble
TOTALS = ("round", "communications", "local_updates", "samples", "bytes_up", "bytes_down")  # the sums of history.extend
SAME = 1e-3  # largest relative difference of a loss by rounding; on another problem it differs more


def runs_of(start: Start | None) -> tuple[Run, ...]:
    """Return the runs to continue; () if `start` is a model or None."""
    if isinstance(start, Ensemble):
        return start.runs
    return (start,) if isinstance(start, Run) else ()


def start_at(problem: Problem, model: Tree) -> Problem:
    """Return the problem with another start."""
    wanted, structure = jax.tree_util.tree_flatten_with_path(problem.start)
    leaves, found = jax.tree.flatten(model)
    if not _same_structure(model, problem.start):
        rule = f"must have the structure of problem.start, {structure}"
        refuse("start", found, rule, "Give a model of this problem, e.g. run.model, or a finished run")
    arrays = [owned(as_array(leaf, "start", "Give the model as arrays of numbers")) for leaf in leaves]
    for (path, like), array in zip(wanted, arrays, strict=True):
        if array.shape != np.shape(like) or array.dtype != like.dtype:
            name, text = f"start{jax.tree_util.keystr(path)}", f"{array.dtype}{list(array.shape)}"
            rule = f"must be {like.dtype}{list(np.shape(like))}, as in problem.start"
            refuse(name, text, rule, f"Give an array of this shape and type, e.g. with .astype({str(like.dtype)!r})")
        if not np.isfinite(array).all():
            raise FedpdError(
                f"start{jax.tree_util.keystr(path)} holds NaN or infinity, so the run could not leave it. "
                "Give a model of finite numbers."
            )
    return replace(problem, start=jax.tree.unflatten(structure, arrays))


def continue_runs(driver: Driver, runs: Sequence[Run]) -> None:
    """Set a driver to the end of these runs, one per variant. Its results then equal those of one long run."""
    plan, many = driver.plan, driver.plan.many
    done = max(int(run.history["round"][-1]) for run in runs)
    _check_same(driver, runs, done)
    server = _joined([run.server for run in runs], many)
    states = [run.agents for run in runs]
    agents = jax.tree.map(np.array, states) if driver.backend.absence else _joined(states, many)
    if _shapes(agents) != _shapes(driver.backend.like([len(getattr(state, "agent", ())) for state in states])):
        rule = "the agents of the run to continue have a state of another shape"
        refuse("start", runs[0].algorithm, rule, "Give the method and the problem of that run")
    longest = max(runs, key=lambda run: run.history["round"][-1])
    driver.restore(agents, server, done)
    driver.seconds = longest.seconds
    driver.clock = list(zip(longest.history["round"].tolist(), longest.elapsed.tolist(), strict=True))
    for i, run in enumerate(runs):
        totals = {name: int(run.history[name][-1]) for name in TOTALS}
        keep = rows_to_keep(run.history["round"], plan.every, plan.rounds, run.diverged)
        history = {name: column[keep] for name, column in run.history.items() if name != NETWORK.name}
        driver.measurements[i] = Measurements(history, totals, run.updates.copy(), run.diverged)


def _check_same(driver: Driver, runs: Sequence[Run], done: int) -> None:
    """Refuse runs that differ from the plan in more than the number of rounds."""
    plan, run = driver.plan, runs[0]
    example = "Repeat the call that made the run, with more rounds and start=run"
    if any(one.agents is None for one in runs):
        rule = "this run was loaded from a run folder, without the agents' state"
        refuse("start", run.algorithm, rule, "Continue it with fedpd resume, or give start=run.model")
    seeds = [int(one.seed) for one in runs]
    if seeds != [int(seed) for seed in plan.seeds]:
        refuse("seed", [int(seed) for seed in plan.seeds], f"the run to continue has {seeds}", example)
    if run.spec != plan.algorithm.spec:
        rule = f"the run to continue is of {run.algorithm}"
        refuse("algorithm", plan.algorithm.description, rule, f"{example}; or start a new run with start=run.model")
    for name, value in settings_of(plan).items():
        if value != run.settings.get(name):
            refuse(name, value, f"the run to continue has {run.settings.get(name)!r}", example)
    if done > plan.rounds:
        rule = f"must be at least {done}, the rounds that the run already has"
        refuse("rounds", plan.rounds, rule, "Give the rounds of the whole run, including those that are done")
    _check_identity(plan, run)
    _check_problem(driver, [one for one in runs if one.diverged is None])


def _check_identity(plan: Plan, run: Run) -> None:
    """Refuse a run whose method, problem or settings have another content. Names and labels may be the same."""
    own = identity_of(plan, plan.algorithm, int(run.history["round"][-1]))
    if own is None or run.identity is None:
        return
    differing = list(differences(_to_repeat(own, plan), _to_repeat(run.identity, plan)))
    if differing:
        raise FedpdError(
            f"start = the run of {run.algorithm}: its {', and its '.join(differing[:3])}. Repeat the call that made "
            "the run, with the same data, functions and settings; or start a new run with start=run.model."
        )


def _to_repeat(identity: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the part of an identity that a continued run must repeat.

    The name of a problem changes nothing. Its start matters only if agents that come later begin at it.
    """
    free = {"name"} if plan.participation is not None else {"name", "start"}
    problem = {name: value for name, value in identity["problem"].items() if name not in free}
    return {**identity, "problem": problem}


def _check_problem(driver: Driver, runs: Sequence[Run]) -> None:
    """Refuse a run of another problem, on which its model has another loss."""
    problem, sample = driver.plan.problem, driver.plan.sample
    problem = problem if sample is None else problem.subset(sample)
    for run in runs[:1]:
        recorded, fits = float(run.history["loss"][-1]), _same_structure(run.model, problem.start)
        if not fits or not np.isclose(theory.objective(problem, run.model), recorded, rtol=SAME, atol=SAME**4):
            raise FedpdError(
                f"start = the run of {run.algorithm}: its history ends with the loss {recorded:.6g}, and its model has "
                "another loss on this problem. Give the problem of that run, or start a new run with start=run.model."
            )


def _joined(states: Sequence[Any], many: bool) -> Any:
    """Return copies of the states, because the driver reuses their memory; several get an axis of variants."""
    if not many:
        return jax.tree.map(np.array, states[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def _same_structure(one: Tree, other: Tree) -> bool:
    structures: list[Any] = [jax.tree.structure(one), jax.tree.structure(other)]
    return structures[0] == structures[1]


def _shapes(tree: Any) -> Any:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
