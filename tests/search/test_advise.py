"""Advice that holds: the recommended setting reaches its target, the guaranteed one is the theorem's."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, Problem, advise, data, problems, simulate, solve, theory
from fedpd.experiments.experiment import build_algorithm
from fedpd.report.advice import advice_notes, advised_tables, settings_table
from fedpd.search.advise import Advice
from fedpd.search.sweep import first_below
from fedpd.theory import max_eta, rates


def unknown() -> Problem:
    """Return a least-squares problem without known facts."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((4, 30, 3))
    targets = features @ np.ones(3) + rng.standard_normal((4, 1))

    def losses(x: Any, batch: Any) -> Any:
        return (batch["a"] @ x - batch["b"]) ** 2 / 2

    return problems.from_losses(losses, {"a": features, "b": targets}, np.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize("make", [data.strongly_noniid, data.weakly_noniid])
def test_with_nothing_given_few_communications_suffice(make: Any) -> None:
    problem = problems.penalized_logistic(*make(100, 400, 20))
    advice = advise(problem, 1e-10)
    assert advice.recommended is not None
    assert advice.recommended.reached
    assert advice.recommended.communications <= 15
    table = {key: value for key, value in advice.recommended.table.items() if key != "label"}
    run = simulate(build_algorithm(table, 30), problem, rounds=30)
    assert first_below(run, 1e-10) == advice.recommended.communications


def test_the_guaranteed_setting_is_the_theorems() -> None:
    problem = problems.random_quadratic(4, 3, heterogeneity=0.0)
    advice = advise(problem, 1e-3)
    assert advice.hints == []  # L is known, so it is no network
    L, table = advice.smoothness.value, advice.guaranteed.table
    assert table["eta"] == pytest.approx(0.9 * max_eta(L))
    assert table["oracle"]["step"] == pytest.approx(1 / (L + 1 / table["eta"]))
    assert advice.delta == 0
    assert table["p"] > 0.2  # agents are equal
    bound = rates.bound(
        int(advice.guaranteed.rounds),
        advice.gap,
        L=L,
        eta=table["eta"],
        gradients=advice.similarity.G**2,
        epsilon_1=table["oracle"]["tolerance"],
        p=table["p"],
        delta=0.0,
    )
    assert bound <= 1e-3
    arguments = {key: value for key, value in table.items() if key != "label"}
    run = simulate(build_algorithm(arguments, 200), problem, rounds=200)
    assert run.history["stationarity"][-1] < 1e-3
    # Costs: communications at 1 - p, samples at Q a round and agent, a model each way.
    setting = advice.guaranteed
    assert setting.communications == pytest.approx(setting.rounds * (1 - table["p"]))
    assert setting.samples == setting.rounds * table["oracle"]["iterations"] * 4
    assert setting.transfer == pytest.approx(setting.communications * 2 * 4 * 3 * 8)


@pytest.mark.slow
def test_where_nothing_is_known_it_says_so() -> None:
    told: list[str] = []
    advice = advise(unknown(), 1e-8, progress=lambda what, done, total: told.append(what))
    assert not advice.smoothness.exact
    assert advice.delta == np.inf
    assert advice.guaranteed.table["p"] == 0.0
    assert advice.recommended is not None
    assert advice.recommended.table["p"] == "auto"
    assert advice.recommended.reached
    steps = ("measuring L", "measuring delta", "trying the recommended setting", "trying the untuned setting")
    assert tuple(dict.fromkeys(told)) == (*steps, "measuring Hessians")
    assert "use fedpd.train" in repr(advice)
    assert advice.hints[0] in advice_notes(advice)
    assert not any("Scale the features" in note for note in advice_notes(advice))  # their sizes are equal


@pytest.mark.slow
def test_a_target_out_of_reach_is_not_promised() -> None:
    advice = advise(problems.random_quadratic(3, 2), 1e-20, pilot=3)
    assert advice.recommended is None
    (tried,) = [one for one in advice.failed if one.table["eta"] != "auto"]
    assert "needs more" in tried.how
    assert tried.rounds == 3
    assert "tried" in advice.shown
    assert any("The last one made progress, so more rounds (pilot)" in note for note in advice_notes(advice))


def test_solve_is_tried_where_it_applies() -> None:
    problem = problems.penalized_logistic(*data.strongly_noniid(10, 40, 5))
    advice = advise(problem, 1e-8)
    assert advice.untuned is not None
    assert list(advice.settings) == ["guaranteed", "recommended", "untuned"]
    run = solve(problem, 1e-8)
    spent = run.history["bytes_up"][-1] + run.history["bytes_down"][-1]
    assert advice.untuned.reached
    assert (advice.untuned.communications, advice.untuned.transfer) == (run.history["communications"][-1], spent)
    assert f"untuned: FedPD with eta = auto, memory = 30: {advice.untuned.communications:.0f} comm" in repr(advice)
    notes = advice_notes(advice)
    assert any(note.startswith("Use the untuned setting (fedpd solve). Comm") for note in notes)
    assert not any("Scale the features" in note for note in notes)  # their sizes are equal
    assert build_algorithm({k: v for k, v in advice.untuned.table.items() if k != "label"}, 5).spec == run.spec
    assert advice.hessians.points == 2
    assert advice.hessians == theory.hessians(problem, [problem.start, run.model])


@pytest.fixture(scope="module")
def stalled() -> Advice:
    """The start differs from the minimiser only where the curvature is 1e-6 of L."""
    steep = np.array([np.diag([1.0, 1e-6])] * 3)
    return advise(problems.quadratic(steep, np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])), 1e-8, pilot=20)


