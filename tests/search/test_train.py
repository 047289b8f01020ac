"""train: networks with nothing to choose."""

from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, data, problems, theory
from fedpd.search.train import cohort_of, local_work, model_text, plan_text


@pytest.fixture(scope="module")
def problem() -> Any:
    return problems.penalized_logistic(*data.strongly_noniid(agents=12, samples=40, dimension=5, seed=3))


@pytest.fixture(scope="module")
def run(problem: Any) -> Any:
    return fedpd.train(problem, communications=24, cohort=4)


def test_the_model_is_the_best_on_held_out_samples(problem: Any, run: Any) -> None:
    _, held = problem.hold_out(0.1, 0)
    losses = run.history["validation_loss"]
    assert len(losses) == len(run.history["round"])
    assert theory.objective(held, run.model) == pytest.approx(losses.min(), rel=1e-6)
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert run.algorithm == "fedpd_n(iterations=5, batch=20, cohort=4)"
    best = run.history["round"][losses.argmin()]
    assert model_text(run) == f"The model is that of round {best}, with validation loss {losses.min():.4g}."


def test_trials_are_charged(run: Any) -> None:
    assert np.diff(run.history["samples"])[:5].tolist() == [4 * 5 * 20 * factor for factor in (8, 8, 1, 1, 8)]


def test_it_stops_on_a_plateau(problem: Any) -> None:
    run = fedpd.train(problem, communications=200, cohort=4, metrics_every=1)
    losses = run.history["validation_loss"]
    best = int(np.argmin(losses))
    assert run.history["round"][-1] == min(200, best + 50)


@pytest.mark.slow
def test_without_held_out_samples_it_uses_the_budget_and_all_samples(problem: Any) -> None:
    run = fedpd.train(problem, communications=6, validation=0)
    assert run.history["round"][-1] == 6
    assert "validation_loss" not in run.history
    np.testing.assert_array_equal(run.model, run.server.mean.tree)
    assert model_text(run) == "The model is that of the last round."


@pytest.mark.slow
def test_local_work_follows_the_sizes() -> None:
    def sized(sizes: list[int]) -> Any:
        rows = {str(i): {"x": np.ones((n, 1)), "y": np.arange(n) % 2} for i, n in enumerate(sizes)}
        return problems.classification(lambda w, x: x @ w, data.from_arrays(rows, classes=2), np.zeros((1, 2)))

    assert local_work(sized([400, 400]), None, 1.0) == (20, 20)
    assert local_work(sized([400, 400]), 50, 5.0) == (40, 50)
    assert local_work(sized([6, 8, 10]), None, 1.0) == (5, 8)  # as many as half of the agents have
    assert plan_text(sized([400, 400]), 1) == (
        "FedPD-N with 1 of 2 agents per round, 20 local steps of 20 samples; trials find the step size."
    )


def test_who_takes_part_comes_from_the_file_or_from_the_command() -> None:
    assert cohort_of({"cohort": 5, "sampling": "size"}, None) == {"cohort": 5, "sampling": "size"}
    assert cohort_of({"participation": 0.5}, 3) == {"cohort": 3}
    with pytest.raises(FedpdError, match="train needs the number of agents of a round"):
        cohort_of({"participation": 0.5}, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"communications": 0}, "must be an integer of at least 1"),
        ({"validation": 1.0}, "must be below 1"),
        ({"epochs": 0.0}, "epochs = 0.0: must be positive"),
        ({"batch": 0}, "batch = 0"),
        ({"average": True}, "is what train decides by itself"),
        ({"checkpoints": "runs/a"}, "is what train decides by itself"),
        ({"cohort": 99}, "cohort = 99"),
    ],
)
def test_wrong_options_are_refused(problem: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        fedpd.train(problem, **options)


def test_an_unknown_option_is_an_unknown_argument(problem: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
        fedpd.train(problem, momentum=0.9)


@pytest.mark.slow
def test_values_per_agent_are_those_of_the_delivered_model() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = (x[:, 0] + 2 * rng.normal(size=600) > 0).astype(int)
    federated = data.partition(x[:400], y[:400], data.by_dirichlet(0.5, least=10), agents=5, test=(x[400:], y[400:]))
    problem = problems.softmax_regression(federated)
    run = fedpd.train(problem, communications=40, cohort=2, test={"x": x[400:], "y": y[400:]})
    assert run.history["validation_loss"].argmin() < len(run.history["round"]) - 1  # not the last model
    np.testing.assert_array_equal(run.per_agent(), run.per_agent("test_accuracy", problem))
    assert run.history["central_accuracy"][-1] > 0.5
