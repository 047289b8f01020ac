"""A problem: the problem of some of its agents, and its repr."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedpd import FedpdError, data, problems
from fedpd.core import UNKNOWN, Problem
from fedpd.theory import objective


@pytest.fixture(scope="module")
def tested() -> Problem:
    """Four agents with 1 to 4 training samples and 3 to 0 test samples."""
    rng = np.random.default_rng(0)

    def samples(size: int) -> dict[str, np.ndarray]:
        return {"x": rng.normal(size=(size, 2)), "y": rng.integers(0, 3, size)}

    train = {f"agent {i}": samples(i + 1) for i in range(4)}
    test = {f"agent {i}": samples(3 - i) for i in range(3)}
    federated = data.from_arrays(train, test, classes=3)
    return problems.classification(lambda model, x: x @ model, federated, np.zeros((2, 3)), check=False)


def test_some_agents_bring_their_samples_and_their_tests(tested: Problem) -> None:
    part = tested.subset([2, 0])
    assert part.agents == 2
    assert part.sizes.tolist() == [3, 1]
    assert part.scale.tolist() == tested.scale[[2, 0]].tolist()
    jax.tree.map(lambda some, whole: np.testing.assert_array_equal(some, whole[[2, 0]]), part.data, tested.data)
    assert part.evaluation is not None
    assert tested.evaluation is not None
    assert part.evaluation.sizes.tolist() == [1, 3]
    assert part.evaluation.correct is tested.evaluation.correct
    jax.tree.map(
        lambda some, whole: np.testing.assert_array_equal(some, whole[[2, 0]]),
        part.evaluation.data,
        tested.evaluation.data,
    )
    assert part.name == tested.name


def test_the_mean_over_parts_is_the_whole(tested: Problem) -> None:
    model = np.ones((2, 3)) * [1, 2, 3]
    parts = [objective(tested.subset([i]), model) for i in range(4)]
    assert np.mean(parts) == pytest.approx(objective(tested, model))


def test_what_is_known_is_known_of_all_agents_only() -> None:
    problem = problems.random_quadratic(4, 3)
    assert problem.answer.smoothness is not None
    assert problem.subset(np.array([3, 1, 0, 2])).answer is problem.answer
    assert problem.subset([0, 1, 2]).answer is UNKNOWN
    assert problem.subset([0, 1, 2, 2]).answer is UNKNOWN


@pytest.mark.parametrize("agents", [[], [4], [-1], [0.5], [[0, 1]], [True, False, True, False]])
def test_agents_that_there_are_not(agents: list[object]) -> None:
    with pytest.raises(FedpdError, match=r"agents = .*must be a list of numbers from 0 to 3\. Give e\.g\. \[0, 1\]"):
        problems.random_quadratic(4, 3).subset(agents)  # type: ignore[arg-type]


def test_a_problem_prints_a_few_lines(tested: Problem) -> None:
    assert repr(tested).splitlines() == [
        "Problem 'arrays'",
        "  agents      4",
        "  samples     10, 1 to 4 per agent; 6 test samples",
        "  parameters  6, float64",
        "  known       nothing",
    ]
    shown = repr(replace(problems.random_quadratic(4, 3), name="mine"))
    assert shown.startswith("Problem 'mine'\n  agents      4\n  samples     4, 1 per agent\n  parameters  3, float64\n")
    assert shown.splitlines()[-1].startswith("  known       a minimiser, smoothness L = 1, heterogeneity delta = ")
    assert len(repr(problems.random_quadratic(5000, 20))) < 300


@pytest.mark.parametrize("sizes", [pytest.param((10, 10, 10), marks=pytest.mark.slow), (1, 7, 30)])
def test_a_share_of_each_agents_samples_is_held_out(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows = {f"agent {i}": {"x": rng.normal(size=(n, 2)), "y": rng.integers(0, 3, n)} for i, n in enumerate(sizes)}
    found = data.from_arrays(rows, classes=3)
    problem = problems.classification(lambda model, x: x @ model, found, np.zeros((2, 3)), check=False)
    rest, held = problem.hold_out(0.3, seed=4)
    number = [min(round(0.3 * n), n - 1) for n in sizes]
    assert rest.sizes.tolist() == [n - m for n, m in zip(sizes, number, strict=True)]
    assert held.sizes.tolist() == [m for m in number if m]
    model, with_some = rng.normal(size=(2, 3)), [i for i, m in enumerate(number) if m]
    for i in range(len(sizes)):  # the two parts together are the agent's samples
        parts = [(rest, i)] + ([(held, with_some.index(i))] if i in with_some else [])
        total = sum(part.sizes[j] * objective(part.subset([j]), model) for part, j in parts)
        assert total == pytest.approx(sizes[i] * objective(problem.subset([i]), model), rel=1e-12)
    again, other = problem.hold_out(0.3, seed=4)[1], problem.hold_out(0.3, seed=5)[1]
    assert again.data_hash == held.data_hash != other.data_hash


@pytest.mark.parametrize(("share", "words"), [(0.0, "must be positive"), (1.0, "must be below 1"), (0.01, "no sample")])
def test_a_share_that_holds_nothing_out_is_refused(tested: Problem, share: float, words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        tested.hold_out(share)
