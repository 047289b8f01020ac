"""Experiment files: a problem, rounds, seeds and methods in TOML, checked whole before anything runs.

    [problem]
    name = "penalized_logistic"
    data = "strong"                  # or "weak", "strong_program"

    [run]
    rounds = 600
    seeds = [0]
    checkpoint_every = 50
    participation = 0.5              # a share of the agents in every round; all of them if left out
    record = ["heterogeneity"]       # and "smoothness": more columns of the history

    [[algorithm]]
    label = "FedPD-GD, half the communications"
    name = "fedpd"
    eta = 0.08
    p = 0.5                          # or { name = "decreasing_skips" }
    oracle = { name = "gd", step = 0.08, iterations = 8 }

Every table with a `name` is a call: `name` is the function, the other keys are its arguments. Which functions and keys
there are is read off the code, so that the file and the Python interface cannot drift apart.
"""

import inspect
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import optax

from fedpd import algorithms, data, oracles, problems, schedules
from fedpd import data as datasets
from fedpd.base.checks import FedpdError, at_least, choice, count, nearest
from fedpd.core import Algorithm, Problem, describe
from fedpd.data import Federated
from fedpd.engine.metrics import RECORDED
from fedpd.engine.participation import participation_rule, straggler_rule
from fedpd.problems import networks

Table = Mapping[str, Any]
Functions = Mapping[str, Callable[..., Any]]

DATA: Functions = {
    "weak": data.weakly_noniid,
    "strong": data.strongly_noniid,
    "strong_program": data.program_strongly_noniid,
}
LOADERS: Functions = {"leaf": data.leaf, "parquet": data.parquet, "hub": data.hub, "characters": data.characters}
NETWORKS: Functions = {
    "MLP": networks.MLP,
    "SmallCNN": networks.SmallCNN,
    "LeafCNN": networks.LeafCNN,
    "GRU": networks.GRU,
}
ORACLES: Functions = {"gd": oracles.gd, "sgd": oracles.sgd, "vr": oracles.vr, "optax": oracles.optax}
STEPS: Functions = {
    "inverse_sqrt": schedules.inverse_sqrt,
    "program_fedpd_sgd": schedules.program_fedpd_sgd,
    "program_fedavg_sgd": schedules.program_fedavg_sgd,
}
SKIPS: Functions = {"decreasing_skips": schedules.decreasing_skips, "every": schedules.every}


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
    """`start`: every entry of x^0."""
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
    """A network on federated data; `agents` merges its clients as the paper does, `test_share` of each is set aside."""
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
ALGORITHMS: Functions = {name: getattr(algorithms, name) for name in algorithms.__all__}


class Method(NamedTuple):
    label: str
    algorithm: Algorithm


class Settings(NamedTuple):
    """The [run] table."""

    rounds: int
    seeds: tuple[int, ...] = (0,)
    checkpoint_every: int = 50
    metrics_every: int = 1
    participation: float = 1.0
    stragglers: float = 0.0
    record: tuple[str, ...] | None = None


class Experiment(NamedTuple):
    text: str
    problem: Problem
    settings: Settings
    methods: tuple[Method, ...]


class Outline(NamedTuple):
    problem: Table
    settings: Settings
    methods: tuple[Method, ...]


def load(path: Path) -> Experiment:
    text = read_text(path)
    try:
        return parse(text)
    except FedpdError as error:
        raise FedpdError(f"{path}: {error}") from None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedpdError(f"{path} cannot be read ({error}). Give the path of an experiment file (TOML).") from None


