"""Start a run of a federation, follow it to its end, and say how it ended.

The run belongs to the SuperLink: it continues when this process ends, and `follow` attaches to it again. Flower's own
`flwr run` returns 0 for runs that fail, and its log stream ends when the SuperLink restarts.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.local import programs
from fedpd.flower.local.programs import CONNECTION

LOOK_SECONDS = 2.0  # between two questions whether the run has begun
LONGEST_PAUSE = 30.0  # seconds between two questions to a SuperLink that does not answer
PATIENCE = 20.0  # seconds after which a run that nobody takes is worth a line
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"(INFO|WARNING|ERROR|CRITICAL|DEBUG)\s*:\s*(.*)")
QUIET = (  # lines that say nothing about the run
    *("Starting logstream", "Exiting logstream", "Using SuperLink", "Start `flwr-serverapp`", "Successfully installed"),
    *(
        "error: Exit Code",
        "Exit Code",
        "An unhandled exception occurred in the ServerApp",
        "For more information, visit",
    ),
)
Say = Callable[[str], None]


class UnknownRunError(FedpdError):
    """The SuperLink does not know a run. The text says what to give."""


class Ended(NamedTuple):
    """How a run ended.

    Attributes:
        completed: Whether it did all that it should.
        sentence: What a person should know.
    """

    completed: bool
    sentence: str


def home_of(folder: Path) -> Path:
    """Return the FLWR_HOME of a federation: of `fedpd up`, or of a server's kit.

    Raises:
        FedpdError: The folder is neither.
    """
    home = folder.absolute() / "flwr"
    if not (home / "config.toml").is_file():
        rule = "is neither the folder of a federation nor a server's kit: it has no flwr/config.toml"
        refuse("--dir", str(folder), rule, "Start a federation with fedpd up, or give its folder")
    return home


def submit(home: Path, app: Path, config: list[str]) -> str:
    """Give the app to the SuperLink, and return Flower's number of the run.

    Args:
        home: The FLWR_HOME of the federation.
        app: The app's folder.
        config: Entries of the run's configuration, such as "rounds=50".

    Raises:
        FedpdError: The app or an entry is wrong, or the SuperLink does not answer.
    """
    if not (app / "pyproject.toml").is_file():
        refuse("APP", str(app), "has no pyproject.toml", "Give the folder of a Flower app; fedpd new-app writes one")
    words = ["run", str(app.absolute()), CONNECTION, *(["--run-config", " ".join(config)] if config else [])]
    return str(programs.flwr(home, *words)["run-id"])


def newest(home: Path) -> str:
    """Return the number of the run that was started last.

    Raises:
        FedpdError: There has been no run, or the SuperLink does not answer.
    """
    runs = programs.flwr(home, "list", CONNECTION)["runs"]
    if not runs:
        raise FedpdError("this federation has had no run yet. Start one: fedpd start APP")
    return str(max(runs, key=lambda run: run["pending-at"])["run-id"])


def state_of(home: Path, run: str) -> tuple[str, str]:
    """Return the state of a run, such as "running" or "finished:failed", and its details."""
    try:
        (found,) = programs.flwr(home, "list", CONNECTION, "--run-id", run)["runs"]
    except FedpdError as error:
        if "Run ID not found" in str(error):
            raise UnknownRunError(
                f"--attach = {run!r}: is not a run of this federation. Use --attach newest, or a number of flwr list."
            ) from None
        raise
    return str(found["status"]), str(found["status-details"])


def follow(home: Path, run: str, say: Say, sleep: Callable[[float], None] = time.sleep) -> Ended:
    """Show the log of a run until it ends; survive restarts of the SuperLink.

    Args:
        home: The FLWR_HOME of the federation.
        run: Flower's number of the run.
        say: Shows a line.
        sleep: Waits for some seconds.
    """
    shown, last, waited, pause = 0, "", 0.0, LOOK_SECONDS
    while True:
        try:
            state, details = state_of(home, run)
            pause = LOOK_SECONDS
        except UnknownRunError:
            raise
        except FedpdError:
            if pause == LOOK_SECONDS:
                say("The SuperLink does not answer. fedpd asks again; fedpd status shows which process does not run.")
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if state in ("pending", "starting"):
            if 0 <= waited - PATIENCE < LOOK_SECONDS:
                say(f"No process has taken the run for {waited:.0f} s. fedpd status shows whether the SuperExec runs.")
            sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            continue
        for number, line in enumerate(_stream(home, run)):
            if number >= shown and (text := readable(line)):
                say(text)
                last = text
            shown = max(shown, number + 1)
        if state.startswith("finished"):
            return _ended(state, details, last)


def _ended(state: str, details: str, last: str) -> Ended:
    """Return how a run ended, from its final state and the last line of its log."""
    if state == "finished:completed":
        return Ended(True, "The run is complete.")
    what = "was stopped" if state == "finished:stopped" else "failed"
    why = "" if last.startswith("error: ") or details in ("", "N/A") else f" ({details})"
    return Ended(False, f"The run {what}{why}. Repair the cause and use the same command: it resumes if out is set.")


def _stream(home: Path, run: str) -> Iterator[str]:
    """Yield the lines of a run's log until it ends, or the connection does. They begin with the first line."""
    command = [str(programs.bin_folder() / "flwr"), "log", run, CONNECTION, "--stream"]
    with subprocess.Popen(
        command,
        cwd=home,  # see `programs.flwr`
        env=programs.environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C here ends this command, and not the child with its own message
    ) as process:
        assert process.stdout is not None
        try:
            yield from process.stdout
        finally:
            process.terminate()


def readable(line: str) -> str:
    """Return a line of Flower's log for a person; nothing if it says nothing about the run.

    Examples:
        >>> from fedpd.flower.local.start import readable
        >>> readable("\\x1b[92mINFO \\x1b[0m:      Round 3 of 10")
        'Round 3 of 10'
        >>> readable("WARNING :   Client '1' had lost its state and rebuilt it.")
        "warning: Client '1' had lost its state and rebuilt it."
        >>> readable("INFO :      Starting logstream for run_id `7`")
        ''
    """
    text = COLOURS.sub("", line).rstrip()
    if found := LEVEL.fullmatch(text):
        level, said = found[1].lower(), found[2]
        text = said if level == "info" or said.startswith(f"{level}: ") else f"{level}: {said}"
    return "" if text.startswith(QUIET) else text
