"""Measure the columns of a history at the mean of the agents' copies of the model."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpd.base.checks import refuse
from fedpd.core import Array, Method, State, Tree, Vector
from fedpd.core.agents import AXIS, Functions, Layout, Shard, each_agent, zero_for_padding
from fedpd.core.distances import largest_distance
from fedpd.core.message import merged, part_of
from fedpd.engine.measure.columns import STATISTICS, AgentView, Column, Measure, measures_of

Metrics = dict[str, Array]  # a number for each column, by its name


def mean_model(algorithm: Method, layout: Layout, shard: Shard, agents: Any) -> Vector:
    """Return mean_i x_{0,i}, the model of a run, at which f is measured."""

    def copy(one: tuple[Shard, Any]) -> tuple[Vector, None]:
        shard, agent = one
        return zero_for_padding(shard, algorithm.model(agent)), None

    return each_agent(copy, (shard, agents), layout)[0] / layout.agents


def mean_copy(algorithm: Method, agents: Any, number: int) -> Tree:
    """Return mean_i x_{0,i}, computed on the host agent by agent. If all copies are equal, it equals them exactly."""

    def copy(i: int) -> Tree:
        return jax.tree.map(np.asarray, algorithm.model(jax.tree.map(lambda leaf: leaf[i], agents)).tree)

    first = copy(0)
    offset = jax.tree.map(np.zeros_like, first)
    with np.errstate(over="ignore", invalid="ignore"):  # the copies of a run that diverged
        for i in range(1, number):
            offset = jax.tree.map(lambda total, leaf, start: total + (leaf - start), offset, copy(i), first)
        return jax.tree.map(lambda start, total: np.asarray(start + total / number, start.dtype), first, offset)


def delivered(algorithm: Method, server: Any) -> Tree | None:
    """Return the model that the server of a run delivers, on the host; None: it is the mean of the agents' copies."""
    return None if algorithm.delivers is None else jax.tree.map(np.asarray, algorithm.delivers(server).tree)


def copies_differ(algorithm: Method, skipped: Any) -> Any:
    """Return whether the agents' copies of the model may differ after a round; `skipped` may be traced.

    If the method never skips a communication, all agents have just received the same model.
    """
    return True if algorithm.copies_differ else skipped if algorithm.skips else False


def mean_and_gap(algorithm: Method, layout: Layout, shard: Shard, agents: Any, skipped: Any) -> tuple[Vector, Any]:
    """Return the mean of the copies of the model, and their largest distance; `skipped` is as for `copies_differ`."""
    x = mean_model(algorithm, layout, shard, agents)
    differ, gap = copies_differ(algorithm, skipped), partial(consensus_gap, algorithm, layout, agents)
    if isinstance(differ, bool):
        return x, gap() if differ else 0.0
    zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
    return x, lax.cond(differ, gap, lambda: zero)


def measure_at(
    functions: Functions,
    layout: Layout,
    shard: Shard,
    x: Vector,
    gap: Any,
    columns: tuple[Column, ...],
    of_states: Mapping[Measure, Array] | None = None,
    central: Tree | None = None,
) -> Metrics:
    """Return the values of the columns at the mean model x of copies that are at most `gap` from each other.

    `of_states` has the values that were measured from the agents' states. `central` has the rows of a central test set;
    None: there is none.
    """
    passes = [one for one in measures_of(columns) if one.joint is not None]
    if shard.personal is not None and passes:
        names = [one.name for one in columns if one.measure in passes]
        refuse("record", names, "is not defined for agents with personal parameters", "Leave these columns out")
    parts = measure_parts(functions, layout, shard, x, columns)
    parts |= measure_central(functions, columns, central, x, parts, layout.agents)
    joint = {one: one.joint(functions, layout, shard, x) for one in passes if one.joint is not None}
    return merge_parts(columns, parts, gap, layout.agents, {**joint, **(of_states or {})})


def measure_states(
    algorithm: Method, functions: Functions, layout: Layout, shard: Shard, state: State, columns: tuple[Column, ...]
) -> dict[Measure, Array]:
    """Return the measurements of the agents' states, for the columns that have one."""
    states = {one: one.state for one in measures_of(columns)}
    return {one: of(algorithm, functions, layout, shard, state) for one, of in states.items() if of is not None}


def measure_parts(
    functions: Functions, layout: Layout, shard: Shard, x: Vector, columns: tuple[Column, ...]
) -> dict[Measure, tuple[Tree, Tree]]:
    """Return the sums over the agents' measurements, and the kept values of all agents, for each measure."""
    found = agent_measures(functions, columns)
    return {measure: _sum_and_each(measure, functions, layout, shard, x) for measure in found}


