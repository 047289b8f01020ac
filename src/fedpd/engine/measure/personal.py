"""Personal models: evaluate each agent's own model beside the shared one, and fine-tune the shared one per agent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, check_seeds, refuse
from fedpd.base.precision import scope
from fedpd.core import Key, Oracle, Problem, Subproblem, Tree, Vector, check_oracle
from fedpd.core.agents import Functions, Layout, Shard, agent_key, arrays, each_agent, objective_in_round
from fedpd.engine.checks import check_oracle_fits
from fedpd.engine.measure.columns import ACCURACY, METRICS, AgentView, Column, MetricSum, measures_of, metric_per_agent
from fedpd.engine.views.entries import Frame, table_frame

Values = dict[str, np.ndarray]  # a number per agent, (N,), by the column's name
MOST_KEPT = 100_000  # agents of whom a run keeps its values


@dataclass(frozen=True, repr=False)
class Personalized:
    """The agents' own models beside the shared model."""

    models: Tree  # the agents' models, leaves (N, ...)
    shared: Values  # what the shared model reaches on each agent's samples, (N,) by column; NaN without test samples
    own: Values  # what the agents' own models reach, in the same form
    # the column that decides who gains: "test_accuracy", or "test_loss" if there are no accuracies, or "loss" if there
    # are no test samples
    quantity: str

    @property
    def gains(self) -> np.ndarray:
        """(N,) how much each agent's own model is better than the shared one in `quantity`; negative if it is worse."""
        sign = 1 if self.quantity == "test_accuracy" else -1
        return sign * (self.own[self.quantity] - self.shared[self.quantity])

    @property
    def share_of_gains(self) -> float:
        """The share of the agents whose own model is better than the shared one, among those that were measured."""
        known = self.gains[~np.isnan(self.gains)]
        return float(np.mean(known > 0)) if known.size else float("nan")

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per agent, and the columns of both models."""
        columns = {f"{name}_shared": values for name, values in self.shared.items()}
        columns |= {f"{name}_own": values for name, values in self.own.items()}
        agents = range(len(self.gains))
        return table_frame([{"agent": i} | {name: values[i] for name, values in columns.items()} for i in agents])

    def __repr__(self) -> str:
        words = self.quantity.replace("_", " ")
        means = [float(np.nanmean(values[self.quantity])) for values in (self.shared, self.own)]
        return (
            f"Personalized, {len(self.gains)} agents\n"
            f"  {words}, mean of the agents: {means[1]:.4g} with their own models, {means[0]:.4g} with the shared one\n"
            f"  {self.share_of_gains:.1%} of the agents gain"
        )


def evaluate_agents(problem: Problem, models: Tree, *, same: bool = True) -> Values:
    """Return what a model reaches on the samples of each agent.

    Args:
        models: A model; or with same=False one model per agent, leaves (N, ...).
        same: Whether all agents have the same model.

    Returns:
        (N,) per column: "loss", the f_i; and with test samples "test_accuracy" and "train_accuracy" if the problem
        knows what is correct, "test_loss", and its metrics. They are NaN for agents without test samples.
    """
    check_fit(problem, models if same else jax.tree.map(lambda leaf: leaf[0], models))
    return _values(problem, models, same, arrays(problem))


def final_values(
    problem: Problem, columns: Iterable[Column], model: Tree, shard: Shard | None, own: Tree | None
) -> Values:
    """Return what the model of a run reaches on the samples of each agent, for `Run.per_agent`.

    It costs as much as one row of the history. It is empty if the run measured no test samples of all agents, or if
    there are more than `MOST_KEPT` agents.

    Args:
        shard: The arrays of the problem where they are already; None: not on one device.
        own: The agents' own models, leaves (N, ...); None: all have the final model.
    """
    tested = any(measure.tests for measure in measures_of(columns))
    if not tested or problem.lazy or problem.agents > MOST_KEPT or jax.process_count() > 1:
        return {}
    models = model if own is None else own
    return _values(problem, models, own is None, arrays(problem) if shard is None else shard)


def _values(problem: Problem, models: Tree, same: bool, shard: Shard) -> Values:
    """Return what models reach on the samples of each agent; see `evaluate_agents`."""
    functions, frozen = Functions.of(problem).without_frozen()
    layout = Layout(problem.agents, parallel=False, mesh=None)
    with scope(problem.double):
        given = Vector(jax.tree.map(jnp.asarray, models))
        found = jax.device_get(_evaluate(functions, layout, same, shard, given, frozen))
        measured = _metrics(problem, found.get("metrics", {}))
    values = {"loss": found["loss"]}
    if "accuracy" in found:
        counts = found["accuracy"]
        with np.errstate(invalid="ignore", divide="ignore"):
            values["train_accuracy"] = counts.trained / counts.samples
            values["test_accuracy"], values["test_loss"] = counts.right / counts.tests, counts.loss / counts.tests
    return {name: np.asarray(one, float) for name, one in (values | measured).items()}


def check_fit(problem: Any, model: Tree) -> None:
    """Refuse anything but a problem whose models have the structure and the shapes of this model."""
    if not isinstance(problem, Problem):
        refuse("problem", problem, "must be a problem", "Give the problem of the run")
    if model is None:
        raise FedpdError("The run has no model, because it is not finished. Resume it first: fedpd resume.")
    if _shapes(model) != _shapes(problem.start):
        rule = f"has models of the shapes {_shapes(problem.start)}, but the run's has {_shapes(model)}"
        refuse("problem", problem.name, rule, "Give the problem of the run")


def _shapes(model: Tree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(model)[0]
    return {jax.tree_util.keystr(path) or "model": np.shape(leaf) for path, leaf in leaves}


def personalize(problem: Problem, model: Tree, oracle: Oracle, *, seed: int = 0) -> Personalized:
    """Return each agent's own model after local steps from the shared model, and what both reach.

    Args:
        problem: The problem that the model was trained on, or one with other samples of the same agents.
        oracle: The local solver, which minimises f_i from the shared model.
        seed: The seed of the samples that the solver draws.
    """
    check_oracle(oracle)
    check_fit(problem, model)
    check_oracle_fits(oracle, problem)
    check_seeds("seed", [seed])
    functions, layout = Functions.of(problem), Layout(problem.agents, parallel=False, mesh=None)
    with scope(problem.double):
        start = Vector(jax.tree.map(jnp.asarray, model))
        tuned = jax.device_get(_tune(functions, layout, oracle, arrays(problem), start, jax.random.key(seed)))
    return compare(problem, model, tuned.tree)


def compare(problem: Problem, model: Tree, models: Tree) -> Personalized:
    """Return what the agents' own models, leaves (N, ...), reach beside a shared model."""
    shared, own = evaluate_agents(problem, model), evaluate_agents(problem, models, same=False)
    quantity = next(name for name in ("test_accuracy", "test_loss", "loss") if name in shared)
    return Personalized(models, shared, own, quantity)


