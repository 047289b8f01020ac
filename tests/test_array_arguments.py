"""The same bad arrays in every argument of every public function that takes an array.

Each call is either refused with a sentence, or gives the result of the plain array with the same numbers.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, Run, algorithms, clock, data, problems, simulate, theory, transforms
from fedpd.base.errors import UnexpectedError
from fedpd.core import Algorithm, Problem
from fedpd.data import Lazy
from tests.fuzz.calls import FEDERATED, MODULES, ORACLE, PROBLEM, public

FEDAVG = algorithms.fedavg(oracle=ORACLE)
MODULES_WITH_ARRAYS: list[ModuleType] = [fedpd, *MODULES, transforms, clock]
HESSIANS, LINEAR = np.array([[[2.0, 1.0], [1.0, 3.0]], [[4.0, 0.5], [0.5, 1.5]]]), np.array([[1.0, 2.0], [0.5, 0.25]])
FEATURES = np.array([[[1.0, 2.0], [0.5, 4.0], [3.0, 0.25]], [[2.0, 1.0], [1.5, 0.75], [0.5, 1.0]]])
SIGNS = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
START = np.array([0.5, 2.0])
NUMBERS = data.from_arrays({"a": {"x": FEATURES[0], "y": SIGNS[0]}}, classes=False)
BITS = data.from_arrays({"a": {"x": FEATURES[0], "y": np.ones((3, 1))}}, classes=False)
TOKENS = data.from_arrays({"a": {"x": np.zeros((3, 2), int), "y": np.ones((3, 2), int)}}, classes=False)


class Bad(NamedTuple):
    """One way to spoil an array.

    Attributes:
        spoil: Returns the bad array.
        plain: Returns the plain array with the same numbers; None: there is none, and the call must be refused.
    """

    spoil: Callable[[np.ndarray], Any]
    plain: Callable[[np.ndarray], np.ndarray] | None = None


def same(array: np.ndarray) -> np.ndarray:
    return array


def hidden(array: np.ndarray) -> np.ma.MaskedArray:
    """Return the array with its first entry masked, whose hidden value is far from the others."""
    mask = np.zeros(array.shape, bool)
    mask.flat[0] = True
    return np.ma.masked_array(array, mask)


def first_is(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def spoil(array: np.ndarray) -> np.ndarray:
        spoiled = array.astype(float)
        spoiled.flat[0] = value
        return spoiled

    return spoil


def tensor(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.tensor(array, requires_grad=array.dtype.kind == "f")


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


BAD: Mapping[str, Bad] = {
    "a masked entry": Bad(hidden),
    "a masked row in a list": Bad(lambda a: [hidden(np.atleast_1d(row)) for row in a]),
    "a mask without entries": Bad(lambda a: np.ma.masked_array(a, np.zeros(a.shape, bool)), same),
    "complex": Bad(lambda a: a + 1j),
    "objects": Bad(lambda a: np.array([None] * a.size, object).reshape(a.shape)),
    "texts": Bad(lambda a: np.full(a.shape, "one")),
    "bytes": Bad(lambda a: a.astype(float).astype("S8")),
    "dates": Bad(lambda a: a.astype(int).astype("datetime64[D]")),
    "records": Bad(lambda a: np.zeros(a.shape, [("a", float), ("b", float)])),
    "NaN": Bad(first_is(np.nan)),
    "infinity": Bad(first_is(np.inf)),
    "no entries": Bad(lambda a: a[:0]),
    "no axes": Bad(lambda a: np.array(a.flat[0])),
    "rows of unequal lengths": Bad(lambda a: [[1.0], [1.0, 2.0]]),
    "keys of JAX": Bad(lambda a: jax.random.split(jax.random.key(0), len(a))),
    "big-endian": Bad(lambda a: a.astype(a.dtype.newbyteorder(">")), same),
    "float16": Bad(lambda a: a.astype(np.float16), lambda a: a.astype(np.float16).astype(np.float32)),
    "bfloat16": Bad(lambda a: a.astype(ml_dtypes.bfloat16), lambda a: a.astype(ml_dtypes.bfloat16).astype(np.float32)),
    "long double": Bad(lambda a: a.astype(np.longdouble), lambda a: a.astype(np.float64)),
    "lists": Bad(lambda a: a.tolist(), same),
    "a matrix": Bad(lambda a: np.ascontiguousarray(a).view(np.matrix) if a.ndim == 2 else a.view(np.recarray), same),
    "reversed twice": Bad(lambda a: np.asfortranarray(a)[::-1][::-1], same),
    "read-only": Bad(frozen, same),
    "an array of JAX": Bad(jnp.asarray, lambda a: np.asarray(jnp.asarray(a))),
    "a tensor": Bad(tensor, same),
}


class Entry(NamedTuple):
    """A valid call, and the places of the arrays among its arguments.

    Attributes:
        function: The public function, or a function around a method of a public class.
        arguments: Valid arguments.
        paths: Where the arrays are: the name of the argument, then keys and indices.
        allowed: By path: kinds of bad arrays that mean something else there, such as texts among labels.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    paths: tuple[tuple[Any, ...], ...]
    allowed: Mapping[str, tuple[str, ...]] = {}

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "?")


