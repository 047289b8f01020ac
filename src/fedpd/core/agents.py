"""The loop over agents, which runs them one after another, all at once, or sharded over devices.

If the number of devices does not divide the number of agents, padding agents fill up the last device. They copy the
first agent, and no sum includes them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedpd.base.checks import FedpdError
from fedpd.base.identity import content_hash, drop_stale_programs
from fedpd.core import Array, Key, LocalObjective, Losses, Noise, Penalty, Problem, RandomLosses, Statistics, Tree
from fedpd.core.problem import AgentLoss, NamedMetrics, WithFrozen
from fedpd.core.rows import rows_by_device
from fedpd.core.vectors import AnyArray

BLOCK = 64  # number of samples that a full gradient of a large model takes at a time
LARGE_GRADIENT = 2**23  # a model is large if parameters times samples of the largest agent reach this number


class Functions(NamedTuple):
    """The functions of a problem, without its arrays. It is hashable."""

    losses: Losses  # F of training samples
    penalty: Penalty | None  # the part of F that does not depend on a sample
    # whether the model classifies a sample correctly; None: there are no test samples, or it is unknown
    correct: Losses | None = None
    block: int | None = None  # the number of samples that a full gradient takes at a time; None: all of them
    test_losses: Losses | None = None  # F of test samples; None: `losses`
    statistics: Statistics | None = None  # the statistics that normalise a batch; None: the model has none
    # F of training samples with random layers, drawn from a key; None: the model has none
    random: RandomLosses | None = None
    metrics: NamedMetrics = ()  # what else is measured on test samples
    central: NamedMetrics = ()  # what is measured on a central test set, by the names of the columns; (): there is none
    longest: int = 0  # the most test samples of an agent, if a metric needs those of an agent all at once; 0: none does

    @staticmethod
    def of(problem: Problem) -> "Functions":
        """Return the functions of a problem, as they are now: their globals may have changed since the last call."""
        large = problem.dimension * int(problem.sizes.max()) > LARGE_GRADIENT
        flat = problem.offsets is not None or problem.load is not None
        block = problem.block or (BLOCK if large else block_for(problem.sizes) if flat else None)
        evaluation = problem.evaluation
        correct, test_losses = (None, None) if evaluation is None else (evaluation.correct, evaluation.losses)
        metrics = () if evaluation is None else evaluation.measured(problem.losses)
        rest = problem.statistics, problem.random, metrics
        functions = Functions(problem.losses, problem.penalty, correct, block, test_losses, *rest)
        if evaluation is not None and any(metric.of_all is not None for _, metric in metrics):
            functions = functions._replace(longest=int(evaluation.sizes.max()))
        drop_stale_programs(functions.without_frozen()[0])
        return functions

    def without_frozen(self) -> tuple["Functions", Tree | None]:
        """Return the functions with the frozen arrays as their first argument, and these arrays; None: there are none.

        Compiled programs take the arrays as an argument: as constants, each program would hold a copy of them.
        """
        if not isinstance(self.losses, WithFrozen):
            return self, None
        functions = Functions(*(_bare(one) for one in self))
        return functions._map_metrics(_bare), self.losses.frozen

    def shared(self) -> "Functions":
        """Return functions with the same content that a program may be compiled for already; else these.

        Two problems of one module are made of different functions with the same content, and JAX tells functions apart
        by their identity. What the functions use may have changed since, so their content is read again.
        """
        if self in _shared.values():
            return self
        digest = content_hash(self)
        found = _shared.pop(digest, self)
        _shared[digest] = self if found is not self and content_hash(found) != digest else found
        while len(_shared) > MOST_SHARED:
            del _shared[next(iter(_shared))]
        return _shared[digest]

    def with_frozen(self, frozen: Tree | None) -> "Functions":
        """Return functions of `without_frozen` with these arrays, which may be traced."""
        if frozen is None:
            return self
        own = self._replace(penalty=None, block=None, metrics=(), central=())
        parts: list[Any] = [partial(one, frozen) if callable(one) else None for one in own]
        names = ("penalty", "block", "metrics", "central", "longest")
        kept: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Functions(*parts)._replace(**kept)._map_metrics(lambda values: partial(values, frozen))

    def _map_metrics(self, change: Callable[[Losses], Losses]) -> "Functions":
        """Return the functions with the values of all metrics changed."""

        def changed(metrics: NamedMetrics) -> NamedMetrics:
            return tuple((name, metric._replace(values=change(metric.values))) for name, metric in metrics)

        return self._replace(metrics=changed(self.metrics), central=changed(self.central))


MOST_SHARED = 8  # functions hold the module that they are made of
_shared: dict[str, Functions] = {}  # by their content; the newest are last


def _bare(function: Any) -> Any:
    return function.function if isinstance(function, WithFrozen) else function


def block_for(sizes: np.ndarray) -> int:
    """Return the number of samples that a full gradient of flat rows takes at a time: few if most agents have few.

    The 8 samples that a block costs beside its own are a guess. One noisy measurement supports small blocks: with 1,000
    agents that have 1 to 5,000 samples and 20 parameters, a round of 4 full gradients took 15 ms in blocks of 16, 36 ms
    in blocks of 32, and 32 ms in blocks of 64.
    """
    costs = {block: int((-(-sizes // block)).sum(dtype=np.int64)) * (block + 8) for block in (16, 32, 64)}
    return min(costs, key=costs.__getitem__)


AXIS = "agents"
AGENTS, SHARED = PartitionSpec(AXIS), PartitionSpec()  # sharded by agent; the same on all devices
AGENT = 1  # the first fold into a run's key, for the random numbers of agents
NOISE = 2**31 - 1  # folded into an agent's key, so that random layers and the choice of samples are independent


class Layout(NamedTuple):
    """How the loop over agents runs. It is hashable and selects a compiled program."""

    agents: int  # N, without padding agents
    # True: all agents compute at once (vmap). False: one after another (scan), which keeps the data of one agent in the
    # cache
    parallel: bool
    mesh: Mesh | None  # the devices over which the agents are sharded; None: one device


class Shard(NamedTuple):
    """The arrays of a problem; on several devices, those of one device's agents.

    They are NumPy arrays on the host and JAX arrays in a compiled program. Inside the loop over agents, the first axis
    is removed.
    """

    data: Tree  # training samples, leaves (N, n, ...); with an `offset`, leaves (M, ...), which all agents share
    sizes: AnyArray  # (N,) the |D_i|
    scale: AnyArray | None  # (N,) the w_i |D_i|; None: all are 1
    mask: AnyArray | None  # (N, n) 1/|D_i| on samples and 0 on padding; None: all agents have n samples
    agent: AnyArray  # (N,) the numbers i
    real: AnyArray | None = None  # (N,) False on padding agents; None: there are no padding agents
    # test samples, leaves (N, m, ...); with a `test_offset`, leaves (M, ...), which all agents share
    test: Tree | None = None
    test_sizes: AnyArray | None = None  # (N,) the numbers of test samples
    # for one agent only: the training samples of all agents, leaves (N n, ...), and the row where this agent's begin.
    # `LocalObjective.rows` reads single samples there, without a copy of all samples of the agent
    flat: tuple[Tree, Array] | None = None
    # (N,) the row of `data` where each agent's samples begin; None: `data` has an axis of agents
    offset: AnyArray | None = None
    # (N,) the row of `test` where each agent's samples begin; None: `test` has an axis of agents
    test_offset: AnyArray | None = None
    # the agents' personal parameters, leaves (N, ...), at which they are measured; None: they have none
    personal: Any = None


def arrays(problem: Problem) -> Shard:
    """Return the arrays of a problem; mask and scale are None unless agents differ in size or weight."""
    tests = problem.evaluation
    if problem.lazy:
        raise FedpdError(
            f"{problem.name}: its samples are not in memory, and this computation needs those of all {problem.agents} "
            f"agents. Give simulate(..., cohort=K) with K below {problem.agents}, or call problem.in_memory() or "
            "problem.subset(agents).in_memory()."
        )
    shard = bare_arrays(problem)._replace(data=problem.data, offset=_places(problem.offsets, problem.name))
    if problem.offsets is None:
        length = jax.tree.leaves(problem.data)[0].shape[1]
        if (problem.sizes != length).any():
            mask = (np.arange(length) < problem.sizes[:, None]) / problem.sizes[:, None]
            shard = shard._replace(mask=mask.astype(np.float64 if problem.double else np.float32))
    if tests is None:
        return shard
    return shard._replace(test=tests.data, test_sizes=tests.sizes, test_offset=_places(tests.offsets, problem.name))


def bare_arrays(problem: Problem) -> Shard:
    """Return the arrays of a problem without its samples: sizes, weights and the numbers of the agents."""
    dtype = np.float64 if problem.double else np.float32
    scale = problem.scale.astype(dtype) if (problem.scale != 1).any() else None
    return Shard(None, problem.sizes, scale, None, np.arange(problem.agents, dtype=np.int32))


def arrays_without_samples(problem: Problem, layout: Layout) -> Shard:
    """Return the arrays of a problem with padding agents, and one row of zeros per device as samples of all agents."""
    devices = 1 if layout.mesh is None else layout.mesh.size
    shard = with_padding_agents(bare_arrays(problem), layout)
    data = jax.tree.map(lambda leaf: np.zeros((devices, *leaf.shape[1:]), leaf.dtype), problem.data)
    return shard._replace(data=data, offset=np.zeros(len(shard.agent), np.int32))


def _places(offsets: np.ndarray | None, name: str) -> np.ndarray | None:
    """Return offsets as the 32-bit numbers that devices index rows by."""
    if offsets is not None and offsets.max() >= 2**31:
        raise FedpdError(f"{name}: its {offsets.max():,} rows do not fit 2^31, the most at once. Give data.lazy(...).")
    return None if offsets is None else offsets.astype(np.int32)


def split_rows(tree: Tree) -> tuple[Tree, Callable[[Tree], Tree]]:
    """Return a tree without the flat rows of its shards, which have no axis of agents, and how to put them back."""

    def is_shard(node: Any) -> bool:
        return isinstance(node, Shard)

    def bare(node: Any) -> Any:
        if not is_shard(node):
            return node
        data, test = (None if offset is not None else held for held, offset in _held(node))
        return node._replace(data=data, test=test)

    def whole(tree: Tree) -> Tree:
        def fill(node: Any, original: Any) -> Any:
            if not is_shard(node):
                return node
            pairs = zip((node.data, node.test), _held(original), strict=True)
            data, test = (own if offset is None else rows for own, (rows, offset) in pairs)
            return node._replace(data=data, test=test)

        return jax.tree.map(fill, tree, originals, is_leaf=is_shard)

    originals = jax.tree.map(lambda node: node, tree, is_leaf=is_shard)
    return jax.tree.map(bare, tree, is_leaf=is_shard), whole


def _held(shard: Shard) -> tuple[tuple[Tree, Any], tuple[Tree, Any]]:
    """Return the samples of a shard and their offsets, for training and for tests."""
    return (shard.data, shard.offset), (shard.test, shard.test_offset)


def map_agents(body: Callable[[Shard], Tree], shard: Shard) -> Tree:
    """Return body(one agent's part) for all agents, one after another, leaves (N, ...)."""
    bare, whole = split_rows(shard)
    return lax.map(lambda one: body(whole(one)), bare)


def one_agent(shard: Shard, i: Any) -> Shard:
    """Return the part of the agent at place i, without the axis of agents."""
    bare, whole = split_rows(shard)
    take = (lambda leaf: leaf[i]) if isinstance(i, int) else partial(lax.dynamic_index_in_dim, index=i, keepdims=False)
    return whole(jax.tree.map(take, bare))


def each_agent(body: Callable[[Any], tuple[Tree, Tree]], stacked: Tree, layout: Layout) -> tuple[Tree, Tree]:
    """Run a function without state on every agent.

    Args:
        body: (one agent's part) -> (a value to sum, a value to keep).
        stacked: The agents' parts, leaves (N, ...).

    Returns:
        The sum over agents, and the kept values, leaves (N, ...).
    """

    def without_state(_: None, one: Any) -> tuple[Tree, None, Tree]:
        part, kept = body(one)
        return part, None, kept

    total, _, kept = update_agents(without_state, None, stacked, layout)
    return total, kept


def update_agents(
    body: Callable[[Any, Any], tuple[Tree, Any, Tree]], agents: Any, stacked: Tree, layout: Layout
) -> tuple[Tree, Any, Tree]:
    """Run a function on every agent and its state. This is the only loop over agents.

    If agents run one after another, the loop writes each new state to the place of the old one. It never makes a second
    copy of all agents, and it finishes one agent before the next.

    Args:
        body: (agent, one agent's part) -> (a value to sum, agent, a value to keep).
        agents: The agents' state, leaves (N, ...).
        stacked: The agents' parts, leaves (N, ...).

    Returns:
        The sum over agents, the agents' new state, and the kept values, both with leaves (N, ...).
    """
    stacked, whole = split_rows(stacked)

    def of_one(agent: Any, one: Any) -> tuple[Tree, Any, Tree]:
        return body(agent, whole(one))

    if layout.parallel:
        parts, agents, kept = jax.vmap(of_one)(agents, stacked)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), parts)
    else:
        first = jax.tree.map(lambda leaf: leaf[0], (agents, stacked))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_one, *first)[0])

        def step(carry: tuple[Tree, Any], numbered: tuple[Array, Tree]) -> tuple[tuple[Tree, Any], Tree]:
            (total, agents), (i, one) = carry, numbered
            agent = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), agents)
            part, agent, kept = isolate_from_fusion(of_one, i >= 0, agent, one)
            agents = jax.tree.map(lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new, i, 0), agents, agent)
            return (jax.tree.map(jnp.add, total, part), agents), kept

        number = len(jax.tree.leaves((agents, stacked))[0])
        (total, agents), kept = lax.scan(step, (zero, agents), (jnp.arange(number), stacked))
    if layout.mesh is not None:
        total = lax.psum(total, AXIS)
    return total, agents, kept


