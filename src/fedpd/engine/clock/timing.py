"""Compute the simulated seconds of a run on a network from its recorded costs.

The server of a synchronous round waits for the slowest agent that is present. If a round communicates nothing, agents
continue without waiting. The history holds sums, so two things are assumed: the agents of a round do the same number of
local steps and send messages of the same size; and the rounds between two measured rows have equal costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpd.base.checks import refuse
from fedpd.clock import Clock
from fedpd.engine.measure.columns import NETWORK
from fedpd.engine.measure.history import History
from fedpd.engine.participation import Participation, participants


class Timed(NamedTuple):
    """The clock of a run."""

    clock: Clock
    buffer: int | None = None  # K, for which the server of an asynchronous run waits; None: the run is synchronous
    deadline: float | None = None  # the longest time of a round in seconds; None: there is no limit
    # (rounds,) when each round ends, if the clock decides who is present; None: it follows from the history
    seconds: np.ndarray | None = None


class Interval(NamedTuple):
    """The costs of the rounds between two measured rows."""

    rounds: range  # the numbers of the rounds
    exchanges: np.ndarray  # (rounds,) communications with the server in each of them
    steps: float  # local steps of an agent in each of them
    bytes_up: float  # bytes that all agents sent
    bytes_down: float  # bytes that all agents received


def timed_rows(timing: Timed, history: History, agents: int, rule: Participation | None, seed: int) -> History:
    """Return the history of a run with a clock; the arguments are those of `with_seconds`."""
    if timing.seconds is None:
        return with_seconds(history, timing.clock, agents, rule, seed)
    return {**history, NETWORK.name: np.concatenate([[0.0], timing.seconds])[history["round"]]}


def with_seconds(
    history: History, clock: Clock, agents: int, rule: Participation | None = None, seed: int = 0
) -> History:
    """Return the history with the column of the simulated seconds.

    Args:
        rule: The rule for who is present; None: all agents are.
        seed: The seed of the run, which decides who is present.
    """
    if not isinstance(clock, Clock):
        refuse("clock", clock, "must be a clock", "Give e.g. fedpd.clock.network(up=..., down=...)")
    clock.check_agents(agents)
    rows, now, ready = [0.0], 0.0, np.zeros(agents)
    everyone = np.arange(agents)
    for interval in _intervals(history):
        present = [everyone] * len(interval.rounds) if rule is None else _present(rule, seed, interval.rounds, agents)
        met = sum(len(here) for here, number in zip(present, interval.exchanges, strict=True) if number)
        up, down = interval.bytes_up / max(met, 1), interval.bytes_down / max(met, 1)
        last = now
        for r, here, exchanges in zip(interval.rounds, present, interval.exchanges, strict=True):
            if not len(here):
                continue
            ready[here] = np.maximum(ready[here], now) + clock.work(here, r, interval.steps)
            last = float(ready[here].max())
            if exchanges:
                last = now = float((ready[here] + clock.transfer(here, r, up, down, int(exchanges))).max())
        rows.append(max(now, last))
    return {**history, NETWORK.name: np.maximum.accumulate(rows)}


def _intervals(history: History) -> Iterator[Interval]:
    """Yield the costs between rows. Communications are spread evenly over the rounds and end with the last."""
    names = ("round", "communications", "local_updates", "bytes_up", "bytes_down")
    for row in range(1, len(history["round"])):
        before, after = ([int(history[name][i]) for name in names] for i in (row - 1, row))
        number, exchanges, steps, up, down = np.subtract(after, before).tolist()
        spread = np.diff(np.arange(number + 1) * exchanges // max(number, 1))
        yield Interval(range(before[0], after[0]), spread, steps / max(number, 1), up, down)


def _present(rule: Participation, seed: int, rounds: range, agents: int) -> list[np.ndarray]:
    return [here[here < agents] for here in participants(rule, seed, rounds, agents)]


def timed_history(history: History, clock: Clock, agents: int, settings: Mapping[str, Any], seed: int) -> History:
    """Return the history of a finished run with its simulated seconds.

    Args:
        agents: N; 0: it is not known.
        settings: The settings that the run keeps.
    """
    remedy = "Give the clock to the run itself: simulate(..., clock=clock)"
    for name in ("buffer", "deadline"):
        if settings.get(name) is not None:
            refuse(name, settings[name], "the rounds of this run depend on its clock", remedy)
    if "participation" not in settings or not agents:
        refuse("run", f"seed {seed}", "it does not keep how many agents took part", remedy)
    return with_seconds(history, clock, agents, recorded_rule(settings["participation"]), seed)


def kept_rule(rule: Participation | None) -> list[Any] | None:
    """Return what a run keeps of the rule for who is present; a large array is left out."""
    small = rule is not None and rule.kind in ("cohort", "probability")
    return None if rule is None else [rule.kind, rule.numbers.tolist() if small else None]


def recorded_rule(participation: Sequence[Any] | None) -> Participation | None:
    """Return the rule for who is present, from the settings that a run keeps."""
    if participation is None:
        return None
    kind, numbers = participation
    if numbers is None:
        rule = f"the run does not keep who took part (a {kind})"
        refuse("participation", kind, rule, "Give the clock to the run itself: simulate(..., clock=clock)")
    return Participation(kind, np.asarray(numbers, np.int32 if kind == "cohort" else np.float32))
