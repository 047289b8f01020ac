"""Load data sets of Hugging Face by their name on the Hub, or from a folder without a network.

`hub` needs a column that names each row's client. `dirichlet` divides a data set without clients, after Hsu, Qi and
Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification (2019): all agents
have the same number of training samples, and agent i draws its samples with its own shares of the classes, q_i ~
Dirichlet(alpha, ..., alpha). Where a class is used up, the other shares grow. Test samples go to agents in proportion
to their training samples of the class, so that the accuracy over all test samples is that of the usual test set, and an
agent's own accuracy is on its own mixture of classes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.checks import FedpdError, count, nearest, positive, refuse
from fedpd.base.errors import extra
from fedpd.base.spec import Spec
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, Options, assemble, place_in
from fedpd.data.indexed import IndexedPart, SourceFile, index_by_client, source_file
from fedpd.data.labels import Classes, Label
from fedpd.data.partition import divide, divide_alike
from fedpd.data.tables import (
    Shape,
    as_tuple,
    by_client,
    check_columns,
    client_names,
    read_features,
    read_labels,
    reshape,
)

BATCH = 1000  # images that are decoded together


@explained
def hub(
    source: str | Path,
    *,
    client: str,
    features: str | Sequence[str],
    label: Label,
    split: str | tuple[str, str] | None = None,
    shape: Shape | None = None,
    config: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    lazy: bool = False,
) -> Federated:
    """Return federated data from `datasets.load_dataset(source)`, or from the folder of a `save_to_disk`.

    `classes` and `dtype` are as for `from_arrays`.

    Args:
        source: The name of a data set on the Hub, or a folder.
        client: The column with the client's name.
        features: The column or columns of features, as for `parquet`. Images become uint8 (n, height, width) or
            (n, height, width, 3).
        label: The column of labels, whole numbers or texts; with `classes=False` a column of numbers, or several.
        split: The split to train with, or a pair to train and to test with; None: "train", and "test" if there is
            one.
        shape: The shape of a sample; None: as stored.
        config: The configuration of the data set on the Hub.
        revision: The revision of the data set on the Hub; it keeps a result reproducible.
        cache: The folder for downloads and conversions; None: Hugging Face's own.
        label_names: The names of the classes; None: those that the data set knows.
        name: The name of the data in tables and figures; None: the last part of `source`.
        lazy: Whether the features stay in Hugging Face's files and are read when a round needs them.
    """
    parts, where = read_splits("data.hub", str(source), config, revision, cache, split), str(source)
    called = class_names(parts, label) if label_names is None else label_names
    options = Options(classes, called, dtype, name or Path(source).name)
    found, index = {}, {}
    for part, rows in parts.items():
        if not lazy and not len(rows):
            continue
        check_columns(rows.column_names, [client, *as_tuple(features), *as_tuple(label)], where)
        x = None if lazy else reshape(features_of(rows, features, where), shape, where)
        table = rows.select_columns(list(dict.fromkeys([client, *as_tuple(label)]))).with_format("arrow")[:]
        y = read_labels(table, label, where, classes)
        if x is None:
            files = tuple(source_file(Path(file["filename"])) for file in rows.cache_files)
            read = HubRows(rows, str(rows._fingerprint), files, features, shape, where)
            index[part] = IndexedPart(client_names(table, client, where), y, read)
        else:
            found[part] = by_client(table, client, y, x, where)
    if lazy:
        return index_by_client(index, where, options)
    return assemble(found.get("train", {}), found.get("test", {}), place_in(source), options)


def class_names(parts: dict[str, Any], label: Label) -> Sequence[str] | None:
    """Return the names of the classes that the data set knows; None: it knows none."""
    return getattr(parts["train"].features.get(label), "names", None) if isinstance(label, str) else None


@dataclass(frozen=True)
class HubRows:
    """Reads the features of some rows of a data set of Hugging Face."""

    rows: Any  # the data set, whose files are memory-mapped
    fingerprint: str  # Hugging Face's fingerprint of its content
    files: tuple[SourceFile, ...]
    features: str | Sequence[str]  # the column or columns of features
    shape: Shape | None  # the shape of a sample; None: as stored
    source: str  # the name of the source

    @property
    def spec(self) -> Spec:
        """The identity of what it reads, for checkpoints."""
        columns, shape = as_tuple(self.features), self.shape
        content = (self.fingerprint, *(file.content for file in self.files))
        return Spec.of("hub", source=self.source, content=content, features=columns, shape=shape)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        with ExitStack() as stack:
            for file in self.files:
                stack.enter_context(file.unchanged())
            some = self.rows.select(rows, keep_in_memory=True)
            features = features_of(some, self.features, self.source)
        return reshape(features, self.shape, self.source)


def read_splits(
    user: str,
    source: str,
    config: str | None,
    revision: str | None,
    cache: str | Path | None,
    split: str | tuple[str, str] | None,
) -> dict[str, Any]:
    """Return {"train": rows, "test": rows}, the latter only if the data has a test split.

    They are from the folder `source` if there is one, else from the Hub. `user` is the function that reads them.
    """
    with extra("data", user):
        import datasets

    folder = Path(source)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(source)
        else:
            folder_of_hub = None if cache is None else str(cache)
            loaded = datasets.load_dataset(source, config, revision=revision, cache_dir=folder_of_hub)
    except Exception as error:  # the readers of datasets raise errors of many types
        reason = f"{error} {error.__cause__ or ''}".strip(" .")
        remedy = "Check its name or folder, and the network if it is on the Hub"
        raise FedpdError(f"{source} cannot be loaded: {reason}. {remedy}.") from error
    held = {"train": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    wanted = as_tuple(split) if split is not None else tuple(part for part in ("train", "test") if part in held)
    if len(wanted) not in (1, 2):
        refuse(f"{source}: split", split, "must be one split, or two to train and to test", f"Use {sorted(held)}")
    for part in wanted:
        if part not in held:
            refuse(f"{source}: split", part, "there is no such split", nearest(part, held))
    return {part: held[name] for part, name in zip(("train", "test"), wanted, strict=False)}


def features_of(rows: Any, features: str | Sequence[str], source: str) -> np.ndarray:
    """Return the features as an array; images are decoded."""
    import datasets

    if not isinstance(features, str) or not isinstance(rows.features[features], datasets.Image):
        return read_features(
            rows.select_columns(list(dict.fromkeys(as_tuple(features)))).with_format("arrow")[:], features, source
        )
    images = rows.select_columns([features])
    try:
        starts = range(0, len(rows), BATCH)
        batches = [np.stack([np.asarray(i) for i in images[start : start + BATCH][features]]) for start in starts]
        return np.concatenate(batches)
    except (ValueError, OSError) as error:
        raise FedpdError(f"{source}: column {features!r}: {error}. All images must be whole and of one size.") from None


@explained
def dirichlet(
    source: str | Path,
    *,
    features: str | Sequence[str],
    label: str,
    agents: int = 100,
    alpha: float = 0.3,
    seed: int = 0,
    split: str | tuple[str, str] | None = None,
    shape: Shape | None = None,
    config: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Federated:
    """Return a data set of Hugging Face, divided among agents whose shares of the classes differ.

    The arguments that are not listed are those of `hub`.

    Args:
        source: The name of a data set on the Hub, such as "uoft-cs/cifar10", or a folder of a `save_to_disk`.
        label: The column of classes.
        agents: N; all agents get the same number of training samples, and a rest of fewer than N is left out.
        alpha: The concentration of the shares: 0.1 gives each agent few classes, 100 gives all agents nearly the same.
        seed: The seed of the division.

    Raises:
        FedpdError: If the data set cannot be loaded, or has fewer training samples than agents.
    """
    count("agents", agents, "Give N, e.g. 100")
    positive("alpha", alpha, "Give the concentration, e.g. 0.3")
    count("seed", seed, "Give the seed of the division, an integer", least=0)
    if classes is False:
        refuse("classes", classes, "must not be False, because the classes divide the data", "Use data.partition")
    parts = read_splits("data.dirichlet", str(source), config, revision, cache, split)
    x, y = {}, {}
    for part, rows in parts.items():
        check_columns(rows.column_names, [*as_tuple(features), label], str(source))
        x[part] = reshape(features_of(rows, features, str(source)), shape, str(source))
        y[part] = read_labels(rows.select_columns([label]).with_format("arrow")[:], label, str(source), None)
    if len(y["train"]) < agents:
        rule = f"must be at most {len(y['train'])}, the number of training samples"
        refuse("agents", agents, rule, "Give fewer agents")
    values, rng = np.unique(np.concatenate(list(y.values()))), np.random.default_rng(seed)
    labels = {part: np.searchsorted(values, own) for part, own in y.items()}
    own = {"train": divide(labels["train"], len(values), agents, alpha, rng)}
    if "test" in y:
        own["test"] = divide_alike(labels["test"], labels["train"], own["train"], len(values), rng)
    found: dict[str, Any] = {
        part: {str(i): {"x": x[part][one], "y": y[part][one]} for i, one in enumerate(own[part])} for part in own
    }
    called = class_names(parts, label) if label_names is None else label_names
    options = Options(classes, called, dtype, name or Path(source).name)
    return assemble(found["train"], found.get("test", {}), place_in(source), options)
