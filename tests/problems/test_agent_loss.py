"""One loss per agent: the Cox partial likelihood on agents of different sizes, against NumPy."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpd
from fedpd import FedpdError, Problem, algorithms, data, oracles, problems, theory

SIZES = (3, 7, 12, 5)
X = np.array([0.5, -0.3])


def hospitals() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"a": rng.standard_normal((n, 2)), "t": rng.permutation(n) + 1.0, "d": (np.arange(n) % 3 != 1) * 1.0}
        for n in SIZES
    ]


def cox(x: Any, samples: Any, mask: Any) -> Any:
    score, t, d = samples["a"] @ x, samples["t"], samples["d"] * mask
    at_risk = (t[None, :] >= t[:, None]) * mask[None, :]
    return jnp.sum(d * (jnp.log(at_risk @ jnp.exp(score)) - score)) / jnp.sum(d)


def by_hand(x: np.ndarray, one: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """Return the Cox loss of one agent and its gradient, event by event."""
    value, slope = 0.0, np.zeros(2)
    for a, t, d in zip(one["a"], one["t"], one["d"], strict=True):
        others = one["a"][one["t"] >= t]
        risk = np.exp(others @ x)
        value += d * (np.log(risk.sum()) - a @ x)
        slope += d * (risk @ others / risk.sum() - a)
    return value / one["d"].sum(), slope / one["d"].sum()


def descend(x: np.ndarray, rounds: int, step: float) -> np.ndarray:
    for _ in range(rounds):
        x = x - step * np.mean([by_hand(x, one)[1] for one in hospitals()], axis=0)
    return x


def forms(**options: Any) -> dict[str, Problem]:
    """Return the problem in all layouts of its samples."""
    held = hospitals()
    rows = {key: np.concatenate([one[key] for one in held]) for key in held[0]}
    given = {"padded": held, "flat": data.ragged(rows, SIZES), "lazy": data.lazy(held.__getitem__, SIZES)}
    return {name: problems.from_agent_loss(cox, one, X, **options) for name, one in given.items()}


FORMS = forms()


@pytest.mark.parametrize("form", FORMS)
def test_f_is_the_mean_of_the_losses_of_the_agents(form: str) -> None:
    problem = FORMS[form].in_memory()
    wanted = np.mean([by_hand(X, one)[0] for one in hospitals()])
    assert theory.objective(problem, X) == pytest.approx(wanted, rel=1e-12)
    some = problem.subset([2, 0])
    wanted = np.mean([by_hand(X, hospitals()[i])[0] for i in (2, 0)])
    assert theory.objective(some, X) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("execution", ["sequential", "parallel", pytest.param("debug", marks=pytest.mark.slow)])
def test_a_run_is_gradient_descent_by_hand(form: str, execution: Any) -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=0.2, iterations=1))
    run = fedpd.simulate(method, FORMS[form].in_memory(), rounds=3, execution=execution)
    np.testing.assert_allclose(run.model, descend(X, 3, 0.2), rtol=1e-12)
    assert run.history["loss"][0] == pytest.approx(np.mean([by_hand(X, one)[0] for one in hospitals()]), rel=1e-12)


def test_cohorts_are_the_same_in_all_layouts() -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=0.2, iterations=1))
    runs = {form: fedpd.simulate(method, FORMS[form], rounds=3, cohort=2) for form in FORMS}
    for run in runs.values():
        np.testing.assert_allclose(run.model, runs["padded"].model, rtol=1e-12)
        wanted = np.mean([by_hand(run.model, one)[0] for one in hospitals()])
        assert run.history["loss"][-1] == pytest.approx(wanted, rel=1e-12)


def test_agents_in_a_store_and_on_two_devices(tmp_path: Path) -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=0.2, iterations=1))
    for options in ({"store": tmp_path}, {"devices": 2}):
        run = fedpd.simulate(method, FORMS["padded"], rounds=3, **options)
        np.testing.assert_allclose(run.model, descend(X, 3, 0.2), rtol=1e-12)


def test_solve_finds_the_minimum() -> None:
    rows = hospitals()
    ridge = problems.from_agent_loss(cox, rows, X, penalty=lambda x: 0.05 * jnp.sum(x * x))
    run = fedpd.solve(ridge, target=1e-16)
    slope = np.mean([by_hand(run.model, one)[1] for one in rows], axis=0) + 0.1 * run.model
    np.testing.assert_allclose(slope, 0, atol=1e-7)


def test_curvature_by_differences() -> None:
    found = theory.estimate_smoothness(FORMS["padded"], samples=0, safety=1.0, iterations=200).value
    step, each = 1e-5, []
    for one in hospitals():
        moves = [by_hand(X + step * e, one)[1] - by_hand(X - step * e, one)[1] for e in np.eye(2)]
        each.append(np.abs(np.linalg.eigvalsh(np.array(moves) / (2 * step))).max())
    assert found == pytest.approx(max(each), rel=1e-5)


def test_weights() -> None:
    losses = np.array([by_hand(X, one)[0] for one in hospitals()])
    for weights, factors in (("samples", np.array(SIZES) * 4 / 27), ([1, 2, 3, 4], np.arange(1, 5))):
        for problem in forms(weights=weights).values():
            wanted = np.mean(factors * losses)
            assert theory.objective(problem.in_memory(), X) == pytest.approx(wanted, rel=1e-12)


def test_a_stochastic_gradient_is_that_of_the_batch() -> None:
    rows = hospitals()[2]
    taken = np.array([4, 0, 11])
    oracle = oracles.sgd(step=0.1, iterations=1, batch=3, draw=lambda key, r, agent, size, shape: jnp.array([taken]))
    problem = FORMS["padded"].subset([2])
    run = fedpd.simulate(algorithms.fedavg(oracle=oracle), problem, rounds=1)
    slope = by_hand(X, {key: leaf[taken] for key, leaf in rows.items()})[1]
    np.testing.assert_allclose(run.model, X - 0.1 * slope, rtol=1e-12)


def test_a_large_model_is_not_cut_into_blocks() -> None:
    rng = np.random.default_rng(1)
    wide = [{"a": rng.standard_normal((n, 70_000)) / 300} for n in (90, 130)]

    def spread(x: Any, samples: Any, mask: Any) -> Any:
        score = samples["a"] @ x
        mean = jnp.sum(mask * score) / jnp.sum(mask)
        return jnp.sum(mask * (score - mean) ** 2) / jnp.sum(mask)

    problem = problems.from_agent_loss(spread, wide, np.ones(70_000))
    wanted = np.mean([np.var(one["a"].sum(axis=1)) for one in wide])
    assert theory.objective(problem, problem.start) == pytest.approx(wanted, rel=1e-10)


def no_mask(x: Any, samples: Any, mask: Any) -> Any:
    return cox(x, samples, jnp.ones_like(mask))


def only_the_value(x: Any, samples: Any, mask: Any) -> Any:
    """Return a loss whose value honours the mask, but whose gradient does not."""
    padding = jnp.sum((1 - mask) * (samples["a"] @ x))
    return cox(x, samples, mask) + padding - lax.stop_gradient(padding)


@pytest.mark.parametrize("loss", [no_mask, only_the_value])
def test_a_loss_that_ignores_the_mask_is_refused(loss: Any) -> None:
    with pytest.raises(FedpdError, match=r"loss of agent 2 = .*must not change with padding, but is .* The mask is 0"):
        problems.from_agent_loss(loss, hospitals(), X)
    assert problems.from_agent_loss(loss, hospitals(), X, check=False).agents == 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(FedpdError, match="loss is a function of x, samples: it must take 3 arguments"):
        problems.from_agent_loss(lambda x, samples: 0.0, hospitals(), X)  # type: ignore[arg-type, misc]
    with pytest.raises(FedpdError, match=r"shape of the loss = \(12,\): must be \(\), one number per agent"):
        problems.from_agent_loss(lambda x, samples, mask: samples["a"] @ x, hospitals(), X)
    problem = FORMS["padded"]
    with pytest.raises(FedpdError, match="batch = 1: must be at least 2"):
        fedpd.simulate(algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=1)), problem, rounds=1)
    private = oracles.dp_sgd(step=0.1, iterations=1, clip=1.0, noise_multiplier=1.0)
    with pytest.raises(FedpdError, match="needs the gradient of each sample, but a sample's loss depends on its batch"):
        fedpd.simulate(algorithms.fedavg(oracle=private), problem, rounds=1)
    with pytest.raises(FedpdError, match="one loss per agent"):
        problems.share_blocks(problem, 1)
    with pytest.raises(FedpdError, match=r"per_sample = True: .* depends on its batch"):
        theory.estimate_smoothness(problem, per_sample=True)


@pytest.mark.parametrize(
    "loss", [lambda x, s, mask: jnp.mean((s["a"] @ x) ** 2), lambda x, s, mask: jnp.var(s["a"] @ x)]
)
def test_a_mean_without_the_mask_is_refused(loss: Any) -> None:
    """Means do not change if all samples are repeated equally often, and padding does not."""
    with pytest.raises(FedpdError, match="must not change with padding"):
        problems.from_agent_loss(loss, hospitals(), X)
