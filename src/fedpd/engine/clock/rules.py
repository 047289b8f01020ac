"""Apply the clock, the buffer and the deadline of a run to its method and to who takes part."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedpd.base.checks import refuse
from fedpd.clock import Clock, seconds
from fedpd.core import Method, Problem
from fedpd.engine.clock.events import Events, buffered, on_time, without_waiting
from fedpd.engine.clock.tasks import tasks_of
from fedpd.engine.clock.timing import Timed
from fedpd.engine.participation import Participation

Clocked = tuple[Method, Participation | None, Timed | None]


def apply_clock(
    algorithm: Method,
    problem: Problem,
    rounds: int,
    seeds: Sequence[int],
    participation: Participation | None,
    options: Mapping[str, Any],
) -> Clocked:
    """Return the method, the rule for who takes part, and the clock of a run.

    Args:
        algorithm: The method.
        problem: The problem.
        rounds: The number of rounds.
        seeds: The seeds of the run.
        participation: The rule without a clock.
        options: The options of `simulate`, of which this reads clock, buffer, deadline and stragglers.

    Raises:
        FedpdError: The options do not fit together, or the method does not fit them.
    """
    clock, buffer, deadline = (options[name] for name in ("clock", "buffer", "deadline"))
    for name, value in (("buffer", buffer), ("deadline", deadline)):
        if value is not None and clock is None:
            refuse(name, value, "needs a clock", "Give e.g. clock=fedpd.clock.network(up=..., down=...)")
        if value is not None and options["stragglers"]:
            refuse(name, value, "does not go with stragglers", "Leave stragglers out: the clock makes them")
    if clock is None:
        return algorithm, participation, None
    if not isinstance(clock, Clock):
        refuse("clock", clock, "must be a clock", "Give e.g. fedpd.clock.network(up=..., down=...)")
    clock.check_agents(problem.agents)
    if buffer is not None:
        return _asynchronous(algorithm, problem, rounds, participation, Timed(clock, buffer), deadline)
    if deadline is not None:
        return _with_deadline(
            algorithm, problem, rounds, seeds, participation, Timed(clock, None, seconds("deadline", deadline))
        )
    return algorithm, participation, Timed(clock)


def _asynchronous(
    algorithm: Method, problem: Problem, rounds: int, participation: Participation | None, timing: Timed, deadline: Any
) -> Clocked:
    if deadline is not None:
        refuse("deadline", deadline, "does not go with a buffer", "Leave one of them out")
    if participation is not None:
        rule = "all agents of an asynchronous run take part"
        refuse("buffer", timing.buffer, rule, "Leave participation at 1, and give no cohort")
    form = without_waiting(algorithm)
    assert timing.buffer is not None
    events = buffered(timing.clock, tasks_of(form, problem, "buffer", timing.buffer), timing.buffer, rounds)
    return form, _schedule(events), timing._replace(seconds=events.seconds)


def _with_deadline(
    algorithm: Method,
    problem: Problem,
    rounds: int,
    seeds: Sequence[int],
    participation: Participation | None,
    timing: Timed,
) -> Clocked:
    if participation is not None and len(set(seeds)) > 1:
        rule = "does not go with several seeds, of which each draws its own agents"
        refuse("deadline", timing.deadline, rule, "Give one seed, or let all agents take part")
    form = algorithm.partial()
    assert timing.deadline is not None
    tasks = tasks_of(form, problem, "deadline", timing.deadline)
    events = on_time(timing.clock, tasks, timing.deadline, rounds, participation, int(seeds[0]))
    return algorithm, _schedule(events), timing._replace(seconds=events.seconds)


def _schedule(events: Events) -> Participation | None:
    return None if events.present.all() else Participation("schedule", events.present)