def test_a_trial_without_progress_is_called_that(stalled: Advice) -> None:
    advice = stalled
    assert advice.recommended is None
    assert "recommended" not in advice.settings
    (tried,) = advice.failed
    assert "made NO PROGRESS: ||grad f||^2 = 4.0e+00 became" in tried.how
    assert "recommended: none, because no trial reached the target" in repr(advice)
    assert f"failed: FedPD with eta = 1, p = 0: {tried.how}" in repr(advice)
    assert advice.untuned is not None
    assert advice.untuned.reached
    notes = advice_notes(advice)
    assert notes[0].startswith("Tried, and not recommended: eta = 1; a heuristic")
    assert notes[1].startswith("No setting is recommended: all trials diverged or made no progress")
    assert notes[2].startswith("Use the untuned setting (fedpd solve): it needs ")
    assert notes[3].startswith("Scale the features: data.standardise. The condition number is 1e+06, and 1 if")
    (saved,) = (column for column in settings_table(advice).columns if column.header == "tried")
    assert "%" not in "".join(map(str, saved.cells))


@pytest.mark.slow
def test_negative_losses_need_a_floor() -> None:
    problem = problems.from_losses(lambda x, batch: jnp.sum(x**2) - 1 + 0 * batch, np.zeros((2, 3)), np.array([0.1]))
    with pytest.raises(FedpdError, match="floor = None: must be given, since f"):
        advise(problem)
    assert advise(problem, floor=-1.0, pilot=5).gap == pytest.approx(0.01)
    with pytest.raises(FedpdError, match=r"must be at most -0\.99"):
        advise(problem, floor=3.0)


@pytest.mark.slow
def test_partial_participation_is_tried_and_said() -> None:
    advice = advise(unknown(), 1e-6, pilot=30, participation=0.5, stragglers=0.2)
    assert advice.recommended is not None
    assert "p" not in advice.recommended.table  # "auto" needs all agents
    everyone = advise(unknown(), 1e-6, pilot=30)
    assert everyone.recommended is not None
    assert advice.recommended.communications > everyone.recommended.communications
    assert advice.untuned is None
    assert any(note.startswith("fedpd solve was not tried. It needs all agents") for note in advice_notes(advice))
    assert "assumes that all agents do all their steps" in advice.guaranteed.how
    assert "assumes" not in everyone.guaranteed.how
    with pytest.raises(FedpdError, match="participation = 2: must be at most 1"):
        advise(unknown(), participation=2)


