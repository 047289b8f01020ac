"""A sweep is its runs, one by one, in one program."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpd import (
    Algorithm,
    FedpdError,
    Sweep,
    TheoryWarning,
    algorithms,
    data,
    oracles,
    problems,
    regularizers,
    schedules,
    simulate,
    sweep,
)
from fedpd.algorithms.fedavg import FedAvg
from fedpd.core import Value
from fedpd.problems import networks
from fedpd.search.sweep import first_below, prepare_grid
from tests.slow_cases import slow_but

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(6, 20, 4, seed=3))
TRACES: list[int] = []


def build(eta: Any, p: Any, iterations: Any) -> Algorithm:
    TRACES.append(1)
    oracle = oracles.gd(step=1 / (0.6 + 1 / eta), iterations=iterations)
    return algorithms.fedpd(eta=eta, p=p, oracle=oracle, drift="corrected")


def test_a_grid_is_its_points_one_by_one() -> None:
    TRACES.clear()
    grid: dict[str, list[float]] = {"eta": [0.3, 1.0], "p": [0.0, 0.5], "iterations": [2, 6]}
    swept = sweep(build, PROBLEM, grid, rounds=12, seeds=[0, 7])
    assert len(TRACES) == 8  # each point once: programs take the methods that it made
    assert [point["iterations"] for point in swept.points[:3]] == [2, 6, 2]  # the last name varies fastest
    for i, j in ((0, 0), (3, 1), (7, 0)):
        run, seed = swept.runs[i][j], (0, 7)[j]
        alone = simulate(build(**swept.points[i]), PROBLEM, rounds=12, seed=seed)
        assert (run.algorithm, run.seed) == (alone.algorithm, seed)
        np.testing.assert_allclose(run.model, alone.model, atol=1e-14)
        for column in ("communications", "samples", "bytes_up", "local_updates"):
            assert np.array_equal(run.history[column], alone.history[column]), column


@pytest.mark.parametrize("layout", slow_but(["cohort"], ["everyone", "cohort", "lazy"]))
def test_points_whose_first_proximal_step_differs(layout: str) -> None:
    rows = [np.arange(1.0, 4.0 + i)[:, None] for i in range(3)]
    held: Any = data.lazy(rows.__getitem__, [len(own) for own in rows]) if layout == "lazy" else rows
    problem = problems.from_losses(lambda x, a: (a @ x - 1) ** 2, held, np.ones(1))
    options: Any = {"rounds": 2} | ({} if layout == "everyone" else {"cohort": 2})

    def regularised(eta: Any) -> Algorithm:
        return algorithms.admm(eta=eta, oracle=oracles.gd(0.01, 2), g=regularizers.l1(1.0))

    swept = sweep(regularised, problem, {"eta": [0.1, 0.5]}, seeds=[0, 1], **options)
    for point, runs in zip(swept.points, swept.runs, strict=True):
        alone = simulate(regularised(**point), problem, seed=1, **options)
        np.testing.assert_allclose(runs[1].history["loss"], alone.history["loss"], rtol=1e-12)
    assert swept.runs[0][0].history["loss"][0] != swept.runs[1][0].history["loss"][0]


@pytest.mark.slow
def test_stochastic_oracles_draw_the_same_samples() -> None:
    def make(step: Any, momentum: Any) -> Algorithm:
        return algorithms.mpr_sgd(step=step, momentum=momentum, iterations=5, batch=2)

    swept = sweep(make, PROBLEM, {"step": [0.05, 0.2], "momentum": [0.0, 0.9]}, rounds=5, seeds=[3])
    for point, (run,) in zip(swept.points, swept.runs, strict=True):
        np.testing.assert_allclose(run.model, simulate(make(**point), PROBLEM, rounds=5, seed=3).model, atol=1e-14)


class Looking(FedAvg):
    """FedAvg of one's own that looks at a number."""

    factory = None
    part: float = 1.0

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        return (mean, mean) if self.part > 0.5 else (server, server)


