"""Calls of public functions in Python: valid arguments of each, then some of them replaced by hostile values."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, get_args, get_origin

import numpy as np
from hypothesis import strategies as st

from fedpd import algorithms, data, oracles, problems, regularizers, schedules, theory

from .hostile import NUMBERS, VALUES

PROBLEM = problems.random_quadratic(agents=2, dimension=2)
ORACLE = oracles.gd(step=0.1, iterations=2)
SAMPLES = {"x": np.arange(6.0).reshape(3, 2), "y": np.array([0, 1, 1])}
FEDERATED = data.from_arrays({"a": SAMPLES, "b": SAMPLES})
MODULES: list[ModuleType] = [
    *(algorithms, oracles, regularizers, schedules, theory, theory.complexity, theory.printed, theory.rates),
    *(theory.skipping, theory.variance_reduction, problems, data),
]
# Arguments that fit many functions, by name. Others follow from the annotation.
USUAL: Mapping[str, Any] = {
    **{"problem": PROBLEM, "oracle": ORACLE, "data": FEDERATED, "x": PROBLEM.start, "agents": 2, "rounds": 4, "T": 10},
    **{"losses": lambda x, rows: (rows["x"] @ x - rows["y"]) ** 2, "start": np.zeros(2), "train": {"a": SAMPLES}},
    **{"hessians": np.stack([np.eye(2), 2 * np.eye(2)]), "linear": np.ones((2, 2)), "eta": 0.1, "L": 1.0, "p": 0.2},
    **{"features": [np.ones((3, 2))] * 2, "labels": [np.array([-1, 1, 1])] * 2, "targets": [np.ones(3)] * 2},
    **{"apply": lambda model, x: x @ np.ones((2, 2)) * model.sum(), "points": [np.zeros(2)], "groups": [[0, 1]]},
    **{"k": 2, "ks": [1, 2], "etas": [0.1], "low": -1.0, "high": 1.0},
    **{"optimizer": oracles.optimizer("sgd", learning_rate=0.1), "longest": 4, "writers": 3, "samples": [SAMPLES]},
    **{"gap": 1.0, "delta": 1.0, "epsilon": 1e-3, "smoothness": 2.0, "convexity": 0.5, "memory": 2},
    **{"ratios": [0.1, 1.0], "test": None, "path": "missing.csv", "source": "missing"},
}  # fmt: skip


LEFT_OUT = ("hub", "minimise", "uniform", "estimate", "proximal_step", "schedule")  # of the inside of a method


def public(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a module, except those that would fetch data from a network."""
    own = [name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", own)
    found = {name: getattr(module, name) for name in names if name not in LEFT_OUT and not name.startswith("_")}
    return {name: one for name, one in found.items() if inspect.isfunction(one)}


FUNCTIONS = [one for module in MODULES for one in public(module).values()]


def usual_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return arguments of a function that are probably valid."""
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = [
        p for p in inspect.signature(function).parameters.values() if p.kind not in several and p.default is p.empty
    ]
    return {p.name: USUAL[p.name] if p.name in USUAL else _of(p.annotation) for p in needed}


def _of(annotation: Any) -> Any:
    kinds = get_args(annotation) or (annotation,)
    for kind, value in ((float, 0.5), (int, 2), (bool, True), (str, "label")):
        if kind in kinds:
            return value
    return [SAMPLES] if get_origin(annotation) else 0.5


@st.composite
def calls(draw: st.DrawFn) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a function and its arguments, one to three of which are hostile."""
    function = draw(st.sampled_from(FUNCTIONS))
    arguments = usual_arguments(function)
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind not in several]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)) if names else ():
        number = isinstance(arguments.get(name), int | float)
        arguments[name] = draw(st.sampled_from(NUMBERS) | VALUES if number else VALUES | st.sampled_from(NUMBERS))
    return function, arguments
