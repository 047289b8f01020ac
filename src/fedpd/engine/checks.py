"""Checks before anything runs: whether a method and its oracle fit a problem, and whether JAX can trace a round.

Methods and problems may not fit by the number of agents, random layers (dropout) or batch normalisation. JAX's errors
about traced numbers become sentences.
"""

import dataclasses
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError, JAXTypeError
from jax.extend.core import get_opaque_trace_state

from fedpd.base.checks import FedpdError, TheoryWarning, check_takes, refuse
from fedpd.base.errors import warn
from fedpd.base.precision import scope
from fedpd.base.value import Value, parts_of
from fedpd.core import Method, Oracle, Problem, State, Vector
from fedpd.core.agents import Shard, arrays
from fedpd.core.method import is_of_fedpd
from fedpd.engine.loop import Inputs, Program, init_agents, measure_copies, one_round
from fedpd.engine.measure.columns import MEASURED
from fedpd.engine.participation import Participation, participants
from fedpd.engine.plan import Plan, plan_functions
from fedpd.problems.external import explain_callback
from fedpd.transforms._compress import RandomK, number_sent
from fedpd.transforms._means import Krum


def check_agents(algorithm: Method, agents: int, fewest: Callable[[], int]) -> None:
    """Refuse a method that does not fit the number of agents, of which at least `fewest()` send in a communication."""
    algorithm.check_agents(agents, fewest)
    for one in parts_of(algorithm):
        if isinstance(one, Krum):
            _check_krum(one, algorithm, fewest())


def check_variance(algorithm: Method, dimension: int) -> None:
    """Warn of an omega that is smaller than the variance of a method's transform, for models of d numbers."""
    parts = parts_of(algorithm)
    omegas = [one.largest_variance for one in parts if isinstance(one, Method)]
    for rule in (one for one in parts if isinstance(one, RandomK)):
        variance = dimension / number_sent(rule.share, dimension) - 1
        for omega in omegas:
            if omega is not None and omega < variance * (1 - 1e-6):
                warn(
                    f"omega = {omega:g} is below d/k - 1 = {variance:.6g}, the variance of {rule.description}, so no "
                    f"theorem covers this run. It may still converge, or it may diverge. Give omega={variance:.6g}.",
                    TheoryWarning,
                )


def fewest_present(rule: Participation | None, seeds: Sequence[int], rounds: int, agents: int) -> int:
    """Return how many agents are present in the round that has the fewest, without rounds in which nobody is."""
    if rule is None:
        return agents
    if rule.kind == "cohort":
        return int(rule.numbers)
    if rule.kind == "size":
        return int(rule.numbers[0])
    numbers = [(participants(rule, seed, range(rounds), agents) < agents).sum(axis=1) for seed in seeds]
    present = np.concatenate(numbers)
    return int(present[present > 0].min(initial=agents))


def _check_krum(rule: Krum, algorithm: Method, messages: int) -> None:
    f, m = rule.f, rule.m
    if any(exchange.speaks is not None for exchange in algorithm.exchanges()):
        text = f"needs {2 * f + 3} messages in every communication, and agents of {algorithm.name} may send none"
        refuse("mean", rule.description, text, "Choose median() or trimmed_mean(share), or another method")
    if messages < 2 * f + 3:
        most = (messages - 3) // 2
        remedy = f"Give an f of at most {most}, or let more agents take part" if most >= 0 else "Choose median()"
        text = f"needs at least 2f + 3 = {2 * f + 3} messages, and a communication has {messages}"
        refuse("f", f, text, remedy)
    if m > messages - f:
        text = f"must be at most {messages - f}, the {messages} messages of a communication without f = {f} wrong ones"
        refuse("m", m, text, "Give a smaller m")


def check_random_layers(algorithm: Method, problem: Problem) -> None:
    """Refuse a method that compares gradients of different rounds, if the model has random layers.

    Every local step has its own random numbers, and a full gradient has one set of them per round. Within a round, f_i
    is then a fixed function. From one round to the next it is not.
    """
    if problem.random is not None:
        _check_rounds_differ(*algorithm.oracles, algorithm)


def check_batch(algorithm: Method, problem: Problem) -> None:
    """Refuse steps on single samples, if a sample's loss depends on its batch, and more epochs than 32 bits count."""
    _check_samples_alone(algorithm.oracles, algorithm.samples_per_step, problem)
    epochs, largest = algorithm.local_epochs, int(problem.sizes.max())
    if epochs is not None and epochs * largest >= 2**31:
        rule = f"with {largest:,} samples of the largest agent, must be below {2**31 // largest:,}: steps have 32 bits"
        refuse("epochs", epochs, rule, "Give fewer epochs")


def check_oracle_fits(oracle: Oracle, problem: Problem) -> None:
    """Refuse an oracle that cannot train the model of a problem, as `check_random_layers` and `check_batch` do."""
    if problem.random is not None:
        _check_rounds_differ(oracle)
    _check_samples_alone([oracle], oracle.batch, problem)


def _check_rounds_differ(*parts: Oracle | Method) -> None:
    rule = "compares gradients of different rounds, but the model has random layers (dropout), which change the loss"
    for part in parts:
        if part.compares_rounds:
            name = "algorithm" if isinstance(part, Method) else "oracle"
            remedy = "Remove the random layers, or use oracles.sgd, oracles.gd or oracles.optax"
            refuse(name, part.description, rule, remedy)


def _check_samples_alone(oracles: Sequence[Oracle], batch: int | None, problem: Problem) -> None:
    if not problem.depends_on_batch:
        return
    for oracle in oracles:
        if oracle.needs_samples:
            rule = "needs the gradient of each sample, but a sample's loss depends on its batch"
            remedy = (
                "Use another oracle, or losses of single samples (group normalisation in place of batch normalisation)"
            )
            refuse("oracle", oracle.description, rule, remedy)
    if batch == 1:
        rule = "must be at least 2, because a sample's loss depends on its batch"
        refuse("batch", batch, rule, "Give the oracle e.g. batch=10")


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
