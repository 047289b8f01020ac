"""Any loss, pytree and sizes: padding changes no number, the precision is kept, and mistakes give clear errors."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedpd
from fedpd import FedpdError, Problem, algorithms, data, oracles, problems, simulate, theory
from fedpd.problems import from_losses
from tests.problems import local_values

Sample = tuple[np.ndarray, np.ndarray]
SIZES = (3, 7, 12, 5)
X = np.array([0.5, -0.3])


def squares(model: Any, batch: Any) -> Any:
    features, targets = batch
    return (features @ model["w"] + model["c"] - targets) ** 2 / 2


def ridge(model: Any) -> Any:
    return 0.05 * jnp.sum(model["w"] ** 2)


def ragged(dtype: Any = np.float64) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n, 2)).astype(dtype), rng.standard_normal(n).astype(dtype)) for n in (4, 1, 7)]


def start(dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return {"w": np.array([0.5, -0.25], dtype), "c": np.array(0.125, dtype)}


def by_formula(agent: Sample, w: np.ndarray, c: float) -> tuple[float, np.ndarray, float]:
    """f_i with its gradient in w and c, directly on the agent's own samples."""
    features, targets = agent
    errors = features @ w + c - targets
    return (errors**2).mean() / 2 + 0.05 * (w**2).sum(), features.T @ errors / len(errors) + 0.1 * w, errors.mean()


def test_padding_changes_no_gradient() -> None:
    agents, x = ragged(), start()
    values, gradients = local_values(from_losses(squares, agents, x, penalty=ridge), x)
    for i, agent in enumerate(agents):
        value, in_w, in_c = by_formula(agent, x["w"], float(x["c"]))
        np.testing.assert_allclose(values[i], value, rtol=1e-14)
        np.testing.assert_allclose(gradients["w"][i], in_w, rtol=1e-13)
        np.testing.assert_allclose(gradients["c"][i], in_c, rtol=1e-13)


def test_padding_changes_no_trajectory() -> None:
    agents, x = ragged(), start()
    problem = from_losses(squares, agents, x, penalty=ridge)
    run = simulate(algorithms.fedavg(oracle=oracles.gd(step=0.2, iterations=3)), problem, rounds=4)
    w, c = x["w"], float(x["c"])
    losses = [np.mean([by_formula(agent, w, c)[0] for agent in agents])]
    for _ in range(4):
        ends = []
        for agent in agents:
            local_w, local_c = w, c
            for _ in range(3):
                _, in_w, in_c = by_formula(agent, local_w, local_c)
                local_w, local_c = local_w - 0.2 * in_w, local_c - 0.2 * in_c
            ends.append(np.array([*local_w, local_c]))
        *w, c = np.mean(ends, axis=0)
        w = np.array(w)
        losses.append(np.mean([by_formula(agent, w, c)[0] for agent in agents]))
    np.testing.assert_allclose(run.model["w"], w, rtol=1e-13)
    np.testing.assert_allclose(run.model["c"], c, rtol=1e-13)
    np.testing.assert_allclose(run.history["loss"], losses, rtol=1e-13)
    assert run.history["samples"].tolist() == [0, 36, 72, 108, 144]  # 12 samples, 3 steps a round


def test_padding_is_an_agent_s_own_samples() -> None:
    problem = from_losses(lambda x, batch: batch * x, [np.array([1.0, 2.0]), np.arange(5.0)], np.float64(0))
    assert problem.data.tolist() == [[1, 2, 1, 2, 1], [0, 1, 2, 3, 4]]
    assert problem.sizes.tolist() == [2, 5]
    assert (problem.agents, problem.samples, problem.dimension) == (2, 7, 1)


