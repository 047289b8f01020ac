"""The methods of a comparison, all with the same local work: how to make each of them, and which settings to search.

A method is given by its name, by a function that makes it, by a table of an experiment file with lists of values, or as
a finished method, which has nothing to search. A name searches the local step, and the penalty in units of step Q: the
best penalty grows with both (eta was 2.5 to 20 times step Q on twelve problems with mini-batches).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from fedpd import algorithms, oracles, schedules, transforms
from fedpd.algorithms import cards, variants
from fedpd.base.checks import FedpdError, at_least, count, nearest, positive, refuse
from fedpd.core import Method, Oracle, Problem
from fedpd.experiments.calls import build_algorithm
from fedpd.experiments.own_code import Find, refuse_code
from fedpd.search.train import BATCH

Builder = Callable[..., Method]


class FromTable(NamedTuple):
    """A table of an experiment file, in which lists are searched; `find` returns the user's own code by its name."""

    table: Mapping[str, Any]
    find: Find = refuse_code


Listed = Mapping[str, Builder | Method | Mapping[str, Any] | FromTable | str]
FIRST_STEP = 0.1  # with mini-batches; with full gradients it is 1/(2L)
FIRST_PENALTY = 5.0  # eta, or 1/rho, in units of step Q, with mini-batches; 1 with full gradients
FULL_STEPS = 8  # local steps with full gradients, as in the rules of the cards
PENALTIES = ("eta", "rho", "alpha", "mu")  # required arguments that are a penalty 1/eta, or its weight
WORK = ("batch", "iterations", "epochs")
SAME_KEYS = (*WORK, "momentum", "weight_decay", "clip")  # of `oracles.sgd` and of methods with steps of their own


@dataclass(frozen=True)
class LocalWork:
    """The work of an agent in a round: Q steps, or passes over its own samples. All methods of a comparison do this."""

    batch: int | None  # samples per step; None: all samples of the agent
    iterations: int | None  # Q, the local steps; None: they follow from `epochs`
    epochs: int | None  # passes over the agent's samples; None: the steps are `iterations`
    decay: float  # the factor on the step size from one round to the next
    momentum: float  # of the local steps; it starts again in every round
    weight_decay: float  # the weight of the model in its gradient
    clip: float | None  # the largest norm of a local gradient; None: any
    steps: float  # the local steps of a round, the mean over agents

    @property
    def words(self) -> str:
        """Return the local work as text, such as "5 epochs with batch 50"."""
        if self.epochs is not None:
            done = f"{self.epochs} epoch{'s' * (self.epochs > 1)}"
        else:
            done = f"{self.iterations} local step{'s' * (self.iterations != 1)}"
        samples = "full gradients" if self.batch is None else f"batch {self.batch}"
        more = {"momentum": self.momentum, "weight decay": self.weight_decay, "clip": self.clip}
        also = [f"{name} {value:g}" for name, value in more.items() if value]
        also += [f"step sizes times {self.decay:g} per round"] * (self.decay != 1)
        return ", ".join([f"{done} with {samples}", *also])

    def step(self, first: Any) -> Any:
        """Return the step size by round."""
        return first if self.decay == 1 else schedules.exponential(first, self.decay)

    def arguments(self) -> dict[str, Any]:
        """Return the local work as arguments of `oracles.sgd`, without those that have their default."""
        usual = inspect.signature(oracles.sgd).parameters
        given = {name: getattr(self, name) for name in SAME_KEYS}
        return {
            name: value for name, value in given.items() if name == "batch" or (value and value != usual[name].default)
        }

    def oracle(self, step: Any) -> Oracle:
        """Return the local solver with a first step size."""
        return oracles.sgd(step=self.step(step), **self.arguments())


