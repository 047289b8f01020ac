"""Experiment files that crashed, hung or were accepted: each is refused with a sentence before anything runs."""

import re
from pathlib import Path

import pytest

from fedpd import FedpdError
from fedpd.experiments import experiment, runner
from fedpd.experiments.experiment import parse

PROBLEM = 'name = "random_quadratic"\nagents = 3\ndimension = 2'
RUN = "rounds = 2"
METHOD = 'name = "fedavg"\noracle = { name = "gd", step = 0.1, iterations = 2 }'


def refused(
    message: str, problem: str = PROBLEM, run: str = RUN, method: str = METHOD, text: str | None = None
) -> None:
    whole = f"[problem]\n{problem}\n[run]\n{run}\n[[algorithm]]\n{method}\n"
    with pytest.raises(FedpdError, match=message) as caught:
        runner.check(parse(whole if text is None else text))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("part", "lines", "message"),
    [
        ("problem", "name = []", r"\[problem\] name = \[\]: there is no such name"),
        ("problem", 'name = { a = 1 }', "there is no such name"),
        ("problem", f"{PROBLEM}\nseed = -1", "seed = -1: must be an integer of at least 0"),
        ("problem", 'name = "random_quadratic"\nagents = 2147483648\ndimension = 2', r"agents .*must be below 2\^24"),
        ("problem", 'name = "random_quadratic"\nagents = 2\ndimension = 1000000', "GB of memory, and this machine has"),
        ("problem", 'name = "penalized_logistic"\nsamples = 2147483647', "GB of memory"),
        ("problem", 'name = "softmax_regression"\ndata = "csv"', r"must be a table\. Write data = \{ name = 'csv'"),
        ("problem", 'name = "softmax_regression"\ndata = "people.parquet"', "'people.parquet': must be federated"),
        ("problem", 'name = "quadratic"\nhessians = [[[1.0]], [1.0]]\nlinear = [[1.0]]', "inhomogeneous"),
        ("problem", 'name = "softmax_regression"\ndata = { name = "characters", classes = "ten" }', "classes = 'ten'"),
        ("run", "rounds = 2147483648", r"rounds = 2147483648: must be below 2\^31"),
        ("run", "rounds = 2\nparticipation = [[0, 1], [1]]", "in rows of equal length"),
        ("run", "rounds = 2\nseeds = [-1]", "seeds = -1: must be an integer of at least 0"),
        ("method", 'name = "gradient_descent"\nstep = 1' + "0" * 400, "an integer of TOML has 64 bits"),
        ("method", 'name = "cola"\neta = 0.1\nsmoothness = nan', "smoothness = nan: must be a number, not NaN"),
        ("method", 'name = "admm"\neta = 0.1\ng = "l1"\noracle = { name = "lbfgs" }', "g = 'l1': must be a"),
        (
            "method",
            'name = "admm"\neta = 0.1\ng = { name = "box", low = "a", high = "b" }\noracle = { name = "lbfgs" }',
            "low = 'a': must be a number, not str",
        ),
        ("method", METHOD.replace("iterations = 2", "iterations = 2147483648"), r"iterations = .*below 2\^31"),
        (
            "method",
            'name = "fedavg"\noracle = { name = "sgd", step = 0.1, iterations = 2, batch = 4294967296 }',
            r"batch = 4294967296: must be below 2\^31",
        ),
        ("method", 'name = "coop_sgd"\nmixing = [[1.0]]\noracle = { name = "lbfgs" }', "mixes 1 agents"),
        (
            "method",
            'name = "fedavg"\noracle = { name = "vr", gamma = inf, iterations = 2, refresh = 2 }',
            "gamma = inf: needs a method with a quadratic term. Give a finite gamma",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_with_its_place(part: str, lines: str, message: str) -> None:
    refused(message, **{part: lines})


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ('{ name = "adam", learning_rate = "fast" }', "learning_rate = 'fast': must be a number"),
        ('{ name = "adam", learning_rate = -1 }', "learning_rate = -1: must be positive"),
        ('{ name = "adam", learning_rate = nan }', "must be a number, not NaN"),
        ('{ name = "adam", learning_rate = 0.1, b1 = "x" }', "b1 = 'x': must be a number"),
        ('{ name = "lbfgs", learning_rate = 0.1 }', "optimizer = .*lbfgs.*cannot take a step with a gradient alone"),
        ('{ name = [] }', "there is no such name"),
    ],
)  # fmt: skip
def test_optimisers_are_tried_before_they_run(optimizer: str, message: str) -> None:
    refused(message, method=f'name = "fedavg"\noracle = {{ name = "optax", optimizer = {optimizer}, iterations = 2 }}')


def test_what_an_optimiser_keeps_is_true_or_false() -> None:
    oracle = '{ name = "optax", optimizer = { name = "sgd", learning_rate = 0.1 }, iterations = 2, keep_state = "abc" }'
    refused("keep_state = 'abc': must be True or False", method=f'name = "fedavg"\noracle = {oracle}')


def test_skipping_that_needs_everyone_is_refused_before_the_first_method_runs() -> None:
    method = 'name = "fedpd"\neta = 0.1\np = "auto"\noracle = { name = "gd", step = 0.1, iterations = 2 }'
    refused(r"\[\[algorithm\]\] 1 .*needs all agents", run="rounds = 2\nparticipation = 0.5", method=method)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[problem]\n{PROBLEM}\n[run]\n{RUN}\n", "algorithm is missing. Add it; the keys are: problem, run"),
        (f"algorithm = []\n[problem]\n{PROBLEM}\n[run]\n{RUN}\n", r"must be a list of tables.*Write \[\[algorithm\]\]"),
        ("x = " + "[" * 600 + "]" * 600, "nested deeper than 32 levels: no experiment needs that. Nest them less"),
        ("x = " + "{ a = " * 100 + "1" + "}" * 100, "nested deeper than 32 levels: no experiment needs that"),
        ("x = " + "9" * 5000, "not valid TOML: .*value has 5000 digits"),
        ("\0", r"not valid TOML: Invalid statement \(at line 1, column 1\)"),
        ("[problem", "not valid TOML: Expected ']' at the end of a table declaration"),
    ],
)  # fmt: skip
def test_texts_that_are_no_experiment(text: str, message: str) -> None:
    refused(message, text=text)


def test_a_network_with_fewer_outputs_than_classes_is_refused() -> None:
    pytest.importorskip("flax")
    data = 'data = { name = "characters", writers = 2, samples = 4, classes = 5, size = 4 }'
    problem = f'name = "network"\nmodel = {{ name = "MLP", classes = 3 }}\n{data}'
    refused("number of scores = 3: must be at least 5, the number of classes", problem=problem)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(FedpdError, match=re.escape("...")) as caught:
        parse(f'[problem]\nname = "{"x" * 5000}"\n[run]\n{RUN}\n[[algorithm]]\n{METHOD}\n')
    assert len(str(caught.value)) < 700


def test_a_file_of_an_editor_that_marks_its_encoding_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(b"\xef\xbb\xbf[problem]\r\n")
    assert experiment.read_text(path) == "[problem]\r\n"
