"""Optional packages: fedpd imports one only where it is used, and says how to install it if it is missing.

pyproject.toml lists the packages of each extra.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fedpd.base.errors import MissingExtraError


@contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Replace the error of a failed import in the `with` block by a sentence with the command that installs it.

    Args:
        name: The extra of fedpd that installs the package.
        user: The function or feature that needs the package. The sentence begins with it.

    Raises:
        MissingExtraError: The package is not installed, or importing it fails.

    Examples:
        >>> from fedpd.base.extras import extra
        >>> with extra("networks", "problems.network"):
        ...     import no_such_package
        Traceback (most recent call last):
        fedpd.base.errors.MissingExtraError: problems.network needs no_such_package, which is not installed. \
Run: pip install "fedpd[networks]"
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        package = (error.name or name).partition(".")[0]
        state = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise MissingExtraError(f'{user} needs {package}, which {state}. Run: pip install "fedpd[{name}]"') from None
