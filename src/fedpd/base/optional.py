"""Packages that fedpd does not need to run, and what to say where one is missing."""

from importlib import import_module
from typing import Any

from fedpd.base.checks import FedpdError


def import_optional(module: str, what: str) -> Any:
    """Return a module of a package that may not be installed.

    Args:
        module: The name of the module, e.g. "plotly.offline".
        what: What needs it, e.g. "a page of HTML".

    Raises:
        FedpdError: The package is not installed; the sentence has the line that installs it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        sentence = f"{what} needs {package}, which is not installed. Install it: pip install {package}."
        raise FedpdError(sentence) from None
