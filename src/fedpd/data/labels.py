"""Labels: classes as int32, or numbers to predict.

- Whole numbers keep their values. If none is negative, they are class numbers and the classes are 0..max. Otherwise
  (-1 and +1, for example) the classes are the values that occur. `classes=62` means 0..61, `classes=[-1, 1]` means
  these; any other label is then refused.
- Texts become their positions in `label_names`, or in the sorted list of the texts that occur.
- `classes=False` of every loader says that labels are numbers to predict. Such targets keep their shape, (n,) or
  (n, ...). Integers become int32, float16 becomes float32, other floating-point numbers stay. NaN means that a target
  is missing: null in a table, None in a list. `problems.regression` leaves missing targets out of the loss. Lazy data
  cannot have missing targets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, at_most, count, refuse

Classes = int | bool | Sequence[int] | np.ndarray | None
K = TypeVar("K", bound=tuple[str, str])
Encoded = tuple[dict[K, np.ndarray], np.ndarray, tuple[str, ...] | None]

MOST_CLASSES = 100_000
IGNORED = -100  # what PyTorch's cross entropy does not count
PREDICT = "or give classes=False to predict numbers"
DIGITS_AND_LETTERS = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # FEMNIST's 62 classes, in LEAF's order
)
Label = str | Sequence[str]  # one column, or several that become a vector
REMEDY = "Give numbers, or leave classes=False out if the labels are classes"


def encode(
    labels: Mapping[K, np.ndarray],
    place: Callable[[str, str], str],
    classes: Classes = None,
    names: Sequence[str] | None = None,
) -> Encoded[K]:
    """Return (labels as int32, classes (K,), their names or None); targets and no classes for `classes=False`.

    Args:
        labels: {(part, agent): labels}; none of the arrays is empty.
        classes: K for the labels 0..K-1, or the labels; None: found as the module says; False: there are no classes.
    """
    if classes is False:
        if names is not None:
            refuse("label_names", tuple(names), "needs classes, and classes=False says that there are none", "Drop one")
        return encode_targets(labels, place), np.zeros(0, np.int32), None
    texts = {
        key: y.dtype.kind in "UT" or (y.dtype == object and all(isinstance(one, str) for one in y))
        for key, y in labels.items()
    }
    if any(texts.values()):
        for (part, agent), is_text in texts.items():
            if not is_text:
                rule = "its labels are not texts, but those of other agents are"
                raise FedpdError(f"{place(agent, part)}: {rule}. Give all labels as texts, or all as numbers.")
        if names is not None and len(set(names)) < len(names):
            refuse("label_names", tuple(names), "must differ from each other", "Name each class once")
        names = tuple(sorted({str(t) for y in labels.values() for t in y}) if names is None else names)
        position = {name: number for number, name in enumerate(names)}
        for (part, agent), y in labels.items():
            unknown = [label for label in map(str, y) if label not in position]
            if unknown:
                remedy = "Name this class too, or drop the sample"
                refuse(f"{place(agent, part)}: label", unknown[0], "must be one of label_names", remedy)
        labels = {key: np.array([position[str(label)] for label in y], np.int32) for key, y in labels.items()}
        classes = len(names) if classes is None else classes
    numbers = {key: _whole(y, place(key[1], key[0])) for key, y in labels.items()}
    values = _values(np.unique(np.concatenate([np.unique(y) for y in numbers.values()])), classes, names)
    for (part, agent), y in numbers.items():
        outside = ~np.isin(y, values)
        if outside.any():
            rule = f"must be one of the {len(values)} classes {values[0]}..{values[-1]}"
            remedy = "Correct the label, or give all classes in classes="
            refuse(f"{place(agent, part)}: label of sample {outside.argmax()}", int(y[outside][0]), rule, remedy)
    if names is not None and len(names) != len(values):
        refuse("label_names", tuple(names), f"must be {len(values)}, one for each class", "Give classes= as well")
    return numbers, values, None if names is None else tuple(map(str, names))


def check_not_mixed(given: Any, labels: np.ndarray, where: str) -> None:
    """Refuse a list of texts and numbers, which NumPy would turn into texts."""
    if isinstance(given, list | tuple) and labels.dtype.kind == "U" and labels.ndim == 1:
        other = next((label for label in given if not isinstance(label, str)), None)
        if other is not None:
            refuse(f"{where}: label", other, "stands among texts", "Give all labels as texts, or all as numbers")


def _whole(y: np.ndarray, where: str) -> np.ndarray:
    """Return labels as int32 after checking that they are whole numbers."""
    if y.dtype.kind not in "buif":
        refuse(
            f"{where}: type of y",
            str(y.dtype),
            "must be whole numbers or texts",
            f"Give one label per sample, {PREDICT}",
        )
    with np.errstate(invalid="ignore"):
        whole = y.astype(np.int32)
    wrong = np.atleast_1d(whole != y)
    if wrong.any():
        rule, remedy = "must be a whole number of 32 bits", f"Number the classes from 0, {PREDICT}"
        refuse(f"{where}: label of sample {wrong.argmax()}", y[wrong][0].item(), rule, remedy)
    return whole


def _values(seen: np.ndarray, classes: Classes, names: Sequence[str] | None) -> np.ndarray:
    """Return the classes, (K,) int32: the given ones, or those that follow from the labels that occur."""
    if classes is True:
        refuse("classes", classes, "must be a number, the labels, or False", "Leave it out to find the classes")
    if isinstance(classes, int | np.integer):
        number = count("classes", classes, "Give the number of classes, or the labels")
        return np.arange(at_most("classes", number, MOST_CLASSES, "Give classes=[...], the labels"), dtype=np.int32)
    if classes is not None:
        given = as_array(classes, "classes", "Give the number of classes, or the labels as whole numbers")
        values = np.unique(_whole(given, "classes"))
        if values.size == 0 or given.ndim != 1 or len(values) != len(classes):
            refuse("classes", classes, "must be labels, each once", "Give the number of classes, or the labels")
        return values
    if seen[0] < 0:
        if IGNORED in seen:
            rule = "marks a sample without a label in PyTorch, and would be a class here"
            refuse("label", IGNORED, rule, "Leave such samples out, or give classes=[...], the labels")
        return seen
    if seen[-1] >= MOST_CLASSES:
        rule = f"must be below {MOST_CLASSES}, the most classes that fedpd numbers from 0"
        refuse("largest label", int(seen[-1]), rule, "Give classes=[...], the labels that occur")
    return np.arange(max(seen[-1] + 1, len(names or ())), dtype=np.int32)


def encode_targets(labels: Mapping[K, np.ndarray], place: Callable[[str, str], str]) -> dict[K, np.ndarray]:
    """Return the targets of all agents in one dtype, after checking that they have one shape and are not infinite."""
    found = {key: _numbers(y, place(key[1], key[0])) for key, y in labels.items()}
    (_, first), y = next(iter(found.items()))
    shape = y.shape[1:]
    for (part, agent), y in found.items():
        if y.shape[1:] != shape:
            rule = f"must be {shape}, as for agent {first!r}" if first else f"must be {shape}"
            refuse(f"{place(agent, part)}: shape of a target", y.shape[1:], rule, "Bring all targets to one shape")
    dtypes = {y.dtype for y in found.values()}
    double, single = np.dtype(np.float64), np.dtype(np.float32)
    wanted = double if double in dtypes else single if single in dtypes else np.dtype(np.int32)
    return {key: y.astype(wanted, copy=False) for key, y in found.items()}


def _numbers(y: np.ndarray, where: str) -> np.ndarray:
    """Return targets as int32, float32 or float64."""
    if y.dtype == object:
        try:
            y = y.astype(np.float64)  # None becomes NaN
        except (TypeError, ValueError):
            refuse(f"{where}: type of y", "object", "must be numbers", REMEDY)
    if y.dtype.kind not in "buif":
        refuse(f"{where}: type of y", str(y.dtype), "must be numbers", REMEDY)
    if y.dtype.kind != "f":
        whole = y.astype(np.int32)
        if not np.array_equal(whole, y):
            refuse(f"{where}: largest target", int(y.max()), "must fit 32 bits", "Give floating-point numbers")
        return whole
    infinite = np.isinf(y)
    if infinite.any():
        sample = int(np.argwhere(infinite)[0][0])
        refuse(
            f"{where}: target of sample {sample}", "infinity", "must be finite, or NaN if it is missing", "Correct it"
        )
    return y.astype(np.float32) if y.dtype.itemsize < 4 else y