def flat_start(size: float, start: float) -> Problem:
    """Return logistic regression without known facts, from a start at which all sigmoids are saturated."""
    rng = np.random.default_rng(0)
    x = (size * rng.standard_normal((3, 20, 2))).astype(np.float32)

    def losses(model: Any, batch: Any) -> Any:
        return jnp.logaddexp(0.0, -batch["y"] * (batch["x"] @ model))

    y = np.where(rng.random((3, 20)) < 0.5, -1, 1).astype(np.int32)
    return problems.from_losses(losses, {"x": x, "y": y}, np.full(2, start, np.float32))


def test_a_step_size_from_a_flat_start_is_tried_and_made_smaller() -> None:
    """L is nearly 0 where sigmoids are saturated, so 1/L is far too large where the run goes."""
    problem = flat_start(30.0, 3.0)
    at_the_start = theory.estimate_smoothness(problem).value
    advice = advise(problem, 1e-3, pilot=40, participation=0.67)
    assert advice.smoothness.value > 2 * at_the_start
    last = advice.recommended or advice.failed[-1]
    eta = last.table["eta"]
    assert eta < 0.5 / at_the_start
    assert last.table["oracle"]["step"] == eta / 2
    assert last.how.endswith("failed before")
    assert advice.failed[0].table["eta"] == pytest.approx(1 / at_the_start)
    assert theory.smoothness(problem) == advice.smoothness.value, "one L, also after the trials"
    assert advice.guaranteed.table["eta"] == pytest.approx(0.9 * max_eta(advice.smoothness.value))
    assert not any("p=" in note and "skips the communications" in note for note in advice_notes(advice))


@pytest.mark.slow
def test_large_features_are_recognised_and_nothing_is_promised() -> None:
    advice = advise(flat_start(100.0, 5.0), 1e-3, pilot=10, participation=0.67)
    assert advice.recommended is None
    notes = advice_notes(advice)
    assert notes[0].startswith("Tried, and not recommended")
    assert any(note.startswith("No setting is recommended: all trials diverged") for note in notes)
    assert any(note.startswith("Scale the features: data.standardise") for note in notes)


def test_a_start_without_curvature_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"has no curvature around its start \(L = 0\).*Scale the features"):
        advise(flat_start(100.0, 50.0), 1e-3)


def test_an_objective_without_a_lower_bound_gets_no_advice() -> None:
    """Gradient steps leave the concave quadratic, and the untuned method finds its maximum: both are no solution."""
    problem = problems.quadratic(np.stack([-np.eye(2)] * 3), np.ones((3, 2)))
    with pytest.raises(FedpdError, match=r"below the floor -10, so f may be unbounded below\. Add"):
        advise(problem, pilot=20, floor=-10.0)
    with pytest.warns(UserWarning, match="f rose from 0 to 1, so it ended at a maximum or a saddle point"):
        solve(problem, progress=False)


@pytest.mark.slow
def test_a_trial_that_ends_at_a_maximum_is_not_recommended() -> None:
    def losses(x: Any, batch: Any) -> Any:
        return batch @ x - (x**4).sum()  # falls so slowly around 0 that the trial stays above the floor

    problem = problems.from_losses(losses, [np.array([[1.0, 2.0], [-1.0, -2.0]])] * 2, np.full(2, 0.1))
    advice = advise(problem, pilot=20, floor=-1.0)
    assert advice.untuned is None
    assert "its trial FAILED: f rose from" in next(one.how for one in advice.failed if one.table["eta"] == "auto")


def test_a_setting_that_failed_is_not_written_to_the_file(stalled: Advice) -> None:
    assert [table["label"] for table in advised_tables(stalled)] == ["FedPD, untuned", "FedPD, guaranteed"]
    short = advise(problems.random_quadratic(3, 2), 1e-20, pilot=3)
    assert [table["label"] for table in advised_tables(short)] == ["FedPD, tried", "FedPD, guaranteed"]
    assert "recommended" not in "".join(table["label"] for table in advised_tables(short))
