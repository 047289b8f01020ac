"""Records of the theory print in one line, for any number of agents."""

import numpy as np

from fedpd import problems, theory


def test_constants_of_many_agents_print_in_one_line() -> None:
    problem = problems.random_quadratic(500, 2)
    constants = theory.smoothness_constants(problem)
    low, high = constants.per_agent.min(), constants.per_agent.max()
    assert f"per_agent=<(500,) from {low:g} to {high:g}>" in repr(constants)
    for record in (
        constants,
        theory.profile(problem, [problem.start] * 20),
        theory.rates.savings(np.logspace(-3, 3, 50), 1.0, 0.1),
    ):
        assert len(repr(record)) < 400
        assert "\n" not in repr(record)


def test_few_numbers_are_shown() -> None:
    assert "per_agent=array([1., 1.])" in repr(theory.smoothness_constants(problems.opposing_quadratics()))
