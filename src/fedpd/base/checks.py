"""Checks of arguments, with one form of error message: the value, the rule that it breaks, the remedy.

Hyper-parameters may be traced numbers, because a sweep is a vmap over them. The functions check concrete numbers only.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, NoReturn

import jax
import numpy as np

from fedpd.base.errors import FedpdError
from fedpd.base.errors import TheoryWarning as TheoryWarning

LONGEST = 200  # characters of a value in a message
WORDS = {  # of other libraries and papers, and what they are called here
    "lr": "step",
    "learning_rate": "step",
    "batch_size": "batch",
    "local_epochs": "epochs",
    "local_steps": "iterations",
    "num_rounds": "rounds",
    "client_fraction": "participation",
    "clients_per_round": "cohort",
    "num_clients": "agents",
    "mu": "rho",
}
FEW = 4  # arrays with at most this many numbers are shown whole


def refuse(name: str, value: Any, rule: str, remedy: str) -> NoReturn:
    """Raise a FedpdError that says `name = value: rule. remedy.`"""
    raise FedpdError(f"{name} = {shown(value)}: {rule}. {remedy}{'' if remedy.endswith(('.', '?')) else '.'}")


def shown(value: Any) -> str:
    """Return a value as text for a message, shortened if it is long.

    Examples:
        >>> from fedpd.base.checks import shown
        >>> shown("fast"), shown(10**999)
        ("'fast'", '1000000000...0000000000')
    """
    try:
        text = _text(value)
    except Exception:  # too many digits, too deep, or an object with a repr of its own
        text = f"a value of the type {type(value).__name__}"
    text = " ".join(text.split()) if "\n" in text else text
    if len(text) <= LONGEST:
        return text
    ends = 10 if isinstance(value, int) else LONGEST // 2
    return f"{text[:ends]}...{text[-ends:]}"


def _text(value: Any) -> str:
    """Return the repr of a value, but of a method, an oracle or a transform the call that makes it."""
    if type(value) in (list, tuple) and any(hasattr(one, "spec") for one in value):
        return f"[{', '.join(map(_text, value))}]"
    label = getattr(getattr(value, "spec", None), "label", None)
    return str(label()) if callable(label) else repr(value)


def is_traced(value: Any) -> bool:
    """Return whether JAX is tracing this value, so that it has no concrete number."""
    return isinstance(value, jax.core.Tracer)


def as_number(name: str, value: Any, remedy: str) -> float:
    """Return `value` as a float if it is a real number and not NaN; refuse it otherwise."""
    if isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and not np.ma.is_masked(value):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse(name, value, f"must be a number, not {type(value).__name__}", remedy)
    try:
        number = float(value)
    except OverflowError:
        refuse(name, value, "must be a number below 1.8e308 in size", remedy)
    if math.isnan(number):
        refuse(name, value, "must be a number, not NaN", remedy)
    return number


def positive(name: str, value: Any, remedy: str, *, infinite: bool = False) -> Any:
    """Return `value` if it is a number > 0 (finite unless `infinite`) or traced; refuse it otherwise."""
    if is_traced(value):
        return value
    number = as_number(name, value, remedy)
    if number <= 0 or (math.isinf(number) and not infinite):
        refuse(name, value, "must be positive" if infinite else "must be positive and finite", remedy)
    return value


def at_least(name: str, value: Any, bound: float, remedy: str) -> Any:
    """Return `value` if it is a finite number >= `bound` or traced; refuse it otherwise."""
    if is_traced(value):
        return value
    number = as_number(name, value, remedy)
    if number < bound or math.isinf(number):
        refuse(name, value, f"must be finite and at least {bound:g}", remedy)
    return value


def below(name: str, value: Any, bound: float, remedy: str) -> Any:
    """Return `value` if it is a number < `bound` or traced; refuse it otherwise."""
    if not is_traced(value) and not as_number(name, value, remedy) < bound:
        refuse(name, value, f"must be below {bound:g}", remedy)
    return value


def at_most(name: str, value: Any, bound: float, remedy: str) -> Any:
    """Return `value` if it is a number <= `bound` or traced; refuse it otherwise."""
    if not is_traced(value) and not as_number(name, value, remedy) <= bound:
        refuse(name, value, f"must be at most {bound:g}", remedy)
    return value


def count(name: str, value: Any, remedy: str, *, least: int = 1, bits: int = 63) -> Any:
    """Return `value` as an integer if it is one >= `least` and below 2^bits, or traced; refuse it otherwise."""
    if is_traced(value):
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        refuse(name, value, f"must be an integer of at least {least}", remedy)
    if value >= 2**bits:
        refuse(name, value, f"must be below 2^{bits}", remedy)
    return int(value)


def check_room(what: str, numbers: float, remedy: str) -> None:
    """Refuse to make an array of more float64 numbers than the memory of this machine holds."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return
    if 8 * numbers > memory:
        rule = f"needs {8 * numbers / 2**30:,.0f} GB of memory, and this machine has {memory / 2**30:,.0f} GB"
        raise FedpdError(f"{what}: {rule}. {remedy}.")