@pytest.mark.slow
def test_static_names_are_constants() -> None:
    def make(step: Any, iterations: Any) -> Algorithm:
        return algorithms.fedavg(oracle=oracles.sgd(step, iterations, batch=2))

    grid: dict[str, list[float]] = {"step": [0.1, 0.3], "iterations": [1, 4]}
    swept = sweep(make, PROBLEM, grid, rounds=3, static=["iterations"])
    for point, (run,) in zip(swept.points, swept.runs, strict=True):
        np.testing.assert_allclose(run.model, simulate(make(**point), PROBLEM, rounds=3).model, atol=1e-14)
    looking = Looking(oracle=oracles.gd(0.1, 2))
    with pytest.raises(FedpdError, match=r"cannot be one program.*static="):
        sweep(looking, PROBLEM, {"part": [0.3, 0.7]}, rounds=3)
    (never,), (moved,) = sweep(looking, PROBLEM, {"part": [0.3, 0.7]}, rounds=3, static=["part"]).runs
    assert np.array_equal(never.model, PROBLEM.start)
    assert not np.array_equal(moved.model, PROBLEM.start)


def test_costs_to_a_target() -> None:
    swept = sweep(build, PROBLEM, {"eta": [0.01, 1.0], "p": [0.0], "iterations": [6]}, rounds=30)
    never, quick = swept.costs(1e-4)[:, 0]
    assert np.isnan(never)
    history = swept.runs[1][0].history
    assert history["stationarity"][int(quick)] <= 1e-4 < history["stationarity"][int(quick) - 1]
    assert swept.costs(1e-4, "bytes_up")[1, 0] == quick * 6 * 4 * 8
    assert first_below(swept.runs[1][0], 1e-4) == quick