def agent_measures(functions: Functions, columns: tuple[Column, ...]) -> list[Measure]:
    """Return the measures that need a pass over the agents."""
    measures = measures_of(columns)
    if functions.statistics is not None and any(measure.central is not None for measure in measures):
        measures.append(STATISTICS)
    return [measure for measure in measures if measure.agent is not None]


def measure_central(
    functions: Functions,
    columns: tuple[Column, ...],
    rows: Tree | None,
    x: Vector,
    parts: Mapping[Measure, tuple[Tree, Tree]],
    agents: int,
) -> dict[Measure, tuple[Tree, Tree]]:
    """Return the measurements on the central test set, once for the server's model; {} if there is none.

    Args:
        parts: The agents' measurements, with the sum of their batch statistics if the model has any.
        agents: The number of agents in that sum.
    """
    measures = [one for one in measures_of(columns) if one.central is not None]
    if rows is None or not measures:
        return {}
    if functions.statistics is not None:
        x = Vector((x.tree, jax.tree.map(lambda leaf: leaf / agents, parts[STATISTICS][0])))
    return {one: (one.central(functions, rows, x), None) for one in measures if one.central is not None}


def merge_parts(
    columns: tuple[Column, ...],
    parts: Mapping[Measure, tuple[Tree, Tree]],
    gap: Any,
    agents: int,
    joint: Mapping[Measure, Array] | None = None,
) -> Metrics:
    """Return the values of the columns from the parts of all agents, and from measurements over all of them."""

    def value(column: Column) -> Any:
        if column.measure is None:
            return gap
        if joint is not None and column.measure in joint:
            return joint[column.measure]
        assert column.merge is not None
        return column.merge(*parts[column.measure], agents)

    return {column.name: _number(column, value(column)) for column in columns}


def _number(column: Column, value: Any) -> Array:
    """Return the value of a column; refuse a user's column that is not one real number."""
    try:
        found = jnp.asarray(value)
    except (TypeError, ValueError):  # None, or a dict
        found = None
    if found is None or found.shape != () or jnp.iscomplexobj(found):
        what = type(value).__name__ if found is None else f"{found.dtype}{list(found.shape)}"
        remedy = "Return a scalar from its merge, e.g. each.max(), or from its joint measure"
        refuse(f"value of column {column.name!r}", what, "must be one real number", remedy)
    return found.astype(float)


def _sum_and_each(measure: Measure, functions: Functions, layout: Layout, shard: Shard, x: Vector) -> tuple[Tree, Tree]:
    """Return the sum over the agents' measurements, and the kept value of each agent, (N, ...), on every device."""

    def of_agent(one: Shard) -> tuple[Tree, Tree]:
        assert measure.agent is not None
        total, own = measure.agent(AgentView(functions, one), own_model(one, x))
        return zero_for_padding(one, total), own

    # All at once, every agent would take as long as the largest; one after another, each takes as long as its samples.
    total, each = each_agent(of_agent, shard, layout if shard.offset is None else layout._replace(parallel=False))
    if layout.mesh is not None:
        each = lax.all_gather(each, AXIS, tiled=True)
    return total, jax.tree.map(lambda leaf: leaf[: layout.agents], each)


def not_measured(columns: tuple[Column, ...]) -> Metrics:
    """Return NaN for each column, as the values of a round that is not measured."""
    return {column.name: jnp.asarray(jnp.nan, float) for column in columns}


def consensus_gap(algorithm: Method, layout: Layout, agents: Any) -> Array:
    """Return max_ij ||x_{0,i} - x_{0,j}|| of the shared parameters; exactly 0 if all copies are equal."""
    copies, keeps = jax.vmap(algorithm.model)(agents), algorithm.is_personal
    return largest_distance(copies if keeps is None else part_of(copies, keeps, personal=False), layout)


def with_personal(shard: Shard, algorithm: Method, copies: Vector) -> Shard:
    """Return the arrays of the agents with their personal parameters, if the method has any."""
    keeps = algorithm.is_personal
    return shard if keeps is None else shard._replace(personal=part_of(copies, keeps, personal=True))


def own_model(one: Shard, x: Vector) -> Vector:
    """Return the model at which an agent is measured: x, with the agent's personal parameters if it has any."""
    return x if one.personal is None else merged(one.personal, x)
