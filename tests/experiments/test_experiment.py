"""Experiment files: the objects that they build, and the messages for mistakes."""

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, schedules, simulate
from fedpd.experiments import calls, experiment, run_folder, runner

GOOD = """
[problem]
name = "penalized_logistic"
data = "strong"
agents = 4
samples = 10
dimension = 3

[run]
rounds = 20
seeds = [0, 3]

[[algorithm]]
name = "fedpd"
eta = 0.08
p = 0.5
oracle = { name = "gd", step = 0.08, iterations = 8 }

[[algorithm]]
label = "schedules"
name = "fedpd"
eta = 0.08
p = { name = "decreasing_skips" }
oracle = { name = "sgd", step = { name = "inverse_sqrt", initial = 0.04 }, iterations = 6, batch = 2 }

[[algorithm]]
name = "fedprox"
rho = 1
oracle = { name = "vr", gamma = inf, iterations = 8, refresh = 1 }

[[algorithm]]
name = "fedavg"
oracle = { name = "optax", optimizer = { name = "adam", learning_rate = 0.01 }, iterations = 3 }
"""


def test_a_file_is_a_problem_a_run_and_methods() -> None:
    plan = experiment.parse(GOOD)
    assert (plan.problem.agents, plan.problem.samples, plan.problem.dimension) == (4, 40, 3)
    assert plan.settings == experiment.RunTable(rounds=20, seeds=(0, 3))
    assert [method.label for method in plan.methods] == [
        "fedpd(eta=0.08, oracle=gd(step=0.08, iterations=8), p=0.5)",
        "schedules",
        "fedprox(rho=1, oracle=vr(gamma=inf, iterations=8, refresh=1))",
        "fedavg(oracle=optax(optimizer=adam(learning_rate=0.01), iterations=3))",
    ]


def test_schedules_take_what_they_need_from_around_them() -> None:
    algorithm = experiment.parse(GOOD).methods[1].algorithm
    assert algorithm.description == (
        "fedpd(eta=0.08, oracle=sgd(step=inverse_sqrt(initial=0.04, iterations=6), iterations=6, batch=2), "
        "p=decreasing_skips(rounds=20))"
    )
    assert algorithm.skips
    assert math.isclose(algorithm.skip_probability(jnp.int32(5)), 0.75)


MISTAKES = [
    ('name = "fedpd"\neta', 'name = "fedpdd"\neta', r"\[\[algorithm\]\] 1 name = 'fedpdd': .* Did you mean 'fedpd'\?"),
    ("eta = 0.08\np = 0.5", "etta = 0.08\np = 0.5", r"\[\[algorithm\]\] 1 fedpd: etta = 0.08: .* Did you mean 'eta'\?"),
    ("eta = 0.08\np = 0.5", "eta = -1\np = 0.5", r"\[\[algorithm\]\] 1 eta = -1: must be positive"),
    ("eta = 0.08\np = 0.5", 'eta = "0.08"\np = 0.5', r"eta = '0.08': must be a number, not str"),
    ("eta = 0.08\np = 0.5", "p = 0.5", r"\[\[algorithm\]\] 1 fedpd: eta is missing"),
    ("p = 0.5", "p = 1.5", r"p = 1.5: must lie in \[0, 1\). p is the probability of SKIPPING"),
    ("p = 0.5", 'p = "auto?"', r"p = 'auto\?': must be a number"),
    ('"decreasing_skips"', '"increasing_skips"', r"\(schedules\) p name = 'increasing_skips': .* 'decreasing_skips'"),
    ("iterations = 8 }", "iterations = 0 }", r"\[\[algorithm\]\] 1 oracle iterations = 0: must be an integer"),
    ("step = 0.08", "stepp = 0.08", r"oracle gd: stepp = 0.08: .* Did you mean 'step'\?"),
    ('{ name = "gd", step = 0.08, iterations = 8 }', '"gd"', r"oracle = 'gd': must be a table"),
    ('"adam"', '"adamm"', r"optimizer name = 'adamm': .* Did you mean 'adam'"),
    ("rounds = 20", "rounds = 0", r"\[run\] rounds = 0: must be an integer of at least 1"),
    ("rounds = 20", "round = 20", r"\[run\]: round = 20: .* Did you mean 'rounds'\?"),
    ("rounds = 20", "rounds = 20\nparticipation = 2", r"\[run\] participation = 2: must be at most 1"),
    ("rounds = 20", "rounds = 20\ncohort = 0", r"\[run\] cohort = 0: must be"),
    ("rounds = 20", "rounds = 20\ncohort = 9999", r"\[run\] cohort = 9999: must be at most"),
    ("rounds = 20", "rounds = 20\nmetrics_agents = 9999", r"\[run\] metrics_agents = 9999: must be at most"),
    ("rounds = 20", 'rounds = 20\ncohort = 1\nsampling = "sizes"', r"\[run\] sampling = 'sizes'"),
    ("rounds = 20", "rounds = 20\nstragglers = -1", r"\[run\] stragglers = -1: must be finite and at least 0"),
    ("seeds = [0, 3]", "seeds = [0, 0]", r"\[run\] seeds = \[0, 0\]: must be a list of different integers"),
    ("seeds = [0, 3]", "seeds = 3", r"\[run\] seeds = 3: must be a list"),
    ('data = "strong"', 'data = "stong"', r"\[problem\] data = 'stong': .* Did you mean 'strong'\?"),
    ("agents = 4", "agents = 4.5", r"\[problem\] agents = 4.5: must be an integer"),
    ("[run]", "[runn]", r"runn = .* Did you mean 'run'\?"),
    ("[[algorithm]]", "[algorithm]", r"not valid TOML|must be a list of tables"),
    ('label = "schedules"', "label = 3", r"label = 3: must be a text"),
    ('name = "fedprox"', 'label = "schedules"\nname = "fedprox"', r"two algorithms are called 'schedules'"),
    ("rounds = 20", "rounds = twenty", r"not valid TOML"),
]


