"""Save a run and resume it, bit for bit; its identity says which checkpoints belong to it."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import refuse
from fedpd.base.identity import fingerprint
from fedpd.base.spec import spec_of
from fedpd.base.versions import versions
from fedpd.core import Problem
from fedpd.engine.books import Books
from fedpd.engine.columns import COLUMNS
from fedpd.engine.divergence import Divergence
from fedpd.engine.driver import Driver
from fedpd.engine.history import History
from fedpd.engine.participation import Participation
from fedpd.engine.plan import Plan


def identity(plan: Plan) -> dict[str, Any]:
    """Return what makes two runs the same run, so that one may go on from the other's checkpoint.

    Raises:
        UnidentifiedError: A function of the user's own cannot be identified in another process.
    """
    settings = plan.settings or {}
    return {
        "algorithm": spec_of(plan.algorithm).plain(),
        "problem": problem_identity(plan.problem),
        "seeds": list(plan.seeds),
        "metrics_every": plan.every,
        "participation": _rule(plan.participation),
        "stragglers": None if plan.stragglers is None else float(plan.stragglers),
        "record": {column.name: fingerprint(column.measure, column.merge) for column in plan.recorded},
        "grid": {name: values.tolist() for name, values in settings.items()},
    }


def problem_identity(problem: Problem) -> dict[str, Any]:
    """Return what tells a problem from others: functions by their code and what they capture, arrays by their bytes."""
    judge = problem.evaluation
    tests = () if judge is None else (judge.data, judge.sizes)
    judged = () if judge is None else (judge.correct, judge.losses)
    return {
        "name": problem.name,
        "data": checkpoint.fingerprint(problem.data, problem.sizes, problem.scale),
        "start": checkpoint.fingerprint(problem.start),
        "tests": checkpoint.fingerprint(*tests),
        "losses": fingerprint(problem.losses),
        "penalty": fingerprint(problem.penalty),
        "judged by": fingerprint(*judged, problem.block, problem.statistics),
    }


def _rule(rule: Participation | None) -> Any:
    return None if rule is None else {rule.kind: checkpoint.fingerprint(rule.numbers)}


def save(driver: Driver, folder: Path, identified: dict[str, Any]) -> None:
    """Write a checkpoint of a run."""
    arrays = checkpoint.flatten("state", (driver.agents(), driver.state.server))
    arrays |= {"updates": np.stack([books.updates for books in driver.books]), "clock": np.array(driver.clock)}
    for i, books in enumerate(driver.books):
        arrays |= {f"history.{i}.{name}": column for name, column in books.history.items()}
    meta = {
        "round": driver.done,
        "seconds": driver.seconds,
        "totals": [books.totals for books in driver.books],
        "diverged": [None if books.diverged is None else list(books.diverged) for books in driver.books],
        "versions": versions(),
    }
    if jax.process_index() == 0:
        checkpoint.save_round(folder, driver.done, arrays, identified | meta)


class SavedRun(NamedTuple):
    """One variant of a run, as far as its last checkpoint.

    Attributes:
        history: The measured rows.
        elapsed: (rows,) seconds at each row.
        diverged: When and why it diverged; None: it did not.
    """

    history: History
    elapsed: np.ndarray
    diverged: Divergence | None


def peek(folder: Path) -> tuple[list[SavedRun], dict[str, str]] | None:
    """Return the runs of the newest checkpoint and the versions that wrote it, for those who only look on."""
    found = checkpoint.peek(folder, "history.", "clock")
    if found is None:
        return None
    arrays, meta = found
    runs = []
    for i, diverged in enumerate(meta["diverged"]):
        history = _history(arrays, i)
        elapsed = np.interp(history["round"], *arrays["clock"].T)
        runs.append(SavedRun(history, elapsed, None if diverged is None else Divergence(*diverged)))
    return runs, meta["versions"]


def _history(arrays: checkpoint.Arrays, i: int) -> History:
    """Return the history of variant i; the columns that every history has come first."""
    prefix = f"history.{i}."
    columns = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: columns[name] for name in (*COLUMNS, *sorted(set(columns) - set(COLUMNS)))}


def restore(driver: Driver, folder: Path, identified: dict[str, Any]) -> None:
    """Let a run go on from the newest checkpoint of its folder, if there is one."""
    found = checkpoint.load_newest(folder, identified)
    if found is None:
        return
    arrays, meta = found
    rounds, every = driver.plan.rounds, driver.plan.every
    if meta["round"] > rounds:
        rule = f"{folder} already holds {meta['round']} rounds, and a run does not go back"
        refuse("rounds", rounds, rule, "Ask for more rounds, or choose another folder")
    like = jax.eval_shape(lambda agents: jax.tree.map(driver.without_padding, agents), driver.state.agents)
    agents, server = checkpoint.unflatten("state", (like, driver.state.server), arrays)
    driver.take_up(agents, server, meta["round"])
    driver.seconds = meta["seconds"]
    driver.clock = [(int(done), seconds) for done, seconds in arrays["clock"].tolist()]
    for i, books in enumerate(driver.books):
        diverged = None if meta["diverged"][i] is None else Divergence(*meta["diverged"][i])
        numbers = arrays[f"history.{i}.round"]
        keep = rows_to_keep(numbers, every, rounds, diverged)
        history = {name: arrays[f"history.{i}.{name}"][keep] for name in books.history}
        driver.books[i] = Books(history, meta["totals"][i], arrays["updates"][i], diverged)


def rows_to_keep(numbers: np.ndarray, every: int, rounds: int, diverged: Divergence | None) -> np.ndarray:
    """Return which rows a continued run keeps: one that was to end earlier has measured its last round besides."""
    return (numbers % every == 0) | (numbers == rounds) | (diverged is not None)
