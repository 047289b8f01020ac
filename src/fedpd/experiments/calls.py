"""Make the objects that the tables of an experiment file describe.

A table with a `name` is a call of that function, and its other keys are the arguments. fedpd reads the names of the
functions and keys from the code, so that files and the Python interface always agree. The name "my_module:function"
calls the user's own function. If a function has an argument `name`, its key is `title`. The opposite direction is
`table_of(algorithm.spec)`, which returns the table whose call makes the same algorithm.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from fedpd import algorithms, data, oracles, regularizers, schedules, transforms
from fedpd.base.checks import FedpdError, nearest, refuse, shown
from fedpd.base.spec import CODE, TRACED, Spec, Thing
from fedpd.base.typed import call_checked, explained_error
from fedpd.base.value import LARGEST, Value
from fedpd.core import Method, Problem
from fedpd.experiments.file_problems import DATA as DATA
from fedpd.experiments.file_problems import NETWORKS, PROBLEMS
from fedpd.experiments.own_code import KEYS, Find, is_reference, refuse_code

Table = Mapping[str, Any]
NONE = "none"  # TOML has no word for None; a file leaves the key out if None is its default
Functions = Mapping[str, Callable[..., Any]]

LOADERS: Functions = {name: getattr(data, name) for name in data.LOADERS}
RULES: Functions = {name: getattr(data, name) for name in data.RULES}
ORACLES: Functions = {
    "gd": oracles.gd,
    "sgd": oracles.sgd,
    "dp_sgd": oracles.dp_sgd,
    "vr": oracles.vr,
    "optax": oracles.optax,
    "lbfgs": oracles.lbfgs,
}
STEPS: Functions = {
    "exponential": schedules.exponential,
    "cosine": schedules.cosine,
    "piecewise": schedules.piecewise,
    "warmup": schedules.warmup,
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
TRANSFORMS: Functions = {name: getattr(transforms, name) for name in transforms.FACTORIES}
WAYS = ("up", "down", "mean")  # the arguments of transforms.wrap, keys of a method's table
# The arguments that may be tables themselves.
ARGUMENTS: Mapping[str, Functions] = {
    "oracle": ORACLES,
    "own": ORACLES,
    "step": STEPS,
    "p": SKIPS,
    "g": REGULARIZERS,
    "data": LOADERS,
    "rule": RULES,
    "model": NETWORKS,
}


def build_problem(table: Table, find: Find = refuse_code) -> Problem:
    """Return the problem that a table describes.

    Args:
        find: Returns the user's own code by its name; by default it is refused and nothing of it runs.
    """
    made = _call("[problem]", table, PROBLEMS, {}, find)
    return _checked("[problem]", table, made, Problem, "a problem, e.g. from problems.from_losses")


def build_algorithm(table: Table, rounds: int, place: str = "[[algorithm]]", find: Find = refuse_code) -> Method:
    """Return the method that a table describes.

    Args:
        rounds: The rounds of the run, for schedules that end with it.
        find: Returns the user's own code by its name; by default it is refused and nothing of it runs.
    """
    own = is_reference(table.get("name"))
    ways = {} if own else {key: table[key] for key in WAYS if key in table}
    table = {key: value for key, value in table.items() if key not in ways}
    also = ("label",) if own else ("label", *WAYS)
    made = _call(place, table, ALGORITHMS, {"rounds": rounds}, find, also=also)
    made = _checked(place, table, made, Method, "a method, e.g. from algorithms.fedpd")
    if not ways:
        return made
    return at(place, transforms.wrap, made, **{key: _transforms(f"{place} {key}", ways[key], find) for key in ways})


def _transforms(place: str, value: Any, find: Find) -> Any:
    """Return the transforms of a table, or of a list of tables."""
    if isinstance(value, list):
        return [_transforms(place, one, find) for one in value]
    if not isinstance(value, Mapping):
        remedy = 'Write e.g. [{ name = "top_k", share = 0.1 }, { name = "quantize", bits = 8 }].'
        raise FedpdError(f"{place} = {shown(value)}: must be tables. {remedy}")
    return _call(place, value, TRANSFORMS, {}, find)


def _checked(place: str, table: Table, made: Any, kind: type, what: str) -> Any:
    if not isinstance(made, kind):
        raise FedpdError(f"{place} name = {table['name']!r}: returns {type(made).__name__}. Return {what}.")
    return made


def label_of_table(table: Table) -> str:
    """Return the label of a method from its table, without making the method.

    Examples:
        >>> from fedpd.experiments.calls import label_of_table
        >>> label_of_table(
        ...     {"name": "my_module:method", "eta": 0.1, "oracle": {"name": "gd", "step": 0.2}}
        ... )
        'my_module:method(eta=0.1, oracle=gd(step=0.2))'
    """
    settings = {key: value for key, value in table.items() if key not in ("name", "label")}
    return f"{table.get('name')}({', '.join(f'{key}={_word(value)}' for key, value in settings.items())})"


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return label_of_table(value)
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        return f"[{', '.join(map(_word, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_of(spec: Spec) -> dict[str, Any]:
    """Return the table whose call makes the object with this spec, without the arguments that have their default.

    Raises:
        FedpdError: An experiment file cannot hold a setting, such as a function of the user's own.
    """
    if CODE in dict(spec.settings) and not is_reference(spec.name):
        rule = "is a class of your own, so a file needs its module"
        refuse("method", spec.label(), rule, f'Write name = "module:{spec.name}"')
    return {"name": spec.name} | {key: _value(key, value) for key, value in spec.unusual().items()}


def _value(key: str, value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, Spec):
        return table_of(value)
    if isinstance(value, Thing) and isinstance(value.value, np.ndarray | jax.Array):
        return np.asarray(value.value).tolist()
    if isinstance(value, Thing) or value == TRACED:
        remedy = "Use a function of fedpd, or run it from Python"
        refuse(key, value.value if isinstance(value, Thing) else value, "cannot be in an experiment file", remedy)
    return [_value(key, one) for one in value] if isinstance(value, tuple) else value


def toml_text(table: Table) -> str:
    """Return a table as lines of TOML, with each inner table on the line of its key."""
    import tomlkit  # only a command that writes a file needs it

    document = tomlkit.document()
    for key, value in table.items():
        document.add(key, _item(value))
    return tomlkit.dumps(document).rstrip("\n")


def _item(value: Any) -> Any:
    import tomlkit

    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        array = tomlkit.array()
        for one in value:
            array.append(_item(one))
        return array
    if not isinstance(value, Mapping):
        return tomlkit.item(value)
    inline = tomlkit.inline_table()
    for key, inner in value.items():
        inline.append(key, _item(inner))
    return inline


def _call(
    place: str, table: Table, functions: Functions, context: Table, find: Find, also: tuple[str, ...] = ()
) -> Any:
    """Return the result of the call that a table describes; `context` has values for what it must have."""
    if "name" not in table:
        raise FedpdError(f"{place}: name is missing. Choose from: {', '.join(functions)}.")
    name = table["name"]
    own = is_reference(name)
    if not own and not (isinstance(name, str) and name in functions):
        remedy = f'{nearest(name, functions)} Write code of your own as "module:function".'
        raise FedpdError(f"{place} name = {shown(name)}: there is no such name. {remedy}")
    function = at(f"{place} name = {name!r}:", find, name) if own else functions[name]
    known_parameters = parameters(place, name, function)
    given = {key: value for key, value in table.items() if key != "name"}
    without_default = [key for key, p in known_parameters.items() if p.default is p.empty]
    required = [key for key in without_default if key not in context]
    anything = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    known = (*given, *known_parameters) if anything else (*known_parameters, *also)
    known_keys(f"{place} {name}", given, known, required=required)
    context = {key: value for key, value in (dict(context) | given).items() if not isinstance(value, dict)}
    # Only what a function must have: the momentum of a method is not that of its oracle.
    inherited = {key: value for key, value in context.items() if key in without_default and not is_reference(value)}
    arguments = {key: _argument(f"{place} {key}", key, value, context, find) for key, value in given.items()}
    arguments = inherited | {key: value for key, value in arguments.items() if key in known and key not in also}
    called = inspect.signature(function).parameters
    named = {"name" if key == "title" and "name" in called else key: v for key, v in arguments.items()}
    if not own:
        return at(place, partial(call_checked, function, LARGEST), **named)
    try:
        made = function(**named)  # own_code.explain_errors adds the line of the user's code to other errors
    except FedpdError as error:
        raise FedpdError(f"{place} {error}") from error.__cause__
    return _with_own_spec(name, arguments, function, made)


def parameters(place: str, name: str, function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by their keys in a table; the key of a parameter `name` is `title`."""
    if not callable(function):
        raise FedpdError(
            f"{place} name = {name!r}: is not a function, so a table cannot call it. Write the name as a text instead."
        )
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(function).parameters
    kept = {key: p for key, p in found.items() if p.kind not in several}
    if "name" in kept and "title" not in kept:
        kept["title"] = kept["name"]
    hidden = ("name", "parent") if inspect.isclass(function) else ("name",)  # flax sets the `parent` of a module
    return {key: p for key, p in kept.items() if key not in hidden}


