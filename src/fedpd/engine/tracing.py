"""Trace one round of a plan before anything runs, and turn JAX's errors about traced numbers into sentences."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError
from tree_math import Vector

from fedpd.base.checks import FedpdError, is_traced, refuse
from fedpd.base.precision import scope
from fedpd.base.spec import Spec, Thing
from fedpd.core import Algorithm, State
from fedpd.core.agents import Functions, Shard, arrays
from fedpd.engine.columns import MEASURED
from fedpd.engine.plan import Plan
from fedpd.engine.rounds import Inputs, Program, init_agents, measure_copies, one_round

LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(np.__file__).parent, Path(__file__).parents[1])
)
ROUNDS_TRIED = 64  # rounds at which a schedule of the user's own is tried


def trace_round(plan: Plan) -> None:
    """Trace the start and one round of a plan without compiling or running it, so that an error in it shows at once.

    Raises:
        FedpdError: A function of the method or of the problem needs the value of a traced number, or a round changes
            the shape of the state.
    """
    layout = plan.layout._replace(mesh=None)
    program = Program(plan.algorithm, Functions.of(plan.problem), layout, columns=(*MEASURED, *plan.recorded))
    stragglers: Any = plan.stragglers

    def play(shard: Shard, start: Vector, key: Any) -> tuple[State, State]:
        before = State(init_agents(program, shard, start), program.algorithm.server(start), jnp.int32(0))
        inputs = Inputs(shard, key, start, stragglers)
        after, done = one_round(program, inputs, before)
        measure_copies(program, inputs, after.agents, ~done.communicated)
        return before, after

    with scope(plan.problem.double), explain_tracing():
        given = jax.tree.map(_shape, (arrays(plan.problem), Vector(plan.problem.start)))
        before, after = jax.eval_shape(play, *given, jax.random.key(0, impl="threefry2x32"))
    if jax.tree.map(_shape, before) != jax.tree.map(_shape, after):
        rule = "changes the shapes or the types of its state in a round"
        refuse("algorithm", plan.algorithm.description, rule, "Return a state of the form that init returns")


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def check_outside_of_jax(name: str) -> None:
    """Refuse to run inside of a function that JAX traces."""
    if is_traced(jnp.zeros(())):
        raise FedpdError(
            f"{name} is called inside of jax.jit or another transformation of JAX: it is a loop in Python that "
            "measures and writes files. Call it outside; fedpd.sweep runs many settings as one program."
        )


def check_schedules(algorithm: Algorithm, rounds: int) -> None:
    """Try the user's own schedule p(r) at some rounds: its values must be probabilities."""
    own = dict(algorithm.spec.settings).get("p") if isinstance(algorithm.spec, Spec) else None
    if not isinstance(own, Thing) or not callable(own.value):
        return
    for r in np.unique(np.linspace(0, rounds - 1, min(rounds, ROUNDS_TRIED)).round().astype(int)).tolist():
        with explain_tracing():
            p = np.asarray(own.value(r))
        if p.shape != () or p.dtype.kind not in "buif" or not 0 <= p <= 1:
            refuse(f"p({r})", p.tolist(), "must be a number in [0, 1]", "p(r) is the probability of skipping round r")


@contextmanager
def explain_tracing() -> Iterator[None]:
    """Replace JAX's errors about traced numbers by a sentence that names the line.

    Raises:
        FedpdError: A function of the user's needs the value of a traced number. Other errors do not change.
    """
    try:
        yield
    except JAXTypeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
        frame = (own or frames)[-1]
        raise FedpdError(
            f"{frame.filename}, line {frame.lineno}, in {frame.name}: Python's if, float() or NumPy cannot be used on "
            "numbers that JAX traces. Use jnp.where(condition, a, b) and jax.numpy."
        ) from error