def test_a_point_that_diverges_leaves_the_others_alone() -> None:
    swept = sweep(lambda step: algorithms.local_gd(step=step, iterations=20), PROBLEM, {"step": [1e9, 0.1]}, rounds=30)
    huge, fine = (runs[0] for runs in swept.runs)
    assert fine.diverged is None
    assert len(fine.history["round"]) == 31
    assert huge.diverged is not None or huge.history["stationarity"][-1] > fine.history["stationarity"][-1]


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"grid": {}}, "must have at least one name"),
        ({"grid": {"eta": []}}, "must have at least one name"),
        ({"grid": {"p": ["auto"]}}, "does not fit the function, whose arguments are eta, p, iterations"),
        ({"grid": {"eta": [1.0], "p": [0.0], "oracle.batch": [1]}}, "To vary .* give a method"),
        ({"grid": [0.1, 1.0]}, "must map names to their values"),
        ({"grid": {"eta": 0.1}}, r"grid\['eta'\] = 0.1: must be a list of values"),
        (
            {"grid": {"eta": [1.0], "p": [0.0], "iterations": [1], "participation": [2]}},
            "participation = 2: must be at",
        ),
        ({"grid": {"eta": [1.0], "p": [0.0], "iterations": [1], "stragglers": [-1]}}, "stragglers = -1: must be"),
        ({"grid": {"eta": [1.0], "p": [1.5], "iterations": [1]}}, "p = 1.5"),
        ({"static": ["Q"]}, "is not in the grid"),
        ({"seeds": []}, "at least one seed"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_wrong_sweeps_are_refused(settings: dict[str, Any], answer: str) -> None:
    usual: dict[str, Any] = {"grid": {"eta": [1.0], "p": [0.0], "iterations": [1]}, "rounds": 2}
    usual |= settings
    with pytest.raises(FedpdError, match=answer):
        sweep(build, PROBLEM, usual.pop("grid"), **usual)


@pytest.mark.slow
def test_it_has_what_simulate_has(tmp_path: Path) -> None:
    """Participation, stragglers, recorded columns and checkpoints, with the numbers of single runs."""

    def build(eta: Any) -> Algorithm:
        return algorithms.fedpd(eta=eta, oracle=oracles.gd(step=0.2, iterations=2))

    options: dict[str, Any] = {"participation": 0.5, "stragglers": 0.5, "record": ["heterogeneity"], "metrics_every": 2}
    tried = sweep(build, PROBLEM, {"eta": [0.3, 0.6]}, rounds=4, seeds=[1], checkpoints=tmp_path, **options)
    for point, (run,) in zip(tried.points, tried.runs, strict=True):
        alone = simulate(build(**point), PROBLEM, rounds=4, seed=1, **options)
        for name, column in alone.history.items():
            np.testing.assert_allclose(run.history[name], column, rtol=1e-9, atol=1e-13, err_msg=name)
    more = sweep(build, PROBLEM, {"eta": [0.3, 0.6]}, rounds=6, seeds=[1], checkpoints=tmp_path, **options)
    assert more.runs[0][0].history["round"].tolist() == [0, 2, 4, 6]
    with pytest.raises(FedpdError, match=r"belongs to another run: its .*grid"):
        sweep(build, PROBLEM, {"eta": [0.3, 0.7]}, rounds=6, seeds=[1], checkpoints=tmp_path, **options)


def assert_like_single_runs(
    tried: Sweep, made: Callable[[dict[str, Any]], Algorithm], rounds: int, step: int = 1
) -> None:
    for point, (run,) in list(zip(tried.points, tried.runs, strict=True))[::step]:
        options = {name: point[name] for name in ("participation", "stragglers") if name in point}
        alone = simulate(made(point), PROBLEM, rounds=rounds, **options)
        assert run.algorithm == alone.algorithm
        for name, column in alone.history.items():
            np.testing.assert_allclose(run.history[name], column, rtol=1e-9, atol=1e-13, err_msg=f"{point} {name}")


@pytest.mark.slow
def test_a_grid_of_a_method_reaches_its_oracle_and_who_takes_part() -> None:
    method = algorithms.fedpd(eta=1, oracle=oracles.sgd(step=0.1, iterations=3, batch=2))
    grid: dict[str, Any] = {"eta": [0.5, 1], "oracle.batch": [1, 3], "participation": [0.5, 1.0]}
    tried = sweep(method, PROBLEM, grid, rounds=3)
    assert len(tried.points) == 8

    def made(point: dict[str, Any]) -> Algorithm:
        oracle = oracles.sgd(step=0.1, iterations=3, batch=point["oracle.batch"])
        return algorithms.fedpd(eta=point["eta"], oracle=oracle)

    assert_like_single_runs(tried, made, 3, step=3)


@pytest.mark.slow
def test_oracles_texts_and_numbers_in_one_list() -> None:
    method = algorithms.fedpd(eta=0.5, oracle=oracles.gd(0.2, 2))
    several = [oracles.gd(0.2, 2), oracles.gd(0.3, 4), oracles.vr(gamma=0.2, iterations=2, refresh=2)]
    tried = sweep(method, PROBLEM, {"oracle": several}, rounds=2)
    assert_like_single_runs(tried, lambda point: algorithms.fedpd(eta=0.5, **point), 2, step=2)
    by_function = sweep(
        lambda p: algorithms.fedpd(eta=0.5, oracle=several[0], p=p), PROBLEM, {"p": [0.5, "auto"]}, rounds=2
    )
    assert_like_single_runs(by_function, lambda point: algorithms.fedpd(eta=0.5, oracle=several[0], **point), 2, step=2)


def test_few_programs() -> None:
    """Numbers share a program; the batch size, another oracle and another text do not."""

    def programs(method: Any, grid: dict[str, Any], static: Sequence[str] = ()) -> int:
        _, _, groups = prepare_grid(method, grid, static, PROBLEM, 3)
        return len({jax.tree.structure((group.methods[0], group.some[0])) for group in groups})

    def by_hand(step: Any, batch: Any) -> Algorithm:
        return algorithms.fedavg(oracle=oracles.sgd(step, 2, batch=batch))

    gd, sgd = oracles.gd(0.2, 2), oracles.sgd(0.2, 2)
    assert (
        programs(
            algorithms.fedpd(eta=1.0, oracle=gd), {"eta": [1, 0.1], "oracle.iterations": [1, 2], "oracle.step": [1, 2]}
        )
        == 1
    )
    assert (
        programs(
            algorithms.fedpd(eta=1.0, oracle=sgd),
            {"eta": [1, 0.1], "oracle.iterations": [1, 2], "oracle.batch": [1, 2]},
        )
        == 4
    )
    assert programs(algorithms.fedpd(eta=1.0, oracle=gd), {"oracle": [gd, sgd], "oracle.step": [0.1, 0.2]}) == 2
    assert programs(algorithms.fedpd(eta=1.0, oracle=gd), {"eta": [1.0, 2.0], "p": [0.25, 0.5]}, ["eta"]) == 2
    assert programs(algorithms.fedpd(eta=1.0, oracle=gd), {"p": [0.0, 0.25, 0.5]}) == 2  # without and with a coin
    assert (
        programs(algorithms.fedpd(eta=1.0, oracle=gd), {"drift": [None, "corrected"], "participation": [0.1, 0.5]}) == 2
    )
    assert programs(by_hand, {"step": [0.1, 0.2], "batch": [1, 2, None]}) == 3


@pytest.mark.slow
def test_a_criterion_that_should_be_large() -> None:
    problem = problems.network(networks.MLP(classes=3, hidden=(4,)), data.characters(3, 20, 3, size=4))
    method = algorithms.fedavg(oracle=oracles.gd(0.5, 5))
    tried = sweep(method, problem, {"oracle.step": [0.0001, 0.5]}, rounds=20)
    never, reached = tried.costs(0.7, "round", criterion="test_accuracy")[:, 0]
    accuracy = tried.runs[1][0].history["test_accuracy"]
    assert np.isnan(never)
    assert accuracy[int(reached)] >= 0.7 > accuracy[: int(reached)].max()
    with pytest.raises(FedpdError, match=r"column = 'test_acuracy': there is no such choice. Did you mean"):
        tried.costs(0.5, criterion="test_acuracy")


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({"etta": [1.0]}, "setting = 'etta': fedpd has no setting 'etta'. Did you mean 'eta'"),
        ({"oracle.bach": [1]}, "setting = 'oracle.bach': sgd has no setting 'bach'. Did you mean 'batch'"),
        ({"oracle.batch": [0]}, "batch = 0: must be an integer of at least 1"),
        ({"eta.inner": [1]}, "eta = 1.0: has no setting 'inner'"),
        ({"oracle": ["gd"]}, "oracle = 'gd': must be a local solver"),
    ],
)
def test_wrong_grids_of_a_method_are_refused(grid: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        sweep(algorithms.fedpd(eta=1.0, oracle=oracles.sgd(0.1, 2)), PROBLEM, grid, rounds=2)


class Slower(FedAvg):
    """FedAvg of one's own, whose server goes a part of the way."""

    factory = None
    part: float = 1.0

    def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
        x = server + self.part * (mean - server)
        return x, x


def test_a_method_of_ones_own_has_its_fields_as_settings() -> None:
    own = Slower(oracle=oracles.gd(0.1, 2))
    tried = sweep(own, PROBLEM, {"part": [0.5, 1.0], "oracle.step": [0.1, 0.2]}, rounds=2)
    assert tried.runs[1][0].algorithm == "Slower(oracle=gd(step=0.2, iterations=2), part=0.5)"
    assert_like_single_runs(
        tried, lambda point: Slower(oracle=oracles.gd(point["oracle.step"], 2), part=point["part"]), 2
    )
    with pytest.raises(FedpdError, match=r"setting = 'step': Slower has no setting 'step'"):
        sweep(own, PROBLEM, {"step": [0.1]}, rounds=2)


def test_what_is_not_a_method_is_refused() -> None:
    with pytest.raises(FedpdError, match="build = 'fedpd': must be a method, or a function that makes one"):
        sweep("fedpd", PROBLEM, {"eta": [0.1]}, rounds=2)  # type: ignore[arg-type]
    method = algorithms.fedavg(oracle=oracles.gd(0.1, 2))
    with pytest.raises(FedpdError, match=r"participation = 0.5: is in the grid as well"):
        sweep(method, PROBLEM, {"participation": [0.5]}, rounds=2, participation=0.5)


def test_a_mixing_matrix_is_checked_and_theory_warns() -> None:
    def mixed(step: Any) -> Algorithm:
        return algorithms.coop_sgd(oracle=oracles.gd(step=step, iterations=1), mixing=np.eye(9))

    with pytest.raises(FedpdError, match="mixes 9 agents, and the problem has"):
        sweep(mixed, PROBLEM, {"step": [0.1]}, rounds=1)
    quadratic = problems.random_quadratic(agents=2, dimension=2)
    with pytest.warns(TheoryWarning, match="Theorem 1 does not cover this run"):
        sweep(lambda eta: algorithms.fedpd(eta=eta, oracle=oracles.gd(0.1, 1)), quadratic, {"eta": [9.0]}, rounds=1)


def test_every_point_has_its_schedule_checked() -> None:
    class Ramp(Value):
        rate: float

        def __call__(self, r: Any) -> Any:
            return self.rate * r

    method = algorithms.fedpd(eta=0.3, oracle=oracles.gd(0.1, 2))
    with pytest.raises(FedpdError, match=r"p\(1\) = 10\.0: must be a number in \[0, 1\]"):
        sweep(method, PROBLEM, {"p": [Ramp(rate=0.1), Ramp(rate=10.0)]}, rounds=3)

    class Half(schedules.Every):
        def __call__(self, r: Any) -> Any:
            return 5.0

    with pytest.raises(FedpdError, match=r"p\(0\) = 5\.0"):
        simulate(algorithms.fedpd(eta=0.3, oracle=oracles.gd(0.1, 2), p=Half(rounds_apart=2)), PROBLEM, rounds=3)
