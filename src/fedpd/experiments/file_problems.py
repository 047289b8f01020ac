"""The problems of experiment files: functions whose arguments a [problem] table can hold.

In Python, the first argument of a problem is often an array or a function. In a file, the key `data` replaces it with a
loader, or with a function of the user's own that returns the data.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fedpd import data as datasets
from fedpd import problems
from fedpd.base.checks import at_least, choice, count, refuse
from fedpd.base.lazy import LazyMapping
from fedpd.core import UNKNOWN, Problem
from fedpd.data import Federated

Functions = Mapping[str, Callable[..., Any]]
DATA: Functions = {
    "weak": datasets.weakly_noniid,
    "strong": datasets.strongly_noniid,
    "strong_program": datasets.program_strongly_noniid,
}
NAMES = ("MLP", "SmallCNN", "LeafCNN", "CifarCNN", "GRU", "LSTM")
NETWORKS: Functions = LazyMapping("fedpd.networks", NAMES)  # they need flax
LOADED = (
    'Give a loader, e.g. data = { name = "parquet", ... }, or a function of your own, data = { name = "module:load" }'
)


def _prepared(
    data: Any,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    standardise: bool = False,
) -> Federated:
    """Return federated data after the changes that the keys of a [problem] table ask for."""
    if not isinstance(data, Federated):
        refuse("data", data if isinstance(data, str) else type(data).__name__, "must be federated data", LOADED)
    if title is not None:
        data = replace(data, name=title)
    if agents is not None:
        data = datasets.merge(data, datasets.paper_groups(data.agents, agents))
    if test_share:
        data = datasets.split(data, test_share, seed=seed)
    if not isinstance(standardise, bool):
        refuse("standardise", standardise, "must be true or false", "Write standardise = true")
    return datasets.standardise(data)[0] if standardise else data


def _logistic(
    data: Any = "strong",
    agents: int | None = None,
    samples: int | None = None,
    dimension: int | None = None,
    seed: int = 0,
    alpha: float = 1.0,
    beta: float = 0.1,
    start: Any = 0.0,
    title: str | None = None,
    standardise: bool = False,
    weights: Any = None,
) -> Problem:
    """Return penalised logistic regression on the paper's generated data, or on loaded data with two classes.

    `start` is x^0: a number for all its entries, or a list. `agents`, `samples` and `dimension` are the sizes of
    generated data, by default 100, 400 and 20.
    """
    count("seed", seed, "Give the seed of the data, an integer", least=0)
    if isinstance(data, str):
        generate = DATA[choice("data", data, DATA)]
        if standardise:
            refuse("standardise", standardise, "is for loaded data, but these are generated", f"Leave it out. {LOADED}")
        sizes = {"agents": agents, "samples": samples, "dimension": dimension}
        features, labels = generate(**{key: size for key, size in sizes.items() if size is not None}, seed=seed)
    else:
        for name, value in (("samples", samples), ("dimension", dimension)):
            if value is not None:
                refuse(name, value, "is for generated data, but these are loaded", "Leave it out")
        features, labels = _signed(data, agents, seed, standardise)
    problem = problems.penalized_logistic(features, labels, alpha, beta, weights=weights)
    return replace(problem, start=_start(start, problem.start), name=title or problem.name)


def _signed(data: Any, agents: int | None, seed: int, standardise: bool) -> tuple[Any, Any]:
    """Return the features of loaded data, and labels -1 for the smaller class and +1 for the larger one."""
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data, Federated):
        return (datasets.standardise(data[0])[0] if standardise else data[0]), data[1]
    loaded = _prepared(data, agents, seed=seed, standardise=standardise)
    if len(loaded.classes) != 2:
        refuse(
            "classes", loaded.classes.tolist(), "must be two for logistic regression", 'Use name = "softmax_regression"'
        )
    features = [samples["x"].reshape(len(samples["x"]), -1) for samples in loaded.train]
    return features, [np.where(samples["y"] == loaded.classes[1], 1, -1) for samples in loaded.train]


def _start(start: Any, usual: np.ndarray) -> np.ndarray:
    if isinstance(start, list | np.ndarray):
        given = np.asarray(start, usual.dtype)
        if given.shape != usual.shape:
            refuse("start", start, f"must have {len(usual)} entries", "Give x^0, or one number for all its entries")
        return given
    at_least("start", start, -math.inf, "Give a number, every entry of x^0, or a list")
    return np.full_like(usual, start)


def _network(
    model: Any,
    data: Any,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    l2: float = 0.0,
    standardise: bool = False,
    weights: Any = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    check: bool = True,
) -> Problem:
    """Return a network on federated data.

    `agents` merges the clients as the paper does. `test_share` is the share of each client's samples for tests.
    """
    data = _prepared(data, agents, test_share, title, seed, standardise)
    if isinstance(model, str):
        model = _named_network(model, len(data.classes))
    elif isinstance(model, type):
        refuse("model", model.__name__, "is a class, not a module", "Write it as a table with its arguments")
    return problems.network(model, data, seed=seed, l2=l2, weights=weights, precision=precision, check=check)


def _on_data(function: Callable[..., Problem]) -> Callable[..., Problem]:
    """Return what a table calls for a problem on federated data.

    Its keys are the parameters of Python's function, and those of `_prepared`, which prepare the data. `start` may be a
    list, and `model` the name of one of fedpd's networks, which then has as many outputs as a sample has targets.
    """
    own, further = (inspect.signature(one).parameters for one in (function, _prepared))

    def build(**given: Any) -> Problem:
        given["data"] = _prepared(**{key: value for key, value in given.items() if key in further})
        if isinstance(given.get("model"), str):
            given["model"] = _named_network(given["model"], math.prod(given["data"].target_shape))
        if "start" in given:
            given["start"] = _arrays(given["start"])
        return function(**{key: value for key, value in given.items() if key in own})

    both = {**further, **own}.values()
    required = [one for one in both if one.default is one.empty]
    keys = [one.replace(kind=one.KEYWORD_ONLY) for one in (*required, *(one for one in both if one not in required))]
    vars(build)["__signature__"] = inspect.Signature(keys, return_annotation=Problem)  # which `calls` reads
    build.__annotations__ = {key: one.annotation for key, one in further.items()}  # the function checks its own
    return build


def _named_network(name: str, outputs: int) -> Any:
    return NETWORKS[choice("model", name, NETWORKS)](classes=outputs)


def _next_token(
    model: Any,
    data: Any,
    start: Any = None,
    padding: int | None = -100,
    metrics: Any = None,
    agents: int | None = None,
    test_share: float = 0.0,
    title: str | None = None,
    seed: int = 0,
    l2: float = 0.0,
    weights: Any = None,
    backend: Any = "jax",
    check: bool = True,
) -> Problem:
    """Return the problem of predicting the next token at every position, with a model of the user's own."""
    data = _prepared(data, agents, test_share, title, seed)
    named = {"seed": seed, "l2": l2, "weights": weights, "metrics": metrics, "backend": backend, "check": check}
    return problems.next_token(model, data, _arrays(start), padding=padding, **named)


