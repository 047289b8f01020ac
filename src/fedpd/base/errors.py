"""The errors and warnings of fedpd. This file imports little, so that the command line starts quickly."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class TheoryWarning(UserWarning):
    """Warns that no theorem covers this run. It may still converge, or it may diverge."""


class FedpdError(ValueError):
    """A mistake in an argument or a file, told as a sentence: the value, the rule, the remedy."""


class UnexpectedError(FedpdError):
    """An error that fedpd did not foresee, as a sentence. An argument may be wrong, or fedpd itself."""


class MissingExtraError(FedpdError, ImportError):
    """An optional package is not installed. The sentence holds the line that installs it."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside of fedpd that called it, so that Python shows the user's own line.

    The number of frames between that line and this one depends on decorators, so it is counted here.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("fedpd."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Replace the error of a failed import in the `with` block by a sentence with the command that installs it.

    Args:
        name: The extra of fedpd that installs the package.
        user: The function or feature that needs the package. The sentence begins with it.

    Raises:
        MissingExtraError: The package is not installed, or importing it fails.

    Examples:
        >>> from fedpd.base.errors import extra
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
