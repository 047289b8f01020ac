"""The methods of the benchmark on networks: budgets, and equal local work."""

import numpy as np
import pytest

from fedpd import simulate
from fedpd.core import Problem
from fedpd.suite.networks import Task
from fedpd.suite.networks_methods import BUDGETS, FEDPD_N, METHODS, RIVALS, STEPS, settings
from tests.suite.test_networks_runner import TASKS


@pytest.fixture(scope="module")
def problem() -> Problem:
    return TASKS["some"].make(None)


@pytest.mark.parametrize("label", RIVALS)
def test_a_rival_has_as_many_settings_as_its_budget(label: str, problem: Problem) -> None:
    task = TASKS["some"]
    tried = {budget: [one.description for one in settings(label, task, 6, budget)] for budget in BUDGETS}
    assert [len(set(tried[budget])) for budget in BUDGETS] == [1, 8, 32]
    assert tried[32][:8] == tried[8] and tried[8][:1] == tried[0]


def test_the_steps_go_from_a_fortieth_to_three_by_factors_of_two() -> None:
    assert sorted(STEPS) == pytest.approx([0.025 * 2**k for k in range(8)])


def test_fedpd_n_has_nothing_to_tune() -> None:
    everyone = Task("", TASKS["all"].make, None, 2, 3, 4)
    assert [one.description for one in settings(FEDPD_N, everyone, 6, 32)] == [
        "fedpd_n(iterations=2, batch=3, cohort=6)"
    ]


def test_all_rivals_do_the_same_local_work(problem: Problem) -> None:
    task = TASKS["some"]
    spent = {}
    for label in METHODS:
        (method,) = settings(label, task, problem.agents, 0)
        spent[label] = simulate(method, problem, rounds=2, cohort=task.cohort, progress=False).history["samples"]
    work = np.array([0, 1, 2]) * 3 * task.iterations * task.batch
    for label in RIVALS:
        assert spent[label].tolist() == work.tolist(), label
    assert spent[FEDPD_N][-1] > work[-1]  # its trials count
