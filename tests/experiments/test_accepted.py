"""Experiment files accept what Python accepts: every parameter of every factory, or a reason why not."""

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, Oracle, Problem, algorithms, data, oracles, problems, regularizers, schedules
from fedpd.data import Federated
from fedpd.engine.config import RunConfig
from fedpd.experiments import calls, runner
from fedpd.experiments.experiment import RUN_KEYS, RunTable, parse

IN_MEMORY = "it takes arrays in memory: write a loader of your own, data = { name = 'module:load' }"
REASONS = {
    "penalized_logistic.features": "`data` gives features and labels",
    "penalized_logistic.labels": "`data` gives features and labels",
    "network.module": "it is the key `model`, as in the files of the first version",
    "network.loss": "it is a function: write a problem of your own",
    "network.augment": "it is a function: write a problem of your own",
    "network.trainable": "it is a function: write a problem of your own",
    "network.backend": "it is for modules of PyTorch, which a file cannot name",
    "network.metrics": "they are functions: write a problem of your own",
    "from_arrays": IN_MEMORY,
    "from_rows": IN_MEMORY,
    "from_datasets": IN_MEMORY,
    "partition": IN_MEMORY,
    "share_blocks": "it takes a problem: write a function of your own that returns the new problem",
    "merge": "it takes federated data: the key `agents`, or a loader of your own",
    "take": "it takes federated data: a loader of your own",
    "split": "it takes federated data: the key `test_share`",
    "own_loop": "the loop is Python",
    "phases": "it takes a function: write an oracle of your own",
    "next_token.augment": "it is a function: write a problem of your own",
    "simulate.checkpoints": "the run folder has them",
    "simulate.start": "a problem's table has `start`, and fedpd resume continues a run",
    "simulate.progress": "the command shows bars, and Python's runner gets events",
}


def public(module: Any, kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a module that return this type."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names if inspect.isfunction(getattr(module, name))}
    return {name: one for name, one in found.items() if inspect.signature(one).return_annotation is kind}


def own(module: Any) -> dict[str, Callable[..., Any]]:
    functions = {name: one for name, one in vars(module).items() if inspect.isfunction(one) and name[0] != "_"}
    return {name: one for name, one in functions.items() if one.__module__ == module.__name__}


FACTORIES: list[tuple[dict[str, Callable[..., Any]], calls.Functions]] = [
    (public(problems, Problem), calls.PROBLEMS),
    (public(data, Federated), calls.LOADERS),
    (public(oracles, Oracle), calls.ORACLES),
    (public(algorithms, Algorithm), calls.ALGORITHMS),
    (own(schedules), {**calls.STEPS, **calls.SKIPS}),
    ({name: one for name, one in own(regularizers).items() if name != "proximal_step"}, calls.REGULARIZERS),
]


def test_every_parameter_is_accepted_or_has_a_reason() -> None:
    used, seen = set(), 0
    for functions, in_files in FACTORIES:
        for name, function in functions.items():
            if name in REASONS:
                used.add(name)
                continue
            keys = calls.parameters("", name, in_files[name])
            for parameter in inspect.signature(function).parameters:
                key = "title" if parameter == "name" else parameter
                seen += 1
                if key not in keys:
                    assert f"{name}.{parameter}" in REASONS
                    used.add(f"{name}.{parameter}")
    for option in (field.name for field in fields(RunConfig)):
        if option not in RUN_KEYS:
            assert f"simulate.{option}" in REASONS
            used.add(f"simulate.{option}")
    assert used == set(REASONS)  # no reason outlives its parameter
    assert seen > 150


def test_the_names_are_those_of_python() -> None:
    assert {name for functions, _ in FACTORIES for name in functions} >= {
        "penalized_logistic", "leaf", "parquet", "hub", "characters", "sgd", "fedpd", "inverse_sqrt", "group_l1"
    }  # fmt: skip


@pytest.fixture
def leaf(tmp_path: Path) -> dict[str, Any]:
    users = {f"u{i}": {"x": [[0.0, 10.0], [2.0, 20.0], [4.0, 30.0]], "y": [0, 1, 0]} for i in range(4)}
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"users": list(users), "num_samples": [3] * 4, "user_data": users}))
    return {"name": "leaf", "train": str(path)}


def test_arguments_of_loaders_and_networks(leaf: dict[str, Any]) -> None:
    loader = leaf | {"title": "Wards", "dtype": "float64", "classes": [0, 1, 2], "label_names": ["a", "b", "c"]}
    table = {"name": "network", "data": loader, "model": "MLP", "l2": 0.5, "standardise": True, "seed": 3}
    problem = calls.build_problem(table)
    assert problem.name == "Wards"
    assert problem.penalty is not None
    x = problem.data["x"]
    np.testing.assert_allclose(x.mean(axis=(0, 1)), 0, atol=1e-7)
    np.testing.assert_allclose(x.std(axis=(0, 1)), 1, rtol=1e-6)
    with pytest.raises(FedpdError, match=r"\[problem\] standardise = 1: must be true or false"):
        calls.build_problem(table | {"standardise": 1})
    with pytest.raises(FedpdError, match=r"\[problem\] l2 = -1: must be finite and at least 0"):
        calls.build_problem(table | {"l2": -1})
    with pytest.raises(FedpdError, match=r"\[problem\] data = 'strong': must be federated data. Give a loader"):
        calls.build_problem(table | {"data": "strong"})
    with pytest.raises(FedpdError, match=r"\[problem\] data = 'list': must be federated data. Give a loader"):
        calls.build_problem(table | {"data": [1, 2]})


