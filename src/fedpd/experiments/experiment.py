"""Experiment files describe a problem, rounds, seeds and methods in TOML. fedpd checks the file before it runs it.

    [problem]
    name = "penalized_logistic"
    data = "strong"                  # or "weak", "strong_program", or a loader: { name = "parquet", ... }

    [run]
    rounds = 600
    seeds = [0]
    checkpoint_every = 50
    participation = 0.5              # a share of the agents in every round; or cohort = 50, their number
    record = ["heterogeneity"]       # and "smoothness": more columns of the history
    test = "test.npz"                # a central test set, with the arrays x and y: central_accuracy
    clock = { up = "3 Mbit/s", down = "10 Mbit/s", compute = "20 ms" }     # simulated time; buffer and deadline need it

    [[algorithm]]
    label = "FedPD-GD, half the communications"
    name = "fedpd"
    eta = 0.08
    p = 0.5                          # or { name = "decreasing_skips" }
    oracle = { name = "gd", step = 0.08, iterations = 8 }
    up = [{ name = "top_k", share = 0.01 }, { name = "quantize", bits = 8 }]  # also down, mean: see fedpd.transforms

Every table with a `name` is a call: `name` is the function, the other keys are its arguments. fedpd reads the names of
the functions and keys from the code, so that the file and the Python interface always agree. "my_module:my_method"
names the user's own code, in a module beside the file or on Python's path (`fedpd.experiments.own_code`).
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fedpd.base.atomic import read_file, reading_fault
from fedpd.base.checks import FedpdError, check_seeds, choice, count, nearest, shown
from fedpd.clock import from_table, seconds
from fedpd.core import Method, Problem
from fedpd.engine.config import RunConfig
from fedpd.engine.measure.columns import RECORDABLE, central_test
from fedpd.engine.participation import Sampling, attendance_rule, participation_rule, sample_agents, straggler_rule
from fedpd.engine.plan import Execution
from fedpd.experiments import own_code, run_folder
from fedpd.experiments.calls import (
    DATA,
    PROBLEMS,
    Table,
    at,
    build_algorithm,
    build_problem,
    known_keys,
    label_of_table,
)
from fedpd.experiments.own_code import Code, Find, is_reference

TAKING_PART = ("participation", "cohort", "sampling", "stragglers")
MOST_CHARACTERS = 2**24  # of an experiment file
DEEPEST = 32  # tables and lists within each other
TOO_DEEP = f"tables and lists are nested deeper than {DEEPEST} levels: no experiment needs that. Nest them less."
OnCode = Callable[[str], Any]  # receives a sentence that names the code about to run


class Labelled(NamedTuple):
    """A method and its label in tables and figures."""

    label: str
    algorithm: Method


@dataclass(frozen=True, kw_only=True)
class RunTable(RunConfig):
    """The [run] table: the options of `simulate`, the rounds and the seeds."""

    rounds: int
    seeds: tuple[int, ...] = (0,)


# The command gives the folder and shows the progress, and a file holds no model.
RUN_KEYS = tuple(field.name for field in fields(RunTable) if field.name not in ("checkpoints", "progress", "start"))


class Experiment(NamedTuple):
    """An experiment, ready to run."""

    text: str  # the file, word for word
    problem: Problem
    settings: RunTable  # the [run] table
    methods: tuple[Labelled, ...]  # the methods and their labels
    code: tuple[Code, ...] = ()  # the user's own modules that it runs
    beside: Path | None = None  # the folder in which fedpd looks for these modules first


class Outline(NamedTuple):
    """The content of a file. To read it, fedpd makes no problem and runs no code of the user's."""

    problem: Table  # the [problem] table
    settings: RunTable  # the [run] table, with names in place of the user's own code
    methods: dict[str, Method | None]  # the methods by their labels; None: the user's own code makes it


class FoundProblem(NamedTuple):
    """A problem, and who takes part when methods are tried on it."""

    problem: Table  # the [problem] table
    # the keys of the [run] table that say who takes part: participation, cohort, sampling and stragglers
    run: dict[str, Any]
    find: Find = own_code.refuse_code  # returns the user's own code by its name
    code: tuple[Code, ...] = ()  # the user's own modules that the problem runs
    beside: Path | None = None  # the folder in which fedpd looks for modules first


