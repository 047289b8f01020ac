"""How a hostile use may end: with a result or with a sentence, in time, and without files outside of its folder."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import HealthCheck, settings

from fedpd import FedpdError
from fedpd.cli import main

SCALE = int(os.environ.get("FUZZ", "1"))  # make fuzz sets it: how many times the cases of make test are run
LIMIT = 60  # seconds that a case may take on a busy machine


def cases(number: int) -> Callable[[Any], Any]:
    """Return the settings of a test with this number of cases in `make test`, which are the same every time."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(
        max_examples=number * SCALE, deadline=None, derandomize=SCALE == 1, database=None, suppress_health_check=slow
    )


class TooLongError(BaseException):
    """A case did not end in time."""


@contextmanager
def time_limit(seconds: int = LIMIT) -> Iterator[None]:
    """End a case that does not end by itself."""

    def stop(*_: Any) -> None:
        raise TooLongError(f"no result and no sentence within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the result of a call, or None after a FedpdError with a readable sentence; every other error is raised."""
    with time_limit(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments, **named)
        except FedpdError as error:
            check_sentence(str(error))
            return None


def check_sentence(text: str) -> None:
    """Check that a message is a sentence: it is not empty, ends as one, and can be read on a screen."""
    assert text.strip(), "an empty message"
    assert text.rstrip()[-1] in ".?)", f"a message ends like a sentence: {text[-80:]!r}"
    assert len(text) < 3000, f"a message of {len(text)} characters: {text[:80]!r}..."


class Ended(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str


def command(*words: str, folder: Path) -> Ended:
    """Run a command in this process and in a folder, and check how it ends."""
    code: Any = 0
    argv = patch.object(sys, "argv", ["fedpd", *words])
    with ExitStack() as stack:
        out, err = (stack.enter_context(to(StringIO())) for to in (redirect_stdout, redirect_stderr))
        for context in (chdir(folder), argv, time_limit(), warnings.catch_warnings()):
            stack.enter_context(context)
        warnings.simplefilter("ignore")
        try:
            main()
        except SystemExit as end:
            code = 0 if end.code is None else end.code
    ended = Ended(code, out.getvalue(), err.getvalue())
    assert code in (0, 1, 2), f"the exit code is {code!r}"
    assert "Traceback" not in ended.out + ended.err
    assert "fault of fedpd" not in ended.err, ended.err
    if code:
        assert ended.err.strip(), "a command that fails says why"
    return ended
