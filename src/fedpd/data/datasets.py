"""Federated data from datasets with `__len__` and `__getitem__`, such as those of PyTorch, one per agent."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained, first_line
from fedpd.data.federated import Federated, from_arrays
from fedpd.data.labels import Classes


@explained
def from_datasets(
    train: Mapping[Any, Any],
    test: Mapping[Any, Any] | None = None,
    *,
    classes: Classes = None,
    name: str = "datasets",
) -> Federated:
    """Return federated data from one dataset per agent, such as a `torch.utils.data.Dataset` with its transforms.

    fedpd reads each sample once, and keeps it in memory. So a transform that draws random numbers would be drawn once
    for the whole run: it is refused.

    Args:
        train: {agent: dataset}. Entry i of a dataset is (x, y), or a dict in which "labels" is y.
        test: Test samples of the same form; None: there are none.
        classes: As for `from_arrays`.
        name: The name of the data in tables and figures.

    Raises:
        FedpdError: If a dataset has no length, an entry has another form, or two reads of a sample differ.

    Examples:
        >>> from fedpd import data
        >>> left, right = [([0.0, 1.0], 0), ([1.0, 1.0], 1)], [([2.0, 0.0], 1)]
        >>> data.from_datasets({"left": left, "right": right}).sizes.tolist()
        [2, 1]
    """
    parts = [
        {str(agent): _read(one, f"dataset of agent {agent!r}") for agent, one in part.items()}
        for part in (train, test or {})
    ]
    return from_arrays(*parts, classes=classes, name=name)


def _read(dataset: Any, where: str) -> dict[str, Any]:
    """Return all samples of a dataset."""
    try:
        number = len(dataset)
    except TypeError:
        rule = "has no length, so its samples cannot be drawn from (seed, round, agent)"
        refuse(where, type(dataset).__name__, rule, "Give a dataset with __len__ and __getitem__")
    if not number:
        raise FedpdError(f"{where}: it is empty. Leave the agent out.")
    samples = [_sample(dataset, i, where) for i in range(number)]
    for i in {0, number - 1}:
        again = _sample(dataset, i, where)
        if not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (samples[i], again)), strict=True)):
            rule = "two reads differ, because a transform is random, and fedpd reads each sample once"
            remedy = (
                "Drop the random transform, and give problems.network(augment=...), or train a client of torch_local"
            )
            raise FedpdError(f"{where}: sample {i}: {rule}. {remedy}.")
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
    except ValueError as error:
        remedy = "Bring all samples to one shape, e.g. by a transform that resizes or pads"
        raise FedpdError(f"{where}: its samples differ in form ({first_line(error)}). {remedy}.") from error


def _sample(dataset: Any, i: int, where: str) -> dict[str, Any]:
    found = dataset[i]
    if isinstance(found, Mapping) and "labels" in found:
        x, y = {name: value for name, value in found.items() if name != "labels"}, found["labels"]
    elif isinstance(found, tuple | list) and len(found) == 2:
        x, y = found
    else:
        what = sorted(found) if isinstance(found, Mapping) else type(found).__name__
        refuse(f"{where}: sample {i}", what, "must be (x, y)", 'Return two parts, or a dict with "labels"')
    entries = dict(x) if isinstance(x, Mapping) else {"": x}
    read = {key: as_array(value, f"{where}: x of sample {i}") for key, value in entries.items()}
    return {"x": read if isinstance(x, Mapping) else read[""], "y": as_array(y, f"{where}: y of sample {i}")}