def load(path: Path, on_code: OnCode | None = None) -> Experiment:
    """Return the experiment of a file.

    Args:
        path: The file. fedpd looks for the user's own modules beside it, or, for the file of a run folder, beside the
            original file.
        on_code: Receives one sentence before the user's own code runs; None: nothing receives it.

    Raises:
        FedpdError: fedpd cannot read the file, or something in it is wrong.
    """
    text = read_text(path)
    try:
        return parse(text, beside_of(path), on_code)
    except FedpdError as error:
        raise FedpdError(f"{path}: {error}{_where_data_are(text, error)}") from None


def _where_data_are(text: str, error: FedpdError) -> str:
    """Return the comment "# Data: ..." of a file whose data are missing, which says where they are."""
    found = re.search(r"^# Data: (.+(?:\n# .+)*)", text, re.MULTILINE)
    if found is None or "there is no such file" not in str(error):
        return ""
    return " " + found[1].replace("\n#", "")


def beside_of(path: Path) -> Path:
    """Return the folder in which fedpd looks first for the modules of an experiment file."""
    return run_folder.modules_of(path.parent) if run_folder.is_run_folder(path.parent) else path.parent


def read_text(path: Path) -> str:
    """Return the text of an experiment file."""
    try:
        return read_file(path).decode("utf-8-sig")  # editors on Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise FedpdError(
            f"{path} cannot be read ({reading_fault(error)}). Give the path of an experiment file (TOML)."
        ) from None


def _tables(text: str) -> Table:
    if len(text) > MOST_CHARACTERS:
        remedy = "Put large arrays into a module of your own"
        raise FedpdError(f"the file has {len(text):,} characters: at most {MOST_CHARACTERS:,} are read. {remedy}.")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # also of an integer with thousands of digits
        remedy = "Put strings in quotes, and names of tables in square brackets"
        raise FedpdError(f"not valid TOML: {error}. {remedy}.") from None
    except RecursionError:
        raise FedpdError(TOO_DEEP) from None
    _check_values(tables)
    return tables


def _check_values(tables: Table) -> None:
    """Refuse what no experiment file needs: deep nesting, and integers beyond the 64 bits of TOML."""
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise FedpdError(f"{shown(value)}: an integer of TOML has 64 bits. Write 1e20 for a large number.")
        level = inner
    if level:
        raise FedpdError(TOO_DEEP)


def find_problem(source: str, on_code: OnCode | None = None) -> FoundProblem:
    """Return the problem of an experiment file, or the problem with a name, such as "strong" or "weak".

    Args:
        source: The path of an experiment file, a name of generated data, or a name of a problem.
    """
    if source in DATA:
        return FoundProblem({"name": "penalized_logistic", "data": source}, {})
    if source in PROBLEMS:
        return FoundProblem({"name": source}, {})
    if not source.endswith(".toml") and not Path(source).exists():
        names = (*DATA, *PROBLEMS)
        raise FedpdError(f"PROBLEM {source!r}: there is no such file or problem. {nearest(source, names)}")
    tables = _problem_tables(source)
    kept = {key: tables["run"][key] for key in TAKING_PART if key in tables["run"]}
    at(f"{source}:", _settings, {"rounds": 1, **kept})  # refuses wrong values
    beside = beside_of(Path(source))
    code, find = _own_code(tables["problem"], beside, on_code)
    return FoundProblem(tables["problem"], kept, find, code, beside)


def _problem_tables(source: str) -> dict[str, Any]:
    """Return the tables of a file that has at least a problem; its [run] table is {} if it has none."""
    tables = dict(at(f"{source}:", _tables, read_text(Path(source))))
    if not isinstance(tables.get("problem"), dict):
        raise FedpdError(
            f"{source}: there is no [problem] table. Write e.g. [problem] and name = 'penalized_logistic'."
        )
    for name in ("run", "compare"):
        if not isinstance(tables.setdefault(name, {}), dict):
            remedy = f"Write [{name}] on a line of its own"
            raise FedpdError(f"{source}: {name} = {shown(tables[name])}: must be a table. {remedy}.")
    known_keys(f"{source}: [run]", tables["run"], RUN_KEYS, required=())
    return tables


