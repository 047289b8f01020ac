"""Runs with a clock: the simulated seconds of rounds, and which agents' messages a server step uses.

Seconds: the server of a synchronous round waits for the slowest agent that is present. If a round communicates nothing,
agents continue without waiting. The history holds sums, so two things are assumed: the agents of a round do the same
number of local steps and send messages of the same size; and the rounds between two measured rows have equal costs.

Asynchronous: every agent always works. The server steps when K agents have returned. These K agents receive the new
model and begin their next task. The other agents do not wait: they continue with the older model that they have. How
long a task takes does not depend on its numbers, so the order of all events is known before the run. A step is then a
round in which K agents are present, and the rounds of cohorts run it: an absent agent simply does not read the newest
broadcast (`without_waiting`).

Deadline: the server of a synchronous round waits at most so long. An agent that needs longer is absent in that round.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpd.base.checks import check_room, count, refuse
from fedpd.base.precision import scope
from fedpd.clock import Clock, seconds
from fedpd.core import Around, Array, Key, LocalObjective, Method, Problem, Tree, Vector, Work
from fedpd.core.agents import Functions, Shard, arrays, local_objective, one_agent
from fedpd.core.method import check_form, form_with_absent
from fedpd.engine.backends.liveness import sources
from fedpd.engine.measure.columns import NETWORK
from fedpd.engine.measure.costs import message_costs
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
    """Return the history with the column of the simulated seconds."""
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
    """Return the history of a finished run with its simulated seconds; `agents` is N, or 0 if it is not known."""
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


class Tasks(NamedTuple):
    """The task of each agent, which is the same in every round."""

    steps: np.ndarray  # (N,) local steps
    bytes_up: int  # bytes of its message
    bytes_down: int  # bytes of the broadcast

    def seconds(self, clock: Clock, agents: np.ndarray, number: Any) -> np.ndarray:
        """Return the seconds of task `number` (one, or one per agent), from the broadcast to the message's arrival."""
        work = clock.work(agents, number, self.steps[agents])
        return work + clock.transfer(agents, number, self.bytes_up, self.bytes_down)


def tasks_of(algorithm: Method, problem: Problem, name: str, value: Any) -> Tasks:
    """Return the tasks of a method on a problem."""
    one, *more = algorithm.exchanges()
    sometimes = one.when is not None or one.speaks is not None or one.mixes  # some agents send nothing to the server
    if more or algorithm.skips or sometimes:
        rule = f"needs one message per agent and round, and {algorithm.description} sends more, fewer or none"
        refuse(name, value, rule, "Choose a method with one exchange that skips no round, e.g. FedPD with p = 0")
    functions = Functions.of(problem)
    with scope(problem.double):
        first = one_agent(arrays(problem.subset([0]).in_memory()), 0)
        start = Vector(problem.start)
        steps = partial(_steps, algorithm, functions)
        given = np.asarray(first.sizes), first, start, np.int32(0), jax.random.key(0, impl="threefry2x32")
        if sources(steps, *given)[0, 1:].any():  # sizes come first
            rule = f"needs a fixed number of local steps, and that of {algorithm.description} depends on the iterates"
            refuse(name, value, rule, "Give an oracle without a tolerance, e.g. oracles.gd(step=0.1, iterations=8)")
        found = jax.jit(jax.vmap(steps, in_axes=(0, None, None, None, None)))(problem.sizes, *given[1:])
        agent = jax.eval_shape(lambda one, x: algorithm.init(local_objective(functions, one), x), first, start)
        costs = message_costs(algorithm, functions, first, agent, jax.eval_shape(algorithm.server, start))
    return Tasks(np.asarray(found, np.int64), costs.bytes_up[0], costs.bytes_down[0])


def _steps(
    algorithm: Method, functions: Functions, size: Array, one: Shard, start: Vector, r: Array, key: Key
) -> Array:
    """Return the local steps of an agent with this number of samples."""
    f = local_objective(functions, one._replace(sizes=size))
    return algorithm.exchanges()[0].local(f, algorithm.init(f, start), r, key)[1].updates


class Events(NamedTuple):
    """The events of a run."""

    present: np.ndarray  # (rounds, N) whether an agent's message is used in each server step
    seconds: np.ndarray  # (rounds,) when each server step happens


class Working(NamedTuple):
    """The state of an agent that does not wait."""

    agent: Any  # the state with which it works: after the broadcast at the end of its last task
    newest: Vector  # the newest model of the server, at which f is measured. The agent does not use it


class WithoutWaiting(Around):
    """The form of a method whose agents work with the broadcast at the end of their last task."""

    def init(self, f: LocalObjective, x: Vector) -> Working:
        agent = self.method.init(f, x)
        return Working(agent, self.method.model(agent))

    def local(self, f: LocalObjective, working: Working, r: Array, key: Key) -> tuple[Working, Work]:
        agent, work = self.method.local(f, working.agent, r, key)
        return working._replace(agent=agent), work

    def send(self, working: Working) -> Tree:
        return self.method.send(working.agent)

    def receive(self, working: Working, broadcast: Tree) -> Working:
        agent = self.method.receive(working.agent, broadcast)
        return Working(agent, self.method.model(agent))

    def missed(self, working: Working, broadcast: Tree) -> Working:
        update = self.method.missed or self.method.receive
        return working._replace(newest=self.method.model(update(working.agent, broadcast)))

    def model(self, working: Working) -> Vector:
        return working.newest


