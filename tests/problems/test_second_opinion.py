"""The check of a problem when it is built: losses that couple samples, that are random, or that compile to another."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems, theory
from fedpd.problems import Metric
from fedpd.problems.adapters import equinox as equinox_adapter
from fedpd.problems.adapters import haiku as haiku_adapter
from fedpd.problems.adapters import linen as linen_adapter
from fedpd.problems.adapters import nnx as nnx_adapter
from tests.slow_cases import slow_but

X = np.array([0.4, -0.2])


def patients(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"a": rng.standard_normal((n, 2)), "t": rng.permutation(n) + 1.0, "d": (np.arange(n) % 3 != 1) * 1.0}
        for n in sizes
    ]


def cox(x: Any, rows: Any) -> Any:
    """Return the terms of the Cox partial likelihood, one per sample; they depend on the other samples."""
    score, t = rows["a"] @ x, rows["t"]
    return rows["d"] * (jnp.log((t[None, :] >= t[:, None]) @ jnp.exp(score)) - score)


def cox_by_hand(x: np.ndarray, rows: dict[str, np.ndarray]) -> np.ndarray:
    score = rows["a"] @ x
    risks = [np.log(np.exp(score[rows["t"] >= t]).sum()) for t in rows["t"]]
    return rows["d"] * (np.array(risks) - score)


def taken(rows: dict[str, np.ndarray], places: Any) -> dict[str, np.ndarray]:
    return {key: leaf[places] for key, leaf in rows.items()}


def squares(x: Any, rows: Any) -> Any:
    return (rows["a"] @ x - rows["t"]) ** 2


class TestCoupledSamples:
    def test_padding_changes_the_loss(self) -> None:
        """Without the check, the repeated samples of the smaller agent are at risk, too."""
        agents = patients(4, 9)
        truth = np.mean([cox_by_hand(X, one).mean() for one in agents])
        small = cox_by_hand(X, taken(agents[0], np.arange(9) % 4))[:4].mean()
        padded = (small + cox_by_hand(X, agents[1]).mean()) / 2
        unchecked = problems.from_losses(cox, agents, X, check=False)
        assert theory.objective(unchecked, X) == pytest.approx(padded, rel=1e-12)
        assert (round(float(truth), 4), round(float(padded), 4)) == (0.8206, 1.0947)
        with pytest.raises(FedpdError, match=r"losses = 'cox': .* 4 to 9\. Use problems.from_agent_loss"):
            problems.from_losses(cox, agents, X)

        def mean_of_terms(x: Any, samples: Any, mask: Any) -> Any:
            score, t = samples["a"] @ x, samples["t"]
            at_risk = (t[None, :] >= t[:, None]) * mask
            return jnp.sum(mask * samples["d"] * (jnp.log(at_risk @ jnp.exp(score)) - score)) / jnp.sum(mask)

        remedy = problems.from_agent_loss(mean_of_terms, agents, X)
        assert theory.objective(remedy, X) == pytest.approx(truth, rel=1e-12)

    @pytest.mark.parametrize("form", ["ragged", "lazy"])
    def test_other_layouts_are_refused_too(self, form: str) -> None:
        agents = patients(4, 9)
        rows = {key: np.concatenate([one[key] for one in agents]) for key in agents[0]}
        loaded: list[int] = []

        def load(i: int) -> Any:
            loaded.append(i)
            return agents[i]

        given = data.ragged(rows, [4, 9]) if form == "ragged" else data.lazy(load, [4, 9])
        loaded.clear()
        with pytest.raises(FedpdError, match="depends on the other samples of its batch"):
            problems.from_losses(cox, given, X)
        assert loaded == ([1] if form == "lazy" else [])

    @pytest.mark.slow
    def test_agents_of_equal_size_are_one_batch_each_in_all_layouts(self) -> None:
        agents = patients(70, 70, 70)
        wanted = np.mean([cox_by_hand(X, one).mean() for one in agents])
        method = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1))
        models = []
        for given in (agents, data.lazy(agents.__getitem__, [70] * 3)):
            problem = problems.from_losses(cox, given, X)
            assert problem.block == 70
            assert theory.objective(problem.in_memory(), X) == pytest.approx(wanted, rel=1e-12)
            models.append(fedpd.simulate(method, problem, rounds=2, cohort=2).model)
        np.testing.assert_allclose(models[1], models[0], rtol=1e-12)

    @pytest.mark.slow
    def test_a_large_model_is_not_cut_into_blocks(self) -> None:
        rng = np.random.default_rng(0)
        wide = {"a": rng.standard_normal((2, 100, 90_000)).astype(np.float32) / 300}

        def centred(x: Any, rows: Any) -> Any:
            score = rows["a"] @ x
            return (score - jnp.mean(score)) ** 2

        problem = problems.from_losses(centred, wide, np.ones(90_000, np.float32))
        wanted = np.mean(np.var(wide["a"].sum(axis=2, dtype=np.float64), axis=1))
        assert theory.objective(problem, problem.start) == pytest.approx(wanted, rel=1e-4)

    def test_blocks_are_the_batches_of_the_docs(self) -> None:
        agents = patients(8, 11)
        problem = problems.from_losses(cox, agents, X, block=4)
        totals = []
        for one in agents:
            n = len(one["t"])
            batches = [np.arange(q, q + 4) for q in range(0, n, 4)]
            found = [cox_by_hand(X, taken(one, at % n))[at < n].sum() for at in batches]
            totals.append(sum(found) / n)
        assert theory.objective(problem, X) == pytest.approx(np.mean(totals), rel=1e-12)
        with pytest.raises(FedpdError, match=r"block = 9: must be at most 8, .* Use problems.from_agent_loss"):
            problems.from_losses(cox, agents, X, block=9)
        assert problems.from_losses(squares, agents, X, block=9).block == 9  # it does not couple samples

    def test_couplings_that_a_start_of_zeros_hides(self) -> None:
        def ranked(x: Any, rows: Any) -> Any:
            score = rows["a"] @ x
            return jnp.mean(jnp.logaddexp(0, score[None, :] - score[:, None]), axis=1)

        with pytest.raises(FedpdError, match="depends on the other samples"):
            problems.from_losses(ranked, patients(4, 9), np.zeros(2))
        with pytest.raises(FedpdError, match="depends on the other samples"):
            problems.from_losses(lambda x, rows: squares(x, rows) / len(rows["t"]), patients(4, 9), X)

    def test_one_sample_per_agent(self) -> None:
        assert problems.from_losses(squares, patients(1, 1), X).block is None
        assert problems.from_losses(cox, patients(1, 1), X).block == 1

    def test_a_batch_of_one_is_refused(self) -> None:
        problem = problems.from_losses(cox, patients(9, 9), X)
        with pytest.raises(FedpdError, match="batch = 1: must be at least 2, because a sample's loss depends"):
            fedpd.simulate(algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=1)), problem, rounds=1)


def table(sizes: tuple[int, ...] = (40, 40), tests: int = 40, classes: bool = False) -> Any:
    rng = np.random.default_rng(0)

    def agent(n: int) -> Any:
        x = rng.standard_normal((n, 2)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int) if classes else (x @ X).astype(np.float32)
        return {"x": x, "y": y}

    train = {str(i): agent(n) for i, n in enumerate(sizes)}
    test = {name: agent(tests) for name in train} if tests else None
    return data.from_arrays(train, test, classes=None if classes else False)


START = np.array([0.1, 0.2], np.float32)


def linear(x: Any, a: Any) -> Any:
    return a @ x


def centred_error(outputs: Any, targets: Any) -> Any:
    return (outputs - jnp.mean(outputs) - targets) ** 2


class TestSupervised:
    def test_a_coupled_loss(self) -> None:
        with pytest.raises(FedpdError, match="from_agent_loss"):
            problems.supervised(linear, table((40, 50), 0), START, loss=centred_error)
        assert problems.supervised(linear, table(tests=0), START, loss=centred_error).block == 40
        with pytest.raises(FedpdError, match="the 'test_loss' of a test sample depends on the other samples"):
            problems.supervised(linear, table(), START, loss=centred_error)

    def test_a_coupled_metric(self) -> None:
        def rank(outputs: Any, targets: Any) -> Any:
            return jnp.mean(outputs[None, :] < outputs[:, None], axis=1)

        for metric in (rank, Metric(rank, better="more")):
            with pytest.raises(FedpdError, match=r"the 'rank' of a test sample depends on .* run.model"):
                problems.regression(linear, table(), START, metrics={"rank": metric})
        assert problems.regression(linear, table(), START, metrics={"rank": rank}, check=False).agents == 2

    def test_scores_that_are_normalised_by_their_batch(self) -> None:
        def scores(model: Any, x: Any) -> Any:
            return (x - jnp.mean(x, axis=0)) @ model

        start = np.ones((2, 2), np.float32)
        with pytest.raises(FedpdError, match="padding would repeat samples"):
            problems.classification(scores, table((40, 50), classes=True), start)
        with pytest.raises(FedpdError, match="depends on the other samples"):
            problems.classification(scores, table(classes=True), start)


class TestImpureLosses:
    def test_random_numbers(self) -> None:
        rng = np.random.default_rng(0)
        with pytest.raises(FedpdError, match=r"mean loss of agent 1 = \[.*two calls with the same arguments"):
            problems.from_losses(lambda x, rows: squares(x, rows) + rng.random(), patients(4, 9), X)

    def test_a_batch_that_is_changed(self) -> None:
        def changing(x: Any, rows: Any) -> Any:
            rows["a"] = rows["a"] / 2
            return squares(x, rows)

        with pytest.raises(FedpdError, match="losses changes its model or its batch"):
            problems.from_losses(changing, patients(4, 9), X)

    def test_another_function_when_it_is_compiled(self) -> None:
        def traced(x: Any, rows: Any) -> Any:
            factor = 2.0 if isinstance(rows["a"], jax.core.Tracer) else 1.0
            return factor * squares(x, rows)

        with pytest.raises(
            FedpdError, match=r"agent 1: traced, compiled by fedpd, gives f_i = .* off by 1 of its norm"
        ):
            problems.from_losses(traced, patients(4, 9), X)

    def test_losses_that_are_not_finite_at_the_start(self) -> None:
        with pytest.raises(
            FedpdError, match="loss of sample 0 of agent 1 = -inf: must be finite at the start, but 9 of 9"
        ):
            problems.from_losses(lambda x, rows: jnp.log(jnp.abs(rows["a"] @ x)), patients(4, 9), np.zeros(2))
        with pytest.raises(FedpdError, match="the gradient of agent 1 at the start is not finite"):
            problems.from_losses(lambda x, rows: jnp.sqrt(jnp.sum(x * x)) + 0 * rows["t"], patients(4, 9), np.zeros(2))
        with pytest.raises(FedpdError, match="the penalty of agent 1 at the start is not finite"):
            problems.from_losses(squares, patients(4, 9), np.zeros(2), penalty=lambda x: 1 / jnp.sum(x * x))

    def test_lower_precision_is_no_difference(self) -> None:
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):

            def low(x: Any, rows: Any, dtype: Any = dtype) -> Any:
                return ((rows["a"].astype(dtype) @ x.astype(dtype)) ** 2).astype(float)

            assert problems.from_losses(low, patients(4, 9), X).agents == 2

    def test_terms_that_cancel_are_no_difference(self) -> None:
        rng = np.random.default_rng(0)
        half = 1e4 * rng.standard_normal((20, 2)).astype(np.float32)
        rows = [{"a": np.concatenate([half, -half])} for _ in range(2)]
        assert problems.from_losses(lambda x, rows: rows["a"] @ x, rows, X.astype(np.float32)).agents == 2


class Linen(nn.Module):
    doubled_in_training: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.Dense(2)(x) * (2 if self.doubled_in_training and train else 1)


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return nn.Dropout(0.5, deterministic=not train)(nn.Dense(2)(x))


def doubled(function: Any) -> Any:
    return lambda *arguments: 2 * function(*arguments)


def modules() -> dict[str, tuple[Any, Any]]:
    return {
        "linen": (Linen(), linen_adapter),
        "nnx": (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx_adapter),
        "equinox": (eqx.nn.Linear(2, 2, key=jax.random.key(0)), equinox_adapter),
        "haiku": (hk.transform(lambda x: hk.Linear(2)(x)), haiku_adapter),
    }


class TestModules:
    @pytest.mark.parametrize("library", slow_but(["linen"], ["linen", "nnx", "equinox", "haiku"]))
    def test_scores_of_the_library_itself(self, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module, adapter = modules()[library]
        held = table((33, 40), classes=True)
        assert problems.network(module, held).agents == 2
        monkeypatch.setattr(adapter, "_scores", doubled(adapter._scores))
        with pytest.raises(FedpdError, match=r"agent 0: .*compiled by fedpd, gives f_i"):
            problems.network(module, held)
        assert problems.network(module, held, check=False).agents == 2

    def test_random_layers_in_training(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = table(classes=True)
        assert problems.network(Dropped(), held).random is not None
        scores = linen_adapter._scores
        monkeypatch.setattr(linen_adapter, "_scores", lambda *given: scores(*given[:-1], None))  # type: ignore[call-arg]
        with pytest.raises(FedpdError, match="the loss with random layers, compiled by fedpd, gives"):
            problems.network(Dropped(), held)

    def test_a_module_that_differs_in_training_without_random_numbers(self) -> None:
        method = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1))
        held = table(classes=True)
        problem = problems.network(Linen(doubled_in_training=True), held)
        run = fedpd.simulate(method, problem, rounds=1)
        start = problem.start["Dense_0"]

        def loss(p: Any, factor: float) -> Any:
            losses = []
            for one in held.train:
                scores = factor * (one["x"] @ p["kernel"] + p["bias"])
                picked = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.asarray(one["y"])[:, None], 1)
                losses.append(-jnp.mean(picked))
            return sum(losses) / len(losses)

        assert run.history["loss"][0] == pytest.approx(float(loss(start, 1.0)), rel=1e-5)  # measured in evaluation
        wanted = jax.tree.map(lambda leaf, g: leaf - 0.1 * g, start, jax.grad(loss)(start, 2.0))
        np.testing.assert_allclose(run.model["Dense_0"]["kernel"], wanted["kernel"], rtol=1e-4)


def test_a_loss_that_counts_repeated_samples_is_refused() -> None:
    def losses(x: Any, rows: Any) -> Any:
        return (rows @ x - 1) ** 2 / jnp.sum(jnp.all(rows[:, None] == rows[None], -1), 1)

    agents = [np.random.default_rng(n).normal(size=(n, 3)) for n in (5, 9)]
    with pytest.raises(FedpdError, match="depends on the other samples of its batch"):
        problems.from_losses(losses, agents, np.ones(3))