def squares(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["b"]) ** 2


def mean_square(x: Any, rows: Any, mask: Any) -> Any:
    return jnp.sum(squares(x, rows) * mask) / jnp.sum(mask)


def linear(x: Any, a: Any) -> Any:
    return a @ x


def scale_new_samples(x: Any) -> Any:
    return data.standardise([FEATURES[0]])[1].apply(x)


def subset(agents: Any) -> Problem:
    return PROBLEM.subset(agents)


def load_lazily(loaded: Any, sizes: Any) -> Any:
    return data.lazy(lambda i: loaded, sizes).in_memory()


def made_of_rows(rows: Any, sizes: Any, names: Any, classes: Any) -> Any:
    return data.from_rows(data.ragged(rows, sizes), names=names, classes=classes)


def divided(x: Any, y: Any) -> Any:
    partitioner = pytest.importorskip("flwr_datasets.partitioner").IidPartitioner(num_partitions=1)
    return data.partition(x, y, partitioner)


def squared_errors(outputs: Any, targets: Any) -> Any:
    return (outputs - targets) ** 2


LABELS = ("texts", "objects")  # labels may be texts
MISSING = ("NaN", "objects")  # of targets, whose NaN and None are missing
WEIGHTS, ONE, EMPTY = np.array([0.5, 2.0]), ("no axes",), ("no entries",)
ROWS = {"a": FEATURES, "b": SIGNS}
AGENTS = [{"a": FEATURES[0], "b": SIGNS[0]}, {"a": FEATURES[1], "b": SIGNS[1]}]
CLASSES = np.array([0, 1, 1])
OWN = {"x": FEATURES[0], "y": CLASSES}
POINTS = {"problem": PROBLEM, "points": [START]}
STRETCH = {"hessians": HESSIANS, "eta": 0.1, "k": 2}
FLOOR = STRETCH | {"linear": LINEAR}
LINKS = {"up": np.array([1e3, 2e3]), "down": np.array([1e4, 2e4]), "latency": np.array([0.5, 0.25])}
LINKS |= {"compute": np.array([2.0, 0.5])}
ENTRIES = [
    Entry(problems.from_losses, {"losses": squares, "data": ROWS, "start": START, "weights": WEIGHTS},
          (("data", "a"), ("data", "b"), ("start",), ("weights",))),
    Entry(problems.from_losses, {"losses": squares, "data": AGENTS, "start": START},
          (("data", 0, "a"), ("data", 1, "b"))),
    Entry(problems.from_losses, {"losses": squares, "data": data.ragged({"a": FEATURES[0], "b": SIGNS[0]}, [1, 2]),
                                 "start": START}, (("start",),)),
    Entry(problems.from_agent_loss, {"loss": mean_square, "data": ROWS, "start": START, "weights": WEIGHTS},
          (("data", "a"), ("data", "b"), ("start",), ("weights",))),
    Entry(problems.penalized_logistic, {"features": FEATURES, "labels": SIGNS, "start": START, "weights": WEIGHTS},
          (("features",), ("labels",), ("start",), ("weights",))),
    Entry(problems.penalized_logistic, {"features": [*FEATURES], "labels": [*SIGNS]}, (("features", 0), ("labels", 1))),
    Entry(problems.quadratic, {"hessians": HESSIANS, "linear": LINEAR, "start": START},
          (("hessians",), ("linear",), ("start",))),
    Entry(problems.classification, {"apply": linear, "data": FEDERATED, "start": np.eye(2), "weights": WEIGHTS},
          (("start",), ("weights",))),
    Entry(problems.softmax_regression, {"data": FEDERATED, "weights": WEIGHTS}, (("weights",),)),
    Entry(problems.regression, {"model": linear, "data": NUMBERS, "start": START, "weights": WEIGHTS[:1]},
          (("start",), ("weights",))),
    Entry(problems.supervised, {"model": linear, "data": NUMBERS, "start": START, "weights": WEIGHTS[:1],
                                "loss": squared_errors}, (("start",), ("weights",))),
    Entry(problems.multilabel, {"model": linear, "data": BITS, "start": START[:, None], "weights": WEIGHTS[:1]},
          (("start",), ("weights",))),
    Entry(problems.next_token, {"model": lambda x, tokens: x[tokens], "data": TOKENS, "start": np.eye(2),
                                "weights": WEIGHTS[:1]}, (("start",), ("weights",))),
    Entry(data.from_arrays, {"train": {"a": OWN}, "test": {"a": OWN}, "classes": np.array([0, 1, 2])},
          (("train", "a", "x"), ("train", "a", "y"), ("test", "a", "x"), ("classes",)),
          {"train a y": LABELS, "classes": ONE}),
    Entry(data.from_arrays, {"train": {"a": {"x": FEATURES[0], "y": LINEAR[0].repeat([1, 2])}}, "classes": False},
          (("train", "a", "x"), ("train", "a", "y")), {"train a y": MISSING}),
    Entry(made_of_rows, {"rows": dict(OWN), "sizes": np.array([1, 2]), "names": np.array(["a", "b"]),
                         "classes": np.array([0, 1, 2])}, (("rows", "x"), ("rows", "y"), ("sizes",), ("classes",)),
          {"rows y": LABELS, "classes": ONE}),
    Entry(data.ragged, {"rows": dict(OWN), "sizes": np.array([1, 2])}, (("rows", "x"), ("rows", "y"), ("sizes",)),
          {"rows x": ("texts", "objects", "NaN", "infinity"), "rows y": (*LABELS, "NaN", "infinity")}),
    Entry(load_lazily, {"loaded": dict(OWN), "sizes": np.array([3, 3])}, (("loaded", "x"), ("loaded", "y"), ("sizes",)),
          {"loaded x": ("texts", "objects"), "loaded y": ("texts", "objects")}),
    Entry(data.moments, {"x": FEATURES[0], "shift": START}, (("x",), ("shift",)), {"shift": ONE, "x": EMPTY}),
    Entry(data.scaling_from, {"summed": data.moments(FEATURES[0]), "shift": START}, (("shift",),), {"shift": ONE}),
    Entry(data.standardise, {"data": FEATURES}, (("data",),), {"data": ("rows of unequal lengths", "lists")}),
    Entry(data.standardise, {"data": [*FEATURES]}, (("data", 0),), {"data 0": EMPTY}),
    Entry(scale_new_samples, {"x": FEATURES[0]}, (("x",),), {"x": EMPTY}),
    Entry(data.pool, {"samples": [dict(OWN)]}, (("samples", 0, "x"), ("samples", 0, "y")),
          {"samples 0 y": (*LABELS, "NaN", "infinity"), "samples 0 x": ("NaN", "infinity")}),
    Entry(data.take, {"data": FEDERATED, "agents": np.array([1, 0])}, (("agents",),)),
    Entry(data.merge, {"data": FEDERATED, "groups": [np.array([1, 0])]}, (("groups", 0),)),
    Entry(divided, {"x": FEATURES[0], "y": CLASSES}, (("x",), ("y",)), {"y": LABELS}),
    Entry(subset, {"agents": np.array([1, 0])}, (("agents",),)),
    Entry(theory.linear_regression_delta, {"features": FEATURES, "targets": SIGNS}, (("features",), ("targets",))),
    Entry(theory.linear_regression_delta, {"features": [*FEATURES], "targets": [*SIGNS]},
          (("features", 0), ("targets", 1))),
    Entry(theory.logistic_delta, {"features": [*FEATURES], "labels": [*SIGNS]}, (("features", 0), ("labels", 1))),
    Entry(theory.sigmoid_delta, {"features": [*FEATURES]}, (("features", 0),)),
    Entry(theory.tanh_delta, {"features": [*FEATURES]}, (("features", 0),)),
    Entry(theory.objective, {"problem": PROBLEM, "x": START}, (("x",),)),
    Entry(theory.estimate_smoothness, POINTS, (("points", 0),)),
    Entry(theory.hessians, POINTS, (("points", 0),)),
    Entry(theory.profile, POINTS, (("points", 0),)),
    Entry(theory.similarity, POINTS, (("points", 0),)),
    Entry(theory.region, {"problem": PROBLEM, "radius": 1.0, "samples": 2, "centres": [START]}, (("centres", 0),)),
    Entry(theory.rates.savings, {"ratios": np.array([0.5, 0.25]), "L": 1.0, "eta": 0.1}, (("ratios",),),
          {"ratios": EMPTY}),
    Entry(theory.skipping.stretch_map, STRETCH, (("hessians",),)),
    Entry(theory.skipping.contraction, STRETCH, (("hessians",),)),
    Entry(theory.skipping.contraction, STRETCH | {"of": "server"}, (("hessians",),)),
    Entry(theory.skipping.rate_per_round, STRETCH, (("hessians",),)),
    Entry(theory.skipping.relative_communications, STRETCH, (("hessians",),)),
    Entry(theory.skipping.best_stretch, {"hessians": HESSIANS, "eta": 0.1}, (("hessians",),)),
    Entry(theory.skipping.communications_map, {"hessians": HESSIANS, "etas": np.array([0.5, 0.25]),
                                               "ks": np.array([1, 2])}, (("hessians",), ("etas",), ("ks",)),
          {"etas": EMPTY, "ks": EMPTY}),
    Entry(theory.skipping.paper_floor, FLOOR, (("hessians",), ("linear",))),
    Entry(theory.skipping.small_eta_floor, FLOOR, (("hessians",), ("linear",))),
    Entry(algorithms.coop_sgd, {"oracle": ORACLE, "mixing": np.array([[0.75, 0.25], [0.25, 0.75]])}, (("mixing",),)),
    Entry(transforms.attack, {"algorithm": FEDAVG, "attack": transforms.sign_flip(), "agents": np.array([1, 0])},
          (("agents",),), {"agents": EMPTY}),
    Entry(clock.network, LINKS, (("up",), ("down",), ("latency",), ("compute",)),
          dict.fromkeys(LINKS, ONE) | {"up": (*ONE, "infinity"), "down": (*ONE, "infinity")}),
    Entry(simulate, {"algorithm": FEDAVG, "problem": PROBLEM, "rounds": 2, "start": START,
                     "participation": np.array([0.5, 0.25])}, (("start",), ("participation",)), {"participation": ONE}),
    Entry(simulate, {"algorithm": FEDAVG, "problem": PROBLEM, "rounds": 2, "participation": np.array([[1, 0], [0, 1]])},
          (("participation",),), {"participation": ONE}),
]  # fmt: skip