def check_seeds(name: str, seeds: Any) -> None:
    """Check that `seeds` is a sequence of integers that JAX accepts as seeds."""
    remedy = "Give integers from 0 to 2147483647"
    if not len(seeds):
        refuse(name, seeds, "must hold at least one seed", "Give e.g. [0, 1, 2]")
    for seed in seeds:
        if count(name, seed, remedy, least=0) >= 2**31:
            refuse(name, seed, "must be below 2^31", remedy)


def check_takes(name: str, function: Callable[..., Any], number: int, remedy: str) -> None:
    """Refuse a function that cannot be called with this number of arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C without a signature
        return
    try:
        signature.bind(*[None] * number)
    except TypeError:
        what = f"a function of {', '.join(map(str, signature.parameters)) or 'nothing'}"
        plural = "" if number == 1 else "s"
        raise FedpdError(f"{name} is {what}: it must take {number} argument{plural}. {remedy}.") from None


def positive_or_schedule(name: str, value: Any, remedy: str) -> Any:
    """Return `value` if it is a function or a positive number; refuse it otherwise."""
    return value if callable(value) else positive(name, value, remedy)


def skip_probability(p: Any) -> Callable[[Any], Any] | None:
    """Return `p` as a function of the round r, or None if p = 0."""
    if callable(p):
        return p
    if is_traced(p):
        return lambda r: p
    remedy = "p is the probability of SKIPPING a communication: 0 skips none, 0.75 skips three of four"
    if isinstance(p, str):
        refuse("p", p, 'must be a number in [0, 1), a schedule or "auto"', remedy)
    number = as_number("p", p, remedy)
    if not 0 <= number < 1:
        refuse("p", p, "must lie in [0, 1)", remedy)
    return None if number == 0 else lambda r: p


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    """Return `value` if it is one of the options; refuse it otherwise."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        refuse(name, value, "there is no such choice", nearest(value, options))
    return value


def nearest(value: Any, options: Iterable[str]) -> str:
    """Return "Did you mean ...?" with the option of this meaning or spelling, or the list of all options."""
    options = list(options)
    if isinstance(value, str) and WORDS.get(value) in options:
        return f"Did you mean {WORDS[value]!r}?"
    match = get_close_matches(value[:LONGEST], options, n=1) if isinstance(value, str) else []
    return f"Did you mean {match[0]!r}?" if match else f"Choose from: {', '.join(options)}."


def brief(record: Any) -> str:
    """Return the repr of a named tuple, with the shape and range of each longer array in place of its numbers.

    Examples:
        >>> import numpy as np
        >>> from fedpd.base.checks import brief
        >>> from typing import NamedTuple
        >>> class Found(NamedTuple):
        ...     value: float
        ...     per_agent: np.ndarray
        >>> print(brief(Found(2.0, np.linspace(1, 2, 500))))
        Found(value=2.0, per_agent=<(500,) from 1 to 2>)
    """
    fields = (f"{name}={_value(value)}" for name, value in zip(record._fields, record, strict=True))
    return f"{type(record).__name__}({', '.join(fields)})"


def _value(value: Any) -> str:
    """Return the repr of one field, or the shape and range of a longer array."""
    if not isinstance(value, np.ndarray) or value.size <= FEW:
        return repr(value)
    return f"<{value.shape} from {value.min():g} to {value.max():g}>"
