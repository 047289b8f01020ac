"""Warn the caller of fedpd, wherever in fedpd the reason is found."""

import sys
import warnings


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside of fedpd that called it, so that Python shows the user's own line.

    The number of frames between that line and this one depends on decorators, so it is counted here.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("fedpd."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
