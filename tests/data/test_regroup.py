"""Taking, merging and splitting agents; histograms and summaries."""

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import Federated, describe, from_arrays, label_histogram, merge, paper_groups, pool, split, take


def numbered(sizes: list[int], test: list[int] | None = None) -> Federated:
    """Agents a, b, ... of which every sample is a number of its own; labels 0, 1, 2, 0, ..."""
    numbers = iter(range(10_000))

    def samples(size: int) -> dict[str, np.ndarray]:
        return {
            "x": np.array([[next(numbers)] for _ in range(size)], np.int32).reshape(-1, 1),
            "y": np.arange(size) % 3,
        }

    names = "abcdefghijkl"
    train = {name: samples(size) for name, size in zip(names, sizes, strict=False)}
    return from_arrays(train, {name: samples(size) for name, size in zip(names, test or [], strict=False)})


def test_take_by_place_name_and_mask() -> None:
    data = numbered([3, 1, 0, 2], [0, 1, 4, 0])
    assert take(data, [3, 0]).names == take(data, ["d", "a"]).names == ("d", "a")
    trained = take(data, data.sizes > 0)
    assert trained.names == ("a", "b", "d")
    assert trained.classes.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(trained.train[2]["x"], data.train[3]["x"])


@pytest.mark.parametrize(
    ("agents", "sentence"),
    [
        ([4], "agent = 4: must be a position from 0 to 3"),
        (["z"], "agent = 'z': there is no such agent in arrays"),
        ([0, "a"], "agent = 'a': is named twice"),
        ([], "no agent of arrays is chosen"),
        (np.array([True]), r"shape of the mask = \(1,\): must be \(4,\)"),
    ],
)
def test_take_refuses_what_is_not_there(agents: list[int | str], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        take(numbered([1, 1, 1, 1]), agents)


def test_merge_joins_samples_and_names() -> None:
    data = numbered([2, 3, 1], [1, 0, 2])
    merged = merge(data, [("a", "c"), (1,)])
    assert merged.names == ("a+c", "b")
    assert merged.train[0]["x"][:, 0].tolist() == [0, 1, 5]
    assert merged.sizes.tolist() == [3, 3]
    assert merged.test_sizes.tolist() == [3, 0]
    assert data.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([(0, 1)], "agent = 'c': is in no group"),
        ([(0, 1), (1, 2)], "agent = 'b': is named twice"),
        ([(0, 1, 2), (0,)], "agent = 'a': is named twice"),
    ],
)
def test_merge_wants_every_agent_once(groups: list[tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        merge(numbered([1, 1, 1]), groups)


def test_merge_refuses_an_empty_group() -> None:
    with pytest.raises(FedpdError, match="must have at least one agent"):
        merge(numbered([1, 1]), [(0, 1), ()])


def test_the_paper_s_groups() -> None:
    groups = paper_groups()
    assert len(groups) == 90
    assert [len(group) for group in groups] == [2] * 10 + [1] * 80
    assert sorted(i for group in groups for i in group) == list(range(100))
    assert paper_groups(3, 3) == [(0,), (1,), (2,)]
    with pytest.raises(FedpdError, match="writers = 7: must be 3 to 6 for 3 agents"):
        paper_groups(7, 3)


def test_split_keeps_single_samples_and_loses_nothing() -> None:
    data = numbered([1, 2, 7, 100])
    parts = split(data, 0.2, seed=3)
    assert parts.sizes.tolist() == [1, 1, 6, 80]
    assert parts.test_sizes.tolist() == [0, 1, 1, 20]
    for before, train, test in zip(data.train, parts.train, parts.test, strict=True):
        assert sorted(pool([train, test])["x"][:, 0]) == before["x"][:, 0].tolist()
        assert (np.diff(train["x"][:, 0]) > 0).all()
    most = split(data, 0.99)
    assert most.sizes.tolist() == [1, 1, 1, 1]


def test_a_split_depends_on_the_seed_and_the_name_only() -> None:
    data = numbered([50, 50])
    alone = split(take(data, ["b"]), 0.5, seed=1).test[0]["x"]
    np.testing.assert_array_equal(split(data, 0.5, seed=1).test[1]["x"], alone)
    assert not np.array_equal(split(data, 0.5, seed=2).test[1]["x"], alone)


def test_split_refuses_shares_and_data_with_a_test() -> None:
    for share, rule in ((0, "positive"), (-0.1, "positive"), (1, "below 1"), (2, "below 1")):
        with pytest.raises(FedpdError, match=f"share = {share}: must be {rule}.*Give the share for tests"):
            split(numbered([4]), share)
    with pytest.raises(FedpdError, match="has 1 test samples already"):
        split(numbered([4], [1]), 0.5)


def test_histograms_count_the_classes_of_each_agent() -> None:
    data = numbered([4, 0, 1], [0, 2, 0])
    assert label_histogram(data).tolist() == [[2, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert label_histogram(data, "test").tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    signs = from_arrays({"a": {"x": np.zeros((3, 1)), "y": [1, -1, 1]}})
    assert label_histogram(signs).tolist() == [[1, 2]]


def test_the_summary_is_of_the_agents_that_train() -> None:
    summary = describe(numbered([60, 0, 1], [0, 2, 0]))
    assert (summary.agents, summary.trained, summary.tested) == (3, 2, 1)
    assert (summary.samples, summary.train, summary.test) == (63, 61, 2)
    assert summary.sizes == (1, 30.5, 60)
    assert summary.labels == (1, 2, 3)
    assert (summary.classes, summary.missing) == (3, 0)
    assert (summary.shape, summary.dtype) == ((1,), "int32")
    everyone = np.array([21, 20, 20]) / 61
    apart = [np.abs(np.full(3, 1 / 3) - everyone).sum() / 2, np.abs(np.array([1, 0, 0]) - everyone).sum() / 2]
    assert summary.skew == pytest.approx(np.mean(apart))


def test_a_summary_without_anyone_to_train() -> None:
    summary = describe(from_arrays({}, {"a": {"x": np.zeros((2, 1)), "y": [0, 1]}}))
    assert summary.sizes == (0, 0, 0)
    assert summary.skew == 0
