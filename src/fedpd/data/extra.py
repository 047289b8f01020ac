"""What only some loaders need is imported when they are called."""

from importlib import import_module
from typing import Any

from fedpd.base.checks import FedpdError


def extra(module: str) -> Any:
    """The module, if it is installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise FedpdError(
            f"{module} is needed here and cannot be imported: {error}. pip install 'fedpd[data]'."
        ) from None
