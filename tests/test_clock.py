"""Clocks: units, draws, files, and sentences for wrong values."""

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd import FedpdError, clock
from fedpd.clock import network

EVERYONE = np.arange(3)


def test_a_task_takes_latency_bytes_and_steps() -> None:
    made = network(up="8 Mbit/s", down="16 Mbit/s", latency="50 ms", compute="10 ms")
    np.testing.assert_allclose(made.work(EVERYONE, 0, steps=8), 0.08)
    np.testing.assert_allclose(made.transfer(EVERYONE, 0, 3e6, 1e6), 2 * 0.05 + 3.0 + 0.5)
    np.testing.assert_allclose(made.transfer(EVERYONE, 0, 0, 0, exchanges=3), 6 * 0.05)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("3 Mbit/s", 375e3), ("1 MB/s", 1e6), ("1KiB/s", 1024), (" 2.5e1 kB/s ", 25e3), (7, 7.0), (float("inf"), np.inf)],
)
def test_rates_have_units(text: Any, rate: float) -> None:
    assert network(up=text, down=1).up == rate


@pytest.mark.parametrize(("text", "time"), [("50 ms", 0.05), ("2 us", 2e-6), ("1.5 h", 5400), ("1 min", 60), (3, 3)])
def test_times_have_units(text: Any, time: float) -> None:
    assert network(up=1, down=1, latency=text).latency == pytest.approx(time)


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.integers(0, 10**9))
def test_no_latency_and_infinite_speed_is_zero_seconds(up: float, down: float, steps: int) -> None:
    free = network(up=np.inf, down=np.inf)
    assert not free.work(EVERYONE, 5, steps).any()
    assert not free.transfer(EVERYONE, 5, up, down).any()


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.sampled_from(["agent", "round"]))
def test_draws_depend_on_seed_agent_and_round_alone(seed: int, number: int, each: Any) -> None:
    made = network(up=clock.log_normal("1 MB/s", 0.5, each), down=np.inf, seed=seed)
    together = made.transfer(np.arange(50), number, 1e6, 0)
    np.testing.assert_array_equal(made.transfer(np.array([7, 3]), number, 1e6, 0), together[[7, 3]])
    again = made.transfer(np.arange(50), number + 1, 1e6, 0)
    assert np.array_equal(together, again) == (each == "agent")


def test_draws_are_log_normal_and_independent() -> None:
    made = network(up=clock.log_normal(2.0, 0.5), down=1, compute=clock.log_normal(3.0, 0.25), seed=1)
    many = np.arange(100_000)
    up, compute = np.log(1 / (made.transfer(many, 0, 1, 0))), np.log(made.work(many, 0, 1))
    np.testing.assert_allclose([up.mean(), up.std()], [np.log(2), 0.5], atol=0.01)
    np.testing.assert_allclose([compute.mean(), compute.std()], [np.log(3), 0.25], atol=0.01)
    assert abs(np.corrcoef(up, compute)[0, 1]) < 0.01


def test_a_file_has_one_row_per_agent(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("up,down,compute\n1 MB/s,2 MB/s,10 ms\n500000,2 MB/s,1 s\n")
    made = clock.from_file(path)
    np.testing.assert_allclose(made.transfer(np.array([1, 0]), 0, 1e6, 2e6), [3, 2])
    np.testing.assert_allclose(made.work(np.arange(2), 0, 3), [0.03, 3])


def test_a_table_is_the_same_clock(tmp_path: Path) -> None:
    path = tmp_path / "clock.toml"
    path.write_text('up = { median = "3 Mbit/s", sigma = 0.5, each = "round" }\ndown = "1 MB/s"\nseed = 4\n')
    assert clock.from_file(path) == network(up=clock.log_normal("3 Mbit/s", 0.5, "round"), down="1 MB/s", seed=4)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unit": ({"up": "3 Mbits/s"}, "up = '3 Mbits/s': there is no unit 'Mbits/s'. Did you mean 'Mbit/s'?"),
    "text": ({"up": "fast"}, "up = 'fast': must be a number and a unit. Give e.g."),
    "number": ({"up": "3.3.3 MB/s"}, "up = '3.3.3 MB/s': must begin with a number."),
    "zero": ({"up": 0}, "up = 0: must be positive."),
    "nan": ({"down": float("nan")}, "down = nan: must be a number, not NaN."),
    "negative": ({"latency": -1}, "latency = -1: must be finite and at least 0."),
    "infinite": ({"compute": np.inf}, "compute = inf: must be finite and at least 0."),
    "agent": ({"up": ["1 MB/s", "x"]}, "up[1] = 'x': must be a number and a unit."),
    "table": ({"up": np.ones((2, 2))}, "must be one value, or a list with one value per agent."),
    "seed": ({"seed": -1}, "seed = -1: must be an integer of at least 0."),
    "median": ({"up": clock.LogNormal("x", 1.0)}, "up.median = 'x': must be a number and a unit."),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_with_the_rule_and_the_remedy(name: str) -> None:
    wrong, message = WRONG[name]
    arguments: dict[str, Any] = {"up": 1, "down": 1} | wrong
    with pytest.raises(FedpdError) as error:
        network(**arguments)
    assert message in str(error.value)


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"up": 1, "down": 1, "latencies": 1}, "latencies = 1: there is no such key. Did you mean 'latency'?"),
    "missing": ({"up": 1}, "down is missing."),
    "sigma": ({"up": {"median": 1}, "down": 1}, "up: sigma is missing."),
    "inner": ({"up": {"mean": 1, "sigma": 1}, "down": 1}, "up.mean = 1: there is no such key."),
    "file": ({"file": "a.csv", "up": 1}, "file = 'a.csv': must be the only key of its table."),
}


@pytest.mark.parametrize("name", TABLES)
def test_wrong_tables_are_refused(name: str) -> None:
    table, message = TABLES[name]
    with pytest.raises(FedpdError) as error:
        clock.from_table(table)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "up,latency\n1,2\n", "has no column 'down'"),
        ("a.csv", "up,down,speed\n1,2,3\n", "there is no such column"),
        ("a.csv", "up,down\n1,\n", "down[0] = '': must be a number and a unit"),
        ("a.toml", "up = ", "cannot be read"),
        ("a.toml", "up = 1\n", "down is missing"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FedpdError) as error:
        clock.from_file(tmp_path / name)
    assert message in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for name in ("none.csv", "none.toml"):
        with pytest.raises(FedpdError, match="cannot be read"):
            clock.from_file(tmp_path / name)


def test_hostile_clocks_are_sentences(tmp_path: Path) -> None:
    for name in ("clock.toml", "clock.csv"):
        os.mkfifo(tmp_path / name)  # reading it would never end
        with pytest.raises(FedpdError, match="it is not a file, but a pipe"):
            clock.from_file(tmp_path / name)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(FedpdError, match="cannot be read"):
        clock.from_file(tmp_path / "deep.toml")
    with pytest.raises(FedpdError, match="file = 5: must be a text"):
        clock.from_table({"file": 5})
    with pytest.raises(FedpdError, match=r"sigma = 1e\+308: must be at most 20"):
        clock.log_normal(1.0, 1e308)
    with pytest.raises(FedpdError, match="path = None: must be a text or a path"):
        clock.from_file(cast(Any, None))
