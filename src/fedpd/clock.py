"""Clocks: turn the counted work and bytes of a run into simulated seconds on a network.

    clock = fedpd.clock.network(up="3 Mbit/s", down="10 Mbit/s", latency="50 ms", compute="20 ms")
    run   = fedpd.simulate(algorithm, problem, rounds=600).timed(clock)

An agent's part of a round takes

    latency + bytes_down / down  +  steps * compute  +  latency + bytes_up / up     seconds,

with its own numbers. Each number is the same for all agents, one per agent, or drawn from a log-normal distribution.
Draws depend on the clock's seed, the agent and the round alone. The server's own work takes no time.
"""

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedpd.base.arrays import as_array
from fedpd.base.atomic import read_file, reading_fault
from fedpd.base.checks import FedpdError, as_number, at_least, at_most, choice, count, nearest, refuse, shown
from fedpd.base.typed import typed
from fedpd.core.sampling import GOLDEN, mixed

Each = Literal["agent", "round"]
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
RATES = {
    f"{prefix}{unit}/s": size * part for prefix, size in PREFIXES.items() for unit, part in (("bit", 1 / 8), ("B", 1))
}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
RATE = 'Give e.g. "3 Mbit/s", "1 MB/s", or bytes per second'
TIME = 'Give e.g. "50 ms", "2 s", "1 min", or seconds'
AMOUNT = re.compile(r"\s*([0-9.eE+-]+)\s*([A-Za-z/]+)\s*")
LARGEST_SIGMA = 20.0  # of a log-normal distribution; beyond it the numbers of two agents differ by more than 1e40
COLUMNS = ("up", "down", "latency", "compute")  # the numbers of an agent, in the order of their draws


class LogNormal(NamedTuple):
    """A number that differs between agents: median * exp(sigma z) with a standard normal z."""

    median: Any  # the median, as a text with a unit or a number
    sigma: float  # the standard deviation of the logarithm. With 0.7, the 90th percentile is 6 times the 10th
    # "agent": every agent has one number for the whole run; "round": it is drawn again in every round
    each: Each = "agent"


Amount = float | str | Sequence[float | str] | np.ndarray | LogNormal


class Clock(NamedTuple):
    """How long messages and local steps take, in bytes per second and in seconds.

    Attributes:
        up: The rate at which an agent sends: a number, (N,) numbers, or a `LogNormal`.
        down: The rate at which an agent receives.
        latency: Seconds per message, besides its bytes.
        compute: Seconds per local step.
        seed: The seed of all draws.
    """

    up: Any
    down: Any
    latency: Any
    compute: Any
    seed: int = 0

    def work(self, agents: np.ndarray, number: Any, steps: Any) -> np.ndarray:
        """Return the seconds of local steps.

        Args:
            agents: The numbers of the agents.
            number: The number of the round, or of the task of each agent, counted from 0.
            steps: The local steps.
        """
        return np.asarray(steps) * self._values("compute", agents, number)

    def transfer(self, agents: np.ndarray, number: Any, bytes_up: float, bytes_down: float, exchanges: int = 1) -> Any:
        """Return the seconds of an agent's messages in a round: `exchanges` messages in each direction.

        Args:
            agents: The numbers of the agents.
            number: The number of the round, or of the task of each agent, counted from 0.
            bytes_up: The bytes that each agent sends.
            bytes_down: The bytes that each agent receives.
            exchanges: The number of exchanges with the server.
        """
        sent = bytes_up / self._values("up", agents, number) + bytes_down / self._values("down", agents, number)
        return 2 * exchanges * self._values("latency", agents, number) + sent

    def check_agents(self, agents: int) -> None:
        """Refuse a clock that has numbers for another number of agents."""
        for name in COLUMNS:
            value = getattr(self, name)
            if isinstance(value, np.ndarray) and len(value) != agents:
                rule = f"has numbers for {len(value)} agents, and the run has {agents}"
                refuse("clock", f"{name} of {len(value)} agents", rule, "Give one number for all, or one per agent")

    def _values(self, name: str, agents: np.ndarray, number: Any) -> np.ndarray:
        value = getattr(self, name)
        if isinstance(value, LogNormal):
            times = np.asarray(number) if value.each == "round" else np.int64(-1)
            return value.median * np.exp(value.sigma * _normal(self.seed, COLUMNS.index(name), agents, times))
        return value[agents] if isinstance(value, np.ndarray) else np.full(np.shape(agents), value)


