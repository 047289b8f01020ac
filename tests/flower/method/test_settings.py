"""A run's configuration: the value, the rule, the remedy; and what private messages need and keep to themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpd import Algorithm, FedpdError, simulate, transforms
from fedpd.flower import InProcessGrid, Settings, Strategy, federate, read_settings, server_app
from fedpd.flower.method.settings import WatchedConfig
from tests.flower.federations import AGENTS, FEDPD, app, assert_same, run, start, whole

GOOD = {"agents": 4, "rounds": 10}


def test_entries_by_their_names_and_the_users_own_left_alone() -> None:
    given = {**GOOD, "on-timeout": "partial", "evaluate-every": 5, "out": "runs/a", "eta": 0.1}
    assert read_settings(given) == Settings(4, 10, on_timeout="partial", evaluate_every=5, out=Path("runs/a"))
    assert read_settings(GOOD).out is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"agents": 0}, "agents = 0: must be an integer of at least 1"),
        ({"rounds": 1.5}, "rounds = 1.5: must be an integer"),
        ({"seed": 2**31}, "seed = 2147483648: must be below"),
        ({"deadline": 0}, "deadline = 0: must be positive"),
        ({"deadline": float("inf")}, "deadline = inf: must be positive and finite"),
        ({"on-timeout": "wait"}, "on-timeout = 'wait': there is no such choice"),
        ({"bind-names": "no"}, "bind-names = 'no': must be true or false"),
        ({"clip": -1}, "clip = -1: must be finite and at least 0"),
    ],
)
def test_what_is_wrong_is_said(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        read_settings({**GOOD, **entry})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"agents": 0}, "agents = 0: must be an integer of at least 1"),
        ({"rounds": 1.5}, "rounds = 1.5: must be an integer"),
        ({"seed": -1}, "seed = -1: must be an integer of at least 0"),
        ({"on_timeout": "wait"}, "on_timeout = 'wait': must be 'fail' or 'stale' or 'partial'"),
        ({"evaluate_every": -1}, "evaluate-every = -1: must be an integer of at least 0"),
        ({"clip": -1.0}, "clip = -1.0: must be finite and at least 0"),
        ({"secure_range": float("inf")}, "secure-range = inf: must be finite"),
        ({"poll": 0.0}, "poll = 0.0: must be positive"),
        ({"out": "runs/a"}, "out = 'runs/a': must be a path or None, not str"),
        ({"cohort": 4}, "cohort = 4: must be at most 3"),
        ({"sampling": "size"}, "sampling = 'size': needs a cohort"),
        ({"bind_names": 1}, "bind_names = 1: must be True or False"),
        ({"min_clients": 2}, 'min-clients = 2: on-timeout = "fail" needs the replies of all clients'),
        ({"best": "loss"}, 'best = \'loss\': must be "min" or "max"'),
        ({"metrics_port": 2**16}, "metrics-port = 65536: must be below 2"),
    ],
)
def test_settings_made_in_python_are_checked_as_those_of_a_configuration(entry: dict[str, Any], message: str) -> None:
    given = Settings(**{"agents": AGENTS, "rounds": 1, **entry})
    with pytest.raises(FedpdError, match=message):
        federate(InProcessGrid(app(FEDPD), AGENTS, {}), FEDPD, start(), given)
    with pytest.raises(FedpdError, match=message):
        Strategy(FEDPD, start(), given)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("evaluate_every", "evaluate-every"),
        ("min-client", "min-clients"),
        ("Seed", "seed"),
        ("lable", "label"),
        ("onTimeout", "on-timeout"),
        ("averaged", "average"),
    ],
)
def test_an_entry_that_is_probably_misspelt_is_named(key: str, near: str) -> None:
    with pytest.warns(UserWarning, match=f"^{key} = 3: fedpd reads no such entry.* Did you mean '{near}'"):
        assert read_settings({**GOOD, key: 3}) == read_settings(GOOD)


def test_entries_of_the_users_own_are_none_that_is_misspelt() -> None:
    for key in ("eta", "step", "iterations", "batch", "p", "data", "beta", "classes", "hidden"):
        read_settings({**GOOD, key: 3})  # a warning is an error in these tests


@pytest.mark.parametrize(
    "read",
    [
        lambda config: config["labels"],
        lambda config: config.get("labels"),
        lambda config: "labels" in config,
        lambda config: dict(config),
        lambda config: {**config},
        lambda config: config.copy(),
        lambda config: list(config),
        lambda config: sorted(config.items()),
        json.dumps,
    ],
)
def test_an_entry_that_the_users_functions_read_is_their_own(read: Any) -> None:
    config = WatchedConfig({**GOOD, "labels": 10})
    assert isinstance(config, dict)
    with pytest.warns(UserWarning, match="labels = 10"):
        read_settings(WatchedConfig(config))
    config["agents"]
    read(config)
    assert read_settings(config) == read_settings(GOOD)


def test_a_server_app_warns_before_it_looks_for_clients() -> None:
    config: Any = {"agents": AGENTS, "rounds": 1, "poll": 0.001, "clips": 1.0, "seeds": 3}

    def algorithm(config: Any) -> Algorithm:
        assert config["seeds"] == 3
        return FEDPD

    grid, served = InProcessGrid(app(FEDPD), AGENTS, config), server_app(algorithm, start)
    context = Context(1, 1, {}, RecordDict(), config)
    with pytest.warns(UserWarning, match="clips = 1.0: .*Did you mean 'clip'") as found:
        served(grid, context)
    assert len(found) == 1


def test_what_is_missing_is_said() -> None:
    with pytest.raises(FedpdError, match="agents = None: is not in the run's configuration"):
        read_settings({"rounds": 3})


def private(noise: float | None, **more: Any) -> Algorithm:
    return transforms.wrap(FEDPD, up=transforms.gaussian(0.5, noise, agents=AGENTS, **more))


QUIET, LOUD = private(1e-9), private(2.0)


def test_without_noise_the_model_is_the_simulations() -> None:
    found = run(QUIET, 3)
    assert_same(found.model, simulate(QUIET, whole(), rounds=3).model, rtol=1e-6)


def test_noise_does_not_follow_from_the_seed_and_nothing_else_is_told() -> None:
    first, second = (run(LOUD, 1, seed=7) for _ in range(2))
    assert not np.isin(first.model["w"], second.model["w"]).any()
    count = transforms.Accountant(2.0, 1e-5, AGENTS)
    assert first.history["epsilon"].tolist() == [0, count.epsilon(1)]
    assert first.history["samples"].tolist() == first.history["local_updates"].tolist() == [0, 0]
    assert np.isnan(first.history["loss"]).all()


@pytest.mark.parametrize(
    ("algorithm", "settings", "sentence"),
    [
        (LOUD, {"on_timeout": "partial"}, 'is complete only if all 3 clients of a round reply. Use "fail"'),
        (LOUD, {"evaluate_every": 1}, "noise does not cover evaluations. Set evaluate-every = 0"),
        (LOUD, {"cohort": 2}, "agents = 3: must be 2, the clients that send in a round"),
        (LOUD, {"clip": 1.0}, "clip their messages themselves. Leave clip out"),
        (private(None, epsilon=4), {}, "needs noise_multiplier and agents"),
    ],
)
def test_settings_that_would_break_the_guarantee_are_refused(algorithm: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        run(algorithm, 1, **settings)


def test_settings_may_be_numbers_of_numpy() -> None:
    rounds: Any = np.int64(2)
    found = run(FEDPD, rounds, seed=np.int64(1), evaluate_every=np.int64(1))
    assert found.history["round"][-1] == 2
