"""Personal models: fine-tuning per agent, and what each agent gains over the shared model."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.engine.measure.personal import evaluate_agents

QUADRATIC = problems.quadratic(np.array([[[1.0]], [[2.0]]]), np.array([[1.0], [-3.0]]), start=np.array([0.5]))


def opposite() -> Any:
    """Two agents with opposite labels, and a third without test samples: no shared model suits both."""
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    own = {"a": {"x": x, "y": [0, 0, 1, 1]}, "b": {"x": x, "y": [1, 1, 0, 0]}, "c": {"x": x, "y": [0, 0, 1, 1]}}
    return data.from_arrays(own, {name: own[name] for name in ("a", "b")})


def scores(model: Any, x: Any) -> Any:
    return jnp.concatenate([0 * x, x], axis=1) * model


def test_fine_tuning_by_hand() -> None:
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.25, 1)), QUADRATIC, rounds=1)
    # x = (0.625 - 0.5) / 2 = 0.0625; one step of 0.25: 0.0625 + 0.25 * 0.9375 and 0.0625 - 0.25 * 3.125
    assert run.model.tolist() == [0.0625]
    found = run.personalize(QUADRATIC, steps=1, step=0.25)
    assert found.models.tolist() == [[0.296875], [-0.71875]]
    assert found.quantity == "loss"
    losses = [lambda x: x**2 / 2 - x, lambda x: x**2 + 3 * x]
    np.testing.assert_allclose(found.shared["loss"], [f(0.0625) for f in losses], rtol=1e-12)
    np.testing.assert_allclose(found.own["loss"], [losses[0](0.296875), losses[1](-0.71875)], rtol=1e-12)
    np.testing.assert_allclose(found.gains, found.shared["loss"] - found.own["loss"])
    assert found.share_of_gains == 1.0


def test_each_agent_s_accuracy_beside_the_shared_one() -> None:
    problem = problems.classification(scores, opposite(), np.array(0.1))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), problem, rounds=2)
    found = run.personalize(problem, steps=30, step=0.5)
    np.testing.assert_array_equal(found.shared["test_accuracy"], [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(found.own["test_accuracy"], [1.0, 1.0, np.nan])
    np.testing.assert_array_equal(found.gains, [0.0, 1.0, np.nan])
    assert found.share_of_gains == 0.5
    assert "50.0% of the agents gain" in repr(found)
    np.testing.assert_array_equal(found.own["train_accuracy"], [1.0, 1.0, 1.0])
    pytest.importorskip("pandas")
    assert found.frame()["test_accuracy_own"].tolist()[:2] == [1.0, 1.0]


def test_metrics_per_agent_merge_to_the_run_s() -> None:
    rng = np.random.default_rng(0)
    own = {str(i): {"x": rng.standard_normal((i + 2, 2)), "y": rng.standard_normal(i + 2)} for i in range(3)}
    found = data.from_arrays(own, own, classes=False)
    problem = problems.regression(lambda model, x: x @ model, found, np.ones(2))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), problem, rounds=1)
    values = evaluate_agents(problem, run.model)
    errors = [abs(part["x"] @ run.model - part["y"]) for part in found.test]
    np.testing.assert_allclose(values["mae"], [one.mean() for one in errors], rtol=1e-12)
    assert run.history["mae"][-1] == pytest.approx(np.average(values["mae"], weights=[2, 3, 4]), rel=1e-12)
    assert run.personalize(problem, step=0.1).quantity == "test_loss"


def test_draws_depend_on_the_seed_only() -> None:
    problem = problems.classification(scores, opposite(), np.array(0.1))
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), problem, rounds=1)
    first, again, other = (run.personalize(problem, 3, step=0.5, batch=1, seed=seed).models for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_personal_models_of_a_method_survive_saving(tmp_path: Path) -> None:
    problem = problems.classification(scores, opposite(), np.array(0.1))
    run = simulate(algorithms.ditto(rho=0.1, oracle=oracles.gd(0.5, 10)), problem, rounds=5)
    found = run.personal(problem)
    assert found.share_of_gains == 0.5
    loaded = fedpd.load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.personal(problem).models, found.models)


def test_agents_that_never_took_part_have_the_shared_model() -> None:
    algorithm = algorithms.ditto(rho=0.1, oracle=oracles.gd(0.1, 1))
    run = simulate(algorithm, QUADRATIC, rounds=2, participation=np.array([[1, 0], [1, 0]]))
    found = run.personal(QUADRATIC)
    np.testing.assert_array_equal(found.models[1], run.model)
    assert found.gains[1] == 0.0


def test_other_methods_have_no_personal_models() -> None:
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.1, 2)), QUADRATIC, rounds=1)
    with pytest.raises(FedpdError, match=r"keeps no personal models. Run algorithms.ditto"):
        run.personal(QUADRATIC)


def test_a_problem_that_does_not_fit_the_run_is_refused() -> None:
    run = simulate(algorithms.fedavg(oracle=oracles.gd(0.25, 1)), QUADRATIC, rounds=1)
    larger = problems.random_quadratic(agents=2, dimension=5)
    with pytest.raises(FedpdError, match=r"has models of the shapes \{'model': \(5,\)\}, but the run's has"):
        run.personalize(larger, step=0.1)
    with pytest.raises(FedpdError, match=r"problem = \{\}: must be a problem\. Give the problem of the run"):
        run.personalize(cast(Any, {}), step=0.1)
    with pytest.raises(FedpdError, match="seed = 'x': must be an integer"):
        run.personalize(QUADRATIC, step=0.1, seed=cast(Any, "x"))
    with pytest.raises(FedpdError, match="The run has no model, because it is not finished"):
        replace(run, model=None).personalize(QUADRATIC, step=0.1)


def test_personal_models_of_other_agents_are_refused() -> None:
    method = algorithms.ditto(rho=1.0, oracle=oracles.gd(0.25, 1), own=oracles.gd(0.25, 1))
    run = simulate(method, QUADRATIC, rounds=1)
    three = problems.quadratic(np.ones((3, 1, 1)), np.ones((3, 1)))
    with pytest.raises(FedpdError, match="problem = '3 agents': the run had 2 agents"):
        run.personal(three)
