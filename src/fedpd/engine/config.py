"""The options of a run. `simulate`, `sweep`, the [run] table of an experiment file and the commands share them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np

from fedpd.base.checks import check_takes, refuse
from fedpd.base.progress import ProgressFunction, Row
from fedpd.base.typed import misfit
from fedpd.clock import Clock
from fedpd.core import Tree
from fedpd.engine.measure.columns import Column
from fedpd.engine.measure.history import Until
from fedpd.engine.participation import Sampling
from fedpd.engine.plan import Execution
from fedpd.engine.resume import Start
from fedpd.loggers import Log

Participating = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray
Callback = Callable[[int, Tree, Row], Any]  # (round, model, row) -> True: stop the run

# The options that nothing else checks before the run, and what to give instead.
REMEDIES = {
    "checkpoints": 'Give the path of a folder, e.g. "runs/a"',
    "store": "Give the path of a folder on a disk with room for the agents' state",
    "record": 'Give a list, e.g. ["heterogeneity"]',
    "progress": "Give True, False, or a function of (rounds done, total rounds, stationarity)",
    "log": "Give a function that receives a list of rows, e.g. from fedpd.loggers",
    "callback": "Give a function of (round, model, row)",
}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of a run with their defaults; `simulate` describes them."""

    participation: Participating = 1.0
    cohort: int | None = None
    sampling: Sampling = "uniform"
    stragglers: float = 0.0
    metrics_every: int = 1
    metrics_agents: int | None = None
    record: Sequence[str | Column] | None = None
    checkpoints: str | Path | None = None
    checkpoint_every: int = 50
    store: str | Path | None = None
    progress: bool | ProgressFunction | None = None
    log: Log | None = None
    callback: Callback | None = None
    until: Until | None = None
    start: Start | None = None
    test: Tree | str | Path | None = None
    average: bool = False
    execution: Execution = "auto"
    devices: int | None = None
    clock: Clock | None = None
    buffer: int | None = None
    deadline: float | str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the options of a call, with defaults for those that were not given; refuse an unknown name."""
        known = {field.name: field.type for field in fields(cls)}
        for name in options:
            if name not in known:
                raise TypeError(f"simulate() got an unexpected keyword argument {name!r}")
        config = cls(**options)
        for name, remedy in REMEDIES.items():
            value = getattr(config, name)
            reason = misfit(value, known[name])
            if reason is not None or (isinstance(value, str) and not value):
                refuse(name, value, reason or "must not be empty", remedy)
        if config.log is not None:
            check_takes("log", config.log, 1, REMEDIES["log"])
        if config.callback is not None:
            check_takes("callback", config.callback, 3, REMEDIES["callback"])
        return config


class RunOptions(TypedDict, total=False):
    """The types of the same options as keyword arguments, for type checkers."""

    participation: Participating
    cohort: int | None
    sampling: Sampling
    stragglers: float
    metrics_every: int
    metrics_agents: int | None
    record: Sequence[str | Column] | None
    checkpoints: str | Path | None
    checkpoint_every: int
    store: str | Path | None
    progress: bool | ProgressFunction | None
    log: Log | None
    callback: Callback | None
    until: Until | None
    start: Start | None
    test: Tree | str | Path | None
    average: bool
    execution: Execution
    devices: int | None
    clock: Clock | None
    buffer: int | None
    deadline: float | str | None
