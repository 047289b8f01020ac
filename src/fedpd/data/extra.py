"""Optional packages: import them only when a loader that needs them is called."""

from importlib import import_module
from typing import Any

from fedpd.base.checks import FedpdError


def import_extra(module: str) -> Any:
    """Return the module, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise FedpdError(
            f"{module} is needed here and cannot be imported: {error}. pip install 'fedpd[data]'."
        ) from None
