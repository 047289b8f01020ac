"""Every method with every kind of transform: it converges as without, or is refused with a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, algorithms, oracles, problems, simulate, transforms
from fedpd.core import Mixing

PROBLEM = problems.random_quadratic(agents=4, dimension=10, seed=3)
UP = [transforms.top_k(0.5), transforms.quantize(6)]
UNBIASED_UP = [transforms.random_k(0.5, unbiased=True), transforms.quantize(6, unbiased=True)]
UNBIASED = {"SCALLION", "LoCoDL p=0.8"}  # these need the right expectation
REFUSED = {"FedPD-M", "MPR-SGD", "PR-SPIDER", "STEM", "COLA", "Newton-CG", "Ditto", "FedBuff", "pFedMe", "TAMUNA p=0.8"}
EXACT = {  # these reach the solution without compression, and with it
    "FedPD-GD",
    "FedPD-GD p=auto",
    "A-FedPD",
    "ADMM",
    "FedADMM",
    "FedDR",
    "FedDyn",
    "5GCS",
    "F-SVRG",
    "FedDANE",
    "FedLin",
    "ProxSkip p=0.8",
    "VRL-SGD",
    "LAG-WK",
    "LAG-PS",
    "Barzilai-Borwein",
    "Gradient descent",
    "L-BFGS",
    "Nesterov",
    "Acc-S-DANE",
    "DANE",
    "GIANT",
    "S-DANE",
}
QUICK = {"FedPD-GD", "FedPD-GD p=auto", "FedDyn", "FedADMM"}
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in algorithms.variants()
    if name not in REFUSED
]


def rule(name: str) -> Algorithm:
    return algorithms.variants()[name].rule(1.0, 4, 1.0)


@pytest.mark.filterwarnings("ignore:eta", "ignore:omega = 0 is below")
@pytest.mark.parametrize("name", NAMES)
def test_a_compressed_method_runs_and_an_exact_one_stays_exact(name: str) -> None:
    wrapped = transforms.wrap(rule(name), up=UNBIASED_UP if name in UNBIASED else UP)
    history = simulate(wrapped, PROBLEM, rounds=400 if name in EXACT else 5).history
    assert np.isfinite(history["stationarity"]).all()
    if name in EXACT:
        assert history["stationarity"][-1] < 1e-12


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_methods_that_need_exact_messages_are_refused(name: str) -> None:
    with pytest.raises(FedpdError, match="needs messages that arrive as they were sent"):
        transforms.wrap(rule(name), up=UP)


def test_methods_without_a_server_are_refused() -> None:
    mixing = algorithms.coop_sgd(oracle=oracles.gd(step=0.1, iterations=2), mixing=np.full((4, 4), 0.25))
    assert isinstance(mixing.exchanges()[0].aggregate, Mixing)
    with pytest.raises(FedpdError, match="without a server"):
        transforms.wrap(mixing, mean=transforms.median())


FEDPD = algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.3, iterations=8))
ONE_PERCENT = problems.random_quadratic(agents=3, dimension=100, seed=2)


def test_one_percent_of_the_entries_reaches_1e_12() -> None:
    fedpd = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.5, iterations=8))
    wrapped = transforms.wrap(fedpd, up=transforms.top_k(0.01))
    with pytest.warns(match="eta = 1 is above"):
        run = simulate(wrapped, ONE_PERCENT, rounds=3000, until={"stationarity": 1e-12}, metrics_every=10)
    assert run.history["stationarity"][-1] <= 1e-12


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FEDPD, {"cohort": 2}),
        (FEDPD, {"participation": 0.5}),
        (algorithms.fedpd(eta=0.3, oracle=oracles.gd(step=0.3, iterations=8), p=0.5, drift="corrected-exact"), {}),
    ],
    ids=["cohort", "absent", "skipped"],
)
def test_absent_agents_and_skipped_rounds_leave_no_floor(algorithm: Algorithm, options: dict[str, Any]) -> None:
    wrapped = transforms.wrap(algorithm, up=UP)
    run = simulate(wrapped, PROBLEM, rounds=2000, until={"stationarity": 1e-12}, metrics_every=5, **options)
    assert run.history["stationarity"][-1] <= 1e-12


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path) -> None:
    wrapped = transforms.wrap(FEDPD, up=[transforms.top_k(0.5), transforms.quantize(3)], down=transforms.quantize(5))
    whole = simulate(wrapped, PROBLEM, rounds=9)
    simulate(wrapped, PROBLEM, rounds=4, checkpoints=tmp_path)
    resumed = simulate(wrapped, PROBLEM, rounds=9, checkpoints=tmp_path)
    assert resumed.model.tobytes() == whole.model.tobytes()
    other = transforms.wrap(FEDPD, up=[transforms.top_k(0.5), transforms.quantize(4)], down=transforms.quantize(5))
    with pytest.raises(FedpdError, match=r"quantize|bits"):
        simulate(other, PROBLEM, rounds=9, checkpoints=tmp_path)


@pytest.mark.parametrize("execution", ["sequential", "debug"])
def test_every_way_to_run_agents_gives_the_same(execution: Any) -> None:
    wrapped = transforms.wrap(algorithms.fedavg(oracle=oracles.gd(step=0.3, iterations=2)), mean=transforms.median())
    usual = simulate(wrapped, PROBLEM, rounds=3, execution="parallel")
    np.testing.assert_allclose(simulate(wrapped, PROBLEM, rounds=3, execution=execution).model, usual.model, rtol=1e-12)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"mean = 'median\(\)': does not go with up"):
        transforms.wrap(FEDPD, up=UP, mean=transforms.median())
    with pytest.raises(FedpdError, match="needs all agents in every communication"):
        simulate(transforms.wrap(FEDPD, down=transforms.quantize(8)), PROBLEM, rounds=2, cohort=2)