def test_a_list_of_equal_agents_is_the_stacked_arrays() -> None:
    rng = np.random.default_rng(1)
    features, targets = rng.standard_normal((3, 4, 2)), rng.standard_normal((3, 4))
    stacked = from_losses(squares, (features, targets), start())
    listed = from_losses(squares, list(zip(features, targets, strict=True)), start())
    for one, other in zip(stacked.data, listed.data, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(local_values(stacked, start())[0], local_values(listed, start())[0])
    assert stacked.dimension == 3


def test_weights_multiply_the_sum_of_losses_and_penalty() -> None:
    agents, x, weights = ragged(), start(), [0.5, 2.0, 1 / 7]
    problem = from_losses(squares, agents, x, penalty=ridge, weights=weights)
    np.testing.assert_allclose(problem.scale, [2, 2, 1])
    values, gradients = local_values(problem, x)
    for i, agent in enumerate(agents):
        value, in_w, _ = by_formula(agent, x["w"], float(x["c"]))
        np.testing.assert_allclose(values[i], weights[i] * len(agent[1]) * value, rtol=1e-14)
        np.testing.assert_allclose(gradients["w"][i], weights[i] * len(agent[1]) * in_w, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integer_labels_select_classes(dtype: Any) -> None:
    def losses(model: Any, batch: Any) -> Any:
        features, labels = batch["features"], batch["label"]
        chances = jax.nn.log_softmax(features @ model[0] + model[1])
        return -jnp.take_along_axis(chances, labels[:, None], axis=1)[:, 0]

    rng = np.random.default_rng(2)
    features, labels = rng.standard_normal((2, 5, 3)).astype(dtype), rng.integers(0, 4, (2, 5))
    model = (rng.standard_normal((3, 4)).astype(dtype), np.zeros(4, dtype))
    problem = from_losses(losses, {"features": features, "label": labels}, model)
    np.testing.assert_array_equal(problem.data["label"], labels)
    values, gradients = local_values(problem, model)
    chances = np.exp(features.astype(float) @ model[0].astype(float))
    chances /= chances.sum(axis=2, keepdims=True)
    errors = chances - np.eye(4)[labels]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(values, -np.log((chances * np.eye(4)[labels]).sum(2)).mean(1), rtol=tolerance)
    np.testing.assert_allclose(gradients[0], np.einsum("nbd,nbk->ndk", features, errors) / 5, atol=tolerance)
    np.testing.assert_allclose(gradients[1], errors.mean(1), atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_kept_through_a_run(dtype: Any) -> None:
    problem = from_losses(squares, ragged(dtype), start(dtype), penalty=ridge)
    oracle = oracles.gd(step=0.05, iterations=4)
    run = simulate(algorithms.fedpd(eta=0.2, oracle=oracle, p=0.5), problem, rounds=5)
    assert problem.double is (dtype == np.float64)
    assert {leaf.dtype for leaf in jax.tree.leaves((run.model, run.agents))} == {np.dtype(dtype)}
    assert all(np.isfinite(column).all() for column in run.history.values())
    assert run.history["loss"].dtype == np.float64
    assert run.history["loss"][-1] < run.history["loss"][0]


@pytest.mark.parametrize(("data", "model"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_where_anything_is_float64_nothing_is_rounded_to_float32(data: Any, model: Any) -> None:
    seen = set()

    def losses(x: Any, batch: Any) -> Any:
        seen.update({batch.dtype, x.dtype})
        return (batch - x) ** 2 / 2

    problem = from_losses(losses, np.array([[0.1]], data), np.array(0.1, model))
    assert problem.double
    assert problem.data.item() == float(data(0.1))
    assert problem.start.item() == float(model(0.1))
    assert seen == {np.dtype(np.float64)}
    gap = float(model(0.1)) - float(data(0.1))
    assert local_values(problem, problem.start)[1].tolist() == [gap]


def with_data(data: Any) -> Problem:
    return from_losses(lambda x, batch: batch @ x, data, np.zeros(2))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], r"data is empty: .*Give one data set per agent"),
        (np.zeros((0, 3, 2)), r"data = \[\(0, 3, 2\)\]: .*\(N, n\)"),
        ([np.ones((1, 2)), np.ones((0, 2))], r"agent 1 has no samples: .*Leave the agent out"),
        (np.zeros((3, 0, 2)), r"data = \[\(3, 0, 2\)\]: .*\(N, n\)"),
        (np.ones(3), r"data = \[\(3,\)\]: .*first two axes \(N, n\)\. .*list with one entry per agent"),
        ((np.ones((2, 3, 2)), np.ones((2, 4))), r"data = \[\(2, 3, 2\), \(2, 4\)\]: .*same first two axes \(N, n\)"),
        ([(np.ones((2, 2)), np.ones(3))], r"data of agent 0 = \[\(2, 2\), \(3,\)\]: .*same first axis"),
        ([np.ones((1, 2)), np.float64(1)], r"data of agent 1 = \[\(\)\]: .*same first axis, one row per sample"),
        ([np.ones((1, 2)), (np.ones((1, 2)),)], r"data of agent 1 has other keys than data of agent 0"),
        ([np.ones((1, 2)), np.ones((1, 3))], r"samples of agent 1 = \(3,\): must be the shape of agent 0, \(2,\)"),
        ([np.ones((1, 2)), np.array([[0, np.nan]])], r"data of agent 1 holds NaN or infinity\. Clean or drop"),
        ([np.ones((3, 2)), np.array([[0, -np.inf]])], r"data of agent 1 holds NaN or infinity\. Clean or drop"),
        ([np.array([[{}, None]], object)], r"data must be an array of real numbers, not of object\. Give"),
        ([np.array([["a", "b"]])], r"data .*numbers"),
    ],
)
def test_data_that_makes_no_problem_is_refused(data: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        with_data(data)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"losses": lambda x, batch: jnp.mean(batch @ x)},
            r"losses returns float64\[\]: .* shape \(3,\)\. Return one loss per",
        ),
        ({"losses": lambda x, batch: batch * x}, r"losses returns float64\[3, 2\]: .* with shape \(3,\)"),
        ({"losses": lambda x, batch: (batch @ x,)}, r"losses returns tuple: .* with shape \(3,\)"),
        ({"losses": lambda x, batch: jnp.argmax(batch, 1)}, r"losses returns int64\[3\]: it must be floating-point"),
        ({"losses": lambda x, batch: batch @ x[:1]}, r"losses cannot be called with arrays of the shapes"),
        ({"penalty": lambda x: x**2}, r"penalty returns float64\[2\]: .* shape \(\)\. Return a scalar"),
        (
            {"start": np.zeros(2, int)},
            r"start has a leaf of int64: use floating-point numbers, float32 or float64\.",
        ),
        ({"start": {"w": np.zeros(2), "n": np.array(True)}}, r"start has a leaf of bool: use floating-point numbers"),
        ({"start": np.array([0, np.nan])}, r"start .*NaN or infinity"),
        ({"weights": [1.0]}, r"weights = .*1.*: must be 2 positive numbers\. Leave them out for w_i = 1/\|D_i\|"),
        ({"weights": [1.0, 0.0]}, r"weights = .*0.*: must be 2 positive numbers\. Leave them out"),
        ({"weights": [1.0, -2.0]}, r"weights = .*-2.*: must be 2 positive numbers\. Leave them out"),
        ({"weights": [1.0, np.inf]}, r"weights = .*inf.*: must be 2 positive numbers\. Leave them out"),
        ({"weights": [np.nan, 1.0]}, r"weights = .*nan.*: must be 2 positive numbers\. Leave them out"),
    ],
)
def test_functions_and_numbers_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {
        "losses": lambda x, batch: batch @ x,
        "data": np.ones((2, 3, 2)),
        "start": np.zeros(2),
    }
    with pytest.raises(FedpdError, match=sentence):
        from_losses(**(arguments | changes))


