"""Check the arguments of a function against its annotations, so that a wrong object is refused where it is given.

`@typed` on a function of the public interface refuses a text for a number, swapped arguments, NaN, integers beyond 64
bits, masked and complex arrays. Annotations describe types, not ranges: functions check ranges themselves.
"""

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import jax
import numpy as np
from jax.errors import JAXTypeError

from fedpd.base.arrays import read
from fedpd.base.checks import nearest, refuse, shown
from fedpd.base.errors import FedpdError, UnexpectedError

P = ParamSpec("P")
T = TypeVar("T")
LARGEST = 2**63 - 1  # of the integers that NumPy holds
NONE = type(None)
LISTS = (Sequence, Iterable, list, tuple)
EXAMPLES = {
    "Federated": ", e.g. data.from_arrays({'site': {'x': x, 'y': y}})",
    "Method": ", e.g. algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=8))",
    "Problem": ", e.g. problems.network(module, data)",
}
ARRAYS = np.ndarray | jax.Array


def typed(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with a check of its arguments against its annotations.

    Examples:
        >>> from fedpd.base.typed import typed
        >>> @typed
        ... def half(x: float) -> float:
        ...     return x / 2
        >>> half("1")
        Traceback (most recent call last):
        fedpd.base.errors.FedpdError: x = '1': must be a number, not str. Give a number.
    """

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(function, bound(function, *args, **kwargs))
        return function(*args, **kwargs)

    return checked


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose every error is a sentence: its own, that of the annotations, or that of what it calls.

    It is for functions that do nothing but compute their result, so that an error is due to their arguments.

    Examples:
        >>> from fedpd.base.typed import explained
        >>> @explained
        ... def inverse(x: float) -> float:
        ...     return 1 / x
        >>> inverse(0)
        Traceback (most recent call last):
        fedpd.base.errors.FedpdError: inverse(x=0): division by zero. Give numbers that are neither huge nor tiny.
    """

    @functools.wraps(function)
    def explaining(*args: P.args, **kwargs: P.kwargs) -> T:
        return call_explained(function, LARGEST, *args, **kwargs)

    return explaining


def call_explained(function: Callable[P, T], largest: int = LARGEST, /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `call_checked`, and turn every other error into a sentence."""
    given = bound(function, *args, **kwargs)
    try:
        return call_checked(function, largest, *args, **kwargs)
    except (FedpdError, JAXTypeError):  # a caller that traces the function handles JAX's errors
        raise
    except Exception as error:
        plain = {name: value for name, value in given.items() if isinstance(value, Real | str)}
        words = ", ".join(f"{name}={shown(value)}" for name, value in plain.items())
        remedy = "Check the arguments and their shapes"
        if isinstance(error, ArithmeticError):
            remedy = "Give numbers that are neither huge nor tiny"
        if isinstance(error, OSError):
            remedy = "Check that the path is right and can be read"
        raise explained_error(f"{function.__name__}({words})", error, remedy) from error


def bound(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name.

    Raises:
        TypeError: One is missing or too many, as in Python. The message names the function.
    """
    signature = inspect.signature(function)
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        unknown = [name for name in kwargs if name not in signature.parameters]  # what is missing may be misspelt
        if not unknown:
            raise TypeError(f"{function.__name__}(): {error}. {_arguments(signature)}") from None
        remedy = nearest(unknown[0], signature.parameters)
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown[0]!r}. {remedy}") from None


def _arguments(signature: inspect.Signature) -> str:
    """Return a sentence with the names of the arguments that a function must have."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = {name: one for name, one in signature.parameters.items() if one.kind not in several}
    required = [name for name, one in every.items() if one.default is inspect.Parameter.empty]
    others = "" if len(required) == len(signature.parameters) else "; others may be left out"
    return f"Give {', '.join(required)}{others}."


def explained_error(place: str, error: Exception, remedy: str) -> FedpdError:
    """Return the sentence about an error that a call raised, most probably because of its arguments.

    A KeyError, an AttributeError or a failed assertion may as well be a fault of fedpd: the sentence then says so.

    Args:
        place: The call, or its place in a file.
    """
    if isinstance(error, LookupError | AttributeError | AssertionError | NameError):
        what = f"{type(error).__name__}: {first_line(error)}"
        return UnexpectedError(f"{place}: {what}. {remedy}; if they are right, this is a fault of fedpd: report it.")
    return FedpdError(f"{place}: {first_line(error)}. {remedy}.")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop at its end."""
    (line, *_) = str(error).strip().splitlines() or [""]
    return line[:300].rstrip(".") or type(error).__name__


def call_checked(function: Callable[P, T], largest: int = LARGEST, /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function whose own sentences about its arguments come before those of the annotations."""
    given = bound(function, *args, **kwargs)
    try:
        made = function(*args, **kwargs)
    except FedpdError:
        raise
    except Exception:
        check_arguments(function, given, largest=largest)
        raise
    check_arguments(function, given, largest=largest)
    return made


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any], *, largest: int = LARGEST) -> None:
    """Refuse an argument that does not fit the annotation of its parameter."""
    kinds = _hints(function)
    for name, value in given.items():
        kind = kinds.get(name, Any)
        reason = misfit(value, kind, largest)
        if reason is not None:
            refuse(name, value, reason, _remedy(value, kind))


@functools.cache
def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    parameters = inspect.signature(function).parameters
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # an annotation that only a type checker can read
        return {}
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: hints[name] for name, p in parameters.items() if name in hints and p.kind not in several}


def misfit(value: Any, kind: Any, largest: int = LARGEST) -> str | None:
    """Return the rule that a value breaks if it must be of a kind, such as "must be a number, not str"; None: it fits.

    Examples:
        >>> from fedpd.base.typed import misfit
        >>> misfit(3, float), misfit("3", float | None)
        (None, 'must be a number or None, not str')
    """
    kinds = _alternatives(kind)
    if isinstance(value, list | tuple) and any(map(_is_list, kinds)):
        kinds = tuple(one for one in kinds if one is not np.ndarray)  # the entries of a list have a kind of their own
    reasons = []
    for one in sorted(kinds, key=_is_list):  # data by agent may look like a list, whose entries would be loaded
        reasons.append(_misfit(value, one, largest))
        if reasons[-1] is None:
            return None
    exact = [reason for reason in reasons if reason]  # of the alternatives that would fit but for the value
    return exact[0] if exact else f"must be {_words(kind)}, not {'None' if value is None else type(value).__name__}"


def _is_list(kind: Any) -> bool:
    return (get_origin(kind) or kind) in LISTS


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _misfit(value: Any, kind: Any, largest: int) -> str | None:
    """Return None if a value fits, "" if it is of another type, and else the rule that it breaks."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return None if any(type(value) is type(one) and value == one for one in get_args(kind)) else ""
    if kind in (int, float):
        return _misfit_number(value, kind, largest)
    if kind is bool:
        return None if isinstance(value, bool | np.bool_) else ""
    if origin in LISTS or origin is np.ndarray:
        return _misfit_list(value, origin, get_args(kind), largest)
    if origin is Callable or getattr(origin, "_is_protocol", False):
        return None if callable(value) else ""
    if origin in (Any, jax.Array) or not isinstance(origin, type):
        return None
    return None if isinstance(value, dict if is_typeddict(origin) else origin) else ""


def _misfit_number(value: Any, kind: type, largest: int) -> str | None:
    if isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, ARRAYS) and value.ndim == 0:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) or np.ma.is_masked(value):  # a key of jax.random
            return ""
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return ""
    if isinstance(value, Integral):
        value = int(value)
        if kind is int and abs(value) > largest:
            return f"must be an integer below 2^{largest.bit_length()} in size"
        return None if abs(value) <= 10**308 else "must be a number below 1e308 in size"
    return "must be a number, not NaN" if math.isnan(value) else None