def _tables(text: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedpdError(f"not valid TOML: {error}. Strings need quotes, tables square brackets.") from None


def build_problem(table: Table) -> Problem:
    """The problem that a table describes."""
    return _call("[problem]", table, PROBLEMS, {})


def find_problem(source: str) -> Table:
    """The problem's table that a word on the command line means: a file's, data's ("strong", "weak"), or a name's."""
    if source in DATA:
        return {"name": "penalized_logistic", "data": source}
    if source in PROBLEMS:
        return {"name": source}
    if not source.endswith(".toml") and not Path(source).exists():
        names = (*DATA, *PROBLEMS)
        raise FedpdError(f"PROBLEM {source!r}: there is no such file or problem. {nearest(source, names)}")
    tables = _tables(read_text(Path(source)))
    if not isinstance(tables.get("problem"), dict):
        raise FedpdError(
            f"{source}: there is no [problem] table. Write e.g. [problem] and name = 'penalized_logistic'."
        )
    return tables["problem"]


def parse(text: str) -> Experiment:
    """The experiment that a TOML text describes; a mistake is answered with its place, value, rule and remedy."""
    outline = read_outline(text)
    return Experiment(text, build_problem(outline.problem), outline.settings, outline.methods)


def read_outline(text: str) -> Outline:
    """What `parse` finds, with the problem left as its table: its data need not be there, and takes no time."""
    tables = _tables(text)
    _known_keys("the file", tables, ("problem", "run", "algorithm"), required=("problem", "run", "algorithm"))
    for name in ("problem", "run"):
        if not isinstance(tables[name], dict):
            raise FedpdError(f"{name} = {tables[name]!r}: must be a table. Write [{name}] on a line of its own.")
    settings = _settings(tables["run"])
    return Outline(tables["problem"], settings, _methods(tables["algorithm"], settings))


def _settings(table: Table) -> Settings:
    _known_keys("[run]", table, Settings._fields, required=("rounds",))
    settings = Settings(**table)
    for name in ("rounds", "checkpoint_every", "metrics_every"):
        _at("[run]", count, name, getattr(settings, name), "Give a positive integer")
    _at("[run]", participation_rule, settings.participation, 1, settings.rounds)
    _at("[run]", straggler_rule, settings.stragglers)
    seeds = settings.seeds
    if not isinstance(seeds, list | tuple) or not seeds or len(set(map(str, seeds))) < len(seeds):
        raise FedpdError(
            f"[run] seeds = {seeds!r}: must be a list of different integers. Write e.g. seeds = [0, 1, 2]."
        )
    for seed in seeds:
        _at("[run]", count, "seeds", seed, "Seeds are integers from 0 to 2147483647", least=0)
    record = settings.record
    if record is not None and not isinstance(record, list | tuple):
        raise FedpdError(f'[run] record = {record!r}: must be a list. Write e.g. record = ["heterogeneity"].')
    for name in record or ():
        _at("[run]", choice, "record", name, RECORDED)
    return settings._replace(seeds=tuple(seeds), record=None if record is None else tuple(record))


def _methods(tables: Any, settings: Settings) -> tuple[Method, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FedpdError("algorithm: must be a list of tables. Write [[algorithm]], in double brackets, before each.")
    methods = []
    for number, table in enumerate(tables, 1):
        place = f"[[algorithm]] {number}" + (f" ({table['label']})" if "label" in table else "")
        arguments = {key: value for key, value in table.items() if key != "label"}
        algorithm = build_algorithm(arguments, settings.rounds, place)
        label = table.get("label", algorithm.description)
        if not isinstance(label, str) or not label.strip():
            raise FedpdError(f"{place} label = {label!r}: must be a text. Leave it out for {algorithm.description!r}.")
        methods.append(Method(label, algorithm))
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise FedpdError(f"two algorithms are called {label!r}: labels must differ. Give each a label of its own.")
    return tuple(methods)


def build_algorithm(table: Table, rounds: int, place: str = "[[algorithm]]") -> Algorithm:
    """The method that a table describes."""
    return _call(place, table, ALGORITHMS, {"rounds": rounds}, also=("label",))


def _call(place: str, table: Table, functions: Functions, context: Table, also: tuple[str, ...] = ()) -> Any:
    """The call that a table describes. `context` offers values for arguments that the table leaves out."""
    if "name" not in table:
        raise FedpdError(f"{place}: name is missing. Choose from: {', '.join(functions)}.")
    name = table["name"]
    if name not in functions:
        raise FedpdError(f"{place} name = {name!r}: there is no such name. {nearest(name, functions)}")
    function = functions[name]
    parameters = {key: p for key, p in inspect.signature(function).parameters.items() if key != "draw"}
    given = {key: value for key, value in table.items() if key != "name"}
    required = [key for key, p in parameters.items() if p.default is p.empty and key not in context]
    _known_keys(f"{place} {name}", given, (*parameters, *also), required=required)
    context = {key: value for key, value in (dict(context) | given).items() if not isinstance(value, dict)}
    if isinstance(given.get("optimizer"), dict):
        optimizer = {key: value for key, value in given["optimizer"].items() if key != "name"}
        context["label"] = describe(str(given["optimizer"].get("name")), **optimizer)
    inherited = {key: value for key, value in context.items() if key in parameters}
    arguments = {key: _argument(f"{place} {key}", key, value, context) for key, value in given.items()}
    return _at(place, function, **(inherited | arguments))


def _argument(place: str, key: str, value: Any, context: Table) -> Any:
    if not isinstance(value, dict):
        if key == "oracle":
            raise FedpdError(f'{place} = {value!r}: must be a table. Write e.g. oracle = {{ name = "gd", ... }}.')
        return value
    if key == "optimizer":
        return _call(place, value, _optimizers(), {})
    named = {"oracle": ORACLES, "step": STEPS, "p": SKIPS, "data": LOADERS, "model": NETWORKS}
    if key not in named:
        raise FedpdError(f"{place} = {value!r}: must be a number or a text, not a table.")
    return _call(place, value, named[key], context)


def _optimizers() -> Functions:
    """The optimisers that optax exports: functions with a learning rate."""
    functions = {name: getattr(optax, name) for name in dir(optax) if not name.startswith("_")}
    return {name: f for name, f in functions.items() if inspect.isfunction(f) and "learning_rate" in _parameters(f)}


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _known_keys(place: str, table: Table, known: Any, required: Any) -> None:
    for key in table:
        if key not in known:
            raise FedpdError(f"{place}: {key} = {table[key]!r}: there is no such key. {nearest(key, known)}")
    for key in required:
        if key not in table:
            raise FedpdError(f"{place}: {key} is missing. It takes: {', '.join(known)}.")


def _at(place: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call, and say where in the file a refused value stands."""
    try:
        return function(*arguments, **named)
    except FedpdError as error:
        raise FedpdError(f"{place} {error}") from None
    except TypeError as error:
        raise FedpdError(f"{place}: {error}. Check the types of its values.") from None
