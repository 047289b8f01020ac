"""The benchmark on networks: targets, scores, validation samples, and an interrupted command."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.core import Method, Problem
from fedpd.problems.networks import MLP
from fedpd.search.judge import with_validation
from fedpd.suite import networks_runner
from fedpd.suite.networks import Task
from fedpd.suite.networks_methods import FEDPD_N, METHODS, settings
from fedpd.suite.networks_runner import (
    COSTS,
    HELD_OUT,
    RIGHT,
    Cell,
    Outcome,
    best_of,
    outcome_of,
    run_networks,
    score,
)


def _synthetic(seed: int, _: Path | None) -> Problem:
    """Return two classes, divided by a line, at six agents of unequal sizes; the last one is too small to hold out."""
    rng = np.random.default_rng(seed)

    def samples(number: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(number, 3)).astype(np.float32)
        return {"x": x, "y": (x[:, 0] > x[:, 1]).astype(int)}

    train = {str(i): samples(number) for i, number in enumerate((14, 20, 20, 20, 20, 2))}
    tests = {str(i): samples(10) for i in range(6)}
    return problems.network(MLP(2, hidden=()), data.from_arrays(train, tests))


TASKS = {
    "some": Task("two classes", partial(_synthetic, 0), 3, 2, 4, 8),
    "all": Task("two classes", partial(_synthetic, 1), None, 2, 4, 8),
}


def _outcome(accuracy: list[float], communications: list[int]) -> Outcome:
    zero = np.zeros(len(accuracy))
    costs = {"communications": np.array(communications), "samples": zero, "bytes": zero, "seconds": zero}
    return Outcome("p", "FedAvg", False, 8, "fedavg", np.array(accuracy), costs, np.array([accuracy[-1]]))


def test_the_score_is_the_sum_of_logarithms_and_a_missed_target_costs_two_runs() -> None:
    one = _outcome([0.0, 0.5, 0.8, 0.8, 0.8], [0, 5, 10, 15, 20])
    assert one.spent("communications", 0.7) == 5
    assert score(one, [0.7, 0.8, 0.9]) == pytest.approx(np.log(5) + np.log(10) + np.log(40))


def test_the_least_score_is_chosen_and_without_targets_the_best_final_accuracy() -> None:
    curves = [0.1, 0.8, 0.8, 0.8, 0.8], [0.1, 0.1, 0.8, 0.8, 0.9]
    quick, good = (_outcome(curve, [0, 5, 10, 15, 20]) for curve in curves)
    assert best_of([good, quick], [0.7]) == 1
    assert best_of([quick, good], []) == 1


def test_the_curve_is_the_mean_of_the_seeds_and_seconds_are_those_of_the_fastest() -> None:
    first = Cell("p", "FedAvg", False, "s", 2, "final", [1], [0.0, 0.4], [0, 1], [0, 8], [0, 4], [0.0, 9.0])
    found = outcome_of([first, first._replace(seed=3, accuracy=[0.0, 0.6], seconds=[0.0, 1.0])], 8)
    assert found.accuracy.tolist() == [0.0, 0.5]
    assert found.finals == pytest.approx([0.2, 0.3])  # of the two rows that there are
    assert found.costs["seconds"].tolist() == [0.0, 1.0]


def test_the_accuracy_is_that_of_a_usual_run_also_without_samples_of_some_agents() -> None:
    task = TASKS["some"]
    tuning = with_validation(task.make(None), HELD_OUT, 0)
    method = settings("FedAvg", task, 6, 8)[-1]  # its step is the largest
    usual = simulate(method, tuning, rounds=4, progress=False).history["test_accuracy"]
    own = simulate(method, tuning, rounds=4, progress=False, record=[RIGHT]).history["right"]
    assert own.tolist() == usual.tolist()
    assert len(set(own.tolist())) > 1


def test_a_run_that_diverges_has_no_accuracy() -> None:
    task = TASKS["some"]
    wild = algorithms.fedavg(oracle=oracles.sgd(step=1e38, iterations=2, batch=4))
    found = networks_runner._measured(task, wild, False, 0, task.make(None))
    assert len(found["accuracy"]) == len(found["samples"]) == task.rounds + 1
    assert set(found["accuracy"][1:]) == {0.0}


def made_up(task: Task, method: Method, mean: bool, seed: int, problem: Problem) -> dict[str, Any]:
    """Return curves that stand for a run, which would take seconds to compile."""
    rows = np.arange(task.rounds + 1)
    accuracy = 1 - 1 / (2 + rows * (1 + mean) + seed + len(method.description) % 7)
    costs = {name: (scale * rows).tolist() for name, scale in zip(COSTS, (1, 24, 100, 0.1), strict=True)}
    return {"accuracy": accuracy.tolist(), **costs}


def test_the_same_command_runs_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks_runner, "_measured", made_up)
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
        patched.setattr(networks_runner, "_measured", lambda *_: pytest.fail("it ran again"))
        again = run_networks(file, methods=methods, budgets=[8, 0], seeds=2, tasks=TASKS)
    assert [one.finals.tolist() for one in again] == [one.finals.tolist() for one in once]
    assert file.read_text().splitlines() == lines
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:50])  # an interruption within the last line
    run_networks(file, methods=methods, budgets=[0, 8], seeds=2, tasks=TASKS)
    assert [json.loads(line)["setting"] for line in file.read_text().splitlines()[1:]] == [
        json.loads(line)["setting"] for line in lines[1:]
    ]


def test_a_chosen_setting_runs_on_all_samples_and_a_file_with_other_work_is_refused(tmp_path: Path) -> None:
    file, one = tmp_path / "cells.jsonl", {"all": TASKS["all"]}
    plain, mean = run_networks(file, methods=["FedAvg"], seeds=1, tasks=one)
    assert plain.costs["samples"][-1] == mean.costs["samples"][-1] == 8 * 6 * 2 * 4
    assert plain.finals[0] > 0.7
    with pytest.raises(FedpdError, match="other rounds or local work"):
        run_networks(file, methods=["FedAvg"], seeds=1, tasks={"all": TASKS["all"]._replace(rounds=9)})


def test_names_that_do_not_exist_and_missing_data_are_refused(tmp_path: Path) -> None:
    for wrong in ({"methods": ["FedAdagrad"]}, {"problems": ["mnist"]}, {"budgets": [64]}, {"seeds": 0}):
        with pytest.raises(FedpdError):
            run_networks(tmp_path / "cells.jsonl", tasks=TASKS, **wrong)
    with pytest.raises(FedpdError, match="the data of unipen are not here"):
        run_networks(tmp_path / "cells.jsonl", problems=["unipen"])


@pytest.mark.slow
def test_the_smallest_problem_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    found = run_networks(tmp_path / "cells.jsonl", problems=["table"], seeds=2)
    assert {one.method for one in found} == set(METHODS)
    assert all(one.finals.min() > 0.85 for one in found if one.method in ("FedAvg", FEDPD_N))
