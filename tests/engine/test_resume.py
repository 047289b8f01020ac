"""Checkpoints: fedpd refuses the checkpoint of another run and names the difference."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedpd import (
    Algorithm,
    Column,
    FedpdError,
    Measure,
    Problem,
    algorithms,
    named,
    oracles,
    problems,
    regularizers,
    simulate,
)
from fedpd.base import checkpoint
from fedpd.base.atomic import held
from fedpd.engine.plan import identity

GD = oracles.gd(step=0.1, iterations=2)
FEDPD: dict[str, Any] = {"eta": 0.08, "oracle": GD}


def losses(x: Any, rows: Any) -> Any:
    return (rows @ x) ** 2 / 2


def steeper(x: Any, rows: Any) -> Any:
    return 3 * (rows @ x) ** 2 / 2


DATA = [np.eye(2), np.ones((3, 2))]
PROBLEM = problems.from_losses(losses, DATA, np.ones(2), check=False)


def fedpd(**changes: Any) -> Algorithm:
    return algorithms.fedpd(**(FEDPD | changes))


def with_optimizer(rate: float) -> Algorithm:
    oracle = oracles.optax(optax.adam(rate), iterations=2, label="adam")
    return algorithms.fedavg(oracle=oracle)


def first_norm(weight: float) -> Column:
    return Column(
        "norm",
        "norm of the model",
        measure=Measure(agent=lambda view, x: (x @ x, None)),
        merge=lambda total, each, agents: weight * total / agents,
    )


# (the run that is saved, the run that must not go on from it, what the refusal names)
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "eta in the last digits": ({}, {"algorithm": fedpd(eta=0.0800000001)}, r"algorithm.eta is 0.08, not 0.0800000001"),
    "another lambda for p": (
        {"algorithm": fedpd(p=lambda r: 0.5 * (r > 3))},
        {"algorithm": fedpd(p=lambda r: 0.5 * (r > 4))},
        r"algorithm\.p\.sha256",
    ),
    "an optimiser with the same label": (
        {"algorithm": with_optimizer(0.1)},
        {"algorithm": with_optimizer(0.2)},
        r"algorithm\.oracle\.optimizer",
    ),
    "another step function": (
        {"algorithm": fedpd(oracle=oracles.gd(lambda r, q: 0.1 / (1 + r), 2))},
        {"algorithm": fedpd(oracle=oracles.gd(lambda r, q: 0.2 / (1 + r), 2))},
        r"algorithm\.oracle\.step",
    ),
    "a step of another type": (
        {"algorithm": fedpd(oracle=oracles.gd(0.3, 2))},
        {"algorithm": fedpd(oracle=oracles.gd(np.float32(0.3), 2))},  # type: ignore[arg-type]  # another number
        r"algorithm\.oracle\.step",
    ),
    "another regulariser": (
        {"algorithm": algorithms.admm(eta=0.5, oracle=GD, g=regularizers.l1(0.1))},
        {"algorithm": algorithms.admm(eta=0.5, oracle=GD, g=regularizers.l1(0.2))},
        r"algorithm\.g\.weight is 0.1, not 0.2",
    ),
    "a mixing matrix of the same size": (
        {"algorithm": algorithms.coop_sgd(oracle=GD, mixing=np.full((2, 2), 0.5))},
        {"algorithm": algorithms.coop_sgd(oracle=GD, mixing=np.eye(2))},
        r"algorithm\.mixing\.sha256",
    ),
    "LAG's smoothness": (
        {"algorithm": algorithms.lag(step=0.1, trigger="server", smoothness=1.0)},
        {"algorithm": algorithms.lag(step=0.1, trigger="server", smoothness=2.0)},
        r"algorithm\.smoothness is 1.0, not 2.0",
    ),
    "other losses on the same data": (
        {},
        {"problem": problems.from_losses(steeper, DATA, np.ones(2))},
        r"problem\.losses",
    ),
    "another penalty": (
        {"problem": problems.from_losses(losses, DATA, np.ones(2), penalty=lambda x: 0.1 * x @ x)},
        {"problem": problems.from_losses(losses, DATA, np.ones(2), penalty=lambda x: 0.2 * x @ x)},
        r"problem\.penalty",
    ),
    "another start": ({}, {"problem": replace(PROBLEM, start=np.zeros(2))}, r"problem\.start"),
    "another seed": ({}, {"seed": 1}, r"seeds is \[0\], not \[1\]"),
    "other stragglers": ({"stragglers": 0.5}, {"stragglers": 0.25}, r"stragglers is 0.5, not 0.25"),
    "other participation": ({"participation": 0.5}, {"participation": [0.5, 0.9]}, r"participation"),
    "another column of the same name": ({"record": [first_norm(1.0)]}, {"record": [first_norm(2.0)]}, r"record\.norm"),
}


def run(folder: Path, rounds: int, **changes: Any) -> Any:
    options: dict[str, Any] = {"algorithm": fedpd(), "problem": PROBLEM} | changes
    return simulate(rounds=rounds, checkpoints=folder, checkpoint_every=2, **options)


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_and_the_difference_named(name: str, tmp_path: Path) -> None:
    saved, other, difference = OTHERS[name]
    run(tmp_path, 2, **saved)
    with pytest.raises(FedpdError, match=rf"belongs to another run: its .*{difference}"):
        run(tmp_path, 4, **(saved | other))
    assert run(tmp_path, 4, **saved).history["round"][-1] == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: fedpd(p=lambda r: 0.5 * (r > 3)),
        lambda: with_optimizer(0.1),
        lambda: algorithms.admm(eta=0.5, oracle=GD, g=regularizers.l1(0.1)),
        lambda: algorithms.coop_sgd(oracle=GD, mixing=np.eye(2)),
    ],
)
def test_the_same_method_made_again_goes_on(make: Callable[[], Algorithm], tmp_path: Path) -> None:
    run(tmp_path, 2, algorithm=make())
    assert run(tmp_path, 4, algorithm=make()).history["round"][-1] == 4


def test_a_function_that_cannot_be_identified_runs_but_must_be_named_to_be_saved(tmp_path: Path) -> None:
    handle = (tmp_path / "log.txt").open("w")

    def noisy(x: Any, rows: Any) -> Any:
        handle.name  # noqa: B018
        return losses(x, rows)

    def problem(function: Any) -> Problem:
        return problems.from_losses(function, DATA, np.ones(2))

    assert simulate(fedpd(), problem(noisy), rounds=1).history["round"][-1] == 1
    with pytest.raises(FedpdError, match=r"cannot be identified.*fedpd\.named"):
        run(tmp_path / "a", 2, problem=problem(noisy))
    run(tmp_path / "b", 2, problem=problem(named("my losses", noisy)))
    assert run(tmp_path / "b", 4, problem=problem(named("my losses", noisy))).history["round"][-1] == 4
    handle.close()


def test_another_python_is_named_in_the_refusal(tmp_path: Path) -> None:
    run(tmp_path, 2)
    (path,) = tmp_path.glob("round-*.safetensors")
    arrays, meta = checkpoint.read(path)
    checkpoint.write(path, arrays, meta | {"metrics_every": 7, "versions": meta["versions"] | {"python": "3.9.1"}})
    with pytest.raises(FedpdError, match=r"Python 3\.9\.1 wrote it.*Resume it with Python 3\.9\.1"):
        run(tmp_path, 4)


def test_the_identity_is_plain(tmp_path: Path) -> None:
    """It goes through JSON unchanged."""
    import json

    from fedpd.engine.config import RunConfig
    from fedpd.engine.simulate import make_plan

    plan = make_plan(fedpd(p=lambda r: jnp.where(r > 1, 0.5, 0.0)), PROBLEM, 3, [0], False, RunConfig())
    assert json.loads(json.dumps(identity(plan))) == identity(plan)


def test_other_packages_or_devices_are_named_because_bits_may_differ(tmp_path: Path) -> None:
    problem = problems.random_quadratic(agents=4, dimension=3)
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    simulate(algorithm, problem, rounds=2, checkpoints=tmp_path)
    path = max(tmp_path.glob("round-*"))
    arrays, meta = checkpoint.read(path)
    checkpoint.write(path, arrays, meta | {"versions": meta["versions"] | {"jax": "0.0.1"}})
    with pytest.warns(UserWarning, match=r"jax was 0\.0\.1, and is .*may differ in its last digits"):
        simulate(algorithm, problem, rounds=3, checkpoints=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(algorithm, problem, rounds=4, checkpoints=tmp_path)
    with pytest.warns(UserWarning, match="at once was True, and is False"):
        simulate(algorithm, problem, rounds=5, checkpoints=tmp_path, execution="sequential")


def test_two_processes_cannot_resume_one_folder(tmp_path: Path) -> None:
    problem = problems.random_quadratic(agents=4, dimension=3)
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    with held(tmp_path), pytest.raises(FedpdError, match="another process is writing to this folder"):
        simulate(algorithm, problem, rounds=2, checkpoints=tmp_path)
    simulate(algorithm, problem, rounds=2, checkpoints=tmp_path)
