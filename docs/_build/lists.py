"""Lists that the site makes from the code: the columns of a history, the loaders of data, and the suite's problems."""

import inspect

from fedpd import data
from fedpd.engine.measure.columns import (
    CENTRAL_COLUMNS,
    COLUMNS,
    FEDERATED,
    RECORDABLE,
    Column,
)
from fedpd.suite.results import HEADINGS, problem_rows


def table_columns(group: str | None) -> str:
    """Return a table of columns: those that `record` asks for by this word, or all of them."""
    if group is not None:
        return _table(RECORDABLE[group])
    recorded = [column for columns in RECORDABLE.values() for column in columns]
    return _table([*COLUMNS.values(), *recorded, *CENTRAL_COLUMNS, *FEDERATED])


def _table(columns: tuple[Column, ...] | list[Column]) -> str:
    rows = [
        f"| `{column.name}` | {column.words} | {column.unit or '-'} | {column.better or '-'} |"
        for column in columns
    ]
    return "\n".join(
        ["| column | what it is | unit | better |", "| --- | --- | --- | --- |", *rows]
    )


def describe_loaders() -> str:
    """Return a table of the functions that read or generate federated data, and their references."""
    summaries = {name: (inspect.getdoc(getattr(data, name)) or "").splitlines()[0] for name in data.LOADERS}
    table = [f"| `data.{name}` | {summary.replace('|', '&#124;')} |" for name, summary in summaries.items()]
    references = "\n\n".join(f"::: {getattr(data, name).__module__}.{name}" for name in data.LOADERS)
    return "\n".join(["| function | what it does |", "| --- | --- |", *table, "", references])


def table_problems() -> str:
    """Return a table of the problems of the suite and what is known of them."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *problem_rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