def each_in_place(
    change: Callable[[Any, Any], Any], agents: Any, stacked: Tree, layout: Layout, silent: Array | None
) -> Any:
    """Return the agents with every state changed in place.

    Args:
        change: (agent, one agent's part) -> agent.
        agents: The agents' state, leaves (N, ...).
        stacked: The agents' parts, leaves (N, ...).
        silent: If true, nothing changes; None counts as false.
    """
    if layout.parallel:
        return unchanged_if_silent(silent, lambda: jax.vmap(change)(agents, stacked), agents)

    def step(i: Array, agents: Any) -> Any:
        agent, one = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), (agents, stacked))
        agent = isolate_from_fusion(change, i >= 0, agent, one)
        return jax.tree.map(lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new, i, 0), agents, agent)

    number = len(jax.tree.leaves(agents)[0])
    return lax.fori_loop(0, number if silent is None else jnp.where(silent, 0, number), step, agents)


def unchanged_if_silent(silent: Array | None, change: Callable[[], Tree], unchanged: Tree) -> Tree:
    """Return `unchanged` if `silent` is true, else change(); None counts as false and compiles no condition."""
    return change() if silent is None else lax.cond(silent, lambda: unchanged, change)


def isolate_from_fusion(function: Callable[..., Tree], true: Array, *arguments: Any) -> Tree:
    """Return function(*arguments), which XLA does not fuse with the operations before and after it.

    XLA would otherwise fuse reading an agent, its last operations and writing it. The fused loops read some arrays of
    all agents while they write others, so XLA copies all these arrays for every agent. It does not fuse across a
    condition.

    Args:
        true: A condition that always holds, without XLA knowing it.
    """
    shapes = jax.eval_shape(function, *arguments)

    def never(*_: Any) -> Tree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return lax.cond(true, function, never, *arguments)