def _with_own_spec(name: str, arguments: Table, function: Any, made: Any) -> Any:
    """Return an object that own code made, with a spec that identifies its name, arguments and code."""
    if not isinstance(made, Value):
        return made
    settings = Spec.of(name, **arguments).settings
    more = ("made", made.spec), (CODE, Thing(inspect.unwrap(function)))
    return made.called(Spec(name, (*settings, *more), frozenset({"made", CODE})))


def _argument(place: str, key: str, value: Any, context: Table, find: Find) -> Any:
    if isinstance(value, str) and value == NONE:
        return None
    if key in KEYS and is_reference(value):
        return at(f"{place} = {value!r}:", find, value)
    if not isinstance(value, dict):
        if key == "oracle":
            raise FedpdError(f'{place} = {shown(value)}: must be a table. Write e.g. oracle = {{ name = "gd", ... }}.')
        by_name = key == "model" or (key == "data" and value in DATA)  # a name alone is enough
        if isinstance(value, str) and not by_name and value in ARGUMENTS.get(key, {}):
            raise FedpdError(f"{place} = {value!r}: must be a table. Write {key} = {{ name = {value!r}, ... }}.")
        return value
    if key == "optimizer" and not is_reference(value.get("name")):
        return _optimizer(place, value, context, find)
    if key not in ARGUMENTS and not is_reference(value.get("name")):
        raise FedpdError(f"{place} = {shown(value)}: must be a number or a text, not a table. Write e.g. {key} = 0.1.")
    return _call(place, value, ARGUMENTS.get(key, {}), context, find)


