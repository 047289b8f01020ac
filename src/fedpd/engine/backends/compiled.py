"""The one compiled chunk of rounds, of all agents or of the agents that are present."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from fedpd.base.process import QUICK
from fedpd.core import Array, Problem
from fedpd.core.agents import SHARED, sharded
from fedpd.engine.backends.cohort_rounds import ATTENDANCE, COHORT_STATE, Attendance, CohortState, step_of_cohort
from fedpd.engine.backends.liveness import Liveness
from fedpd.engine.loop import INPUTS, ROWS, STATE, Inputs, Rows, Template, chunk, step_of_everyone
from fedpd.engine.plan import EACH_INPUTS, EACH_STATE, IN_SWEEP

_axis: Any = 0  # of the variants, for jax.vmap
_none: Any = None
EACH_COHORT = CohortState(_axis, _axis, _axis, _none)


class ChunkKey(NamedTuple):
    """Selects a compiled chunk, together with the structures and shapes of its arguments. It is hashable."""

    template: Template  # the problem's functions and how the agents run, without the method
    length: int  # the longest chunk
    many: bool  # whether there are several variants at once
    sweep: bool  # whether each variant has a method of its own
    # what is kept of an agent that is absent; None: all agents take part in every round
    liveness: Liveness | None = None


def _rounds(
    kind: ChunkKey, inputs: Inputs, state: Any, attendance: Attendance | None, *numbers: Array
) -> tuple[Any, Rows]:
    """Run a chunk of rounds; `numbers` are the last four arguments of `chunk`."""

    def rounds(inputs: Inputs, state: Any, attendance: Attendance | None, *rest: Any) -> tuple[Any, Rows]:
        program = kind.template.program(inputs.method, inputs.frozen)
        step: Any = partial(step_of_everyone, program, inputs)
        agents = len(inputs.shard.agent)
        if kind.liveness is not None and attendance is not None:
            step = partial(step_of_cohort, program, kind.liveness, inputs, attendance)
            agents = attendance.agents.shape[1]
        return chunk(program, kind.length, not kind.many, step, agents, state, *rest)

    everyone = kind.liveness is None
    states, each_state = (STATE, EACH_STATE) if everyone else (COHORT_STATE, EACH_COHORT)
    specs = (INPUTS, states, SHARED if everyone else ATTENDANCE, *[SHARED] * len(numbers))
    run = sharded(rounds, kind.template.layout, specs, (states, ROWS))
    if kind.many:
        each = IN_SWEEP if kind.sweep else EACH_INPUTS
        axes = (each, each_state, None if everyone else 0, *[None] * len(numbers))
        run = jax.vmap(run, in_axes=axes, out_axes=(each_state, 0))
    return run(inputs, state, attendance, *numbers)


# On a CPU, each core already has agents of its own. If XLA also splits small loops over the cores, they wait for each
# other. Measured on 2 cores with batch 1, Q = 600, D = 100: without this pass, a round is 1.4 times as fast for N = 100
# on two devices, and 3 times as fast for N = 10 on one device.
ON_CORES = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
SMALL = 50_000  # samples of all agents times parameters


def compiled_by_size(
    function: Any, on_cores: dict[str, Any] | None = None, small: int = SMALL, **options: Any
) -> Callable[[Problem], Any]:
    """Return (problem) -> the compiled function: compiled quickly if the problem is small, and to run fast otherwise.

    The problem alone decides, so that a run that resumes or continues has the same rounding.
    """
    usual = jax.jit(function, **options)
    large = usual if on_cores is None else jax.jit(function, compiler_options=on_cores, **options)
    quick = jax.jit(function, compiler_options=(on_cores or {}) | QUICK, **options)

    def choose(problem: Problem) -> Any:
        if jax.default_backend() != "cpu":
            return usual
        return quick if problem.samples * problem.dimension <= small else large

    return choose


compiled_chunk = compiled_by_size(_rounds, ON_CORES, static_argnums=0, donate_argnums=2)
