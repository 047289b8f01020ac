"""The benchmark on networks: targets, scores, validation samples, and an interrupted command."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.core import Method, Problem, Tree
from fedpd.problems.networks import MLP
from fedpd.suite import networks_runner
from fedpd.suite.networks import NormalisedCNN, Task, digits
from fedpd.suite.networks_methods import FEDPD_N, METHODS, settings
from fedpd.suite.networks_runner import (
    COSTS,
    Cell,
    Curves,
    best_of,
    curves_of,
    run_networks,
    score,
)
from fedpd.suite.networks_watch import HELD_OUT, curves, split


def _synthetic(seed: int, _: Path) -> Problem:
    """Return two classes, divided by a line, at six agents of unequal sizes; the last one is too small to hold out."""
    rng = np.random.default_rng(seed)

    def samples(number: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(number, 3)).astype(np.float32)
        return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(int)}

    train = {str(i): samples(number) for i, number in enumerate((14, 20, 20, 20, 20, 2))}
    tests = {str(i): samples(10) for i in range(6)}
    return problems.network(MLP(2, hidden=()), data.from_arrays(train, tests), check=False)


TASKS = {
    "some": Task("two classes", partial(_synthetic, 0), 3, 2, 4, 8),
    "all": Task("two classes", partial(_synthetic, 1), None, 2, 4, 8),
}


def _curves(accuracy: list[float], communications: list[int]) -> Curves:
    zero = np.zeros(len(accuracy))
    costs = {"communications": np.array(communications), "samples": zero, "bytes": zero, "seconds": zero}
    return Curves("fedavg", np.array(accuracy), costs, np.array([accuracy[-1]]))


def test_the_score_is_the_sum_of_logarithms() -> None:
    one = _curves([0.0, 0.5, 0.8, 0.8, 0.8], [0, 5, 10, 15, 20])
    assert one.spent("communications", 0.7) == 5
    assert score(one, [0.7, 0.8, 0.9], missed=40) == pytest.approx(np.log(5) + np.log(10) + np.log(40))


def test_a_setting_that_diverged_is_not_the_best_because_it_sent_little() -> None:
    slow, diverged = _curves([0.1, 0.5, 0.6, 0.7], [0, 10, 20, 30]), _curves([0.1, 0.0, 0.0, 0.0], [0, 1, 1, 1])
    assert best_of([diverged, slow], [0.9]) == 1
    assert best_of([diverged, slow], [0.6, 0.9]) == 1


def test_the_least_score_is_chosen_and_without_targets_the_best_final_accuracy() -> None:
    curves = [0.1, 0.8, 0.8, 0.8, 0.8], [0.1, 0.1, 0.8, 0.8, 0.9]
    quick, good = (_curves(curve, [0, 5, 10, 15, 20]) for curve in curves)
    assert best_of([good, quick], [0.7]) == 1
    assert best_of([quick, good], []) == 1


def test_the_curve_is_the_mean_of_the_seeds_and_seconds_are_those_of_the_fastest() -> None:
    first = Cell("p", "FedAvg", "s", 2, "final", [1], [0.0, 0.4], [0.0, 0.8], [0, 1], [0, 8], [0, 4], [0.0, 9.0])
    cells = [first, first._replace(seed=3, newest=[0.0, 0.6], seconds=[0.0, 1.0])]
    found = curves_of(cells, False)
    assert found.accuracy.tolist() == [0.0, 0.5]
    assert found.finals == pytest.approx([0.2, 0.3])  # of the two rows that there are
    assert curves_of(cells, True).accuracy.tolist() == [0.0, 0.8]
    assert found.costs["seconds"].tolist() == [0.0, 1.0]


@pytest.mark.slow
def test_one_run_has_the_accuracies_and_costs_of_a_usual_run_with_and_without_the_mean() -> None:
    task = TASKS["some"]
    divided = split(task.make(Path()))
    method = settings("FedAvg", task, 6, 8)[-1]  # its step is the largest
    found = curves(task, method, 3, divided.train, divided.test)
    rest, _ = task.make(Path()).hold_out(HELD_OUT)
    for name, average in (("newest", False), ("mean", True)):
        usual = simulate(method, rest, rounds=8, seed=3, cohort=3, average=average, progress=False).history
        assert found[name] == pytest.approx(usual["test_accuracy"].tolist())
        assert found["samples"] == usual["samples"].tolist()
        assert found["bytes"] == (usual["bytes_up"] + usual["bytes_down"]).tolist()
    assert found["newest"] != found["mean"]


def test_validation_samples_are_no_training_samples() -> None:
    problem = TASKS["some"].make(Path())
    divided = split(problem)
    assert divided.train.sizes.tolist() == [12, 17, 17, 17, 17, 2]
    assert len(divided.validation["y"]) == 14
    assert len(divided.test["y"]) == 60
    everything, _ = problem.rows_of(np.arange(6))
    trained, _ = divided.train.rows_of(np.arange(6))
    both = np.concatenate([trained["x"], divided.validation["x"]])
    assert np.sort(both[:, 0]).tolist() == np.sort(everything["x"][:, 0]).tolist()


@pytest.mark.slow
def test_a_run_that_diverges_has_no_accuracy() -> None:
    task = TASKS["some"]
    divided = split(task.make(Path()))
    wild = algorithms.fedavg(oracle=oracles.sgd(step=1e38, iterations=2, batch=4))
    found = curves(task, wild, 0, divided.train, divided.test)
    assert len(found["newest"]) == len(found["samples"]) == task.rounds + 1
    assert set(found["newest"][1:]) == {0.0}
    assert found["mean"][-1] == 0


@pytest.mark.slow
def test_batch_statistics_are_the_mean_of_the_agents_own() -> None:
    network = Task("digits", partial(digits, NormalisedCNN(10), 3, 40, 0.5), None, 2, 10, 2)
    divided = split(network.make(Path()))
    (method,) = settings("FedAvg", network, 3, 0)
    found = curves(network, method, 0, divided.train, divided.test)
    judge = divided.train.judge
    assert judge is not None
    problem = replace(divided.train, evaluation=None, judge=judge._replace(hold=lambda rows: rows))
    usual = simulate(method, problem, rounds=2, test=divided.test, progress=False).history
    assert found["newest"] == pytest.approx(usual["central_accuracy"].tolist(), abs=1e-6)


def made_up(task: Task, method: Method, seed: int, problem: Problem, rows: Tree) -> dict[str, Any]:
    """Return curves that stand for a run, which would take seconds to compile."""
    number = np.arange(task.rounds + 1)
    newest, mean = (1 - 1 / (2 + number * (1 + more) + seed + len(method.description) % 7) for more in (0, 1))
    costs = {name: (scale * number).tolist() for name, scale in zip(COSTS, (1, 24, 100, 0.1), strict=True)}
    return {"newest": newest.tolist(), "mean": mean.tolist(), **costs}


@pytest.mark.slow
def test_the_same_command_runs_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks_runner, "curves", made_up)
    file, methods = tmp_path / "cells.jsonl", ["FedAvg", FEDPD_N]
    said: list[tuple[str, int, int]] = []
    once = run_networks(
        file, methods=methods, budgets=[0, 8], seeds=2, tasks=TASKS, progress=lambda *step: said.append(step)
    )
    lines = file.read_text().splitlines()
    assert {one.name for one in once} == {"FedAvg", "FedAvg + mean", FEDPD_N}
    assert len(once) == 2 * 2 * 3
    done = [step[1] for step in said]
    assert done == sorted(done)
    assert done[-1] == said[-1][2] == 2 * (2 * 2 + 2 * (2 * 2 + 2 * 8))
    with monkeypatch.context() as patched:
        patched.setattr(networks_runner, "curves", lambda *_: pytest.fail("it ran again"))
        again = run_networks(file, methods=methods, budgets=[8, 0], seeds=2, tasks=TASKS)
    assert again == once
    assert file.read_text().splitlines() == lines
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:50])  # an interruption within the last line
    run_networks(file, methods=methods, budgets=[0, 8], seeds=2, tasks=TASKS)
    assert [json.loads(line)["setting"] for line in file.read_text().splitlines()[1:]] == [
        json.loads(line)["setting"] for line in lines[1:]
    ]


def test_a_run_is_in_the_file_once_and_a_file_with_other_work_is_refused(tmp_path: Path) -> None:
    file, one = tmp_path / "cells.jsonl", {"all": TASKS["all"]}
    plain, mean = run_networks(file, methods=["FedAvg"], seeds=1, tasks=one)
    assert plain.spent["communications"][0] >= 1
    assert mean.name == "FedAvg + mean"
    assert len(file.read_text().splitlines()) == 2  # the settings, and one run for both
    assert plain.finals[0] > 0.7
    with pytest.raises(FedpdError, match="other rounds or local work"):
        run_networks(file, methods=["FedAvg"], seeds=1, tasks={"all": TASKS["all"]._replace(rounds=9)})


def test_names_that_do_not_exist_and_missing_data_are_refused(tmp_path: Path) -> None:
    for wrong, words in (
        ({"methods": ["FedAdagrad"]}, "'FedAdagrad'"),
        ({"problems": ["mnist"]}, "'mnist'"),
        ({"budgets": [64]}, "budgets = .*64"),
        ({"seeds": 0}, "seeds = 0"),
    ):
        with pytest.raises(FedpdError, match=words):
            run_networks(tmp_path / "cells.jsonl", tasks=TASKS, **wrong)
    with pytest.raises(FedpdError, match="the data of unipen are not here"):
        run_networks(tmp_path / "cells.jsonl", problems=["unipen"])


@pytest.mark.slow
def test_the_smallest_problem_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    found = run_networks(tmp_path / "cells.jsonl", problems=["table"], seeds=2)
    assert {one.method for one in found} == set(METHODS)
    assert all(min(one.finals) > 0.85 for one in found if one.method in ("FedAvg", FEDPD_N))
