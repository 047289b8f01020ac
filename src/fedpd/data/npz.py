"""Read arrays without clients from an .npz file of NumPy, and divide them among agents."""

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained
from fedpd.data.division import Division
from fedpd.data.federated import Federated
from fedpd.data.labels import Classes
from fedpd.data.partition import partition

WRITE = "Write it with numpy.savez(file, x=x, y=y)"
TRAIN, TEST = (("x", "y"), ("x_train", "y_train")), (("x_test", "y_test"),)  # the names of the arrays


@explained
def npz(
    source: str | Path,
    rule: Division,
    *,
    agents: int,
    seed: int = 0,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return the samples of an .npz file, divided among agents by a rule.

    The file has the arrays x and y, or x_train and y_train. If it also has x_test and y_test, the agents get these test
    samples in proportion to their training samples of each class. `classes`, `label_names` and `dtype` are as for
    `from_arrays`.

    Args:
        source: The file.
        rule: How to divide the samples, as for `partition`, e.g. `data.by_dirichlet(0.3)`.
        agents: N.
        seed: The seed of the division.
        name: The name of the data in tables and figures; None: that of the file.

    Raises:
        FedpdError: The file cannot be read, or lacks an array; or the samples cannot be divided.
    """
    if not isinstance(rule, Division):
        refuse("rule", type(rule).__name__, "must be a rule of fedpd.data", "Give e.g. data.by_dirichlet(0.3)")
    arrays = read_npz(source)
    train, test = (next((pair for pair in pairs if set(pair) <= set(arrays)), None) for pairs in (TRAIN, TEST))
    if train is None:
        refuse(f"arrays of {source}", sorted(arrays), "must hold x and y, or x_train and y_train", WRITE)
    return partition(
        arrays[train[0]],
        arrays[train[1]],
        rule,
        agents=agents,
        seed=seed,
        test=None if test is None else (arrays[test[0]], arrays[test[1]]),
        classes=classes,
        label_names=label_names,
        dtype=dtype,
        name=name or Path(source).stem,
    )


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. It runs no code of the file.

    Raises:
        FedpdError: There is no such file, or it is another one.
    """
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, EOFError, TypeError, BadZipFile) as error:
        raise FedpdError(f"{str(path)!r} cannot be read as an .npz file: {error}. {WRITE}.") from None
