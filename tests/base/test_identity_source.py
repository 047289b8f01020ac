"""The source of functions: their syntax, only if the file still holds what runs."""

import importlib.util
import linecache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from fedpd.base.identity import syntax_of

PLAIN = "def f(x, y=1):\n    return x + y\n"
SAME = {
    "comments": "# what it does\ndef f(x, y=1):  # adds\n    return x + y\n",
    "layout": "\n\ndef f(\n    x,\n    y=1,\n):\n    return (\n        x\n        + y\n    )\n",
    "a docstring and annotations": 'def f(x: int, y: int = 1) -> int:\n    """Add."""\n    return x + y\n',
    "a decorator": "def same(g): return g\n@same\ndef f(x, y=1):\n    return x + y\n",
}
OTHER = {
    "a constant": "def f(x, y=1):\n    return x + y + 0\n",
    "a default": "def f(x, y=1.0):\n    return x + y\n",
    "a name": "def f(y, x=1):\n    return x + y\n",
    "the sign of zero": "def f(x, y=1):\n    return x + y - 0.0\n",
}


def loaded(text: str, folder: Path) -> Any:
    path = folder / f"own{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("what", SAME)
def test_layout_does_not_count(what: str, tmp_path: Path) -> None:
    one, other = (syntax_of(loaded(text, tmp_path).f.__code__) for text in (PLAIN, SAME[what]))
    assert one == other is not None


@pytest.mark.parametrize("what", OTHER)
def test_everything_else_counts(what: str, tmp_path: Path) -> None:
    assert syntax_of(loaded(PLAIN, tmp_path).f.__code__) != syntax_of(loaded(OTHER[what], tmp_path).f.__code__)


def test_lambdas_of_one_line_are_told_apart() -> None:
    functions: list[Any] = [lambda x: x + 1, lambda x: x + 2, lambda x: lambda y: x + y]
    inner = functions[2](1)
    assert isinstance(inner, FunctionType)
    found = [syntax_of(function.__code__) for function in (*functions, inner)]
    assert len(set(found)) == 4
    assert None not in found


def test_a_file_that_changed_since_is_not_the_source(tmp_path: Path) -> None:
    module = loaded(PLAIN, tmp_path)
    assert syntax_of(module.f.__code__) is not None
    Path(module.__file__).write_text(OTHER["a constant"])
    linecache.checkcache(module.__file__)
    assert syntax_of(module.f.__code__) is None


def test_code_without_a_file_has_no_source() -> None:
    scope: dict[str, Any] = {}
    exec(PLAIN, scope)
    assert syntax_of(scope["f"].__code__) is None
