"""Options that are lists, and what a comparison says without a terminal."""

import pytest

from fedpd import FedpdError, algorithms, data, oracles
from fedpd.cli.arguments import listed, listed_numbers
from fedpd.cli.execution import batch_notes
from fedpd.experiments import experiment

FILE = """
[problem]
name = "softmax_regression"
data = { name = "characters", writers = 3, samples = 10, classes = 2, size = 4 }

[run]
rounds = 3

[[algorithm]]
label = "large"
name = "fedavg"
oracle = { name = "sgd", step = 0.1, iterations = 2, batch = 50 }

[[algorithm]]
label = "small"
name = "fedavg"
oracle = { name = "sgd", step = 0.1, iterations = 2, batch = 2 }
"""


def test_a_list_is_separated_by_commas_or_repeated() -> None:
    assert listed(["FedPD-GD, L-BFGS"]) == listed(["FedPD-GD", "L-BFGS"]) == ["FedPD-GD", "L-BFGS"]
    assert listed(None) is None
    assert listed_numbers("--budgets", ["0,8", "64"]) == [0, 8, 64]
    with pytest.raises(FedpdError, match="--budgets = 'many': must be whole numbers separated by commas"):
        listed_numbers("--budgets", ["many"])
    with pytest.raises(FedpdError, match="has an empty item"):
        listed(["a,"])


def test_a_batch_that_is_larger_than_an_agents_samples_is_said() -> None:
    (note,) = batch_notes(experiment.parse(FILE))
    assert note.startswith("large: batch = 50 is larger than the samples of 3 of 3 agents (the smallest has 8).")


def test_a_missing_argument_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"fedpd\(\): missing a required argument: 'oracle'"):
        algorithms.fedpd(eta=1.0)  # type: ignore[call-arg]  # wrong on purpose


def test_a_summary_and_a_method_print_for_readers() -> None:
    text = str(data.describe(data.characters(writers=3, samples=10, classes=2, size=4)))
    assert text.splitlines()[0] == "Federated data 'generated characters'"
    assert "  per agent 8 to 8 training samples, median 8\n" in text
    assert "\n" not in repr(algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2)))
