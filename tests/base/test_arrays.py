"""The gate for arrays: which arrays it accepts, what they become, and who can change them afterwards."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.base.arrays import as_array, as_labels, check_finite, is_immutable, owned, seal

PLAIN = np.array([[1.0, -2.0], [0.5, 4.0]])


class Tensor:
    """A tensor that NumPy refuses to read before it is detached, as those of PyTorch do."""

    dtype = "torch.float64"

    def __init__(self, array: np.ndarray, attached: bool = True) -> None:
        self.array, self.attached = array, attached

    def detach(self) -> "Tensor":
        return Tensor(self.array, attached=False)

    def cpu(self) -> "Tensor":
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self.attached:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self.array


@pytest.mark.parametrize(
    "value",
    [
        PLAIN,
        PLAIN.tolist(),
        tuple(map(tuple, PLAIN.tolist())),
        PLAIN.astype(">f8"),
        PLAIN.astype(np.longdouble),
        PLAIN.astype(np.float32),
        PLAIN.astype(np.float16),
        PLAIN.astype(ml_dtypes.bfloat16),
        jnp.asarray(PLAIN, jnp.bfloat16),
        np.asfortranarray(PLAIN),
        PLAIN[::-1][::-1],
        np.ma.masked_array(PLAIN, np.zeros_like(PLAIN, bool)),
        [np.ma.masked_array(row, [False, False]) for row in PLAIN],
        PLAIN.view(np.matrix),
        Tensor(PLAIN),
        [Tensor(row) for row in PLAIN],
    ],
    ids=lambda value: type(value).__name__,
)
def test_equal_numbers_become_equal_plain_arrays(value: Any) -> None:
    found = as_array(value, "x")
    assert type(found) is np.ndarray
    assert found.dtype.name in ("float32", "float64")
    assert found.dtype.isnative
    assert found.tolist() == PLAIN.tolist()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (np.bool_, np.bool_),
        (np.uint8, np.uint8),
        (">i4", np.int32),
        (np.int64, np.int64),
        (ml_dtypes.int4, np.int32),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e5m2, np.float32),
        (np.float32, np.float32),
        (">f8", np.float64),
        (np.longdouble, np.float64),
    ],
)
def test_every_type_of_numbers_becomes_one_that_fedpd_computes_with(given: Any, taken: Any) -> None:
    assert as_array(np.array([0, 1]).astype(given), "x").dtype == taken


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.ma.masked_array([1.0, 2.0], [True, False]), "must not be masked: fedpd has no missing values. Fill or"),
        ([np.ma.masked_array([1.0, 2.0], [True, False])], "must not be masked"),
        ([1.0, np.ma.masked], "must not be masked"),
        ([[1], [1, 2]], "must be an array of numbers, in rows of equal length. Give numbers."),
        (np.array([1j]), "x must be an array of real numbers, not of complex128. Give numbers."),
        (np.array([1, None], object), "not of object"),
        (np.array(["1"]), "not of text"),
        (np.array([b"1"]), r"not of text"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"not of datetime64\[D\]"),
        (np.zeros(2, [("a", float)]), r"not of \[\('a', '<f8'\)\]"),
        (np.zeros(2, "V4"), r"not of \|V4"),
        ({"a": 1}, "not of dict"),
        (None, "not of NoneType"),
        ("1", "not of str"),
    ],
)
def test_what_is_no_array_of_real_numbers_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        as_array(value, "x", "Give numbers")


def test_labels_may_be_texts_or_objects_but_not_dates() -> None:
    assert as_labels(["a", "b"], "y").tolist() == ["a", "b"]
    assert as_labels([1.0, None], "y").tolist() == [1.0, None]
    assert as_labels(np.ones(2, np.float16), "y").dtype == np.float32
    with pytest.raises(
        FedpdError, match=r"y must be an array of real numbers, not of datetime64\[D\]\. Give one label"
    ):
        as_labels(np.array(["2020-01-01"], "datetime64[D]"), "y")
    with pytest.raises(FedpdError, match=r"y must not be masked: .*\. Fill or drop masked entries"):
        as_labels(np.ma.masked_array(["a", "b"], [True, False]), "y")


def test_owned_memory_cannot_be_changed_by_anybody_else() -> None:
    given = np.ones(3)
    for kept in (owned(given), owned(as_array(given[:2], "x")), owned(as_array(given[None].view(np.matrix), "x"))):
        assert not np.shares_memory(kept, given)
        assert not kept.flags.writeable
    readonly = given[:]
    readonly.flags.writeable = False
    assert not np.shares_memory(owned(readonly), given)  # `given` could still be changed


def test_immutable_memory_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    sealed, of_jax, of_bytes = seal(np.ones(3)), np.asarray(jnp.ones(3)), np.frombuffer(bytes(8))
    for immutable in (mapped, sealed, sealed[1:], of_jax, of_bytes, as_array([1.0, 2.0], "x")):
        assert is_immutable(immutable)
        assert owned(immutable) is immutable
    for mutable in (np.load(tmp_path / "x.npy", mmap_mode="c"), np.frombuffer(bytearray(8))):
        assert not np.shares_memory(owned(mutable), mutable)
    view = np.frombuffer(memoryview(bytearray(8)).toreadonly())
    assert not view.flags.writeable
    assert not np.shares_memory(owned(view), view)


def test_arrays_of_arrow_are_immutable_and_those_of_pandas_and_pytorch_are_copied() -> None:
    arrow, pandas, torch = map(pytest.importorskip, ("pyarrow", "pandas", "torch"))
    assert is_immutable(arrow.array([1.0, 2.0]).to_numpy())
    tensor = torch.ones(2, requires_grad=True)
    table = pandas.DataFrame({"a": [1.0, 2.0], "b": [1.0, 3.0]})
    kept = owned(as_array(tensor, "x")), owned(as_array(table["a"], "x")), owned(as_array(table, "x"))
    with torch.no_grad():
        tensor *= 3
    table.loc[:, "a"] *= 3
    assert [array.tolist() for array in kept] == [[1.0, 1.0], [1.0, 2.0], [[1.0, 1.0], [2.0, 3.0]]]
    assert as_array(torch.ones(2, dtype=torch.bfloat16), "x").dtype == np.float32


def test_numbers_that_are_not_finite_are_named_with_their_place() -> None:
    assert check_finite(PLAIN, "x") is PLAIN
    with pytest.raises(FedpdError, match=r"x\[1, 0\] = nan: must be finite"):
        check_finite(np.array([[0.0, 1.0], [np.nan, 1.0]]), "x")


def test_time_differences_are_no_numbers() -> None:
    with pytest.raises(FedpdError, match=r"not of timedelta64\[ns\]"):
        as_array(np.array([1, 2]).astype("m8[D]").astype("m8[ns]"), "x")
