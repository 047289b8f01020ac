"""Tables and calls: a table with a `name` is a call of that function, its other keys are the arguments.

Which functions and keys there are is read off the code, so that files and the Python interface cannot drift apart. The
way back is a spec: `table_of(algorithm.spec)` is the table whose call makes the same algorithm.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import tomlkit

from fedpd import algorithms, data, oracles, problems, regularizers, schedules
from fedpd import data as datasets
from fedpd.base.checks import FedpdError, at_least, choice, count, nearest, refuse
from fedpd.base.spec import Spec, Thing, Traced
from fedpd.core import Algorithm, Problem
from fedpd.data import Federated
from fedpd.problems import networks

Table = Mapping[str, Any]
NONE = "none"  # TOML has no word for None; where that is the default, a file leaves the key out
Functions = Mapping[str, Callable[..., Any]]

DATA: Functions = {
    "weak": data.weakly_noniid,
    "strong": data.strongly_noniid,
    "strong_program": data.program_strongly_noniid,
}
LOADERS: Functions = {name: getattr(data, name) for name in data.LOADERS}
NETWORKS: Functions = {
    "MLP": networks.MLP,
    "SmallCNN": networks.SmallCNN,
    "LeafCNN": networks.LeafCNN,
    "GRU": networks.GRU,
}
ORACLES: Functions = {
    "gd": oracles.gd,
    "sgd": oracles.sgd,
    "vr": oracles.vr,
    "optax": oracles.optax,
    "lbfgs": oracles.lbfgs,
}
STEPS: Functions = {
    "inverse_sqrt": schedules.inverse_sqrt,
    "program_fedpd_sgd": schedules.program_fedpd_sgd,
    "program_fedavg_sgd": schedules.program_fedavg_sgd,
}
SKIPS: Functions = {"decreasing_skips": schedules.decreasing_skips, "every": schedules.every}
REGULARIZERS: Functions = {
    "l1": regularizers.l1,
    "l2": regularizers.l2,
    "box": regularizers.box,
    "group_l1": regularizers.group_l1,
}
ALGORITHMS: Functions = {name: getattr(algorithms, name) for name in algorithms.__all__}
# The arguments that may be tables themselves.
ARGUMENTS: Mapping[str, Functions] = {
    "oracle": ORACLES,
    "step": STEPS,
    "p": SKIPS,
    "g": REGULARIZERS,
    "data": LOADERS,
    "model": NETWORKS,
}


def _logistic(
    data: str = "strong",
    agents: int = 100,
    samples: int = 400,
    dimension: int = 20,
    seed: int = 0,
    alpha: float = 1.0,
    beta: float = 0.1,
    start: float = 0.0,
) -> Problem:
    """Return the paper's logistic problem; `start` is every entry of x^0."""
    generate = DATA[choice("data", data, DATA)]
    count("seed", seed, "The seed of the data, an integer", least=0)
    features, labels = generate(agents, samples, dimension, seed=seed)
    problem = problems.penalized_logistic(features, labels, alpha, beta)
    at_least("start", start, -math.inf, "Give a number, every entry of x^0")
    return replace(problem, start=np.full_like(problem.start, start))


def _network(
    model: Any,
    data: Federated,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
) -> Problem:
    """Return a network on federated data.

    `agents` merges its clients as the paper does, `test_share` is the part of each that is set aside for tests.
    """
    if title is not None:
        data = replace(data, name=title)
    if agents is not None:
        data = datasets.merge(data, datasets.paper_groups(data.agents, agents))
    if test_share:
        data = datasets.split(data, test_share, seed=seed)
    if not isinstance(model, nn.Module):
        choice("model", model, NETWORKS)
        model = NETWORKS[model](classes=len(data.classes))
    return problems.network(model, data, seed=seed)


PROBLEMS: Functions = {
    "penalized_logistic": _logistic,
    "network": _network,
    "random_quadratic": problems.random_quadratic,
    "opposing_quadratics": problems.opposing_quadratics,
    "hard_instance": problems.hard_instance,
}


def build_problem(table: Table) -> Problem:
    """Return the problem that a table describes."""
    return _call("[problem]", table, PROBLEMS, {})


def build_algorithm(table: Table, rounds: int, place: str = "[[algorithm]]") -> Algorithm:
    """Return the method that a table describes; `rounds` is for schedules that end with the run."""
    return _call(place, table, ALGORITHMS, {"rounds": rounds}, also=("label",))


