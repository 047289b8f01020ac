"""The page that plays FedPD beside FedAvg in the browser computes the package's iterates."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.figures.record import three_agents

from fedpd import Method, algorithms, oracles, simulate
from tests.trajectories import recorded_coins

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "assets" / "play.js"
ROUNDS = 20
SKIPPED = np.arange(ROUNDS) % 3 == 1


def in_javascript(call: str) -> Any:
    program = f"const Play = require({json.dumps(str(SCRIPT))}); console.log(JSON.stringify({call}))"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    return np.array(json.loads(done.stdout))


def in_python(method: Method) -> tuple[np.ndarray, np.ndarray]:
    """Return the server's model after every round, and its stationarity."""
    seen: dict[int, np.ndarray] = {}
    run = simulate(
        method, three_agents(), rounds=ROUNDS, callback=lambda r, model, row: seen.__setitem__(r, model), progress=False
    )
    return np.array([seen[r] for r in range(ROUNDS + 1)]), run.history["stationarity"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.filterwarnings("ignore::fedpd.TheoryWarning")
@pytest.mark.parametrize("name", ["fedpd", "skipping", "fedavg"])
def test_the_page_computes_the_iterates_of_the_package(name: str) -> None:
    oracle, local = oracles.gd(step=0.4, iterations=7), f"rounds: {ROUNDS}, step: 0.4, steps: 7"
    p = recorded_coins(~SKIPPED) if name == "skipping" else 0.0
    skipped = f", skipped: {json.dumps(SKIPPED.tolist())}" if name == "skipping" else ""
    if name == "fedavg":
        path, stationarity = in_python(algorithms.fedavg(oracle=oracle))
        found = f"Play.fedavg(Play.MINIMA, {{ {local} }})"
    else:
        path, stationarity = in_python(algorithms.fedpd(eta=0.7, oracle=oracle, p=p))
        found = f"Play.fedpd(Play.MINIMA, {{ eta: 0.7, {local}{skipped} }})"
    np.testing.assert_allclose(in_javascript(found), path, rtol=0, atol=1e-12)
    measured: Any = in_javascript(f"{found}.map((x) => Play.stationarity(x, Play.MINIMA))")
    np.testing.assert_allclose(measured, stationarity, rtol=1e-9, atol=1e-20)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_ring_is_at_the_minimum() -> None:
    minimiser = np.asarray(three_agents().answer.minimiser)
    np.testing.assert_allclose(in_javascript("Play.minimum(Play.MINIMA)"), minimiser, atol=1e-12)
