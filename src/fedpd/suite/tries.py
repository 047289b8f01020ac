"""The tries that a tuning budget allows a method: settings from its own rule, run as few compiled programs.

    0 runs    the method's own rule, from L
    8 runs    8 factors on its step sizes, 1/16 to 1024 by a factor of 4
    64 runs   16 factors, 1/256 to 4^11, times 4 numbers of local steps (2, 8, 32, 128) or of pairs that are remembered
              (5, 10, 20, 40); 64 factors, 1/256 to 2^23.5, for methods that have neither

A factor is what `fedpd.tune` varies: it multiplies eta, the step, 1/rho, or the length of a first step.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from fedpd.base.checks import choice, refuse
from fedpd.base.spec import Spec, Thing
from fedpd.core import Algorithm, Problem
from fedpd.core.card import Variant
from fedpd.engine.run import Run
from fedpd.experiments.calls import ALGORITHMS, ORACLES, REGULARIZERS
from fedpd.search.sweep import sweep

BUDGETS = (0, 8, 64)
KNOBS = {"iterations": (2, 8, 32, 128), "memory": (5, 10, 20, 40)}  # the second knob: the first of these that there is
FACTORIES = {**ORACLES, **REGULARIZERS, **ALGORITHMS}

Path = tuple[str, ...]  # the place of a setting: its name, behind the names of the specs that it is in


def specs_within(variant: Variant, budget: int, L: float, agents: int) -> list[Spec]:
    """Return the settings that a budget allows, as specs.

    Args:
        variant: The method.
        budget: 0, 8 or 64 runs.
        L: The smoothness from which the method's rule starts.
        agents: N.
    """
    choice("budget", str(budget), map(str, BUDGETS))
    if budget == 0:
        return [_spec(variant, L, agents, 1.0)]
    if budget == 8:
        return [_spec(variant, L, agents, 4.0**k) for k in range(-2, 6)]
    knob = next((name for name in KNOBS if _has(_spec(variant, L, agents, 1.0), name)), None)
    if knob is None:
        return [_spec(variant, L, agents, 2.0 ** (k / 2)) for k in range(-16, 48)]
    scaled = [_spec(variant, L, agents, 4.0**k) for k in range(-4, 12)]
    return [_with(spec, knob, number) for number in KNOBS[knob] for spec in scaled]


def _spec(variant: Variant, L: float, agents: int, scale: float) -> Spec:
    spec = variant.rule(L, agents, scale).spec
    if not isinstance(spec, Spec):
        refuse(
            "method", variant.label, "has no spec, so that it cannot be tuned", "Make it by a function with @specified"
        )
    return spec


def _has(spec: Spec, name: str) -> bool:
    return isinstance(spec.find(name), int)


def _with(spec: Spec, name: str, value: Any) -> Spec:
    """Return a spec with another value of a setting, here or in a spec among the settings."""
    changed = {
        key: value if key == name else _with(inner, name, value) if isinstance(inner, Spec) else inner
        for key, inner in spec.settings
    }
    return replace(spec, settings=tuple(changed.items()))


def run_specs(specs: list[Spec], problem: Problem, rounds: int) -> list[Run]:
    """Run all specs of one method on a problem: those that differ in real numbers only are one program.

    Args:
        specs: Settings of one method.
        problem: The problem.
        rounds: The rounds of each run.
    """
    groups: dict[Any, list[Spec]] = {}
    for spec in specs:
        fixed = tuple((path, leaf) for path, leaf in _leaves(spec) if not isinstance(leaf, float))
        groups.setdefault(fixed, []).append(spec)
    return [run for group in groups.values() for run in _run_group(group, problem, rounds)]


def _run_group(specs: list[Spec], problem: Problem, rounds: int) -> list[Run]:
    real = {path for path, leaf in _leaves(specs[0]) if isinstance(leaf, float)}
    columns = {path: [dict(_leaves(spec))[path] for spec in specs] for path in real}

    def build(point: Any) -> Algorithm:
        return _made(specs[0], {path: jnp.asarray(column)[point] for path, column in columns.items()})

    found = sweep(build, problem, {"point": list(range(len(specs)))}, rounds=rounds, progress=False)
    return [runs[0] for runs in found.runs]


def _leaves(spec: Spec, before: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the settings of a spec and of those in it, each with its place."""
    for key, value in spec.settings:
        if isinstance(value, Spec):
            yield (*before, key), value.name
            yield from _leaves(value, (*before, key))
        else:
            yield (*before, key), value


def _made(spec: Spec, real: dict[Path, Any], before: Path = ()) -> Any:
    """Call the factory of a spec, with these numbers in the places of its own, which may be traced."""
    arguments = {}
    for key, value in spec.settings:
        if isinstance(value, Spec):
            arguments[key] = _made(value, real, (*before, key))
        else:
            arguments[key] = real.get((*before, key), value.value if isinstance(value, Thing) else value)
    return FACTORIES[spec.name](**arguments)
