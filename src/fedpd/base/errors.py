"""The errors and warnings of fedpd. This file imports little, so that the command line starts quickly."""

import sys
import warnings


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
