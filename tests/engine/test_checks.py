"""Rules that docstrings state about numbers of agents are checked before a run, with partial participation as well."""

from typing import Any

import numpy as np
import pytest

from fedpd import (
    Algorithm,
    FedpdError,
    TheoryWarning,
    algorithms,
    clock,
    oracles,
    problems,
    simulate,
    sweep,
    transforms,
)
from fedpd.flower import InProcessGrid, Settings, federate

GD = oracles.gd(step=0.1, iterations=2)
FEDAVG = algorithms.fedavg(oracle=GD)
NINE = problems.random_quadratic(agents=9, dimension=3)
FOUR = problems.random_quadratic(agents=4, dimension=3)


def with_krum(f: int, m: int = 1, method: Algorithm = FEDAVG) -> Algorithm:
    return transforms.wrap(method, mean=transforms.krum(f, m))


def schedule(*present: int) -> np.ndarray:
    """Who is present, if these numbers of nine agents are."""
    return np.arange(9) < np.array(present)[:, None]


@pytest.mark.parametrize(
    ("f", "options", "messages"),
    [
        (4, {}, 9),
        (3, {"cohort": 7}, 7),
        (3, {"participation": 0.8}, 7),
        (3, {"cohort": 7, "sampling": "size"}, 7),
        (3, {"participation": schedule(9, 8, 9)}, 8),
        (3, {"participation": schedule(9, 8, 0)}, 8),
        (2, {"participation": [0.5] * 9}, 5),
        (3, {"seed": [0, 1], "cohort": 8}, 8),
        (2, {"clock": clock.network(up=1e9, down=1e9, compute=[1.0] * 6 + [9.0] * 3), "deadline": 5.0}, 6),
    ],
)
def test_krum_needs_enough_messages_in_every_round(f: int, options: dict[str, Any], messages: int) -> None:
    sentence = rf"f = {f}: needs at least 2f \+ 3 = {2 * f + 3} messages, and a communication has {messages}\. "
    with pytest.raises(FedpdError, match=sentence):
        simulate(with_krum(f), NINE, rounds=3, **options)


@pytest.mark.parametrize("options", [{}, {"cohort": 9}, {"participation": schedule(9, 9, 0)}])
def test_krum_with_enough_messages_runs(options: dict[str, Any]) -> None:
    assert simulate(with_krum(3), NINE, rounds=3, **options).diverged is None


def test_krum_averages_at_most_the_right_messages() -> None:
    assert simulate(with_krum(2, m=7), NINE, rounds=1).diverged is None
    with pytest.raises(FedpdError, match="m = 8: must be at most 7, the 9 messages of a communication without f = 2"):
        simulate(with_krum(2, m=8), NINE, rounds=1)


def test_krum_is_refused_where_agents_may_be_silent() -> None:
    lag = algorithms.lag(step=0.1)
    with pytest.raises(FedpdError, match=r"mean = 'krum\(f=1\)': needs 5 messages .* agents of lag may send none"):
        simulate(with_krum(1, method=lag), NINE, rounds=1)


def test_every_point_of_a_sweep_is_checked() -> None:
    with pytest.raises(FedpdError, match="f = 4: needs at least"):
        sweep(with_krum, NINE, {"f": [1, 4]}, rounds=1, static=["f"])
    with pytest.raises(FedpdError, match="f = 4: needs at least"):
        sweep(with_krum, NINE, {"f": [1, 4]}, rounds=1)


@pytest.mark.parametrize("agents", [3, 9])
def test_tamuna_is_made_for_the_agents_of_the_problem(agents: int) -> None:
    method = algorithms.tamuna(step=0.1, p=0.5, agents=agents, copies=2)
    with pytest.raises(FedpdError, match=rf"agents = {agents}: must be 4, the number of agents.*tamuna\(agents=4"):
        simulate(method, FOUR, rounds=1)
    assert simulate(algorithms.tamuna(step=0.1, p=0.5, agents=4, copies=2), FOUR, rounds=1).diverged is None