def network(*, up: Amount, down: Amount, latency: Amount = 0.0, compute: Amount = 0.0, seed: int = 0) -> Clock:
    """Return a clock.

    Args:
        up: The rate at which an agent sends, e.g. "3 Mbit/s", or bytes per second; infinity for no limit.
        down: The rate at which an agent receives.
        latency: The time per message besides its bytes, e.g. "50 ms", or seconds. An exchange is two messages.
        compute: The time per local step, e.g. "20 ms", or seconds.
        seed: The seed of the draws of `log_normal`.

    Each of the first four is one value for all agents, a list with one value per agent, or a `log_normal`.

    Raises:
        FedpdError: A value is not valid. The message names the value, the rule and the remedy.

    Examples:
        >>> import numpy as np
        >>> from fedpd import clock
        >>> network = clock.network(up="8 Mbit/s", down="80 Mbit/s", latency="50 ms", compute="10 ms")
        >>> everyone = np.arange(2)
        >>> (network.work(everyone, 0, steps=8) + network.transfer(everyone, 0, 1e6, 1e6)).round(
        ...     6
        ... ).tolist()
        [1.28, 1.28]
    """
    count("seed", seed, "Give a whole number, e.g. 0", least=0)
    up, down = _amounts("up", up, RATES, RATE), _amounts("down", down, RATES, RATE)
    latency, compute = _amounts("latency", latency, TIMES, TIME), _amounts("compute", compute, TIMES, TIME)
    return Clock(up, down, latency, compute, seed)


def log_normal(median: float | str, sigma: float, each: Each = "agent") -> LogNormal:
    """Return a log-normal distribution over agents, for an argument of `network`.

    Args:
        median: The median, as a text with a unit or a number.
        sigma: The standard deviation of the logarithm.
        each: "agent": every agent draws once; "round": every agent draws again in every round.
    """
    remedy = "Give the standard deviation of the logarithm, e.g. 0.5"
    at_most("sigma", at_least("sigma", sigma, 0, remedy), LARGEST_SIGMA, remedy)
    choice("each", each, get_args(Each))
    return LogNormal(median, float(sigma), each)


@typed
def from_file(path: str | Path) -> Clock:
    """Return the clock of a file: the arguments of `network` in TOML, or one row per agent in CSV.

    Args:
        path: The file. In TOML, a `log_normal` is a table: `up = { median = "3 Mbit/s", sigma = 0.5 }`.

    Raises:
        FedpdError: The file cannot be read, or a value is not valid.
    """
    if Path(path).suffix.lower() == ".csv":
        return from_csv(path)
    try:
        table = tomllib.loads(read_file(Path(path)).decode())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: of tomllib, and of a text that is no UTF-8
        raise FedpdError(
            f"{path} cannot be read ({reading_fault(error)}). Give a clock in TOML, e.g. up = '3 Mbit/s'."
        ) from None
    try:
        return from_table(table)
    except FedpdError as error:
        raise FedpdError(f"{path}: {error}") from None