@pytest.mark.parametrize(("right", "wrong", "sentence"), MISTAKES)
def test_a_mistake_is_answered_with_place_value_rule_and_remedy(right: str, wrong: str, sentence: str) -> None:
    assert right in GOOD
    with pytest.raises(FedpdError, match=sentence):
        experiment.parse(GOOD.replace(right, wrong, 1))


def test_a_missing_file_is_answered(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match="cannot be read"):
        experiment.load(tmp_path / "nothing.toml")


def test_the_file_is_named_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[run]\nrounds = 3\n")
    with pytest.raises(FedpdError, match=r"wrong.toml: the file: problem is missing"):
        experiment.load(path)


def test_a_network_on_a_data_file(tmp_path: Path) -> None:
    """Every table with a name is a call: the loader, the network."""
    users = {f"u{i}": {"x": [[0.0, 1.0], [1.0, 0.0], [0.5, 2.0]], "y": [0, 1, 0]} for i in range(4)}
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"users": list(users), "num_samples": [3] * 4, "user_data": users}))
    table = {
        "name": "network",
        "data": {"name": "leaf", "train": str(path)},
        "model": {"name": "MLP", "classes": 2, "hidden": [3]},
        "agents": 3,
        "test_share": 0.4,
        "title": "Four users",
    }
    problem = calls.build_problem(table)
    assert problem.sizes.tolist() == [4, 2, 2]  # the first agent holds two users
    assert problem.name == "Four users"
    assert problem.evaluation is not None
    assert problem.dimension == 2 * 3 + 3 + 3 * 2 + 2
    with pytest.raises(FedpdError, match="Did you mean 'SmallCNN'"):
        calls.build_problem(table | {"model": "smallCNN"})
    assert calls.build_problem(table | {"model": "MLP"}).dimension == 2 * 128 + 128 + 128 * 2 + 2


def test_a_file_draws_agents_by_size(tmp_path: Path) -> None:
    sizes = [1, 9, 2, 5]
    users = {
        f"u{i}": {"x": [[float(j), i] for j in range(n)], "y": [j % 2 for j in range(n)]} for i, n in enumerate(sizes)
    }
    (tmp_path / "all.json").write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": users}))
    path = tmp_path / "sizes.toml"
    path.write_text(f"""
        [problem]
        name = "softmax_regression"
        data = {{ name = "leaf", train = "{tmp_path / "all.json"}" }}
        [run]
        rounds = 6
        seeds = [3]
        cohort = 2
        sampling = "size"
        [[algorithm]]
        name = "fedavg"
        oracle = {{ name = "sgd", step = 0.1, iterations = 2, batch = 1 }}
    """)
    plan = experiment.load(path)
    run_folder.create(tmp_path / "run", plan.text)
    ((result,),) = [found.runs for found in runner.run(plan, tmp_path / "run", lambda event: None)]
    options: Any = {"rounds": 6, "seed": 3, "cohort": 2}
    same = simulate(plan.methods[0].algorithm, plan.problem, **options, sampling="size")
    assert result.updates.tolist() == same.updates.tolist()
    np.testing.assert_array_equal(result.history["loss"], same.history["loss"])
    assert same.updates.tolist() != simulate(plan.methods[0].algorithm, plan.problem, **options).updates.tolist()


