"""Data by agent from arrays: what is kept, what is refused and how."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, problems
from fedpd.data import Federated, from_arrays


def agent(n: int, dtype: Any = np.float32, label: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 3), dtype), "y": np.full(n, label)}


def test_agents_in_train_in_test_or_in_both() -> None:
    data = from_arrays({"a": agent(2), "b": agent(120, label=2)}, {"b": agent(1), "c": agent(4)}, name="small")
    assert data.names == ("a", "b", "c")
    assert data.agents == 3
    assert data.sizes.tolist() == [2, 120, 0]
    assert data.test_sizes.tolist() == [0, 1, 4]
    assert data.samples == 127
    assert data.shape == (3,)
    assert data.train[2]["x"].shape == data.test[0]["x"].shape == (0, 3)
    assert data.classes.tolist() == [0, 1, 2]
    assert data.label_names is None


def test_train_is_the_data_of_a_problem() -> None:
    data = from_arrays({"a": agent(2), "b": agent(120)})
    problem = problems.from_losses(lambda w, b: jnp.square(b["x"] @ w - b["y"]), data.train, np.zeros(3, np.float32))
    assert problem.sizes.tolist() == [2, 120]
    assert not problem.double


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        (np.uint8, np.uint8),
        (bool, np.uint8),
        (np.int64, np.int32),
        (np.uint16, np.int32),
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
    ],
)
def test_features_stay_as_stored(stored: Any, kept: Any) -> None:
    data = from_arrays({"a": agent(2, stored)})
    assert data.train[0]["x"].dtype == data.test[0]["x"].dtype == kept
    assert data.train[0]["y"].dtype == data.classes.dtype == np.int32


def test_all_agents_have_one_dtype() -> None:
    data = from_arrays({"a": agent(2, np.uint8), "b": agent(2, np.float32)}, {"a": agent(1, np.int64)})
    assert {samples["x"].dtype for samples in (*data.train, *data.test)} == {np.dtype(np.float32)}


def test_a_dtype_that_is_asked_for() -> None:
    assert from_arrays({"a": agent(2, np.uint8)}, dtype=np.float64).train[0]["x"].dtype == np.float64
    wide = {"a": {"x": np.array([[0.0], [300.0]]), "y": [0, 1]}}
    with pytest.raises(FedpdError, match=r"agent 'a': range of x = \(0.0, 300.0\): do not fit into uint8\. Give dtype"):
        from_arrays(wide, dtype=np.uint8)
    for wrong in ("complex64", "U3", "float31"):
        with pytest.raises(FedpdError, match=f"dtype = '{wrong}': must be of integers or floating-point numbers"):
            from_arrays(wide, dtype=wrong)
    with pytest.raises(FedpdError, match="do not fit into int32"):
        from_arrays({"a": {"x": [2**40], "y": [0]}})


def test_labels_keep_their_values() -> None:
    signs = from_arrays({"a": {"x": np.zeros((2, 1)), "y": [[1], [-1]]}})
    assert signs.train[0]["y"].tolist() == [1, -1]
    assert signs.classes.tolist() == [-1, 1]
    whole = from_arrays({"a": {"x": np.zeros((2, 1)), "y": [0.0, 3.0]}}, classes=5)
    assert whole.train[0]["y"].tolist() == [0, 3]
    assert whole.classes.tolist() == [0, 1, 2, 3, 4]


def test_text_labels_become_their_places() -> None:
    train = {"a": {"x": np.zeros((2, 1)), "y": ["dog", "cat"]}, "b": {"x": np.zeros((1, 1)), "y": ["dog"]}}
    data = from_arrays(train, {"a": {"x": np.zeros((1, 1)), "y": np.array(["ant"], object)}})
    assert data.label_names == ("ant", "cat", "dog")
    assert [samples["y"].tolist() for samples in data.train] == [[2, 1], [2]]
    assert data.classes.tolist() == [0, 1, 2]
    assert from_arrays(train, label_names=["dog", "cat"]).train[0]["y"].tolist() == [0, 1]


def test_names_of_classes_that_do_not_occur() -> None:
    data = from_arrays({"a": agent(2, label=1)}, label_names="abcd")
    assert data.label_names == ("a", "b", "c", "d")
    assert data.classes.tolist() == [0, 1, 2, 3]


def load(x: Any, y: Any, **options: Any) -> Federated:
    return from_arrays({"fine": agent(2), "odd": {"x": x, "y": y}}, **options)


ROWS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (ROWS, [0], r"shape of x = \(2, 3\): must have a row for each of the 1 labels\. Pair"),
        (np.ones((2, 4)), [0, 0], r"shape of a sample = \(4,\): must be \(3,\), as for agent 'fine'\. Bring"),
        ([[1.0], [1.0, 2.0]], [0, 0], r"must be an array of numbers, in rows of equal length\. Bring"),
        (np.full((2, 3), np.nan), [0, 0], r"sample 0 holds NaN or infinity in x\. Clean"),
        (ROWS, [0.5, 1], r"label of sample 0 = 0.5: must be a whole number"),
        (ROWS, [np.nan, 1], r"label of sample 0 = nan: must be a whole number"),
        (ROWS, np.zeros((2, 2)), r"shape of y = \(2, 2\): must be \(n,\)"),
        (ROWS, [None, 1], r"type of y = 'object': must be whole numbers or texts"),
        (ROWS, ["a", "b"], r"agent 'fine': its labels are not texts, but those of other agents are"),
        ([["a"], ["b"]], [0, 0], "must be an array of real numbers, not of text"),
        (np.ones((0, 3)), [], r"there are no training or test samples\. Leave the agent out"),
    ],
)
def test_bad_arrays_are_refused_by_the_agent_s_name(x: Any, y: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence) as caught:
        load(x, y)
    assert "agent 'odd'" in str(caught.value) or "agent 'fine'" in str(caught.value)


def test_labels_outside_of_the_classes_are_refused() -> None:
    with pytest.raises(FedpdError, match=r"agent 'odd': label of sample 1 = 62: must be one of the 62 classes 0..61"):
        load(ROWS, [0, 62], classes=62)
    with pytest.raises(FedpdError, match=r"label of sample 0 = 0: must be one of the 2 classes -1..1"):
        from_arrays({"odd": {"x": ROWS, "y": [0, 1]}}, classes=[-1, 1])
    with pytest.raises(FedpdError, match="label = 'b': must be one of label_names"):
        from_arrays({"odd": {"x": ROWS, "y": ["a", "b"]}}, label_names=["a"])
    with pytest.raises(FedpdError, match="largest label = 2000000: must be below"):
        load(ROWS, [0, 2_000_000])


def test_what_is_asked_for_is_checked() -> None:
    with pytest.raises(FedpdError, match="holds no agents"):
        from_arrays({})
    with pytest.raises(FedpdError, match="data = 'list': must map each agent to its samples"):
        from_arrays([ROWS, ROWS])  # type: ignore[arg-type]
    with pytest.raises(FedpdError, match="agent = '1': is the name of several agents"):
        from_arrays({1: agent(1), "1": agent(1)})
    with pytest.raises(FedpdError, match="must hold x and y"):
        from_arrays({"a": {"x": ROWS}})
    with pytest.raises(FedpdError, match="classes = 0: must be an integer of at least 1"):
        load(ROWS, [0, 0], classes=0)
    with pytest.raises(FedpdError, match=r"classes = \[1, 1\]: must be labels, each once"):
        load(ROWS, [0, 0], classes=[1, 1])
    with pytest.raises(FedpdError, match=r"label_names = .*must be 3, one for each class"):
        load(ROWS, [0, 2], label_names=["a", "b"])
    with pytest.raises(FedpdError, match=r"label_names = .*must differ"):
        from_arrays({"a": {"x": ROWS, "y": ["a", "b"]}}, label_names=["a", "a"])


def test_it_prints_as_a_few_lines() -> None:
    """Not as its arrays: 500 agents once took 3 million characters."""
    rng = np.random.default_rng(0)
    parts = [{i: {"x": rng.random((n, 28, 28), np.float32), "y": np.arange(n) % 3} for i in range(500)} for n in (6, 2)]
    data = from_arrays(*parts, name="digits", label_names="abc")
    assert repr(data) == str(data)
    assert repr(data).splitlines() == [
        "Federated 'digits'",
        "  agents   500",
        "  samples  3000 train (6 per agent), 1000 test (2 per agent)",
        "  features (28, 28) float32",
        "  classes  3",
    ]


def test_agents_of_different_sizes_print_the_range() -> None:
    data = from_arrays({i: {"x": np.zeros((i + 1, 2)), "y": np.zeros(i + 1, int)} for i in range(3)})
    assert repr(data).splitlines()[2] == "  samples  6 train (1 to 3 per agent), no test"