@typed
def from_csv(path: str | Path) -> Clock:
    """Return the clock of a CSV file with one row per agent and the columns up, down, latency and compute.

    Args:
        path: The file. Its first line has the names. The columns latency and compute may be missing.

    Raises:
        FedpdError: The file cannot be read, or a cell is not valid.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_file(Path(path)).decode("utf-8-sig"), newline="")))
    except (OSError, ValueError, csv.Error) as error:  # ValueError: it is no UTF-8
        raise FedpdError(
            f"{path} cannot be read ({reading_fault(error)}). Give a CSV file with one row per agent."
        ) from None
    names = list(rows[0]) if rows else []
    for name in ("up", "down"):
        if name not in names:
            refuse(str(path), names, f"has no column {name!r}", f"Give one row per agent, with {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            refuse(str(path), name, "there is no such column", nearest(name, COLUMNS))
    columns: dict[str, Any] = {name: [_cell(row[name]) for row in rows] for name in names}
    return network(**columns)


def from_table(table: Mapping[str, Any]) -> Clock:
    """Return the clock of a table of TOML: the arguments of `network`, those of `log_normal` as tables, or `file`."""
    if "file" in table:
        if len(table) > 1:
            refuse("file", table["file"], "must be the only key of its table", "Put all numbers into the file")
        if not isinstance(table["file"], str):
            refuse("file", table["file"], "must be a text", 'Give the path of a CSV file, e.g. "devices.csv"')
        return from_csv(table["file"])
    for key in table:
        if key not in (*COLUMNS, "seed"):
            refuse(key, table[key], "there is no such key", nearest(key, (*COLUMNS, "seed", "file")))
    for key in ("up", "down"):
        if key not in table:
            raise FedpdError(f"{key} is missing. {RATE}.")
    return network(**{key: _drawn(key, value) for key, value in table.items()})


def seconds(name: str, value: float | str) -> float:
    """Return a time in seconds, from a text such as "50 ms" or a number; refuse any other value."""
    return _amount(name, value, TIMES, TIME)


def _drawn(key: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    for name in value:
        if name not in LogNormal._fields:
            refuse(f"{key}.{name}", value[name], "there is no such key", nearest(name, LogNormal._fields))
    for name in ("median", "sigma"):
        if name not in value:
            raise FedpdError(f'{key}: {name} is missing. Write e.g. {key} = {{ median = "3 Mbit/s", sigma = 0.5 }}.')
    return log_normal(**value)


def _cell(text: str | None) -> Any:
    """Return a cell of a CSV file: a number if it is one, else the text."""
    try:
        return float(text or "")
    except ValueError:
        return text


def _amounts(name: str, value: Any, units: Mapping[str, float], remedy: str) -> Any:
    """Return one number, one per agent, or a distribution, in bytes per second or in seconds."""
    if isinstance(value, LogNormal):
        return value._replace(median=_amount(f"{name}.median", value.median, units, remedy))
    if isinstance(value, str | Real):
        return _amount(name, value, units, remedy)
    entries = value if isinstance(value, list | tuple) else as_array(value, name, remedy).tolist()
    if not isinstance(entries, list | tuple):
        return _amount(name, entries, units, remedy)
    if not entries or any(isinstance(one, list | tuple) for one in entries):
        refuse(name, value, "must be one value, or a list with one value per agent", remedy)
    return np.array([_amount(f"{name}[{i}]", one, units, remedy) for i, one in enumerate(entries)])


def _amount(name: str, value: Any, units: Mapping[str, float], remedy: str) -> float:
    """Return a number with its unit; a rate is positive, and a time is not negative and finite."""
    number = _with_unit(name, value, units, remedy) if isinstance(value, str) else as_number(name, value, remedy)
    if units is RATES and number <= 0:
        refuse(name, value, "must be positive", remedy)
    if units is TIMES and not 0 <= number < math.inf:
        refuse(name, value, "must be finite and at least 0", remedy)
    return number


def _with_unit(name: str, text: str, units: Mapping[str, float], remedy: str) -> float:
    found = AMOUNT.fullmatch(text)
    if found is None:
        refuse(name, text, "must be a number and a unit", remedy)
    if found[2] not in units:
        refuse(name, text, f"there is no unit {shown(found[2])}", nearest(found[2], units))
    try:
        return float(found[1]) * units[found[2]]
    except ValueError:
        refuse(name, text, "must begin with a number", remedy)


def _normal(seed: int, column: int, agents: np.ndarray, number: Any) -> np.ndarray:
    """Return standard normal numbers that depend on the arguments alone (Box and Muller)."""
    golden = np.uint64(GOLDEN)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        bits = mixed(np.array(seed, np.uint64) * np.uint64(4) + np.uint64(column) + golden)
        for word in (number, agents):
            bits = mixed(bits + golden * (np.asarray(word, np.int64).astype(np.uint64) + np.uint64(2)))
        first, second = (
            ((mixed(bits + golden * np.uint64(draw)) >> np.uint64(11)) + np.float64(0.5)) * 2.0**-53 for draw in (1, 2)
        )
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