def _misfit_list(value: Any, origin: Any, inner: tuple[Any, ...], largest: int) -> str | None:
    if isinstance(value, ARRAYS) or origin is np.ndarray:
        return _misfit_array(value)
    if isinstance(value, str) and inner == (str,):
        return None  # the names of classes may be the characters of a text
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return ""
    if not isinstance(value, Sized) or isinstance(value, range) or inner in ((), (Any,)) or origin is Iterable:
        return None if origin is Iterable or isinstance(value, Sized) else ""
    if isinstance(value, set | dict):
        return ""
    own = inner if origin is tuple and Ellipsis not in inner else None
    if own is not None and len(own) != len(value):
        return f"must have {len(own)} entries"
    for number, entry in enumerate(value):
        reason = misfit(entry, own[number] if own else inner[0], largest)
        if reason is not None:
            return f"entry {number} {reason}"
    return None


def _misfit_array(value: Any) -> str | None:
    if isinstance(value, str | bytes | dict | set) or callable(value) or value is None:
        return ""
    if isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return ""  # keys of jax.random
    found = read(value)
    return found if isinstance(found, str) else None


def _words(kind: Any) -> str:
    words = list(dict.fromkeys(map(_word, _alternatives(kind))))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _word(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    known = {float: "a number", int: "an integer", bool: "True or False", str: "a text", NONE: "None", Path: "a path"}
    if origin in known:
        return known[origin]
    if origin is Callable or getattr(origin, "_is_protocol", False):
        return "a function"
    if origin in LISTS:
        return f"a list of {_plural(get_args(kind))}"
    if origin in (np.ndarray, jax.Array):
        return "an array"
    if origin is Mapping or origin is dict:
        return "a dict"
    name = getattr(origin, "__name__", str(origin))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _plural(inner: tuple[Any, ...]) -> str:
    kinds = {_alternatives(one) for one in inner if one is not Ellipsis}
    known = {(float,): "numbers", (int,): "integers", (str,): "texts"}
    return known.get(next(iter(kinds)), "values") if len(kinds) == 1 else "values"


def _remedy(value: Any, kind: Any) -> str:
    """Return what to give instead: an option that is similar, or what fits."""
    options = [str(option) for one in _alternatives(kind) if get_origin(one) is Literal for option in get_args(one)]
    example = EXAMPLES.get(getattr(kind, "__name__", ""), "")
    return nearest(value, options) if isinstance(value, str) and options else f"Give {_words(kind)}{example}"
