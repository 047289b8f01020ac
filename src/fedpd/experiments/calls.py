"""Make the objects that the tables of an experiment file describe.

A table with a `name` is a call of that function, and its other keys are the arguments. fedpd reads the names of the
functions and keys from the code, so that files and the Python interface always agree. The name "my_module:function"
calls the user's own function. If a function has an argument `name`, its key is `title`. The opposite direction is
`table_of(algorithm.spec)`, which returns the table whose call makes the same algorithm.

In Python, the first argument of a problem is often an array or a function. In a file, the key `data` replaces it with a
loader, or with a function of the user's own that returns the data.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from fedpd import algorithms, oracles, problems, regularizers, schedules, transforms
from fedpd import data as datasets
from fedpd.base.checks import FedpdError, at_least, choice, count, nearest, refuse, shown
from fedpd.base.lazy import LazyMapping
from fedpd.base.spec import CODE, TRACED, Spec, Thing
from fedpd.base.typed import call_checked, explained_error
from fedpd.base.value import LARGEST, Value
from fedpd.core import Method, Problem
from fedpd.data import Federated
from fedpd.experiments.own_code import KEYS, Find, is_reference, refuse_code

Functions = Mapping[str, Callable[..., Any]]
DATA: Functions = {
    "weak": datasets.weakly_noniid,
    "strong": datasets.strongly_noniid,
    "strong_program": datasets.program_strongly_noniid,
}
NAMES = ("MLP", "SmallCNN", "LeafCNN", "CifarCNN", "GRU", "LSTM")
NETWORKS: Functions = LazyMapping("fedpd.networks", NAMES)  # they need flax
LOADED = (
    'Give a loader, e.g. data = { name = "parquet", ... }, or a function of your own, data = { name = "module:load" }'
)


def _prepared(
    data: Any,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    standardise: bool = False,
) -> Federated:
    """Return federated data after the changes that the keys of a [problem] table ask for."""
    if not isinstance(data, Federated):
        refuse("data", data if isinstance(data, str) else type(data).__name__, "must be federated data", LOADED)
    if title is not None:
        data = replace(data, name=title)
    if agents is not None:
        data = datasets.merge(data, datasets.paper_groups(data.agents, agents))
    if test_share:
        data = datasets.split(data, test_share, seed=seed)
    if not isinstance(standardise, bool):
        refuse("standardise", standardise, "must be true or false", "Write standardise = true")
    return datasets.standardise(data)[0] if standardise else data


def _logistic(
    data: Any = "strong",
    agents: int | None = None,
    samples: int | None = None,
    dimension: int | None = None,
    seed: int = 0,
    alpha: float = 1.0,
    beta: float = 0.1,
    start: Any = 0.0,
    title: str | None = None,
    standardise: bool = False,
    weights: Any = None,
) -> Problem:
    """Return penalised logistic regression on the paper's generated data, or on loaded data with two classes.

    `start` is x^0: a number for all its entries, or a list. `agents`, `samples` and `dimension` are the sizes of
    generated data, by default 100, 400 and 20.
    """
    count("seed", seed, "Give the seed of the data, an integer", least=0)
    if isinstance(data, str):
        generate = DATA[choice("data", data, DATA)]
        if standardise:
            refuse("standardise", standardise, "is for loaded data, but these are generated", f"Leave it out. {LOADED}")
        sizes = {"agents": agents, "samples": samples, "dimension": dimension}
        features, labels = generate(**{key: size for key, size in sizes.items() if size is not None}, seed=seed)
    else:
        for name, value in (("samples", samples), ("dimension", dimension)):
            if value is not None:
                refuse(name, value, "is for generated data, but these are loaded", "Leave it out")
        features, labels = _signed(data, agents, seed, standardise)
    problem = problems.penalized_logistic(features, labels, alpha, beta, weights=weights)
    return replace(problem, start=_start(start, problem.start), name=title or problem.name)


def _signed(data: Any, agents: int | None, seed: int, standardise: bool) -> tuple[Any, Any]:
    """Return the features of loaded data, and labels -1 for the smaller class and +1 for the larger one."""
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data, Federated):
        return (datasets.standardise(data[0])[0] if standardise else data[0]), data[1]
    loaded = _prepared(data, agents, seed=seed, standardise=standardise)
    if len(loaded.classes) != 2:
        refuse(
            "classes", loaded.classes.tolist(), "must be two for logistic regression", 'Use name = "softmax_regression"'
        )
    features = [samples["x"].reshape(len(samples["x"]), -1) for samples in loaded.train]
    return features, [np.where(samples["y"] == loaded.classes[1], 1, -1) for samples in loaded.train]


def _start(start: Any, usual: np.ndarray) -> np.ndarray:
    if isinstance(start, list | np.ndarray):
        given = np.asarray(start, usual.dtype)
        if given.shape != usual.shape:
            refuse("start", start, f"must have {len(usual)} entries", "Give x^0, or one number for all its entries")
        return given
    at_least("start", start, -math.inf, "Give a number, every entry of x^0, or a list")
    return np.full_like(usual, start)


def _network(
    model: Any,
    data: Any,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    l2: float = 0.0,
    standardise: bool = False,
    weights: Any = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    check: bool = True,
) -> Problem:
    """Return a network on federated data.

    `agents` merges the clients as the paper does. `test_share` is the share of each client's samples for tests.
    """
    data = _prepared(data, agents, test_share, title, seed, standardise)
    if isinstance(model, str):
        model = _named_network(model, len(data.classes))
    elif isinstance(model, type):
        refuse("model", model.__name__, "is a class, not a module", "Write it as a table with its arguments")
    return problems.network(model, data, seed=seed, l2=l2, weights=weights, precision=precision, check=check)


def _on_data(function: Callable[..., Problem]) -> Callable[..., Problem]:
    """Return what a table calls for a problem on federated data.

    Its keys are the parameters of Python's function, and those of `_prepared`, which prepare the data. `start` may be a
    list, and `model` the name of one of fedpd's networks, which then has as many outputs as a sample has targets.
    """
    own, further = (inspect.signature(one).parameters for one in (function, _prepared))

    def build(**given: Any) -> Problem:
        given["data"] = _prepared(**{key: value for key, value in given.items() if key in further})
        if isinstance(given.get("model"), str):
            given["model"] = _named_network(given["model"], math.prod(given["data"].target_shape))
        if "start" in given:
            given["start"] = _arrays(given["start"])
        return function(**{key: value for key, value in given.items() if key in own})

    build.__annotations__ = {key: one.annotation for key, one in further.items()}  # the function checks its own
    return _with_keys(build, {**further, **own})


def _with_keys(build: Callable[..., Problem], keys: Mapping[str, inspect.Parameter]) -> Callable[..., Problem]:
    """Return a function with these parameters, which are the keys of its table; the required ones come first."""
    both = sorted(keys.values(), key=lambda one: one.default is not one.empty)
    named = [one.replace(kind=one.KEYWORD_ONLY) for one in both]
    vars(build)["__signature__"] = inspect.Signature(named, return_annotation=Problem)
    return build


def _named_network(name: str, outputs: int) -> Any:
    return NETWORKS[choice("model", name, NETWORKS)](classes=outputs)


def _next_token(
    model: Any,
    data: Any,
    start: Any = None,
    padding: int | None = -100,
    metrics: Any = None,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Any = None,
    backend: Any = "jax",
    check: bool = True,
) -> Problem:
    """Return the problem of predicting the next token at every position, with a model of the user's own."""
    data = _prepared(data, agents, test_share, title, seed)
    named = {"seed": seed, "l2": l2, "weights": weights, "metrics": metrics, "backend": backend, "check": check}
    return problems.next_token(model, data, _arrays(start), padding=padding, **named)


