"""Find the setting of a method that a factor on its step size multiplies, such as eta or the step of its oracle."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedpd.algorithms import variants
from fedpd.base.spec import Spec
from fedpd.experiments.calls import build_algorithm

Path = tuple[str, ...]  # the keys that lead to a setting, from the method inwards


def scaled_setting(label: str) -> Path:
    """Return the keys of the setting that the factor of a method's rule multiplies or divides.

    The function makes the method by its rule with the factors 1 and 2, and compares the settings. If several settings
    double or halve, it returns the outermost.

    Args:
        label: A label of `algorithms.variants()`.

    Examples:
        >>> scaled_setting("FedPD-GD"), scaled_setting("Cooperative SGD")
        (('eta',), ('oracle', 'step'))
    """
    rule = variants()[label].rule
    once, twice = (dict(_numbers(rule(1.0, 2, factor).spec)) for factor in (1.0, 2.0))
    return min((path for path, value in once.items() if _is_scaled(value, twice.get(path, value))), key=len)


def step_text(label: str, table: Mapping[str, Any]) -> str:
    """Return the step size of a method's table by its own symbol, such as "eta = 1.4".

    Args:
        label: The label of the method in `algorithms.variants()`.
        table: The method as a table of an experiment file.
    """
    *outer, last = scaled_setting(label)
    spec = build_algorithm(table, rounds=1).spec  # a table leaves out settings that have their default
    for key in outer:
        spec = spec[key]
    value = f"{spec[last]:.3g}"
    return f"{outer[-1]} = {value}/sqrt" if spec.name == "inverse_sqrt" else f"{last} = {value}"


def _numbers(spec: Spec, path: Path = ()) -> Iterator[tuple[Path, float]]:
    for key, value in spec.settings:
        if isinstance(value, Spec):
            yield from _numbers(value, (*path, key))
        elif type(value) in (int, float):
            yield (*path, key), value


def _is_scaled(once: float, twice: float) -> bool:
    return once != twice and (math.isclose(twice, 2 * once) or math.isclose(twice, once / 2))
