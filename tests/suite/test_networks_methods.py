"""The methods of the benchmark on networks: budgets, and equal local work."""

import warnings

import pytest

from fedpd import problems, simulate
from fedpd.cli.arguments import listed
from fedpd.suite.networks import Task
from fedpd.suite.networks_methods import BUDGETS, FEDPD_N, METHODS, RIVALS, STEPS, settings
from tests.suite.test_networks_runner import TASKS


@pytest.mark.parametrize("label", RIVALS)
def test_a_rival_has_as_many_settings_as_its_budget(label: str) -> None:
    task = TASKS["some"]
    tried = {budget: [one.description for one in settings(label, task, 6, budget)] for budget in BUDGETS}
    assert [len(set(tried[budget])) for budget in BUDGETS] == [1, 8, 32]
    assert tried[32][:8] == tried[8]
    assert tried[8][:1] == tried[0]


def test_the_steps_go_from_a_fortieth_to_three_by_factors_of_two() -> None:
    assert sorted(STEPS) == pytest.approx([0.025 * 2**k for k in range(8)])


def test_fedpd_n_has_nothing_to_tune() -> None:
    everyone = Task("", TASKS["all"].make, None, 2, 3, 4)
    assert [one.description for one in settings(FEDPD_N, everyone, 6, 32)] == [
        "fedpd_n(iterations=2, batch=3, cohort=6)"
    ]


@pytest.mark.slow
def test_all_rivals_do_the_same_local_work() -> None:
    task, spent = TASKS["some"], {}
    problem = problems.random_quadratic(agents=6, dimension=3)  # the work does not depend on the problem
    for label in METHODS:
        (method,) = settings(label, task, problem.agents, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no theorem covers these settings
            run = simulate(method, problem, rounds=1, cohort=task.cohort, progress=False)
        spent[label] = int(run.history["samples"][-1])
    work = 3 * task.iterations * task.batch
    assert {spent[label] for label in RIVALS} == {work}
    assert spent[FEDPD_N] == 8 * work  # its trials of eight step sizes count


def test_every_name_can_be_given_in_a_list_of_the_command_line() -> None:
    assert listed([",".join(METHODS)]) == list(METHODS)