def personal_models(agents: Any, model: Tree, number: int, method: str) -> Tree:
    """Return each agent's own model, leaves (N, ...); agents that never took part have the shared `model`."""
    state = getattr(agents, "state", agents)  # an `AgentsSeen` if agents may be absent
    found = getattr(state, "personal", None)
    if found is None:
        rule = "keeps no personal models"
        refuse("method", method, rule, "Run algorithms.ditto or algorithms.pfedme, or fine-tune with run.personalize")
    known = jax.tree.leaves(found.tree)[0].shape[0] if state is agents else int(np.max(agents.agent, initial=-1)) + 1
    if (known != number) if state is agents else (known > number):
        refuse("problem", f"{number} agents", f"the run had {known} agents", "Give the problem of the run")
    if state is agents:
        return found.tree

    def put(leaf: np.ndarray, own: np.ndarray) -> np.ndarray:
        every = np.repeat(np.asarray(leaf)[None], number, axis=0)
        every[agents.agent] = own
        return every

    return jax.tree.map(put, model, found.tree)


def _metrics(problem: Problem, sums: Mapping[str, MetricSum]) -> Values:
    """Return the metrics of each agent from their sums."""
    known = () if problem.evaluation is None else problem.evaluation.measured(problem.losses)
    return {name: np.asarray(metric_per_agent(metric, sums[name])) for name, metric in known}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(
    bare: Functions, layout: Layout, same: bool, shard: Shard, models: Vector, frozen: Tree | None
) -> Mapping[str, Any]:
    """Return the measurements of each agent at its own model or at the `same` model, leaves (N, ...)."""
    functions = bare.with_frozen(frozen)

    def of_agent(pair: tuple[Shard, Vector | None]) -> tuple[Tree, Tree]:
        one, own = pair
        x = models if own is None else own
        view = AgentView(functions, one)
        found: dict[str, Any] = {"loss": view.f.value(x)}
        for name, measure, known in (
            ("accuracy", ACCURACY, functions.correct is not None),
            ("metrics", METRICS, bool(functions.metrics)),
        ):
            if known and measure.agent is not None:
                found[name] = measure.agent(view, x)[1]
        return (), found

    return each_agent(of_agent, (shard, None if same else models), layout)[1]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _tune(functions: Functions, layout: Layout, oracle: Oracle, shard: Shard, start: Vector, key: Key) -> Vector:
    """Return the agents' models after their local steps, leaves (N, ...)."""

    def of_agent(one: Shard) -> tuple[Tree, Vector]:
        r = jnp.int32(0)
        f = objective_in_round(functions, one, key, r)
        x, _, _ = oracle.solve(Subproblem(f), start, oracle.init(f, start), r, agent_key(key, r, f.agent))
        return (), x

    return each_agent(of_agent, shard, layout)[1]
