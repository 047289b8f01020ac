"""Make a method again from its spec, with other settings; "oracle.batch" names a setting of its oracle."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedpd import oracles
from fedpd.base.checks import nearest, refuse
from fedpd.base.spec import Spec, Thing
from fedpd.core import Algorithm
from fedpd.experiments.calls import ALGORITHMS, ARGUMENTS

OWN = "Give a function that makes it, e.g. lambda eta: my_method(eta=eta)"
Changes = Mapping[str, Any]  # new values by name, e.g. {"eta": 0.1, "oracle.batch": 10}; a dot leads into a setting


def with_settings(algorithm: Algorithm, settings: Changes) -> Algorithm:
    """Return a copy of a method with other settings.

    Args:
        algorithm: A method of fedpd.
        settings: New values by name. A dot leads into an oracle, a schedule or an optimiser: "oracle.batch",
            "oracle.optimizer.learning_rate".

    Raises:
        FedpdError: A function of the user's own made the method or the part to change, or there is no such setting.

    Examples:
        >>> from fedpd import algorithms, oracles
        >>> one = algorithms.fedpd(eta=0.1, oracle=oracles.sgd(step=0.1, iterations=8))
        >>> with_settings(one, {"eta": 0.2, "oracle.batch": 10}).description
        'fedpd(eta=0.2, oracle=sgd(step=0.1, iterations=8, batch=10))'
    """
    return _remade(algorithm, "algorithm", "", ALGORITHMS, settings)


def setting(algorithm: Algorithm, name: str) -> Any:
    """Return a setting of a method by its name with dots; None if the method has none."""
    found: Any = algorithm.spec
    for key in name.split("."):
        found = dict(found.settings).get(key) if isinstance(found, Spec) else None
    return found


def leaves(spec: Spec | str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a spec and of all specs in it by their names with dots, after the name of each spec."""
    if isinstance(spec, str):
        yield path, spec
        return
    yield path, spec.name
    for key, value in spec.settings:
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Spec):
            yield from leaves(value, inner)
        else:
            yield inner, value


def _remade(made: Any, what: str, path: str, functions: Mapping[str, Callable[..., Any]], changes: Changes) -> Any:
    """Return an object made again with changes, by the function that its spec names."""
    spec = made if isinstance(made, Spec) else getattr(made, "spec", None)
    if not isinstance(spec, Spec):
        if not changes:
            return made
        rule = f"has no setting {next(iter(changes))!r}: it is not made by a function of fedpd"
        refuse(what, getattr(made, "description", made), rule, OWN)
    make = _optimizer(spec) if what == "optimizer" else functions.get(spec.name)
    if make is None:
        refuse(what, spec.label(), "is not made by a function of fedpd, so it cannot be made again", OWN)
    known = dict(spec.settings)
    own, inner = _divided(changes)
    for key in (*own, *inner):
        if key not in known:
            whole = f"{path}.{key}" if path else key
            refuse("setting", whole, f"{spec.name} has no such setting", nearest(key, known))
    arguments = {key: own[key] if key in own else _plain(value) for key, value in known.items()}
    for key, value in arguments.items():
        if isinstance(value, Spec) or key in inner:
            deeper = f"{path}.{key}" if path else key
            arguments[key] = _remade(value, key, deeper, ARGUMENTS.get(key, {}), inner.get(key, {}))
    return make(**arguments)


def _optimizer(spec: Spec) -> Callable[..., Any]:
    return lambda **settings: oracles.optimizer(spec.name, **settings)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Thing) else value


def _divided(changes: Changes) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the changes without a dot in their name, and the others by the setting that they lead into."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        key, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(key, {})[rest] = value
        else:
            own[key] = value
    return own, inner