def make_work(
    problem: Problem,
    smooth: bool,
    batch: int | None = None,
    iterations: int | None = None,
    epochs: int | None = None,
    *,
    decay: float = 1.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> LocalWork:
    """Return the local work of a comparison.

    Args:
        smooth: Whether full gradients are the usual choice if nothing is given, because the criterion is the
            stationarity; otherwise the usual choice is one pass in batches.
    """
    if iterations is not None and epochs is not None:
        refuse("epochs", epochs, f"iterations = {iterations} is given too", "Give one of them")
    if iterations is None and epochs is None:
        iterations, epochs = (FULL_STEPS, None) if smooth and batch is None else (None, 1)
    for name, number in (("batch", batch), ("iterations", iterations), ("epochs", epochs)):
        if number is not None:
            count(name, number, "Give a positive integer", bits=31)
    positive("decay", decay, "Give the factor on the step size per round, e.g. 0.998")
    at_least("momentum", momentum, 0, "Give e.g. 0.9")
    at_least("weight_decay", weight_decay, 0, "Give e.g. 1e-3")
    if epochs is not None and batch is None:
        batch = min(BATCH, max(1, int(np.median(problem.sizes))))
    passes = float(np.mean(np.ceil(problem.sizes / (batch or 1))))  # steps of one epoch
    steps = float(iterations) if iterations is not None else (epochs or 1) * passes
    return LocalWork(batch, iterations, epochs, decay, momentum, weight_decay, clip, steps)


class Axis(NamedTuple):
    """The values of one setting: a list, or a ladder without ends whose rungs are a factor of sqrt(2) apart."""

    first: Any  # the value with which a search begins
    values: tuple[Any, ...] | None = None  # the list; None: a ladder
    below_one: bool = False  # whether the ladder is of 1 - value, as for momentum

    @property
    def start(self) -> int:
        """Return the place of the first value."""
        return 0 if self.values is None else self.values.index(self.first)

    def value(self, place: int) -> Any:
        """Return the value at a place; a ladder has places on both sides of 0."""
        if self.values is not None:
            return self.values[place]
        factor = float(2 ** (place / 2))
        return 1 - (1 - self.first) / factor if self.below_one else self.first * factor

    def has(self, place: int) -> bool:
        """Return whether there is such a place."""
        if self.values is not None:
            return 0 <= place < len(self.values)
        return not self.below_one or self.value(place) >= 0

    def stride(self, rungs: int) -> int:
        """Return how far a search goes on this axis when it goes so many rungs on a ladder."""
        return rungs if self.values is None else max(1, min(rungs, len(self.values) // 4))


class Candidate(NamedTuple):
    """A method to search and compare."""

    label: str  # its name in tables and figures
    build: Builder  # returns the method with values of the settings, by the names of the axes
    axes: dict[str, Axis]  # the settings to search; {}: nothing
    # returns the method as it runs, with the mean of the comparison
    around: Callable[[Method], Method] = lambda method: method

    def method(self, places: Sequence[int]) -> Method:
        """Return the method at a place of each axis."""
        made = self.build(**self.point(places))
        if not isinstance(made, Method):
            rule = f"its function returned {type(made).__name__}"
            refuse("methods", self.label, rule, "Return a method, e.g. algorithms.fedpd(...)")
        return self.around(made)

    def point(self, places: Sequence[int]) -> dict[str, Any]:
        """Return the values of the settings at a place of each axis."""
        return {name: axis.value(place) for (name, axis), place in zip(self.axes.items(), places, strict=True)}


class Conditions(NamedTuple):
    """The comparison that candidates are made for."""

    work: LocalWork  # the local work
    agents: int  # N
    cohort: int  # the agents of a round
    L: Callable[[], float]  # returns the smoothness, which is measured only if a method needs it
    ranges: Mapping[str, Any]  # lists of values by the name of a setting, or by a method's label and the name
    rounds: int  # the rounds of a run, for schedules that end with it
    # "samples": the server weighs messages by the agents' numbers of samples; None: the plain mean
    weights: Literal["samples"] | None = None

    def weighted(self, method: Method) -> Method:
        """Return the method with the mean of the comparison."""
        return method if self.weights is None else transforms.wrap(method, mean=transforms.weighted(self.weights))

    def is_listed(self, label: str, name: str) -> bool:
        """Return whether the user gave a list of values of a setting."""
        return self._values(label, name) is not None

    def _values(self, label: str, name: str) -> Any:
        own = self.ranges.get(label)
        return own[name] if isinstance(own, Mapping) and name in own else self.ranges.get(name)

    def axis(self, label: str, name: str, first: Any) -> Axis:
        """Return the axis of a setting: the user's list, or a ladder from a first value."""
        values = self._values(label, name)
        if values is None:
            return first if isinstance(first, Axis) else Axis(float(first), below_one=name == "momentum")
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            refuse(f"ranges[{name!r}]", values, "must be a list of values", 'Give e.g. {"step": [0.05, 0.1, 0.2]}')
        return _listed(list(values))

    def first_step(self) -> float:
        """Return the step size with which a search begins."""
        return 1 / (2 * self.L()) if self.work.batch is None else FIRST_STEP


def _listed(values: Sequence[Any]) -> Axis:
    """Return the axis of a list, in ascending order if it has numbers; a search begins in the middle."""
    plain = list(dict.fromkeys(np.asarray(values).tolist()))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in plain)
    ordered = tuple(sorted(plain) if numbers else plain)
    return Axis(ordered[len(ordered) // 2] if numbers else ordered[0], ordered)


def make_candidates(methods: Sequence[str] | Listed, conditions: Conditions, own_work: bool) -> list[Candidate]:
    """Return the methods of a comparison.

    Args:
        own_work: Whether a name without a rule for any local work may bring its own, that of its card.

    Raises:
        FedpdError: A method cannot be made. The message names it, the rule and the remedy.
    """
    if isinstance(methods, str):
        refuse("methods", methods, "must be a list of names", f"Give e.g. [{methods!r}]")
    if isinstance(methods, Mapping):
        found = [_from_source(str(label), source, conditions, own_work) for label, source in methods.items()]
    else:
        found = [_from_name(name, conditions, own_work) for name in methods]
    found = [one._replace(around=conditions.weighted) for one in found]
    labels = [one.label for one in found]
    if not found or len(set(labels)) < len(found):
        refuse("methods", labels, "must hold at least one method, and each once", "Leave it out for the usual ones")
    for name, value in conditions.ranges.items():
        if isinstance(value, Mapping):
            used = any(one.label == name and set(value) <= set(one.axes) for one in found)
        else:
            used = any(name in one.axes for one in found)
        if not used:
            known = dict.fromkeys(axis for one in found for axis in one.axes)
            refuse("ranges", name, "is not a setting of any method", nearest(name, [*known, *labels]))
    return found


def _from_source(label: str, source: Any, conditions: Conditions, own_work: bool) -> Candidate:
    if isinstance(source, Method):
        return Candidate(label, lambda: source, {})
    if isinstance(source, Mapping):
        source = FromTable(source)
    if isinstance(source, FromTable):
        return _from_table(label, source, conditions)
    if isinstance(source, str):
        return _from_name(source, conditions, own_work)._replace(label=label)
    if not callable(source):
        remedy = "Give a function, e.g. lambda step: algorithms.fedavg(...), or a method"
        refuse(f"methods[{label!r}]", source, "is not a function that makes a method", remedy)
    return _from_function(label, source, conditions)


def _from_function(label: str, function: Builder, conditions: Conditions) -> Candidate:
    """Return the candidate of a function. Its arguments are searched, except those that the comparison gives it."""
    work, parameters = conditions.work, inspect.signature(function).parameters
    known = {
        "batch": work.batch,
        "iterations": work.iterations,
        "epochs": work.epochs,
        "agents": conditions.agents,
        "cohort": conditions.cohort,
    }
    fixed = {name: value for name, value in known.items() if name in parameters}
    usual = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    axes = {}
    if {"oracle", "step"} & set(parameters):
        first = usual["step"] if "step" in usual else conditions.first_step()
        axes["step"] = conditions.axis(label, "step", first)
    for name, parameter in parameters.items():
        if name in (*fixed, *axes, "oracle") or parameter.kind is parameter.VAR_KEYWORD:
            continue
        first = usual.get(name, 1.0)
        if isinstance(first, float) or conditions.is_listed(label, name):  # a count or a word keeps its default
            axes[name] = conditions.axis(label, name, first)

    def build(**point: Any) -> Method:
        given = {name: value for name, value in point.items() if name in parameters}
        if "oracle" in parameters:
            given["oracle"] = work.oracle(point["step"])
        return function(**given, **fixed)

    return Candidate(label, build, axes)


def _from_table(label: str, source: FromTable, conditions: Conditions) -> Candidate:
    axes = {".".join(path): _listed(values) for path, values in _lists(source.table)}

    def build(**point: Any) -> Method:
        chosen = source.table
        for name, value in point.items():
            chosen = _with_value(chosen, name.split("."), value)
        return build_algorithm(chosen, conditions.rounds, f"[[algorithm]] {label}", source.find)

    return Candidate(label, build, axes)


def _lists(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Yield the lists of numbers or words in a table, and where they are; a mixing matrix is a list of lists."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lists(value, (*path, key))
        elif isinstance(value, list) and value and not any(isinstance(one, Mapping | list) for one in value):
            yield (*path, key), value


def _with_value(table: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = path
    return {**table, first: _with_value(table[first], rest, value) if rest else value}


def factory_name(name: str) -> str:
    """Return the name of a method's factory, from this name, a title such as "FedPD", or a label such as "FedPD-SGD".

    Raises:
        FedpdError: There is no such method.
    """
    if not isinstance(name, str):
        refuse("methods", name, "must be the name of a method", "Give e.g. fedavg, or a dict of functions by label")
    titles = {card.title.lower(): known for known, card in cards().items()}
    labels = {variant.label.lower(): known for known, card in cards().items() for variant in card.variants}
    plain = name.strip().lower()
    for wanted in (plain, plain.removesuffix("-sgd").removesuffix("-gd"), plain.replace("-", "_").replace(" ", "_")):
        for names in (titles, labels):
            if wanted in names:
                return names[wanted]
        if wanted in algorithms.__all__:
            return wanted
    return refuse("methods", name, "there is no such method", nearest(name, [*algorithms.__all__, *variants()]))


def _from_name(name: str, conditions: Conditions, own_work: bool) -> Candidate:
    """Return the candidate of a name: with the local work of the comparison, or else by the rule of its card."""
    known = factory_name(name)
    try:
        found = _with_equal_work(name, known, conditions)
        found.method([axis.start for axis in found.axes.values()])
    except FedpdError:
        if not own_work:
            raise
        return _by_rule(name, known, conditions)
    return found


def _with_equal_work(name: str, known: str, conditions: Conditions) -> Candidate:
    factory, card = getattr(algorithms, known), cards()[known]
    parameters = inspect.signature(factory).parameters
    required = {key for key, one in parameters.items() if one.default is one.empty} - {"oracle", "step", *WORK}
    solver = _takes_oracle(parameters)
    stepped = solver or {"step", "iterations"} <= set(parameters)
    penalty = [key for key in required if key in PENALTIES]
    unknown = required - {*penalty, "cohort"}
    if not stepped or unknown or len(penalty) > 1 or (solver and "iterations" in parameters):
        rule = f"fedpd does not know how to give it {conditions.work.words}"
        refuse("methods", name, rule, "Give a function that makes it: {label: lambda step: algorithms...}")
    untuned = "cohort" in parameters  # it finds its step sizes itself
    given = _given_work(name, conditions.work, parameters, untuned)
    axes = {} if untuned else {"step": conditions.axis(card.title, "step", conditions.first_step())}
    if penalty:
        first = FIRST_PENALTY if conditions.work.batch is not None else 1.0
        axes["penalty"] = conditions.axis(card.title, "penalty", first)
    for key, values in card.search.items():
        usual = values if isinstance(values, float) else _listed(values)._replace(first=values[0])
        axes[_searched(key)] = conditions.axis(card.title, _searched(key), usual)
    return Candidate(card.title, partial(_with_work, factory, conditions, given, penalty), axes)


def _takes_oracle(parameters: Mapping[str, Any]) -> bool:
    """Return whether a method needs an oracle; an optional one stands for a loop of the user's own."""
    return "oracle" in parameters and parameters["oracle"].default is inspect.Parameter.empty


def _given_work(name: str, work: LocalWork, parameters: Mapping[str, Any], untuned: bool) -> dict[str, Any]:
    """Return the local work as arguments of a method; {}: it takes an oracle."""
    if _takes_oracle(parameters):
        return {}
    given = work.arguments()
    if untuned:
        given = {key: value for key, value in given.items() if key != "epochs"} | {"iterations": round(work.steps)}
    if given["batch"] is None and "batch" not in parameters:  # full gradients are all that it has
        given.pop("batch")
    missing = [key for key in given if key not in parameters]
    if missing or (untuned and work.batch is None):
        rule = f"takes no {missing[0]}, which this comparison has" if missing else "needs mini-batches"
        refuse("methods", name, rule, "Leave the method out, or compare with other local work")
    return given


def _searched(key: str) -> str:
    """Return the name of the axis of a further setting; the step of a server has another name than the local step."""
    return "server_step" if key == "step" else key


def _with_work(
    factory: Builder, conditions: Conditions, given: Mapping[str, Any], weight: Sequence[str], **point: Any
) -> Method:
    """Return a method with the local work of the comparison, and values of the settings that are searched.

    Args:
        given: The local work, if the method takes it as arguments of its own, not as an oracle.
        weight: The argument that is eta or 1/eta, if there is one.
    """
    parameters, work, arguments = inspect.signature(factory).parameters, conditions.work, dict(given)
    if "cohort" in parameters:
        return factory(**arguments, **point, cohort=conditions.cohort)
    step = point.pop("step")
    if _takes_oracle(parameters):
        arguments["oracle"] = work.oracle(step)
    else:
        arguments["step"] = work.step(step)
    for key in weight:
        eta = point.pop("penalty") * step * work.steps
        arguments[key] = eta if key == "eta" else 1 / eta
    if "server_step" in point and "server_step" not in parameters:
        arguments["step"] = point.pop("server_step")
    return factory(**arguments, **point)


def _by_rule(name: str, known: str, conditions: Conditions) -> Candidate:
    """Return a method by the rule of its card, with the local work of that rule; the factor on its step is searched."""
    labels = {variant.label.lower(): variant for variant in cards()[known].variants}
    variant = labels.get(name.strip().lower(), cards()[known].variants[0])

    def build(scale: float) -> Method:
        return variant.rule(conditions.L(), conditions.agents, scale)

    return Candidate(variant.label, build, {"scale": conditions.axis(variant.label, "scale", 1.0)})
