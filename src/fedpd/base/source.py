"""The source of a function as its syntax: the same in every version of Python, and without layout and comments."""

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
NOT_RUN = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}  # what changes no result


def syntax_of(code: CodeType) -> str | None:
    """Return the syntax of a function, without decorators and docstring; None if its source is not known.

    The source is not known in an interactive Python, and after a change of the file: the file then gives other code.
    """
    text = "".join(linecache.getlines(code.co_filename))
    codes, functions = _functions(code.co_filename, text)
    if code not in codes:
        return None
    found = [one for one in functions if _fits(one, code)]
    if not found:
        return None
    return _shown(min(found, key=_size))  # of lambdas inside of each other, the innermost


@functools.lru_cache(16)  # of files
def _functions(name: str, text: str) -> tuple[frozenset[CodeType], tuple[Function, ...]]:
    """Return the code and the syntax of all functions of a file; nothing if the text is not Python."""
    try:
        tree = ast.parse(text)
        whole = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # e.g. a cell of a notebook with a command
        return frozenset(), ()
    nodes = tuple(node for node in ast.walk(tree) if isinstance(node, Function))
    return frozenset(_inside(whole)), nodes


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def _fits(node: Function, code: CodeType) -> bool:
    """Return whether a node is the source of some code: by its name and line, or for lambdas by the place."""
    if not isinstance(node, ast.Lambda):
        first = node.decorator_list[0] if node.decorator_list else node
        return (node.name, first.lineno) == (code.co_name, code.co_firstlineno)
    if (code.co_name, code.co_firstlineno) != ("<lambda>", node.lineno):
        return False
    low, high = (node.body.lineno, node.body.col_offset), (node.body.end_lineno, node.body.end_col_offset)
    for line, end_line, column, end_column in code.co_positions():
        begin, end = (line, column), (end_line, end_column)
        if None in begin or None in end or begin == end:  # e.g. of the first instruction, which has no place
            continue
        if begin < low or end > high:
            return False
    return True


def _size(node: Function) -> tuple[int, int]:
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset


def _shown(node: Function) -> str:
    """Return a function's arguments and body as text."""
    body: list[ast.stmt] | ast.expr = node.body
    if not isinstance(node, ast.Lambda):
        documented = ast.get_docstring(node, clean=False) is not None
        body = node.body[documented:]
    return repr((_plain(node.args), _plain(body)))


def _plain(part: Any) -> Any:
    """Return a part of a syntax tree as tuples. `ast.dump` would write them differently in other versions of Python."""
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, ast.AST):
        return part
    named = [(name, _plain(one)) for name, one in ast.iter_fields(part) if name not in NOT_RUN]
    return type(part).__name__, *((name, one) for name, one in named if one not in (None, []))