class FoundComparison(NamedTuple):
    """A problem and what a comparison of methods on it needs."""

    problem: FoundProblem  # the problem with who takes part, as for other searches
    run: dict[str, Any]  # the options of `simulate` in the [run] table, with its rounds and seeds
    compare: Table  # the [compare] table
    methods: dict[str, Table]  # the tables of the methods by label; a list in them is searched


def find_comparison(source: str, on_code: OnCode | None = None) -> FoundComparison:
    """Return the problem of an experiment file, its [run] and [compare] tables, and its methods."""
    if source in (*DATA, *PROBLEMS) or not Path(source).exists():
        return FoundComparison(find_problem(source), {}, {}, {})
    tables = _problem_tables(source)
    known_keys(source, tables, ("problem", "run", "algorithm", "compare"), required=())
    beside = beside_of(Path(source))
    code, find = _own_code(tables, beside, on_code)
    settings = at(f"{source}:", _settings, {"rounds": 1, **tables["run"]})
    settings = _with_code(settings, find)
    run = {key: getattr(settings, key) for key in tables["run"]}
    methods: dict[str, Table] = {}
    for number, table in enumerate(tables.get("algorithm", []), 1):
        label = str(table.get("label", label_of_table(table)))
        if label in methods:
            raise FedpdError(
                f"{source}: {_place(number, table)}: there is a method {label!r} already. Give it a label."
            )
        methods[label] = table
    kept = {key: run[key] for key in TAKING_PART if key in run}
    return FoundComparison(FoundProblem(tables["problem"], kept, find, code, beside), run, tables["compare"], methods)


def _own_code(tables: Any, beside: Path | None, on_code: OnCode | None) -> tuple[tuple[Code, ...], Find]:
    """Return the user's own modules that tables name, after announcing them, and what finds their objects."""
    code = own_code.locate(own_code.references(tables), beside)
    if code and on_code is not None:
        modules = ", ".join(f"{one.module} ({one.path})" for one in code)
        on_code(f"Running code of {modules}, which the experiment file names.")
    return code, own_code.importing(beside)


def parse(text: str, beside: Path | None = None, on_code: OnCode | None = None) -> Experiment:
    """Return the experiment that a TOML text describes.

    Args:
        beside: The folder in which fedpd looks for the user's own modules first; None: only on Python's path.

    Raises:
        FedpdError: Something in the text is wrong. The message names the place, the value, the rule and the remedy.
    """
    tables = _checked_tables(text)
    outline = _outline(tables)
    code, find = _own_code(tables, beside, on_code)
    with own_code.explain_errors(code):
        settings = _with_code(outline.settings, find)
        both = zip(tables["algorithm"], outline.methods.items(), strict=True)
        methods = tuple(
            Labelled(label, made or build_algorithm(table, settings.rounds, _place(number, table), find))
            for number, (table, (label, made)) in enumerate(both, 1)
        )
        problem = build_problem(outline.problem, find)
    taking_part = settings.cohort, settings.sampling, settings.participation, problem.sizes, settings.rounds
    at("[run]", attendance_rule, *taking_part)
    at("[run]", sample_agents, settings.metrics_agents, problem.agents, 0)
    if settings.test is not None:
        at("[run]", central_test, problem, settings.test)
    return Experiment(text, problem, settings, methods, code, beside)


def read_outline(text: str) -> Outline:
    """Return the outline of a text, without making the problem and without running the user's own code."""
    return _outline(_checked_tables(text))


def _outline(tables: Table) -> Outline:
    """Return the outline of a file's tables. A method without own code is made, to find its label."""
    settings = _settings(tables["run"])
    methods: dict[str, Method | None] = {}
    for number, table in enumerate(tables["algorithm"], 1):
        place, own = _place(number, table), any(own_code.references(table))
        made = None if own else build_algorithm(table, settings.rounds, place)
        usual = label_of_table(table) if made is None else made.description
        label = table.get("label", usual)
        if not isinstance(label, str) or not label.strip():
            raise FedpdError(f"{place} label = {shown(label)}: must be a text. Leave it out for {usual!r}.")
        if label in methods:
            raise FedpdError(f"two algorithms are called {label!r}: labels must differ. Give each its own label.")
        methods[label] = made
    return Outline(tables["problem"], settings, methods)