def test_logistic_regression_of_loaded_data(leaf: dict[str, Any]) -> None:
    table = {"name": "penalized_logistic", "data": leaf, "beta": 0.0, "standardise": True, "start": [1, 2]}
    problem = calls.build_problem(table)
    assert problem.start.tolist() == [1, 2]
    signs = np.array([-1, 1, -1])
    expected = signs[:, None] * np.array([[-1.0, -1.0], [0, 0], [1, 1]]) * np.sqrt(1.5)
    np.testing.assert_allclose(problem.data[0, :, :2], expected, rtol=1e-6)
    for wrong, sentence in (
        ({"start": [1.0]}, r"start = \[1.0\]: must have 2 entries"),
        ({"samples": 3}, "samples = 3: is for generated data"),
        ({"data": "weak"}, "standardise = True: is for loaded data, but these are generated"),
        ({"data": leaf | {"classes": 3}}, r"classes = \[0, 1, 2\]: must be two for logistic regression"),
    ):
        with pytest.raises(FedpdError, match=sentence):
            calls.build_problem(table | wrong)


def test_a_quadratic_by_its_numbers() -> None:
    table = {"name": "quadratic", "hessians": [[[2.0]], [[4.0]]], "linear": [[2.0], [4.0]], "start": [5.0]}
    problem = calls.build_problem(table)
    assert problem.answer.minimiser == [1.0]
    assert problem.start.tolist() == [5.0]


RUN = """
[problem]
name = "random_quadratic"
agents = 3
dimension = 2
[run]
rounds = 2
{line}
[[algorithm]]
name = "local_gd"
step = 0.1
iterations = 2
"""


@pytest.mark.parametrize(
    "line",
    [
        "participation = [0.5, 1.0, 0.2]",
        "participation = [[1, 0, 1], [1, 1, 1]]",
        'execution = "sequential"',
        "devices = 1",
        'store = "agents"',
    ],
)
def test_options_of_a_run(line: str) -> None:
    settings = parse(RUN.format(line=line)).settings
    assert settings != RunTable(rounds=2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("participation = [0.5, 1.0]", r"\[run\] participation = 'array of shape \(2,\)': must have the shape \(3,\)"),
        (
            'participation = [0.5, "x", 1]',
            r"\[run\] participation = \[0.5, 'x', 1\]: must be an array of real numbers, not of text",
        ),
        ("participation = [[1, 0], [1, 1, 1]]", "must be an array of numbers, in rows of equal length. Give a share"),
        ('execution = "serial"', r"\[run\] execution = 'serial': there is no such choice. Did you mean 'seq"),
        ("devices = 0", r"\[run\] devices = 0: must be an integer of at least 1"),
        ("store = 3", r"\[run\] store = 3: must be a text"),
        ("callback = 3", r"\[run\] callback = 3: must name a function"),
        ("checkpoints = 'a'", r"\[run\]: checkpoints = 'a': there is no such key. Did you mean 'checkpoint_every'"),
    ],
)
def test_wrong_options_of_a_run(line: str, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        parse(RUN.format(line=line))


def test_packed_messages_pass_the_check_before_a_run() -> None:
    """The check compares the state before and after a round; a packed message in it has no equality of its own."""
    line = 'up = [{ name = "top_k", share = 0.5 }, { name = "sign" }]'
    runner.check(parse(f"{RUN.format(line='')}{line}\n"))


@pytest.mark.parametrize(("name", "label"), [("regression", '"power"'), ("multilabel", '["warm", "loud"]')])
def test_tasks_whose_targets_are_not_classes(name: str, label: str, tmp_path: Path) -> None:
    """A network of a file gets one output per target."""
    rows = [f"{'ab'[i % 2]},{i / 8},{i / 4},{i % 3 % 2},{i % 2}" for i in range(8)]
    (tmp_path / "table.csv").write_text("\n".join(["sensor,speed,power,warm,loud", *rows]), encoding="utf-8")
    source = f'name = "csv", path = "{tmp_path}/table.csv", client = "sensor", features = ["speed"], label = {label}'
    problem = parse(
        f'''
        [problem]
        name = "{name}"
        model = "MLP"
        test_share = 0.25
        data = {{ {source}, classes = false }}
        [run]
        rounds = 1
        [[algorithm]]
        name = "fedavg"
        oracle = {{ name = "gd", step = 0.1, iterations = 1 }}
        '''
    ).problem
    assert problem.sizes.tolist() == [3, 3]
    last = problem.start["Dense_1"]["bias"]
    assert last.shape == (1 if name == "regression" else 2,)
