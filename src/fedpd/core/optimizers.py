"""Optimisers of optax by name, with settings that are checked, so that an experiment file can contain them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import optax as optax_library

from fedpd.base.checks import as_number, choice, is_traced, positive_or_schedule, refuse
from fedpd.base.spec import Spec
from fedpd.base.value import Value
from fedpd.core.oracle import step_at


class Optimizer(Value):
    """An optax optimiser with its name and settings, so that an experiment file can contain it."""

    rule: str  # its name in optax
    order: tuple[str, ...]  # the names of its settings
    numbers: dict[str, float]  # those settings that are numbers; a sweep may trace them
    others: dict[str, Any]  # all other settings
    counts: ClassVar = ("numbers",)

    @property
    def settings(self) -> dict[str, Any]:
        known = self.numbers | self.others
        return {name: known[name] for name in self.order}

    @property
    def spec(self) -> Spec:
        return Spec.of(self.rule, **self.settings)

    @property
    def by_round(self) -> bool:
        """Whether the learning rate is a schedule of fedpd, a function of the round and the local step."""
        return isinstance(self.others.get("learning_rate"), Value)

    @property
    def transform(self) -> optax_library.GradientTransformation:
        """The optimiser; with a schedule by round, one with the same state, whose steps are those of `at`."""
        return optimizers()[self.rule](**self.settings | ({"learning_rate": 1.0} if self.by_round else {}))

    def at(self, r: Any, q: Any) -> optax_library.GradientTransformation:
        """Return the optimiser for local step q of round r."""
        rate = {"learning_rate": step_at(self.others["learning_rate"], r, q)} if self.by_round else {}
        return optimizers()[self.rule](**self.settings | rate)

    def changed(self, changes: Mapping[str, Any], within: str = "") -> "Optimizer":
        return optimizer(self.rule, **self.settings | dict(changes))


@functools.cache
def optimizers() -> dict[str, Callable[..., optax_library.GradientTransformation]]:
    """Return the optimisers of optax by name: its functions that take a learning rate."""
    functions = {name: getattr(optax_library, name) for name in dir(optax_library) if not name.startswith("_")}
    return {
        name: function
        for name, function in functions.items()
        if inspect.isfunction(function) and "learning_rate" in inspect.signature(function).parameters
    }


def optimizer(name: str, **settings: Any) -> Optimizer:
    """Return an optax optimiser by its name, e.g. optimizer("adam", learning_rate=0.01).

    A `learning_rate` of `fedpd.schedules` is a function of the round and the local step. One of optax is a function of
    the number of local steps since the optimiser's state began, which is every round unless the oracle keeps it.
    """
    known = optimizers()
    choice("optimizer", name, known)
    _check_optimizer(known[name], settings)
    known[name](**settings)  # it refuses what does not fit
    numbers = {key: value for key, value in settings.items() if isinstance(value, float)}
    others = {key: value for key, value in settings.items() if key not in numbers}
    return Optimizer(rule=name, order=tuple(settings), numbers=numbers, others=others)


def _check_optimizer(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that optax accepts and that fail, or do nothing sensible, in the first step."""
    parameters = inspect.signature(function).parameters
    for key, value in settings.items():
        usual = parameters[key].default if key in parameters else None
        if key == "learning_rate":
            positive_or_schedule(key, value, "Give the step size of the optimiser, e.g. 0.01")
        elif isinstance(usual, bool) and not isinstance(value, bool):
            refuse(key, value, "must be True or False", f"Its default is {usual}")
        elif type(usual) in (int, float) and not callable(value) and not is_traced(value):
            as_number(key, value, f"Its default is {usual}")
