"""Run agents one after another without compilation, so that an error names the agent, the stage and the round.

Use `simulate(..., execution="debug")` to find out where your own method, loss or model fails: print, a debugger and NaN
checks work inside of them. The results equal those of a compiled run up to rounding, but take much longer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.core import Array, Mixing, State, Tree, Vector, Work, opened
from fedpd.core.agents import Shard, agent_key, local_objective, objective_in_round, one_agent
from fedpd.core.vectors import mix
from fedpd.engine.backends.memory import MemoryBackend, Progress, row_of_one_round
from fedpd.engine.loop import (
    Executor,
    Inputs,
    MessageSum,
    Program,
    Rows,
    measure_copies,
    one_round,
    receive,
)
from fedpd.engine.measure.costs import Costs, message_costs, named_stage
from fedpd.engine.measure.history import variant
from fedpd.engine.measure.metrics import Metrics
from fedpd.engine.participation import effort, effort_of, participants
from fedpd.engine.plan import Plan, prepare


def init_each(program: Program, shard: Shard, start: Vector) -> Any:
    """Return the state of all agents at the start, computed one agent after another."""
    made = []
    with jax.disable_jit():
        for i, one in enumerate(_each(shard)):
            with named_stage("init", 0, i):
                made.append(program.algorithm.init(local_objective(program.functions, one), start))
    return _stack(made)


@dataclass(frozen=True)
class AgentByAgent(Executor):
    """Runs the agents one after another in Python."""

    present: Callable[[int], np.ndarray] | None  # returns who is present in a round, (N,); None: all agents are

    def coin(self, program: Program, inputs: Inputs, r: Array, server: Any, /) -> Array:
        with named_stage("skip", r):
            return super().coin(program, inputs, r, server)

    def compute(
        self, program: Program, number: int, inputs: Inputs, agents: Any, r: Array, /
    ) -> tuple[MessageSum, Any, Tree, Work]:
        exchange = program.algorithm.exchanges()[number]
        here: Any = self._here(r)
        efforts: Any = None
        if inputs.stragglers is not None and here is None:
            efforts = effort(inputs.stragglers, inputs.key, r, program.layout.agents)
        elif inputs.stragglers is not None:
            efforts = [effort_of(inputs.stragglers, inputs.key, r, i) for i in inputs.shard.agent]
        states, messages, sends, works = [], [], [], []
        for i, (agent, one) in enumerate(zip(_unstack(agents), _each(inputs.shard), strict=True)):
            present, work = here is None or bool(here[i]), Work(jnp.int32(0), jnp.int32(0))
            if present:
                with named_stage("local", r, i):
                    share = None if efforts is None else efforts[i]
                    f = objective_in_round(program.functions, one, inputs.key, r, share)
                    agent, work = exchange.local(f, agent, r, agent_key(inputs.key, r, one.agent, number))
            with named_stage("send", r, i):
                messages.append(opened(exchange.send(agent)))
                sends.append(present and (exchange.speaks is None or bool(exchange.speaks(agent))))
            states.append(agent)
            works.append(work)
        pairs = zip(messages, sends, strict=True)
        sent = [message if send else jax.tree.map(jnp.zeros_like, message) for message, send in pairs]
        total = (_stack(messages), jnp.array(sends)) if exchange.mean is not None else _sum(sent)
        receivers = len(sends) if here is None else int(here.sum())
        sums = MessageSum(total, jnp.int32(sum(sends)), jnp.int32(receivers))
        to_mix = _stack(messages) if exchange.mixes else None
        return sums, _stack(states), to_mix, _stack(works)

    def server_step(
        self, program: Program, number: int, sums: MessageSum, server: Any, skipped: Array, r: Array, /
    ) -> tuple[Any, Tree, Array | None]:
        with named_stage("aggregate", r):
            return super().server_step(program, number, sums, server, skipped, r)

    def deliver(
        self, program: Program, number: int, inputs: Inputs, agents: Any, broadcast: Tree, silent: Any, r: Array, /
    ) -> Any:
        if silent is not None and silent:
            return agents
        exchange = program.algorithm.exchanges()[number]
        here = self._here(r)
        received = []
        for i, agent in enumerate(_unstack(agents)):
            with named_stage("receive", r, i):
                if isinstance(exchange.aggregate, Mixing):
                    mixed = mix(broadcast, exchange.aggregate.weights(jnp.int32(i)))
                    received.append(exchange.receive(agent, mixed))
                else:
                    received.append(receive(exchange, broadcast, agent, None if here is None else here[i]))
        return _stack(received)

    def _here(self, r: Array) -> np.ndarray | None:
        return None if self.present is None else self.present(int(r))


class DebugBackend(MemoryBackend):
    """A run whose agents run one after another in Python, without compilation."""

    paced = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.program, self.template, self.inputs = prepare(plan)
        start = Vector(plan.problem.start)
        agents = init_each(self.program, self.inputs.shard, start)
        self.state = State(agents, jax.jit(plan.algorithm.server)(start), jnp.int32(0))
        self.metrics = self._measure(False)

    def run(self, done: int, number: int, on_progress: Progress) -> tuple[Rows, None]:
        with jax.disable_jit():
            executor = AgentByAgent(_present(self.plan))
            self.state, happened = one_round(self.program, self.inputs, self.state, executor)
        return row_of_one_round(self, happened, self._measure), None

    def _measure(self, skipped: bool) -> Metrics:
        with jax.disable_jit():
            return measure_copies(self.program, self.inputs, self.state, skipped)

    def _put(self, agents: Any) -> Any:
        return agents

    def costs(self) -> Costs:
        one, agent = one_agent(self.inputs.shard, 0), variant(self.state.agents, 0, True)
        with jax.disable_jit():
            how: dict[str, Any] = {"evaluate": lambda function, *parts: function(*parts), "stage": named_stage}
            functions = self.program.functions
            return message_costs(self.plan.algorithm, functions, one, agent, self.state.server, **how)


def _present(plan: Plan) -> Callable[[int], np.ndarray] | None:
    """Return a function that says which agents are present in a round, (N,); None: all are."""
    rule, agents = plan.participation, plan.problem.agents
    if rule is None:
        return None
    return lambda r: np.isin(np.arange(agents), participants(rule, plan.seeds[0], [r], agents))


def _sum(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def _unstack(tree: Tree) -> list[Tree]:
    leaves, structure = jax.tree.flatten(tree)
    number = len(leaves[0]) if leaves else 0
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(number)]


def _each(shard: Shard) -> list[Shard]:
    return [one_agent(shard, i) for i in range(len(shard.agent))]


def _stack(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