def _checked_tables(text: str) -> Table:
    tables = _tables(text)
    known = ("problem", "run", "algorithm")
    known_keys("the file", tables, (*known, "compare"), required=known)
    for name in ("problem", "run"):
        if not isinstance(tables[name], dict):
            raise FedpdError(f"{name} = {shown(tables[name])}: must be a table. Write [{name}] on a line of its own.")
    methods = tables["algorithm"]
    if not isinstance(methods, list) or not methods or not all(isinstance(table, dict) for table in methods):
        raise FedpdError(
            "algorithm: must be a list of tables, at least one. Write [[algorithm]], in double brackets, before each."
        )
    return tables


def _settings(table: Table) -> RunTable:
    known_keys("[run]", table, RUN_KEYS, required=("rounds",))
    settings = RunTable(**table)
    if settings.clock is not None:
        if not isinstance(settings.clock, dict):
            remedy = "Write [run.clock] on a line of its own"
            raise FedpdError(f"[run] clock = {shown(settings.clock)}: must be a table. {remedy}.")
        settings = replace(settings, clock=at("[run.clock]", from_table, settings.clock))
    if settings.deadline is not None:
        at("[run]", seconds, "deadline", settings.deadline)
    for name in ("rounds", "checkpoint_every", "metrics_every", "devices", "cohort", "metrics_agents", "buffer"):
        if getattr(settings, name) is not None:
            at("[run]", partial(count, bits=31), name, getattr(settings, name), "Give a positive integer")
    if not isinstance(settings.participation, list):  # a list is checked when the number of agents is known
        at("[run]", participation_rule, settings.participation, 1, settings.rounds)
    at("[run]", straggler_rule, settings.stragglers)
    if not isinstance(settings.average, bool):
        raise FedpdError(f"[run] average = {shown(settings.average)}: must be true or false. Write average = true.")
    at("[run]", choice, "sampling", settings.sampling, get_args(Sampling))
    at("[run]", choice, "execution", settings.execution, get_args(Execution))
    if settings.store is not None and not isinstance(settings.store, str):
        raise FedpdError(f"[run] store = {shown(settings.store)}: must be a text. Give a folder for the agents' state.")
    if settings.test is not None and not isinstance(settings.test, str):
        raise FedpdError(f'[run] test = {shown(settings.test)}: must be a text. Write e.g. test = "test.npz".')
    for name in ("log", "callback"):
        value = getattr(settings, name)
        if value is not None and not is_reference(value):
            raise FedpdError(f'[run] {name} = {shown(value)}: must name a function. Write e.g. {name} = "my_module:f".')
    seeds = settings.seeds
    if not isinstance(seeds, list | tuple) or not seeds or len(set(map(str, seeds))) < len(seeds):
        remedy = "Write e.g. seeds = [0, 1, 2]"
        raise FedpdError(f"[run] seeds = {shown(seeds)}: must be a list of different integers. {remedy}.")
    at("[run]", check_seeds, "seeds", seeds)
    record = settings.record
    if record is not None and not isinstance(record, list | tuple):
        raise FedpdError(f'[run] record = {shown(record)}: must be a list. Write e.g. record = ["heterogeneity"].')
    for one in record or ():
        if not is_reference(one):
            at("[run]", choice, "record", one, RECORDABLE)
    return replace(settings, seeds=tuple(seeds), record=None if record is None else tuple(record))


def _with_code(settings: RunTable, find: Find) -> RunTable:
    """Return the settings with the user's own functions and columns instead of their names."""

    def found(key: str, value: Any) -> Any:
        return at(f"[run] {key} = {value!r}:", find, value) if is_reference(value) else value

    record = None if settings.record is None else tuple(found("record", one) for one in settings.record)
    return replace(
        settings, record=record, log=found("log", settings.log), callback=found("callback", settings.callback)
    )


def _place(number: int, table: Table) -> str:
    return f"[[algorithm]] {number}" + (f" ({table['label']})" if "label" in table else "")
