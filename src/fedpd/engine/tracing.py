"""Trace one round of a plan before anything runs, and turn JAX's errors about traced numbers into sentences."""

import dataclasses
import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError, JAXTypeError
from jax.extend.core import get_opaque_trace_state

from fedpd.base.checks import FedpdError, check_takes, refuse
from fedpd.base.precision import scope
from fedpd.base.value import Value, parts_of
from fedpd.core import Method, State, Vector
from fedpd.core.agents import Shard, arrays
from fedpd.core.method import is_of_fedpd
from fedpd.engine.loop import Inputs, Program, init_agents, measure_copies, one_round
from fedpd.engine.measure.columns import MEASURED
from fedpd.engine.plan import Plan, plan_functions
from fedpd.problems.external import explain_callback

LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(np.__file__).parent, Path(__file__).parents[1])
)
ROUNDS_TRIED = 64  # rounds at which a schedule of the user's own is tried
# Schedules by name: the arguments after the round, the largest value, the rule and its explanation.
SCHEDULES: dict[str, tuple[tuple[int, ...], float, str, str]] = {
    "p": ((), 1.0, "must be a number in [0, 1]", "p(r) is the probability of skipping round r"),
    "step": (
        (0,),
        float(np.finfo(np.float64).max),
        "must be a finite number of at least 0",
        "step(r, q) is the step size of local step q in round r",
    ),
}


def trace_round(plan: Plan) -> None:
    """Trace the start and one round of a plan without compiling or running it, so that an error in it shows at once.

    Raises:
        FedpdError: A function of the method or of the problem needs the value of a traced number, or a round changes
            the shape of the state.
    """
    layout = plan.layout._replace(mesh=None)
    program = Program(plan.algorithm, plan_functions(plan), layout, columns=(*MEASURED, *plan.recorded))
    stragglers: Any = plan.stragglers
    central = None if plan.central is None else plan.central.rows

    def play(shard: Shard, start: Vector, key: Any) -> tuple[State, State]:
        before = State(init_agents(program, shard, start), program.algorithm.server(start), jnp.int32(0))
        inputs = Inputs(shard, key, program.algorithm, start, stragglers, central=central)
        after, done = one_round(program, inputs, before)
        measure_copies(program, inputs, after, ~done.communicated)
        return before, after

    with scope(plan.problem.double), explain_tracing():
        given = jax.tree.map(_shape, (arrays(plan.problem), Vector(plan.problem.start)))
        before, after = jax.eval_shape(play, *given, jax.random.key(0, impl="threefry2x32"))
    if _form(before) != _form(after):
        rule = "changes the shapes or the types of its state in a round"
        refuse("algorithm", plan.algorithm.description, rule, "Return a state of the form that init returns")


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _form(state: State) -> tuple[Any, Any]:
    """Return the structure of a state, and the shapes and types of its leaves; nodes themselves may lack equality."""
    leaves, structure = jax.tree.flatten(jax.tree.map(_shape, state))
    return structure, leaves


def check_outside_of_jax(name: str) -> None:
    """Refuse to run inside of a function that JAX transforms."""
    with ThreadPoolExecutor(1) as another:  # a new thread is outside of every transformation
        outside = another.submit(get_opaque_trace_state).result()
    if get_opaque_trace_state() != outside:
        raise FedpdError(
            f"{name} is called inside of jax.jit or another transformation of JAX: it is a loop in Python that "
            "measures and writes files. Call it outside; fedpd.sweep runs many settings as one program."
        )


def check_schedules(algorithm: Method, rounds: int) -> None:
    """Try the user's own schedules p(r) and step(r, q) at some rounds, and refuse values that are not valid."""
    tried = np.unique(np.linspace(0, rounds - 1, min(rounds, ROUNDS_TRIED)).round().astype(int)).tolist()
    for name, own in _own_functions(algorithm):
        if name not in SCHEDULES:
            continue
        arguments, most, rule, remedy = SCHEDULES[name]
        check_takes(name, own, 1 + len(arguments), remedy)
        for r in tried:
            with explain_tracing():
                value = own(r, *arguments)
            array = np.asarray(value)
            if array.shape != () or array.dtype.kind not in "buif" or not 0 <= float(array) <= most:
                refuse(f"{name}({', '.join(map(str, (r, *arguments)))})", array.tolist(), rule, remedy)


def _own_functions(algorithm: Method) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the user's own functions among the settings of a method and of its oracle, with their names."""
    for part in parts_of(algorithm):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if callable(value) and not (isinstance(value, Value) and is_of_fedpd(type(value))):
                yield field.name, value


@contextmanager
def explain_running() -> Iterator[None]:
    """Replace JAX's errors about missing memory, and about a module that failed in PyTorch, by a sentence.

    Raises:
        FedpdError: A run needs more memory than the devices have, or a module failed. Other errors do not change.
    """
    try:
        with explain_callback():
            yield
    except JaxRuntimeError as error:
        text = str(error).strip()
        if "RESOURCE_EXHAUSTED" in text:
            reason = text.partition("RESOURCE_EXHAUSTED:")[2].strip().splitlines()[0].rstrip(".")
            remedy = "Use fewer agents, samples, seeds or grid points, a smaller memory or batch, or store=FOLDER"
            raise FedpdError(f"the run needs more memory than there is ({reason}). {remedy}.") from error
        raise


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
