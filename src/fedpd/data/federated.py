"""The type of federated data, and the function that checks data of every source.

The rules hold for every source:

- Features stay as stored and are never scaled: uint8, int32, float32 and float64 stay; bool becomes uint8, other
  integers become int32, float16 becomes float32. `dtype` sets another. All agents share one dtype and one shape of
  a sample.
- Labels are int32, with the values that they have in the source; `fedpd.data.labels` says how texts and classes are
  treated. With `classes=False` they are numbers to predict; see `fedpd.data.labels`.
- Features may be a dict of arrays with the same rows, such as `input_ids` and `attention_mask`. These rules then hold
  for each entry, but all integers and bool become int32: they are never taken for pixels.
- Every agent has at least one sample, in train or in test. Sizes may differ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import jax
import numpy as np
from numpy.typing import DTypeLike

from fedpd.base.arrays import as_array, as_labels
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.typed import explained, first_line
from fedpd.data.labels import Classes, check_not_mixed, encode
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Place = Callable[[str, str], str]  # (agent, part) -> where that data comes from, as an error names it
Key = tuple[str, str]  # (part, agent)


class Samples(TypedDict):
    """Samples of one agent.

    Attributes:
        x: Features, (n, ...); or a dict of such arrays, which modules take by name.
        y: Labels, (n,) int32; or targets, (n, ...).
    """

    x: Any
    y: np.ndarray


ByAgent = list[Samples] | Ragged | Lazy  # N sets of samples


class Options(NamedTuple):
    """The options that every loader has; `from_arrays` explains them."""

    classes: Classes
    label_names: Sequence[str] | None
    dtype: DTypeLike | None
    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Federated:
    """The samples of N agents. `problems.from_losses` takes `train` as its data.

    Attributes:
        names: N names of agents, all different: a tuple, or an array of texts if there are many.
        train: N training sets, {"x": (n_i, ...), "y": (n_i,)}; n_i = 0 if an agent has no training samples. A list, or
            `Ragged` or `Lazy` data, which are sequences of the same entries.
        test: N test sets of the same form; n_i = 0 if an agent has no test samples.
        classes: (K,) int32, ascending: the values that y can have; (0,) if y are numbers to predict.
        label_names: K names of the classes, or None.
        name: The name of the data in tables and figures.
    """

    names: tuple[str, ...] | np.ndarray
    train: ByAgent
    test: ByAgent
    classes: np.ndarray
    label_names: tuple[str, ...] | None
    name: str

    @property
    def agents(self) -> int:
        """N, the number of agents."""
        return len(self.names)

    @property
    def sizes(self) -> np.ndarray:
        """(N,) numbers of training samples."""
        return _sizes(self.train)

    @property
    def test_sizes(self) -> np.ndarray:
        """(N,) numbers of test samples."""
        return _sizes(self.test)

    @property
    def samples(self) -> int:
        """The number of all samples of all agents, train and test."""
        return int(self.sizes.sum(dtype=np.int64) + self.test_sizes.sum(dtype=np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's features, if they are one array."""
        return self._features.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the features, if they are one array."""
        return self._features.dtype

    @property
    def features(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """The shape of one sample and the dtype of each array of the features; the name of a single array is ""."""
        x = self._sample["x"]
        return {name: (leaf.shape[1:], leaf.dtype) for name, leaf in (x if isinstance(x, dict) else {"": x}).items()}

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one sample's label: () for classes and single numbers."""
        return self._sample["y"].shape[1:]

    @property
    def _features(self) -> np.ndarray:
        x = self._sample["x"]
        if isinstance(x, dict):
            rule = "has a dict as x, and this function needs one array"
            refuse("data", self.name, rule, "Use problems.network, next_token, supervised, regression or multilabel")
        return x

    @property
    def _sample(self) -> Samples:
        return self.train[0] if isinstance(self.train, list) else self.train.sample

    def in_memory(self) -> "Federated":
        """Return the data with all samples in memory; lazy samples are loaded, others stay."""
        train, test = (part.in_memory() if isinstance(part, Lazy) else part for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def plot(self) -> "Figure":
        """Return a matplotlib figure of who has what: a heat map of labels x agents.

        The agents' sizes are above it, and the labels' totals beside it. The agents with the most training samples come
        first, then those with the most test samples. The map counts training and test samples together.

        Raises:
            FedpdError: The labels are numbers to predict.
        """
        from fedpd.data.summary import draw  # which imports this module

        return draw(self)

    def __repr__(self) -> str:
        """Return a description of the data in five lines."""
        return "\n".join(
            (
                f"Federated {self.name!r}",
                f"  agents   {self.agents}",
                f"  samples  {_amount(self.sizes, 'train')}, {_amount(self.test_sizes, 'test')}",
                "  features "
                + ", ".join(f"{name} {shape} {dtype}".strip() for name, (shape, dtype) in self.features.items()),
                f"  classes  {len(self.classes)}"
                if len(self.classes)
                else f"  targets  {self.target_shape} {self._sample['y'].dtype}",
            )
        )


def _sizes(samples: ByAgent) -> np.ndarray:
    """Return (N,) the numbers of samples."""
    return np.array([len(own["y"]) for own in samples]) if isinstance(samples, list) else samples.sizes


def map_samples(part: ByAgent, function: Callable[[Samples], Any]) -> Any:
    """Return function(samples) of all agents in the form that they have: a list, ragged or lazy."""
    return list(map(function, part)) if isinstance(part, list) else part.map(function)


def _amount(sizes: np.ndarray, part: str) -> str:
    """Return the number of samples of one part as text, in total and per agent."""
    if not sizes.any():
        return f"no {part}"
    least, most = sizes.min(), sizes.max()
    each = f"{most}" if least == most else f"{least} to {most}"
    return f"{sizes.sum()} {part} ({each} per agent)"


@explained
def from_arrays(
    train: Mapping[Any, Mapping[str, Any]],
    test: Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    classes: Classes = None,
    label_names: Sequence[str] | None = None,
    dtype: DTypeLike | None = None,
    name: str = "arrays",
) -> Federated:
    """Return federated data from arrays in memory.

    Args:
        train: {agent: {"x": (n_i, ...), "y": (n_i,)}}. An agent may be in train, in test or in both. x may be a dict of
            arrays, {"input_ids": (n_i, T), "attention_mask": (n_i, T)}, which a module takes by these names.
        test: Test samples of the same form; None: there are none.
        classes: K for the labels 0..K-1, or the labels; None: as `fedpd.data.labels` says; False: the labels are
            numbers to predict, (n_i, ...), with NaN for missing ones (`fedpd.data.labels`).
        label_names: The names of the classes, in their order.
        dtype: The dtype of the features; None: as stored.
        name: The name of the data in tables and figures.

    Raises:
        FedpdError: If an agent has no samples, or samples differ in shape, or a number is not finite, or a label is not
            one of the classes. The message names the agent.

    Examples:
        >>> import numpy as np
        >>> from fedpd import data
        >>> left, right = {"x": np.zeros((3, 2)), "y": [0, 1, 1]}, {"x": np.ones((1, 2)), "y": [2]}
        >>> two = data.from_arrays({"left": left, "right": right})
        >>> two.names, two.sizes.tolist(), two.classes.tolist()
        (('left', 'right'), [3, 1], [0, 1, 2])
    """
    found = assemble(train, test or {}, _place, Options(classes, label_names, dtype, name))
    return replace(found, train=_copied(found.train), test=_copied(found.test))


@explained
def from_datasets(
    train: Mapping[Any, Any], test: Mapping[Any, Any] | None = None, *, classes: Classes = None, name: str = "datasets"
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


def _copied(part: ByAgent) -> list[Samples]:
    """Return the samples in memory that they do not share with the user's arrays."""
    return [{"x": jax.tree.map(np.copy, samples["x"]), "y": samples["y"].copy()} for samples in part]


def _place(agent: str, part: str) -> str:
    """Return how an error names one part of an agent's data."""
    return f"{part} data of agent {agent!r}"


def place_in(source: str | Path) -> Place:
    """Return how an error names one part of an agent's data of a source."""
    return lambda agent, part: f"{source}: {_place(agent, part)}"


def assemble(
    train: Mapping[Any, Mapping[str, Any]], test: Mapping[Any, Mapping[str, Any]], place: Place, options: Options
) -> Federated:
    """Return federated data as `from_arrays` does; `place` says where an agent's data comes from."""
    classes, label_names, dtype, name = options
    for part in (train, test):
        if not isinstance(part, Mapping):
            remedy = 'Give {agent: {"x": features, "y": labels}}, with one entry per agent'
            refuse("data", type(part).__name__, "must map each agent to its samples", remedy)
    agents = list(dict.fromkeys([*train, *test]))
    names = tuple(map(str, agents))
    if not names:
        raise FedpdError(f"{name} holds no agents: there is nothing to learn from. Give one data set per agent.")
    repeated = [agent for agent, times in Counter(names).items() if times > 1]
    if repeated:
        refuse("agent", repeated[0], "is the name of several agents after conversion to text", "Rename them")
    parts = {"train": train, "test": test}
    found = {
        (part, str(agent)): _samples(data[agent], place(str(agent), part), targets=classes is False)
        for part, data in parts.items()
        for agent in agents
        if agent in data
    }
    held = {key: samples for key, samples in found.items() if len(samples["y"])}
    for agent in names:
        if not any((part, agent) in held for part in parts):
            raise FedpdError(f"{place(agent, 'train')}: there are no training or test samples. Leave the agent out.")
    x = _features({key: samples["x"] for key, samples in held.items()}, place, dtype)
    y, values, called = encode({key: samples["y"] for key, samples in held.items()}, place, classes, label_names)
    nothing, unlabelled = jax.tree.map(lambda leaf: leaf[:0], (next(iter(x.values())), next(iter(y.values()))))

    def of(part: str) -> list[Samples]:
        keys = [(part, agent) for agent in names]
        return [{"x": x.get(key, nothing), "y": y.get(key, unlabelled)} for key in keys]

    return Federated(names, of("train"), of("test"), values, called, name)


def _samples(given: Mapping[str, Any], where: str, *, targets: bool) -> Samples:
    """Return x and y of one agent as arrays with the same number of rows; targets may have further axes."""
    if not isinstance(given, Mapping) or not {"x", "y"} <= set(given):
        held = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        refuse(where, held, "must hold x and y", 'Give {"x": (n, ...), "y": (n,)}')
    one_shape = "Bring all samples to one shape, and replace missing values and texts by numbers first"
    x, y = _arrays(given["x"], f"{where}: x", one_shape), as_labels(given["y"], f"{where}: y")
    check_not_mixed(given["y"], y, where)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and not targets else y
    if y.ndim != 1 and not (targets and y.ndim):
        remedy = "Give one label each, or classes=False to predict vectors"
        refuse(f"{where}: shape of y", y.shape, "must be (n,) or (n, 1), one label per sample", remedy)
    for leaf in jax.tree.leaves(x):
        if leaf.ndim == 0 or len(leaf) != len(y):
            rule = f"must have a row for each of the {len(y)} labels"
            refuse(f"{where}: shape of x", leaf.shape, rule, "Pair x with y")
    return {"x": x, "y": y}


def _arrays(x: Any, where: str, remedy: str) -> Any:
    """Return features as an array, or as a dict of arrays."""
    if not isinstance(x, Mapping):
        return as_array(x, where, remedy)
    if not x or not all(isinstance(name, str) for name in x):
        refuse(where, list(x), "must have names, the arguments of the module", 'Give e.g. {"input_ids": tokens}')
    return {name: as_array(leaf, f"{where}[{name!r}]", remedy) for name, leaf in x.items()}


def _features(arrays: dict[Key, Any], place: Place, dtype: DTypeLike | None) -> dict[Key, Any]:
    """Return all features in one dtype, or each entry of a dict in one, after checking shapes and finite numbers."""
    entries_of = {key: sorted(x) if isinstance(x, dict) else None for key, x in arrays.items()}
    first, names = next(iter(entries_of.items()))
    for (part, agent), found in entries_of.items():
        if found != names:
            rule = f"must be as for agent {first[1]!r}: {names or 'one array'}"
            refuse(f"{place(agent, part)}: x", found or "one array", rule, "Give all agents the same entries")
    if names is None:
        return _one_dtype(arrays, place, dtype)
    if dtype is not None:
        refuse("dtype", dtype, "is for features that are one array", "Convert the entries of x before")

    def entry(name: str) -> dict[Key, np.ndarray]:
        held = {key: whole_numbers(x[name]) for key, x in arrays.items()}
        return _one_dtype(held, lambda agent, part: f"{place(agent, part)}: {name}", None)

    entries = {name: entry(name) for name in names}
    return {key: {name: entries[name][key] for name in names} for key in arrays}


def whole_numbers(leaf: np.ndarray) -> np.ndarray:
    """Return an entry of a dict of features with bool and small integers as int32, so that they are no pixels."""
    return leaf.astype(np.int32) if leaf.dtype in (bool, np.uint8) else leaf


def _one_dtype(arrays: dict[Key, np.ndarray], place: Place, dtype: DTypeLike | None) -> dict[Key, np.ndarray]:
    first_part, first = next(iter(arrays))
    shape = arrays[first_part, first].shape[1:]
    for (part, agent), x in arrays.items():
        where = place(agent, part)
        if x.shape[1:] != shape:
            rule = f"must be {shape}, as for agent {first!r}"
            refuse(f"{where}: shape of a sample", x.shape[1:], rule, "Bring all samples to one shape")
    wanted = checked_dtype(dtype) or common_dtype(x.dtype for x in arrays.values())
    return {(part, agent): as_dtype(x, wanted, place(agent, part)) for (part, agent), x in arrays.items()}


def checked_dtype(dtype: DTypeLike | None) -> np.dtype | None:
    """Return the requested dtype, if there is one, after checking that features can have it."""
    if dtype is None:
        return None
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        wanted = np.dtype(object)
    if wanted.kind not in "uif":
        refuse("dtype", dtype, "must be of integers or floating-point numbers", "Give e.g. numpy.float32")
    return wanted


def common_dtype(dtypes: Iterable[np.dtype]) -> np.dtype:
    """Return the one dtype that keeps all of `dtypes`: uint8, int32, float32 or float64.

    Integers among floating-point numbers become floating-point numbers.
    """
    kept = set(dtypes)
    floats = {dtype for dtype in kept if dtype.kind == "f"}
    if floats:
        return np.dtype(np.float64 if max(dtype.itemsize for dtype in floats) > 4 else np.float32)
    return np.dtype(np.uint8 if kept <= {np.dtype(np.uint8), np.dtype(bool)} else np.int32)


def as_dtype(x: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """Return x in `dtype`; refuse a number that is not finite, or that changes by more than rounding."""
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        sample = int(np.argwhere(~np.isfinite(x))[0][0])
        raise FedpdError(f"{where}: sample {sample} holds NaN or infinity in x. Clean or drop it.")
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype(dtype)
    same = not x.size or np.isfinite(cast).all() if dtype.kind == "f" else np.array_equal(cast, x)
    if not same:
        rule = f"do not fit into {dtype}"
        refuse(f"{where}: range of x", (x.min().item(), x.max().item()), rule, "Give dtype=, e.g. numpy.float64")
    return cast