def with_padding_agents(tree: Tree, layout: Layout, axis: int = 0, block: int | None = None) -> Tree:
    """Return the arrays of all agents, with copies of the first agent so that all devices (or blocks) are full.

    A padding agent has the data and the random numbers of the agent that it copies, and so also its state. No sum
    includes it.

    Args:
        tree: Arrays of all agents, or a `Shard`; the result then has `real` set.
        block: Fill up to a multiple of this number; None: of the number of devices.
    """
    devices = 1 if layout.mesh is None else layout.mesh.size
    extra = -layout.agents % (block or devices)

    def fill(leaf: Any) -> Any:
        return np.concatenate([leaf, np.take(leaf, [0] * extra, axis)], axis)

    bare, whole = split_rows(tree)
    filled = whole(jax.tree.map(fill, bare) if extra else bare)
    if isinstance(filled, Shard):
        filled = filled if block else _on_devices(filled, devices)
        filled = filled._replace(real=np.arange(layout.agents + extra) < layout.agents) if extra else filled
    return filled


def _on_devices(shard: Shard, devices: int) -> Shard:
    """Return a shard whose flat rows are in parts, one per device with the samples of its own agents."""
    if devices > 1 and shard.offset is not None:
        data, offset = rows_by_device(shard.data, np.asarray(shard.offset), np.asarray(shard.sizes), devices)
        shard = shard._replace(data=data, offset=offset.astype(np.int32))
    if devices > 1 and shard.test_offset is not None:
        sizes = np.asarray(shard.test_sizes)
        test, offset = rows_by_device(shard.test, np.asarray(shard.test_offset), sizes, devices)
        shard = shard._replace(test=test, test_offset=offset.astype(np.int32))
    return shard