def replaced(arguments: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the arguments with another value at a place; containers on the way are copied."""
    if not path:
        return value
    changed = copy.copy(arguments)
    changed[path[0]] = replaced(arguments[path[0]], path[1:], value)
    return changed


def at(arguments: Any, path: tuple[Any, ...]) -> Any:
    return at(arguments[path[0]], path[1:]) if path else arguments


def summary(result: Any) -> Any:
    """Return all numbers of a result, of methods what they compute, as values that can be compared."""
    if isinstance(result, Algorithm):
        return summary(simulate(result, PROBLEM, rounds=1))
    if isinstance(result, Run):
        return summary((result.model, result.history, result.updates))
    if isinstance(result, Lazy):
        return summary(result.in_memory())
    if isinstance(result, np.ndarray | jax.Array | np.generic):
        return str(result.dtype), np.asarray(result).tolist()
    if is_dataclass(result):
        return [(field.name, summary(getattr(result, field.name))) for field in fields(result)]
    if isinstance(result, Mapping):
        return [(key, summary(value)) for key, value in result.items()]
    if isinstance(result, list | tuple):
        return [summary(entry) for entry in result]
    return "a function" if callable(result) else repr(result)


def outcome(entry: Entry, arguments: dict[str, Any]) -> str | None:
    """Return the summary of a call as a text, or None if it was refused with a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(summary(entry.function(**arguments)))
        except UnexpectedError:  # it says that this may be a fault of fedpd
            raise
        except FedpdError:
            return None


CASES = [
    pytest.param(entry, path, id=f"{number}-{entry.name}-{'-'.join(map(str, path))}")
    for number, entry in enumerate(ENTRIES)
    for path in entry.paths
]


def test_there_are_twenty_bad_arrays_and_more() -> None:
    assert len(BAD) >= 20


@pytest.mark.parametrize(("entry", "path"), CASES)
def test_bad_arrays_are_refused_or_read_as_the_plain_array(entry: Entry, path: tuple[Any, ...]) -> None:
    valid, allowed = at(entry.arguments, path), entry.allowed.get(" ".join(map(str, path)), ())
    assert outcome(entry, entry.arguments) is not None, "the call without a bad array must be valid"
    for name, bad in BAD.items():
        found = outcome(entry, replaced(entry.arguments, path, bad.spoil(valid)))
        if found is None or name in allowed:
            continue
        assert bad.plain is not None, f"{entry.name} accepts {name} in {path}"
        plain = outcome(entry, replaced(entry.arguments, path, bad.plain(valid)))
        assert found == plain, f"{entry.name} reads {name} in {path} as other numbers"


@pytest.mark.parametrize(("entry", "path"), CASES)
def test_a_later_change_of_the_array_does_not_change_the_result(entry: Entry, path: tuple[Any, ...]) -> None:
    for dtype in (None, np.float32):
        array = np.array(at(entry.arguments, path), dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = entry.function(**replaced(entry.arguments, path, array))
            except FedpdError:
                assert dtype is not None  # some arguments must be integers, or float64
                continue
            before = repr(summary(result))
            array *= 3
            assert repr(summary(result)) == before


# Parameters of public functions whose annotation allows an array, and which do not take one.
OTHERS = {
    **dict.fromkeys(
        ("progress", "callback", "log", "dtype", "settings", "options", "partitioner", "module"), "no array"
    ),
    **dict.fromkeys(("record", "label", "label_names", "columns", "names", "methods", "static"), "texts"),
    **dict.fromkeys(
        (
            "until",
            "grid",
            "table",
            "seed",
            "seeds",
            "scales",
            "angles",
            "targets",
            "ranges",
            "milestones",
            "factors",
            "steps",
        ),
        "numbers, which are checked one by one",
    ),
    **dict.fromkeys(("step", "draw", "t", "p"), "numbers that JAX may trace, or functions"),
    **dict.fromkeys(("losses", "loss", "penalty", "correct", "metrics", "apply", "load"), "functions"),
    **dict.fromkeys(("up", "down", "mean"), "of wrap: transforms"),
    "like": "the structure of a model; its numbers are not used",
    "model": "a function or a module; of load_model, the model of a run",
}
SHARED = {"classes": data.from_arrays, "participation": simulate, "weights": problems.from_losses}  # one path for all
DATA = {"data": "Federated data, whose arrays were read before", "features": "names of columns", "test": "as train"}


def may_take_arrays(kind: Any) -> bool:
    """Return whether an annotation allows an array: it names one, or it is a list, a mapping or anything."""
    words = str(kind)
    if words.startswith("collections.abc.Callable"):
        return False
    return any(word in words for word in ("ndarray", "typing.Any", "Sequence[", "Iterable[", "Mapping["))


def parameters() -> Iterator[tuple[str, str]]:
    """Yield all parameters of public functions that may take an array."""
    for module in MODULES_WITH_ARRAYS:
        for name, function in public(module).items():
            for parameter in inspect.signature(function).parameters.values():
                if may_take_arrays(parameter.annotation):
                    yield name, parameter.name


def test_every_public_function_that_takes_an_array_is_in_the_table() -> None:
    """Add a function that fails here to ENTRIES, with a valid call, or its parameter to those that take no array."""
    tried = {(entry.name, str(path[0])) for entry in ENTRIES for path in entry.paths}
    wrapped = {("lazy", "sizes"), ("partition", "x"), ("partition", "y"), ("ragged", "rows"), ("from_rows", "classes")}
    wrapped |= {("check", "start")}  # a model, which simulate has checked
    wrapped |= {("from_datasets", "train")}  # datasets, whose samples go to from_arrays
    wrapped |= {("local", "received")}  # what the server sent, whose shapes the method knows
    known = {*OTHERS, *SHARED, *DATA}
    missing = [pair for pair in parameters() if pair not in tried | wrapped and pair[1] not in known]
    assert missing == []
    assert {name for name, _ in tried} >= {function.__name__ for function in SHARED.values()}