def test_integers_too_large_for_float32_computations_are_refused() -> None:
    with pytest.raises(FedpdError, match=r"data holds integers .*1099511627776: .*32 bits\. Give .*float64"):
        from_losses(lambda x, batch: batch * x, np.array([[2**40]]), np.float32(0))


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


@pytest.mark.slow
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


def _losses(x: Any, rows: Any) -> Any:
    return (rows @ x - 1) ** 2


def test_agents_hold_their_own_data_and_the_next_ones() -> None:
    data = [np.full((n, 2), float(i)) for i, n in enumerate((1, 2, 3))]
    shared = problems.share_blocks(problems.from_losses(_losses, data, np.zeros(2)), 1)
    assert shared.sizes.tolist() == [3, 5, 4]
    assert shared.data[2, :4, 0].tolist() == [2, 2, 2, 0]


def test_sharing_lowers_the_floor() -> None:
    problem = problems.random_quadratic(6, 3, seed=4)
    floors = [
        simulate(
            algorithms.ri_sgd(step=0.3, iterations=4, batch=None), problems.share_blocks(problem, copies), rounds=200
        )
        for copies in (0, 2, 5)
    ]
    none, some, all_ = (run.history["stationarity"][-1] for run in floors)
    assert none > some > 1e-9 > all_


def test_no_more_than_everything_can_be_shared() -> None:
    with pytest.raises(FedpdError, match="copies = 6: must be below 6, the number of agents"):
        problems.share_blocks(problems.random_quadratic(6, 3), 6)


def test_weights_would_be_lost() -> None:
    problem = problems.from_losses(_losses, np.ones((2, 3, 2)), np.zeros(2), weights=[1.0, 2.0])
    with pytest.raises(FedpdError, match="has weights, and f_i would lose them"):
        problems.share_blocks(problem, 1)