def test_a_start_away_from_0() -> None:
    table = {"name": "penalized_logistic", "agents": 2, "samples": 3, "dimension": 4}
    assert calls.build_problem(table | {"start": 0.5}).start.tolist() == [0.5] * 4
    assert calls.build_problem(table).start.tolist() == [0] * 4
    with pytest.raises(FedpdError, match="start = 'x'"):
        calls.build_problem(table | {"start": "x"})


def test_a_problem_for_tuning_keeps_who_takes_part(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(GOOD.replace("rounds = 20", "rounds = 20\nparticipation = 0.5\nstragglers = 0.1"))
    found = experiment.find_problem(str(path))
    assert found.problem["agents"] == 4
    assert found.run == {"participation": 0.5, "stragglers": 0.1}
    assert experiment.find_problem("weak").run == {}
    for text, sentence in (
        ("run = 3\n[problem]\nname = 'x'", r"some.toml: run = 3: must be a table"),
        ("[problem]\nname = 'x'\n[run]\nparticipation = 2", r"\[run\] participation = 2: must be at most 1"),
        ("[problem]\nname = 'x'\n[run]\nparticipatoin = 1", r"Did you mean 'participation'"),
        ("[run]\nrounds = 3", r"there is no \[problem\] table"),
    ):
        path.write_text(text)
        with pytest.raises(FedpdError, match=sentence):
            experiment.find_problem(str(path))


def test_a_file_writes_epochs_schedules_and_momentum() -> None:
    """The rounds of a cosine schedule are those of the run, and no table takes an optional setting of another."""
    step = {"name": "warmup", "first_rounds": 5, "step": {"name": "cosine", "first": 0.1}}
    sgd = {"name": "sgd", "step": step, "epochs": 5, "batch": 50, "momentum": 0.9, "weight_decay": 1e-3, "clip": 10.0}
    expected = schedules.warmup(schedules.cosine(0.1, 40), 5)
    made = calls.build_algorithm({"name": "fedavg", "oracle": sgd}, rounds=40)
    oracle = oracles.sgd(expected, epochs=5, batch=50, momentum=0.9, weight_decay=1e-3, clip=10.0)
    assert made == algorithms.fedavg(oracle=oracle)
    falling = {"name": "exponential", "first": 0.1, "factor": 0.998}
    made = calls.build_algorithm({"name": "scaffold", "step": falling, "epochs": 5, "batch": 50}, rounds=40)
    assert made == algorithms.scaffold(step=schedules.exponential(0.1, 0.998), epochs=5, batch=50)
    stairs = {"name": "piecewise", "first": 0.1, "milestones": [20, 30], "factors": [0.1, 0.5]}
    adam = {"name": "optax", "optimizer": {"name": "adam", "learning_rate": stairs}, "epochs": 2, "batch": 10}
    rate = schedules.piecewise(0.1, [20, 30], [0.1, 0.5])
    expected_oracle = oracles.optax(oracles.optimizer("adam", learning_rate=rate), epochs=2, batch=10)
    assert calls.build_algorithm({"name": "fedavg", "oracle": adam}, rounds=40) == algorithms.fedavg(
        oracle=expected_oracle
    )
    own = {
        "name": "pfedme",
        "rho": 1.0,
        "step": 0.1,
        "iterations": 3,
        "oracle": {"name": "sgd", "step": 0.2, "epochs": 2},
    }
    assert calls.build_algorithm(own, rounds=40).oracles == (oracles.sgd(0.2, epochs=2),)


@pytest.mark.parametrize(
    ("oracle", "message"),
    [
        ({"step": 0.1}, r"oracle iterations = None: must be given, unless epochs is"),
        ({"step": 0.1, "epochs": 2, "iterations": 3}, r"epochs = 2: does not go with iterations = 3"),
        ({"step": "exponential", "epochs": 2}, r"step = 'exponential': must be a table"),
        ({"step": {"name": "exponential", "first": 0.1}, "epochs": 2}, r"step exponential: factor is missing"),
        ({"step": {"name": "exponentail", "first": 0.1}, "epochs": 2}, r"no such name.*exponential"),
    ],
)
def test_wrong_local_work_in_a_file(oracle: dict[str, Any], message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        calls.build_algorithm({"name": "fedavg", "oracle": {"name": "sgd"} | oracle}, rounds=40)


ABSENT = """# About this file.

# Data: Make them with a program
# and put them here.

[problem]
name = "network"
model = "MLP"
data = { name = "leaf", train = "no/such/folder" }

[run]
rounds = 1

[[algorithm]]
name = "fedavg"
oracle = { name = "gd", step = 0.1, iterations = 1 }
"""


def test_missing_data_say_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(ABSENT, encoding="utf-8")
    with pytest.raises(FedpdError, match=r"no such file or folder\. .* Make them with a program and put them here\.$"):
        experiment.load(tmp_path / "file.toml")