def zero_for_padding(one: Shard, part: Tree) -> Tree:
    """Return an agent's term in a sum over agents: `part`, or 0 for a padding agent."""
    real = one.real
    return part if real is None else jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), part)


def local_objective(functions: Functions, one: Shard, effort: Array | None = None) -> LocalObjective:
    """Return f_i of one agent; `effort` is the fraction of its local steps that a straggler does."""
    losses, penalty, block = functions.losses, functions.penalty, functions.block
    size, scale, mask, agent, offset = jax.tree.map(
        jnp.asarray, (one.sizes, one.scale, one.mask, one.agent, one.offset)
    )
    joint = isinstance(losses, AgentLoss)
    f = LocalObjective(losses, penalty, one.data, size, scale, mask, agent, effort, block, one.flat, offset)
    return f._replace(joint=joint)


def objective_in_round(
    functions: Functions, one: Shard, key: Key, r: Any, effort: Array | None = None
) -> LocalObjective:
    """Return f_i of one agent for the local steps of round r; random layers draw from (seed, round, agent, step)."""
    f = local_objective(functions, one, effort)
    if functions.random is None:
        return f
    return f._replace(noise=Noise(functions.random, jax.random.fold_in(agent_key(key, r, f.agent), NOISE)))


def agent_key(key: Key, r: Any, agent: Any, exchange: int = 0) -> Key:
    """Return the key of an agent in a round. It depends on (seed, round, agent) only, so all layouts give the same."""
    for word in (AGENT, r, agent, exchange)[: 4 if exchange else 3]:
        key = jax.random.fold_in(key, word)
    return key


def sharded(function: Callable[..., Any], layout: Layout, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Return a function that runs `function` on each device's own agents; with one device, `function` itself."""
    if layout.mesh is None:
        return function
    return jax.shard_map(function, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
