"""A fair comparison: equal local work, equal budgets, fresh seeds, all costs, and an interruption."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, compare, data, oracles, problems, simulate
from fedpd.experiments.calls import build_algorithm
from fedpd.report.pages import page_data
from fedpd.report.reach import reach
from tests.search.test_tuned import two_classes

SMOOTH = problems.penalized_logistic(*data.strongly_noniid(4, 20, 3, seed=2))


@pytest.fixture(scope="module")
def classes() -> fedpd.Comparison:
    return compare(two_classes(), ["fedavg", "scaffold"], rounds=8, iterations=4, batch=4, budget=5, seeds=[0, 1])


def test_settings_are_chosen_by_validation_samples_and_reported_on_test_samples(classes: fedpd.Comparison) -> None:
    assert (classes.criterion, classes.seeds, classes.work) == ("test_accuracy", (0, 1), "4 local steps with batch 4")
    assert "15% of the training samples, held out" in repr(classes)
    for one in classes.methods:
        assert len(one.points) <= 5
        assert one.values[one.best] == one.values.max()
        again = simulate(_method(one), two_classes(), rounds=8, seed=1)
        np.testing.assert_array_equal(one.runs[1].history["test_accuracy"], again.history["test_accuracy"])


def _method(one: fedpd.Tuned) -> fedpd.Method:
    return build_algorithm({key: value for key, value in one.table.items() if key != "label"}, 8)


def test_all_methods_do_the_same_local_work(classes: fedpd.Comparison) -> None:
    samples = {int(run.history["samples"][-1]) for one in classes.methods for run in one.runs}
    assert samples == {8 * 6 * 4 * 4}
    assert "Unequal local work" not in repr(classes)


def test_costs_are_those_of_the_first_measurement_that_keeps_a_target(classes: fedpd.Comparison) -> None:
    target = classes.targets[0]
    run = classes["FedAvg"].runs[0]
    accuracy = run.history["test_accuracy"]
    row = next(row for row in range(7) if accuracy[row : row + 3].mean() >= target)
    for cost in ("communications", "samples"):
        assert classes.costs(target, cost)["FedAvg"][0] == run.history[cost][row]
    assert np.isnan(classes.costs(1.1)["FedAvg"]).all()
    finals = classes.finals()["FedAvg"]
    assert finals[0] == run.history["test_accuracy"][-5:].mean()


def test_it_is_shown_drawn_and_saved(classes: fedpd.Comparison, tmp_path: Path) -> None:
    found = fedpd.load(classes.save(tmp_path / "c"))
    assert repr(found) == repr(classes)
    assert found._repr_html_() == classes._repr_html_()
    classes.plot().savefig(tmp_path / "figure.png")
    frame = classes.frame()
    assert set(frame["method"]) == {"FedAvg", "SCAFFOLD"}
    assert len(frame) == 2 * 2 * 9
    page = fedpd.report.page(classes, two_classes())
    assert "SCAFFOLD" in page.html
    with pytest.raises(FedpdError, match="label = 'FedPD': is not a method of this comparison"):
        classes["FedPD"]
    with pytest.raises(FedpdError, match="cost = 'time': is no cost"):
        classes.costs(0.5, "time")


@pytest.mark.slow
def test_epochs_schedules_and_weights_are_those_of_the_comparison() -> None:
    options: dict[str, Any] = {"epochs": 2, "batch": 8, "decay": 0.9, "weight_decay": 1e-3, "weights": "samples"}
    found = compare(two_classes(), ["fedavg", "fedadam"], rounds=3, budget=2, seeds=[0], cohort=3, **options)
    assert found.work == "2 epochs with batch 8, weight decay 0.001, step sizes times 0.9 per round"
    for one in found.methods:
        assert "exponential" in one.setting
        assert one.table["mean"] == [{"name": "weighted"}]
        again = simulate(_method(one), two_classes(), rounds=3, seed=0, cohort=3)
        np.testing.assert_array_equal(one.runs[0].history["loss"], again.history["loss"])


@pytest.mark.slow
def test_a_central_test_set_is_not_what_chooses_the_settings() -> None:
    problem = two_classes()
    rows = problem.test_rows_of(np.arange(6))[0]
    test = {"x": rows["x"], "y": rows["y"]}
    options: dict[str, Any] = {"iterations": 2, "batch": 4, "rounds": 4, "budget": 2, "seeds": [0]}
    found = compare(problem, ["fedavg"], criterion="central_accuracy", test=test, **options)
    (one,) = found.methods
    again = simulate(_method(one), problem, rounds=4, seed=0, test=test)
    np.testing.assert_array_equal(one.runs[0].history["central_accuracy"], again.history["central_accuracy"])
    other = {"x": rows["x"], "y": 1 - rows["y"]}
    turned = compare(problem, ["fedavg"], criterion="central_accuracy", test=other, **options)
    np.testing.assert_array_equal(turned.methods[0].values, one.values)
    with pytest.raises(FedpdError, match="criterion = 'central_accuracy': needs a central test set"):
        compare(problem, ["fedavg"], criterion="central_accuracy", **options)


def test_a_page_and_the_comparison_agree_about_what_was_reached(classes: fedpd.Comparison) -> None:
    for target in (*classes.targets, 0.6, 0.99):
        for entry in classes.entries():
            spent, found = classes.costs(target)[entry.label], reach(entry, "test_accuracy", target)
            assert found.seeds == np.isfinite(spent).sum()
            if found.costs is not None:
                assert found.costs["communications"][0] == spent.mean()


def test_a_page_says_that_seeds_ran_together_only_if_they_did(classes: fedpd.Comparison) -> None:
    assert not any(entry["together"] for entry in page_data(classes.entries())["entries"])
    method = algorithms.fedavg(oracle=oracles.gd(0.1, 1))
    together = simulate(method, SMOOTH, rounds=2, seed=[0, 1], progress=False)
    assert all(entry["together"] for entry in page_data(together.entries())["entries"])


def test_a_page_begins_with_the_criterion(classes: fedpd.Comparison) -> None:
    page = fedpd.report.page(classes, two_classes())
    assert "test accuracy" in page.finding
    assert "‖∇f‖²" not in page.finding


def test_a_smooth_problem_is_compared_by_its_stationarity() -> None:
    found = compare(SMOOTH, ["local_gd", "fedpd"], rounds=40, budget=6, seeds=[0], target=1e-6)
    assert found.criterion == "stationarity"
    assert found.targets[-1] == 1e-6
    costs = found.costs(1e-6)
    assert np.isnan(costs["Local GD"]).all()  # it stops at its floor
    assert costs["FedPD"][0] < 40
    assert found["FedPD"].communications[found["FedPD"].best] == costs["FedPD"][0]  # nothing is random


def test_unequal_local_work_is_the_beginning_of_the_title() -> None:
    methods = {
        "one": lambda step: algorithms.fedavg(oracle=oracles.sgd(step, 1, 1)),
        "all": lambda step: algorithms.fedavg(oracle=oracles.gd(step, 4)),
    }
    found = compare(SMOOTH, methods, criterion="loss", rounds=6, budget=2, seeds=[0])
    assert repr(found).startswith("Unequal local work, from 4 (one) to 320 (all)")
    assert "at the edge of what was tried" in repr(found)


def test_the_same_call_continues_after_an_interruption(tmp_path: Path) -> None:
    options: dict[str, Any] = {"criterion": "loss", "rounds": 6, "budget": 4, "seeds": [0], "iterations": 2, "batch": 4}
    whole = compare(SMOOTH, ["fedavg", "fedprox"], **options)

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("FedProx") and done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(SMOOTH, ["fedavg", "fedprox"], folder=tmp_path, progress=interrupt, **options)
    kept = len((tmp_path / "tries.jsonl").read_text().splitlines())
    assert kept == 1 + 4 + 1
    found = compare(SMOOTH, ["fedavg", "fedprox"], folder=tmp_path, **options)
    for one, other in zip(found.methods, whole.methods, strict=True):
        assert (one.points, one.best, one.setting) == (other.points, other.best, other.setting)
        np.testing.assert_array_equal(one.runs[0].history["loss"], other.runs[0].history["loss"])
    rows = [json.loads(line) for line in (tmp_path / "tries.jsonl").read_text().splitlines()]
    assert len(rows) == 1 + sum(len(one.points) for one in found.methods)
    with pytest.raises(FedpdError, match="holds results of"):
        compare(SMOOTH, ["fedavg"], folder=tmp_path, **{**options, "rounds": 7})


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"criterion": "test_accuracy"}, "criterion = 'test_accuracy': needs a problem with test samples"),
        ({"budget": 0}, "budget = 0"),
        ({"seeds": [1, 1]}, r"seeds = \[1, 1\]: holds a seed twice"),
        ({"until": {"loss": 1}}, "until = .*is not an option of a comparison"),
        ({"cohort": 9}, "cohort = 9"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, Any], answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        compare(SMOOTH, ["fedavg"], **{"rounds": 2, **options})


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'metrics_evry'\. Did you mean 'metrics_every'"):
        compare(SMOOTH, ["fedavg"], rounds=2, metrics_evry=3)


def test_nothing_runs_if_one_method_cannot() -> None:
    told: list[str] = []
    methods: dict[str, Any] = {
        "good": "fedavg",
        "bad": lambda step: algorithms.fedpd(eta=step, oracle=oracles.gd(0.1, 2), p="auto"),
    }
    with pytest.raises(FedpdError, match=r"bad: algorithm = .*needs all agents"):
        compare(SMOOTH, methods, rounds=2, cohort=2, progress=lambda what, done, total: told.append(what))
    assert not told