def _optimizer(place: str, table: Table, context: Table, find: Find) -> oracles.Optimizer:
    functions = oracles.optimizers()
    name = table.get("name")
    if not isinstance(name, str) or name not in functions:
        raise FedpdError(f"{place} name = {shown(name)}: there is no such name. {nearest(name, functions)}")
    given = {key: value for key, value in table.items() if key != "name"}
    parameters = inspect.signature(functions[name]).parameters
    required = [key for key, p in parameters.items() if p.default is p.empty]
    known_keys(f"{place} {name}", given, tuple(parameters), required=required)
    rate = "learning_rate"
    if isinstance(given.get(rate), dict):
        given[rate] = _call(f"{place} {rate}", given[rate], STEPS, context, find)
    return at(place, oracles.optimizer, name, **given)


def known_keys(place: str, table: Table, known: Any, required: Any) -> None:
    """Refuse a table with an unknown key, or without a required one."""
    for key in table:
        if key not in known:
            raise FedpdError(
                f"{place}: {shown(key)[1:-1]} = {shown(table[key])}: there is no such key. {nearest(key, known)}"
            )
    for key in required:
        if key not in table:
            raise FedpdError(f"{place}: {key} is missing. Add it; the keys are: {', '.join(known)}.")


def at(place: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the result of a function; an error message begins with the place of the value in the file."""
    try:
        return function(*arguments, **named)
    except FedpdError as error:
        raise FedpdError(f"{place} {error}") from error.__cause__  # the cause may be a line of the user's own code
    except Exception as error:  # most probably because of the values in the file
        raise explained_error(place, error, "Check its values") from error