def table_of(spec: Spec | str) -> dict[str, Any]:
    """Return the table whose call makes what has this spec, without the arguments that have their default.

    Raises:
        FedpdError: A setting, such as a function of the user's own, has no place in an experiment file.
    """
    if isinstance(spec, str):
        refuse("method", spec, "was made by hand, so no table makes it", "Make it by a function with @specified")
    return {"name": spec.name} | {key: _value(key, value) for key, value in spec.unusual().items()}


def _value(key: str, value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, Spec):
        return table_of(value)
    if isinstance(value, Thing) and isinstance(value.value, np.ndarray | jax.Array):
        return np.asarray(value.value).tolist()
    if isinstance(value, Thing | Traced):
        remedy = "Use one of fedpd's own, or run it from Python"
        refuse(key, value.value if isinstance(value, Thing) else value, "has no place in an experiment file", remedy)
    return list(value) if isinstance(value, tuple) else value


def toml_text(table: Table) -> str:
    """Return the lines of a table, with tables inside it on lines of their own key."""
    document = tomlkit.document()
    for key, value in table.items():
        document.add(key, _item(value))
    return tomlkit.dumps(document).rstrip("\n")


def _item(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return tomlkit.item(value)
    inline = tomlkit.inline_table()
    for key, inner in value.items():
        inline.append(key, _item(inner))
    return inline


def _call(place: str, table: Table, functions: Functions, context: Table, also: tuple[str, ...] = ()) -> Any:
    """Make the call that a table describes. `context` offers values for arguments that the table leaves out."""
    if "name" not in table:
        raise FedpdError(f"{place}: name is missing. Choose from: {', '.join(functions)}.")
    name = table["name"]
    if name not in functions:
        raise FedpdError(f"{place} name = {name!r}: there is no such name. {nearest(name, functions)}")
    function = functions[name]
    parameters = {key: p for key, p in inspect.signature(function).parameters.items() if key != "draw"}
    given = {key: value for key, value in table.items() if key != "name"}
    required = [key for key, p in parameters.items() if p.default is p.empty and key not in context]
    known_keys(f"{place} {name}", given, (*parameters, *also), required=required)
    context = {key: value for key, value in (dict(context) | given).items() if not isinstance(value, dict)}
    inherited = {key: value for key, value in context.items() if key in parameters}
    arguments = {key: _argument(f"{place} {key}", key, value, context) for key, value in given.items()}
    return at(place, function, **(inherited | {key: value for key, value in arguments.items() if key in parameters}))


def _argument(place: str, key: str, value: Any, context: Table) -> Any:
    if value == NONE:
        return None
    if not isinstance(value, dict):
        if key == "oracle":
            raise FedpdError(f'{place} = {value!r}: must be a table. Write e.g. oracle = {{ name = "gd", ... }}.')
        return value
    if key == "optimizer":
        return _optimizer(place, value)
    if key not in ARGUMENTS:
        raise FedpdError(f"{place} = {value!r}: must be a number or a text, not a table.")
    return _call(place, value, ARGUMENTS[key], context)


def _optimizer(place: str, table: Table) -> oracles.Optimizer:
    functions = oracles.optimizers()
    if table.get("name") not in functions:
        known = nearest(table.get("name"), functions)
        raise FedpdError(f"{place} name = {table.get('name')!r}: there is no such name. {known}")
    name = str(table["name"])
    given = {key: value for key, value in table.items() if key != "name"}
    parameters = inspect.signature(functions[name]).parameters
    required = [key for key, p in parameters.items() if p.default is p.empty]
    known_keys(f"{place} {name}", given, tuple(parameters), required=required)
    return at(place, oracles.optimizer, name, **given)


def known_keys(place: str, table: Table, known: Any, required: Any) -> None:
    """Refuse keys that there are not, and miss those that must be there."""
    for key in table:
        if key not in known:
            raise FedpdError(f"{place}: {key} = {table[key]!r}: there is no such key. {nearest(key, known)}")
    for key in required:
        if key not in table:
            raise FedpdError(f"{place}: {key} is missing. It takes: {', '.join(known)}.")


def at(place: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function, and say where in the file a refused value stands."""
    try:
        return function(*arguments, **named)
    except FedpdError as error:
        raise FedpdError(f"{place} {error}") from None
    except TypeError as error:
        raise FedpdError(f"{place}: {error}. Check the types of its values.") from None
