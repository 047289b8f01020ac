"""Federated data of many agents: ragged or lazy samples, checked without one Python object per agent."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, refuse
from fedpd.data.federated import Federated, as_dtype, checked_dtype, common_dtype, whole_numbers
from fedpd.data.labels import Classes, encode, encode_targets
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged, check_finite


def from_rows(
    train: Ragged | Lazy,
    test: Ragged | Lazy | None = None,
    *,
    names: Sequence[str] | np.ndarray | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str = "rows",
) -> Federated:
    """Return federated data from samples that `ragged` or `lazy` describe.

    `label_names` and `dtype` are as for `from_arrays`.

    Args:
        train: Rows {"x": (M, ...), "y": (M,)}, or a loader of them. Agents may have no training samples.
        test: Test samples of the same agents; None: there are none.
        names: N different names of the agents; None: "0", "1", and so on.
        classes: K for the labels 0..K-1, or the labels; None: as `fedpd.data.labels` says; False: the labels are
            numbers to predict (`fedpd.data.labels`). Lazy data need it, because their labels are not in memory.
        name: The name of the data in tables and figures.

    Raises:
        FedpdError: If an agent has no samples, samples differ in shape, a number is not finite, or a label is not one
            of the classes.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> from fedpd.data import ragged
        >>> rows = {"x": np.arange(6.0)[:, None], "y": np.array([0, 1, 1, 0, 2, 1])}
        >>> three = data.from_rows(ragged(rows, sizes=[1, 3, 2]))
        >>> three.agents, three.sizes.tolist(), three.classes.tolist()
        (3, [1, 3, 2], [0, 1, 2])
    """
    parts: dict[str, Any] = {"train": train} if test is None else {"train": train, "test": test}
    for part, held in parts.items():
        _check_form(held, part, train, targets=classes is False)
    if test is None:
        parts["test"] = Ragged(train.sample, np.zeros(len(train), np.int32))
    nobody = np.flatnonzero(sum(held.sizes for held in parts.values()) == 0)
    if nobody.size:
        raise FedpdError(f"{name}: agent {nobody[0]} has no training or test samples. Leave the agent out.")
    wanted = _dtypes([held.sample["x"] for held in parts.values()], dtype)
    parts, values, called = _labelled(parts, classes, label_names)
    for held in parts.values():
        if isinstance(held, Ragged):
            check_finite({"x": held.rows["x"]}, held.sizes)  # labels are checked already
    parts = {part: held.map(partial(cast, wanted, f"{part} data")) for part, held in parts.items()}
    return Federated(_names(names, len(train)), parts["train"], parts["test"], values, called, name)


def _check_form(held: Any, part: str, train: Any, *, targets: bool) -> None:
    """Refuse a part that is not ragged or lazy, has other keys than x and y, or other agents."""
    if not isinstance(held, Ragged | Lazy):
        refuse(f"{part} data", type(held).__name__, "must be ragged or lazy", "Give data.ragged(rows, sizes)")
    keys = sorted(held.sample) if isinstance(held.sample, dict) else type(held.sample).__name__
    if keys != ["x", "y"]:
        refuse(f"{part} data", keys, "must hold x and y", 'Give {"x": (M, ...), "y": (M,)}')
    y = held.sample["y"]
    if y.ndim != 1 and not targets:
        remedy = "Give one label each, or classes=False to predict vectors"
        refuse(f"{part} data: shape of y", y.shape, "must be (M,), one label per sample", remedy)
    for x in jax.tree.leaves(held.sample["x"]):
        if x.dtype.kind not in "buif":
            rule = "must be integers or floating-point numbers"
            refuse(f"{part} data: type of x", str(x.dtype), rule, "Replace missing values and texts by numbers first")
    if len(held) != len(train):
        refuse("agents with test samples", len(held), f"must be {len(train)}", "Give size 0 to an agent without any")


def _labelled(parts: dict[str, Any], classes: Classes, label_names: Sequence[str] | None) -> Any:
    """Return the parts with labels as int32, the classes and their names."""

    def place(agent: str, part: str) -> str:
        return f"{part} data of all agents"

    in_memory = {part: held for part, held in parts.items() if isinstance(held, Ragged) and held.sizes.any()}
    if len(in_memory) < sum(bool(held.sizes.any()) for held in parts.values()) and classes is None:
        remedy = "Give the number of classes, or the labels"
        refuse("classes", None, "must be given for lazy data, whose labels are not in memory", remedy)
    labels = {(part, ""): held.rows["y"] for part, held in in_memory.items()}
    if not labels and classes is False:  # all are lazy
        labels = {("train", ""): parts["train"].sample["y"]}
    if not labels:  # all are lazy; the classes then are the given ones
        labels = {("train", ""): as_array([0] if isinstance(classes, int | np.integer) else classes, "classes")}
    found, values, called = encode(labels, place, classes, label_names)
    done = {}
    for part, held in parts.items():
        if part in in_memory:
            done[part] = Ragged(held.rows | {"y": found[part, ""]}, held.sizes)
        else:
            check = partial(_as_targets, part) if classes is False else partial(_check_labels, values, part)
            done[part] = held.map(check)
    return done, values, called


def _check_labels(values: np.ndarray, part: str, rows: Any) -> Any:
    """Return rows with labels as int32; refuse a label that is not one of the classes."""
    y = rows["y"]
    wrong = ~np.isin(y, values)
    if wrong.any():
        rule = f"must be one of the {len(values)} classes {values[0]}..{values[-1]}"
        refuse(f"{part} data: label", y[wrong][0].item(), rule, "Correct the label, or give all classes in classes=")
    return rows | {"y": y.astype(np.int32)}


def _as_targets(part: str, rows: Any) -> Any:
    """Return rows with targets in a type that fedpd keeps."""
    return rows | {"y": encode_targets({(part, ""): rows["y"]}, lambda _, part: f"{part} data")[part, ""]}


def _dtypes(samples: list[Any], dtype: DTypeLike | None) -> Any:
    """Return the dtype of the features, or a dict with that of each entry."""
    names = [sorted(x) if isinstance(x, dict) else None for x in samples]
    if any(found != names[0] for found in names):
        refuse("x of the test data", names[-1], f"must have the entries {names[0]} of the training data", "Give both")
    if names[0] is None:
        return checked_dtype(dtype) or common_dtype(x.dtype for x in samples)
    if dtype is not None:
        refuse("dtype", dtype, "is for features that are one array", "Convert the entries of x before")
    return {name: common_dtype(whole_numbers(x[name]).dtype for x in samples) for name in names[0]}


def cast(dtype: Any, where: str, rows: Any) -> Any:
    """Return rows with features of one dtype; rows that have it are checked where their agents are known."""
    if isinstance(dtype, dict):
        return rows | {"x": {name: as_dtype(whole_numbers(rows["x"][name]), own, where) for name, own in dtype.items()}}
    return rows if rows["x"].dtype == dtype else rows | {"x": as_dtype(rows["x"], dtype, where)}


def _names(names: Sequence[str] | np.ndarray | None, agents: int) -> Any:
    """Return the names of the agents as an array of texts, after checking that they differ."""
    if names is None:
        return np.arange(agents).astype(str)
    given = np.asarray(names, np.str_)
    if given.shape != (agents,):
        refuse("names", given.shape, f"must be {agents} names", "Give one name per agent")
    different, counts = np.unique(given, return_counts=True)
    if len(different) < agents:
        refuse("agent", str(different[counts.argmax()]), "is the name of several agents", "Rename them")
    return given