def without_waiting(algorithm: Method) -> Method:
    """Return the form of a method whose agents do not wait for each other."""
    form = algorithm.asynchronous()
    check_form(algorithm, form, "asynchronous")
    if form is None:
        rule = "its server cannot use messages that agents computed from an old model"
        remedy = "Choose fedpd with p = 0 and a fixed eta, fedbuff, feddr or fedadmm"
        refuse("algorithm", algorithm.description, rule, f"{remedy}; or leave buffer out")
    return WithoutWaiting(method=form)


def buffered(clock: Clock, tasks: Tasks, buffer: int, rounds: int) -> Events:
    """Return the events of an asynchronous run.

    Args:
        buffer: K. The server steps when K agents have returned; agents that return at the same time do so in the order
            of their numbers.
    """
    agents = len(tasks.steps)
    clock.check_agents(agents)
    remedy = f"Give the number of agents for which the server waits, from 1 to {agents}"
    if count("buffer", buffer, remedy) > agents:
        refuse("buffer", buffer, f"must be at most {agents}, the number of agents", remedy)
    _check_room(rounds, agents)
    done = np.zeros(agents, np.int64)  # the tasks of each agent that are done
    returns = list(zip(tasks.seconds(clock, np.arange(agents), done).tolist(), range(agents), strict=True))
    heapify(returns)
    present, seconds = np.zeros((rounds, agents), bool), np.zeros(rounds)
    for step in range(rounds):
        arrived = [heappop(returns) for _ in range(buffer)]
        now, here = arrived[-1][0], np.array([agent for _, agent in arrived])
        present[step, here], seconds[step] = True, now
        done[here] += 1
        for agent, needed in zip(here.tolist(), tasks.seconds(clock, here, done[here]).tolist(), strict=True):
            heappush(returns, (now + needed, agent))
    return Events(present, seconds)


def on_time(
    clock: Clock, tasks: Tasks, deadline: float, rounds: int, rule: Participation | None = None, seed: int = 0
) -> Events:
    """Return the events of a synchronous run with a deadline.

    A round ends when all its agents have returned, or at the deadline.
    """
    agents = len(tasks.steps)
    clock.check_agents(agents)
    _check_room(rounds, agents)
    present, seconds, everyone = np.zeros((rounds, agents), bool), np.zeros(rounds), np.arange(agents)
    for r in range(rounds):
        here = everyone if rule is None else participants(rule, seed, [r], agents)[0]
        here = here[here < agents]
        needed = tasks.seconds(clock, here, r)
        present[r, here] = needed <= deadline
        seconds[r] = min(deadline, needed.max(initial=0.0))
    if not present.any():
        fastest = min(float(tasks.seconds(clock, everyone, r).min()) for r in range(min(rounds, 100)))
        refuse("deadline", deadline, "no agent returns in time", f"Give at least {fastest:.3g} seconds")
    return Events(present, np.cumsum(seconds))


def _check_room(rounds: int, agents: int) -> None:
    """Refuse a table of events that does not fit into memory; it has one byte per round and agent."""
    check_room(f"the events of {rounds:,} rounds and {agents:,} agents", rounds * agents / 8, "Give fewer rounds")


def apply_clock(
    algorithm: Method,
    problem: Problem,
    rounds: int,
    seeds: Sequence[int],
    participation: Participation | None,
    options: Any,
) -> tuple[Method, Participation | None, Timed | None]:
    """Return the method, the rule for who takes part, and the clock of a run."""
    clock, buffer, deadline = options.clock, options.buffer, options.deadline
    for name, value in (("buffer", buffer), ("deadline", deadline)):
        if value is not None and clock is None:
            refuse(name, value, "needs a clock", "Give e.g. clock=fedpd.clock.network(up=..., down=...)")
        if value is not None and options.stragglers:
            refuse(name, value, "does not go with stragglers", "Leave stragglers out: the clock makes them")
    if clock is None:
        return algorithm, participation, None
    if not isinstance(clock, Clock):
        refuse("clock", clock, "must be a clock", "Give e.g. fedpd.clock.network(up=..., down=...)")
    clock.check_agents(problem.agents)
    if buffer is not None:
        if deadline is not None:
            refuse("deadline", deadline, "does not go with a buffer", "Leave one of them out")
        if participation is not None:
            rule = "all agents of an asynchronous run take part"
            refuse("buffer", buffer, rule, "Leave participation at 1, and give no cohort")
        form = without_waiting(algorithm)
        events = buffered(clock, tasks_of(form, problem, "buffer", buffer), buffer, rounds)
        return form, _schedule(events), Timed(clock, buffer, seconds=events.seconds)
    if deadline is None:
        return algorithm, participation, Timed(clock)
    longest = seconds("deadline", deadline)
    if participation is not None and len(set(seeds)) > 1:
        rule = "does not go with several seeds, of which each draws its own agents"
        refuse("deadline", longest, rule, "Give one seed, or let all agents take part")
    tasks = tasks_of(form_with_absent(algorithm), problem, "deadline", longest)
    events = on_time(clock, tasks, longest, rounds, participation, int(seeds[0]))
    return algorithm, _schedule(events), Timed(clock, None, longest, events.seconds)


def _schedule(events: Events) -> Participation | None:
    return None if events.present.all() else Participation("schedule", events.present)
