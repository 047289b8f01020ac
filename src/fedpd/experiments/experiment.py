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

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.base.checks import FedpdError, check_seeds, choice, count, nearest
from fedpd.core import Algorithm, Problem
from fedpd.engine.columns import RECORDABLE
from fedpd.engine.participation import participation_rule, straggler_rule
from fedpd.experiments.calls import DATA, PROBLEMS, Table, at, build_algorithm, build_problem, known_keys


class Method(NamedTuple):
    label: str
    algorithm: Algorithm


class RunSettings(NamedTuple):
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
    settings: RunSettings
    methods: tuple[Method, ...]


class Outline(NamedTuple):
    problem: Table
    settings: RunSettings
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
    known_keys("the file", tables, ("problem", "run", "algorithm"), required=("problem", "run", "algorithm"))
    for name in ("problem", "run"):
        if not isinstance(tables[name], dict):
            raise FedpdError(f"{name} = {tables[name]!r}: must be a table. Write [{name}] on a line of its own.")
    settings = _settings(tables["run"])
    return Outline(tables["problem"], settings, _methods(tables["algorithm"], settings))


def _settings(table: Table) -> RunSettings:
    known_keys("[run]", table, RunSettings._fields, required=("rounds",))
    settings = RunSettings(**table)
    for name in ("rounds", "checkpoint_every", "metrics_every"):
        at("[run]", count, name, getattr(settings, name), "Give a positive integer")
    at("[run]", participation_rule, settings.participation, 1, settings.rounds)
    at("[run]", straggler_rule, settings.stragglers)
    seeds = settings.seeds
    if not isinstance(seeds, list | tuple) or not seeds or len(set(map(str, seeds))) < len(seeds):
        raise FedpdError(
            f"[run] seeds = {seeds!r}: must be a list of different integers. Write e.g. seeds = [0, 1, 2]."
        )
    at("[run]", check_seeds, "seeds", seeds)
    record = settings.record
    if record is not None and not isinstance(record, list | tuple):
        raise FedpdError(f'[run] record = {record!r}: must be a list. Write e.g. record = ["heterogeneity"].')
    for name in record or ():
        at("[run]", choice, "record", name, RECORDABLE)
    return settings._replace(seeds=tuple(seeds), record=None if record is None else tuple(record))


def _methods(tables: Any, settings: RunSettings) -> tuple[Method, ...]:
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
