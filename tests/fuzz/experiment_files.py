"""Experiment files: valid ones of every kind, then changed in a few places of the tree or of the text."""

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from fedpd.algorithms import variants
from fedpd.experiments import calls
from fedpd.experiments.experiment import RUN_KEYS

from .hostile import NUMBERS, TOML_VALUES

CHARACTERS = {"name": "characters", "writers": 2, "samples": 6, "classes": 3, "size": 4}
PROBLEMS: list[dict[str, Any]] = [
    {"name": "random_quadratic", "agents": 3, "dimension": 2},
    {"name": "opposing_quadratics"},
    {"name": "hard_instance", "agents": 3, "rounds": 3},
    {"name": "quadratic", "hessians": [[[1.0, 0.0], [0.0, 2.0]]] * 2, "linear": [[1.0, 0.0], [0.0, 1.0]]},
    {"name": "penalized_logistic", "data": "strong", "agents": 3, "samples": 4, "dimension": 2},
    {"name": "softmax_regression", "data": CHARACTERS, "l2": 0.1},
    {"name": "network", "model": {"name": "MLP", "classes": 3, "hidden": [2]}, "data": CHARACTERS, "test_share": 0.0},
]
METHODS = [{"label": label, **calls.table_of(one.rule(1.0, 3, 1.0).spec)} for label, one in variants().items()]
OPTIMISER = {"name": "optax", "optimizer": {"name": "adam", "learning_rate": 0.1}, "iterations": 2, "batch": 1}
METHODS += [
    {"name": "fedavg", "oracle": OPTIMISER},
    {"name": "fedpd", "eta": 0.1, "p": {"name": "decreasing_skips"}, "oracle": {"name": "lbfgs"}},
    {"name": "admm", "eta": 0.1, "g": {"name": "l1", "weight": 0.1}, "oracle": {"name": "lbfgs", "iterations": 2}},
    {"name": "feddr", "eta": 0.1, "g": {"name": "box", "low": -1, "high": 1}, "oracle": {"name": "lbfgs"}},
    {"name": "fedavg", "oracle": {"name": "sgd", "step": {"name": "inverse_sqrt", "initial": 0.1}, "iterations": 4}},
]  # fmt: skip
KEYS = [
    *("name", "label", "step", "iterations", "oracle", "p", "g", "eta", "batch", "seed", "data", "model", "classes"),
    *("agents", "samples", "dimension", "start", "title", "mixing", "tolerance", "check", "draw", "Name", "", "a.b"),
    *RUN_KEYS,
]


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Return the tables of an experiment file with up to three mistakes."""
    run = {"rounds": 2, "seeds": [0], "participation": draw(st.sampled_from([1.0, 1.0, 0.5]))}
    methods = draw(st.lists(st.sampled_from(METHODS), min_size=1, max_size=2, unique_by=str))
    tree = {"problem": draw(st.sampled_from(PROBLEMS)), "run": run, "algorithm": methods}
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        change(draw, tree)
    return tree


def change(draw: st.DrawFn, tree: Any) -> None:
    """Replace, remove, add or move a value somewhere in a tree."""
    places = list(inner_places(tree))
    if not places:
        return
    leaves = [place for place in places if not isinstance(place[0][place[1]], dict | list)]
    parent, key = draw(st.sampled_from(leaves or places) | st.sampled_from(places))
    what = draw(st.sampled_from(["similar"] * 4 + ["replace"] * 3 + ["remove", "add", "move", "nest"]))
    if what == "similar" and isinstance(parent[key], int | float):
        parent[key] = draw(st.sampled_from(NUMBERS))
    elif what in ("similar", "replace"):
        parent[key] = draw(TOML_VALUES)
    elif what == "remove":
        del parent[key]
    elif what == "move":
        other, place = draw(st.sampled_from(places))
        parent[key] = copy.deepcopy(other[place])
    elif what == "nest":
        for _ in range(draw(st.sampled_from([1, 5, 600]))):
            parent[key] = [parent[key]]
    elif isinstance(parent, dict):
        parent[draw(st.sampled_from(KEYS))] = draw(TOML_VALUES)
    else:
        parent.append(draw(TOML_VALUES))


def inner_places(tree: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a tree, to a depth that is enough for a valid file."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items if depth < 8 else ():
        yield tree, key
        yield from inner_places(value, depth + 1)


def toml(tree: Any) -> str:
    """Return a value as TOML on one line; the top of a tree as tables of inline values."""
    if isinstance(tree, bool):
        return str(tree).lower()
    if isinstance(tree, float):
        return "nan" if math.isnan(tree) else ("inf" if tree > 0 else "-inf") if math.isinf(tree) else repr(tree)
    if isinstance(tree, int):
        return hex(tree) if tree > 10**300 else str(tree) if abs(tree) < 10**300 else "-1" + "0" * 400
    if isinstance(tree, str):
        return json.dumps(tree)
    if isinstance(tree, list):
        brackets = 0
        while isinstance(tree, list) and len(tree) == 1:  # deep nesting, without recursion
            tree, brackets = tree[0], brackets + 1
        inner = ", ".join(map(toml, tree)) if isinstance(tree, list) else toml(tree)
        brackets += isinstance(tree, list)
        return "[" * brackets + inner + "]" * brackets
    return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(value)}" for key, value in tree.items()) + "}"


def document(tree: dict[str, Any]) -> str:
    """Return the text of an experiment file."""
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in tree.items())


def scrambled(draw: st.DrawFn, text: str) -> str:
    """Return a text with a few characters removed, repeated or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, max(len(text) - 1, 0)))
        last = first + draw(st.sampled_from([0, 1, 2, 20]))
        new = draw(
            st.sampled_from(
                ["", "=", "[", "]", "{", '"', "\n", "#", "9", "e", ".", "-", "\x00", "é", text[first:last] * 2]
            )
        )
        text = text[:first] + new + text[last:]
    return text


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Return the text of an experiment file with mistakes in its tree, and sometimes in its characters."""
    text = document(draw(trees()))
    return scrambled(draw, text) if draw(st.integers(0, 9)) == 0 else text


def largest_number(tree: Any) -> float:
    """Return the largest number in a tree."""
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = min(tree, 10**9) if isinstance(tree, int | float) and tree == tree else 0  # NaN differs from itself
    return max([own, *map(largest_number, values)]) if not isinstance(tree, list) or len(tree) != 1 else _unnested(tree)


def _unnested(tree: list[Any]) -> float:
    """Return the largest number in a list that may be nested deeply."""
    inner: Any = tree
    while isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    return largest_number(inner)
