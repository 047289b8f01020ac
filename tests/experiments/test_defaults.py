"""Methods by their own rules: all of them are there, and their tables are experiment files."""

import tomllib

from fedpd import algorithms
from fedpd.experiments import experiment
from fedpd.experiments.defaults import method_tables, toml


def test_every_method_is_there_and_can_be_built() -> None:
    tables = method_tables(0.6, 100)
    assert {table["name"] for table in tables} | {"fedavg"} == set(algorithms.__all__)
    for table in tables:
        assert tomllib.loads(toml(table)) == table
        arguments = {key: value for key, value in table.items() if key != "label"}
        assert experiment.build_algorithm(arguments, rounds=10).description.startswith(table["name"])


def test_steps_shrink_as_the_problem_gets_steeper() -> None:
    for flat, steep in zip(method_tables(1.0, 10), method_tables(100.0, 10), strict=True):
        for key in ("step", "eta"):
            if key in flat:
                assert flat[key] > 50 * steep[key]
