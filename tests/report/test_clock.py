"""The simulated time of runs in experiment files, run folders and reports."""

from pathlib import Path

import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, clock
from fedpd.experiments import experiment, run_folder, runner
from fedpd.experiments.recorded import read
from fedpd.report import write_report
from fedpd.report.pages import page_data

TEXT = """
[problem]
name = "random_quadratic"
agents = 4
dimension = 3

[run]
rounds = 6
cohort = 2
checkpoint_every = 3
CLOCK

[[algorithm]]
name = "feddr"
eta = 0.3
oracle = { name = "gd", step = 0.2, iterations = 2 }
"""
TABLE = 'clock = { up = "24 B/s", down = "48 B/s", compute = { median = "2 h", sigma = 1.0 } }'
CLOCK = clock.network(up=24, down=48, compute=clock.log_normal(7200, 1.0))


def run(folder: Path, keys: str = "") -> Path:
    text = TEXT.replace("CLOCK", keys)
    run_folder.create(folder, text)
    runner.run(experiment.parse(text), folder, lambda event: None)
    return folder


def test_a_clock_in_the_file_or_afterwards_is_the_same(tmp_path: Path) -> None:
    with_clock, without = run(tmp_path / "with", TABLE), run(tmp_path / "without")
    (label,) = fedpd.load(without)
    before, after = fedpd.load(with_clock)[label], fedpd.load(without)[label]
    assert "network_seconds" not in after.history
    after = after.timed(CLOCK)
    np.testing.assert_array_equal(after.history["network_seconds"], before.history["network_seconds"])
    assert np.isfinite(before.elapsed).all()  # the checkpoint is still that of the history
    (tmp_path / "clock.toml").write_text(
        TABLE.removeprefix("clock = { ").removesuffix(" }").replace(", d", "\nd").replace(", c", "\nc")
    )
    written = write_report([without], clock=tmp_path / "clock.toml", csv=True, figures=["svg"])
    assert "hours on your network" in written.page.read_text()
    assert any(path.name == "stationarity-network_seconds.svg" for path in written.others)
    assert "network_seconds_mean" in next(path for path in written.others if "costs" in path.name).read_text()
    data = page_data(read(with_clock).entries)
    assert data["costs"][-1]["name"] == "network_seconds"
    assert data["costs"][-1]["unit"] == "h"
    assert data["entries"][0]["x"]["network_seconds"][-1] == pytest.approx(
        before.history["network_seconds"][-1] / 3600, rel=1e-4
    )


@pytest.mark.slow
def test_a_run_that_is_not_finished_has_a_clock_too(tmp_path: Path) -> None:
    folder = run(tmp_path / "with", TABLE)
    finished = read(folder).entries[0].runs[0].history["network_seconds"]
    (folder / run_folder.HISTORY).unlink()
    np.testing.assert_array_equal(read(folder).entries[0].runs[0].history["network_seconds"], finished)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("clock = 3", "[run] clock = 3: must be a table. Write [run.clock]"),
        ("clock = { up = 1 }", "[run.clock] down is missing."),
        ("clock = { up = 1, down = 1, lag = 2 }", "[run.clock] lag = 2: there is no such key."),
        ("deadline = 'soon'", "[run] deadline = 'soon': must be a number and a unit."),
        ("buffer = 0", "[run] buffer = 0: must be an integer of at least 1."),
    ],
)
def test_wrong_keys_are_refused_with_their_place(keys: str, message: str) -> None:
    with pytest.raises(FedpdError) as error:
        experiment.read_outline(TEXT.replace("CLOCK", keys))
    assert message in str(error.value)