def _from_losses(
    losses: Any,
    data: Any,
    start: Any,
    penalty: Any = None,
    weights: Any = None,
    block: int | None = None,
    answer: Any = UNKNOWN,
    title: str = "problem",
    standardise: bool = False,
    check: bool = True,
) -> Problem:
    """Return a problem from a loss of the user's own. If the data are federated, it uses the training samples."""
    samples = _own_samples("losses", losses, data, standardise)
    named = {"penalty": penalty, "weights": weights, "block": block, "answer": answer, "check": check}
    return problems.from_losses(losses, samples, _arrays(start), **named, name=title)


def _from_agent_loss(
    loss: Any,
    data: Any,
    start: Any,
    penalty: Any = None,
    weights: Any = None,
    answer: Any = UNKNOWN,
    title: str = "problem",
    standardise: bool = False,
    check: bool = True,
) -> Problem:
    """Return a problem with one loss per agent. If the data are federated, it uses the training samples."""
    samples = _own_samples("loss", loss, data, standardise)
    named = {"penalty": penalty, "weights": weights, "answer": answer, "check": check}
    return problems.from_agent_loss(loss, samples, _arrays(start), **named, name=title)


def _own_samples(name: str, function: Any, data: Any, standardise: bool) -> Any:
    """Return the training samples of federated data, or other data as they are; refuse a loss that is no function."""
    if not isinstance(data, Federated) and standardise:
        refuse("standardise", standardise, "applies to federated data only", "Call data.standardise in your loader")
    if not callable(function):
        refuse(name, function, "must be a function", f'Write {name} = "my_module:{name}"')
    return _prepared(data, standardise=standardise).train if isinstance(data, Federated) else data


def _quadratic(hessians: Any, linear: Any, start: Any = None) -> Problem:
    """Return the quadratic problem with these Hessians and linear terms."""
    start = None if start is None else _arrays(start)
    return problems.quadratic(np.asarray(hessians, float), np.asarray(linear, float), start=start)


def _arrays(start: Any) -> Any:
    """Return a start, with a list of numbers as an array."""
    return np.asarray(start, float) if isinstance(start, int | float | list) else start


PROBLEMS: Functions = {
    "penalized_logistic": _logistic,
    "network": _network,
    "softmax_regression": _on_data(problems.softmax_regression),
    "classification": _on_data(problems.classification),
    "regression": _on_data(problems.regression),
    "multilabel": _on_data(problems.multilabel),
    "next_token": _next_token,
    "supervised": _on_data(problems.supervised),
    "from_losses": _from_losses,
    "from_agent_loss": _from_agent_loss,
    "quadratic": _quadratic,
    "random_quadratic": problems.random_quadratic,
    "opposing_quadratics": problems.opposing_quadratics,
    "hard_instance": problems.hard_instance,
}