def _on_own_loss(function: Callable[..., Problem]) -> Callable[..., Problem]:
    """Return what a table calls for a problem with a loss of the user's own.

    Its keys are the parameters of Python's function, and `standardise`. If the data are federated, the problem uses
    their training samples. `start` may be a list.
    """
    own = inspect.signature(function).parameters
    name = next(iter(own))  # of the loss

    def build(standardise: bool = False, **given: Any) -> Problem:
        data = given["data"]
        if not isinstance(data, Federated) and standardise:
            refuse("standardise", standardise, "applies to federated data only", "Call data.standardise in your loader")
        if not callable(given[name]):
            refuse(name, given[name], "must be a function", f'Write {name} = "my_module:{name}"')
        samples = _prepared(data, standardise=standardise).train if isinstance(data, Federated) else data
        return function(**given | {"data": samples, "start": _arrays(given["start"])})

    return _with_keys(build, {**own, "standardise": inspect.signature(build).parameters["standardise"]})


def _quadratic(hessians: Any, linear: Any, start: Any = None) -> Problem:
    """Return the quadratic problem with these Hessians and linear terms."""
    return problems.quadratic(np.asarray(hessians, float), np.asarray(linear, float), start=_arrays(start))


def _arrays(start: Any) -> Any:
    """Return a start, with a list of numbers as an array."""
    return np.asarray(start, float) if isinstance(start, int | float | list) else start


PROBLEMS: Functions = {
    "penalized_logistic": _logistic,
    "network": _network,
    "softmax_regression": _on_data(problems.softmax_regression),
    "classification": _on_data(problems.classification),
    "regression": _on_data(problems.regression),
    "multilabel": _on_data(problems.multilabel),
    "next_token": _next_token,
    "supervised": _on_data(problems.supervised),
    "from_losses": _on_own_loss(problems.from_losses),
    "from_agent_loss": _on_own_loss(problems.from_agent_loss),
    "quadratic": _quadratic,
    "random_quadratic": problems.random_quadratic,
    "opposing_quadratics": problems.opposing_quadratics,
    "hard_instance": problems.hard_instance,
}

Table = Mapping[str, Any]
NONE = "none"  # TOML has no word for None; a file leaves the key out if None is its default


def _functions(module: Any, names: Iterable[str]) -> Functions:
    return {name: getattr(module, name) for name in names}


LOADERS, RULES = _functions(datasets, datasets.LOADERS), _functions(datasets, datasets.RULES)
ORACLES = _functions(oracles, ("gd", "sgd", "dp_sgd", "vr", "optax", "lbfgs"))
STEPS = _functions(
    schedules,
    ("exponential", "cosine", "piecewise", "warmup", "inverse_sqrt", "program_fedpd_sgd", "program_fedavg_sgd"),
)
SKIPS = _functions(schedules, ("decreasing_skips", "every"))
REGULARIZERS = _functions(regularizers, ("l1", "l2", "box", "group_l1"))
ALGORITHMS = _functions(algorithms, algorithms.__all__)
TRANSFORMS = _functions(transforms, transforms.FACTORIES)
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
    table = {key: value for key, value in table.items() if key not in ways and key != "label"}
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
        by_name = key == "model" or (key == "data" and isinstance(value, str) and value in DATA)  # a name is enough
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