def test_locodl_has_a_largest_rho_for_its_agents() -> None:
    with pytest.raises(FedpdError, match=r"rho = 0.9: must be at most 1/\(1 \+ omega/N\) = 0.8"):
        simulate(algorithms.locodl(step=0.1, p=0.5, omega=1.0, rho=0.9), FOUR, rounds=1)
    assert simulate(algorithms.locodl(step=0.1, p=0.5, omega=1.0, rho=0.8), FOUR, rounds=1).diverged is None


def test_locodl_knows_the_variance_of_its_compressor() -> None:
    def compressed(omega: float) -> Algorithm:
        method = algorithms.locodl(step=0.1, p=0.5, omega=omega)
        return transforms.wrap(method, up=transforms.random_k(0.3, unbiased=True))  # 1 of 3 entries

    with pytest.warns(TheoryWarning, match=r"omega = 1.5 is below d/k - 1 = 2, the variance of random_k.*Give omega=2"):
        simulate(compressed(1.5), FOUR, rounds=1)
    assert simulate(compressed(2.0), FOUR, rounds=1).diverged is None


def test_attackers_are_named_once_and_exist() -> None:
    with pytest.raises(FedpdError, match=r"agents = \[0, 0\]: names an agent twice"):
        transforms.attack(FEDAVG, transforms.sign_flip(), agents=[0, 0])
    twice = transforms.attack(FEDAVG, transforms.sign_flip(), agents=[4])
    with pytest.raises(FedpdError, match="attack already, and an agent attacks once"):
        transforms.attack(twice, transforms.noise(1.0), agents=[4, 0])
    twice = transforms.attack(twice, transforms.noise(1.0), agents=[0])
    with pytest.raises(FedpdError, match=r"agents = \[4\]: must be below 4, the number of agents"):
        simulate(twice, FOUR, rounds=1)


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        (with_krum(2), {}, "f = 2: needs at least 2f . 3 = 7 messages, and a communication has 4"),
        (with_krum(0), {"on_timeout": "partial", "min_clients": 2}, "f = 0: .* a communication has 2. Choose median"),
        (with_krum(0), {"cohort": 2}, "f = 0: .* a communication has 2"),
        (algorithms.tamuna(step=0.1, p=0.5, agents=9, copies=2), {}, "agents = 9: must be 4"),
        (transforms.attack(FEDAVG, transforms.sign_flip(), agents=[4]), {}, "must be below 4"),
    ],
)
def test_a_federation_has_the_same_rules(method: Algorithm, settings: dict[str, Any], sentence: str) -> None:
    grid = InProcessGrid(None, 4, {})  # type: ignore[arg-type]  # no client is asked
    with pytest.raises(FedpdError, match=sentence):
        federate(grid, method, np.zeros(3), Settings(agents=4, rounds=1, **settings))


def test_a_delta_above_one_over_n_is_named() -> None:
    private = transforms.wrap(FEDAVG, up=transforms.gaussian(1.0, 5.0, delta=0.3))
    with pytest.warns(UserWarning, match=r"delta = 0.3 is not below 1/N = 0.25\. A mechanism that reveals one agent"):
        simulate(private, FOUR, rounds=1)
    oracle = oracles.dp_sgd(0.1, 1, clip=1.0, noise_multiplier=5.0, delta=0.5)
    problem = problems.from_losses(lambda x, row: row @ x, np.ones((2, 3, 1)), np.zeros(1))
    with pytest.warns(UserWarning, match=r"delta = 0.5 is not below 1/\|D_i\| = 0.333"):
        simulate(algorithms.fedavg(oracle=oracle), problem, rounds=1)


def test_admm_takes_agents_that_are_absent_in_the_first_round() -> None:
    method = algorithms.admm(eta=1.0, oracle=oracles.gd(step=0.3, iterations=20))
    present = np.ones((300, 4), bool)
    present[:5, 0] = False
    run = simulate(method, FOUR, rounds=300, participation=present)
    assert run.history["stationarity"][-1] < 1e-12
