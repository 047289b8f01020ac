"""Dropout draws from (seed, round, agent, step): reproducible, the same in every layout and on Flower."""

from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flwr.app import Context
from torch import nn

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems
from fedpd.core import Problem
from fedpd.flower import InProcessGrid, Settings, client_app, federate
from tests.problems.adapters.same_network import CLASSES, INPUTS, agents

SGD = algorithms.fedpd(eta=1.0, oracle=oracles.sgd(step=0.1, iterations=2, batch=3), start="server")


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        return linen.Dense(CLASSES)(linen.Dropout(0.5, deterministic=not train)(x))


class Nnx(nnx.Module):
    def __init__(self) -> None:
        self.dense, self.dropout = nnx.Linear(INPUTS, CLASSES, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.dense(self.dropout(x))


class Equinox(eqx.Module):
    dense: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.dense(self.dropout(x, key=key))


def of_haiku(x: Any, train: bool) -> Any:
    x = hk.dropout(hk.next_rng_key(), 0.5, x) if train else x
    return hk.Linear(CLASSES)(x)


def torch_module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(INPUTS, CLASSES))


def of_equinox() -> Equinox:
    return Equinox(eqx.nn.Linear(INPUTS, CLASSES, key=jax.random.key(0)), eqx.nn.Dropout(0.5))


MODULES: dict[str, Any] = {  # made in the tests: JAX computes as soon as one is
    "PyTorch": torch_module,
    "linen": Linen,
    "nnx": Nnx,
    "equinox": of_equinox,
    "haiku": lambda: hk.transform(of_haiku),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODULES, "called back"])
def test_a_key_changes_training_and_not_what_is_measured(name: str) -> None:
    back = name == "called back"
    problem = problems.network(MODULES["PyTorch" if back else name](), agents(), backend="callback" if back else "jax")
    assert problem.random is not None
    batch = {"x": np.ones((64, INPUTS), np.float32), "y": np.zeros(64, np.int32)}
    random = jax.jit(problem.random)
    one, again, other = (np.asarray(random(problem.start, batch, jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.unique(one).size > 2, "each sample has its own mask"
    assert (one != other).any()
    assert np.unique(problem.losses(problem.start, batch)).size == 1


def problem() -> Problem:
    return problems.network(torch_module(), agents())


@pytest.mark.slow
def test_all_layouts_and_flower_draw_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem()
    expected = fedpd.simulate(SGD, whole, rounds=3, execution="sequential", devices=1, progress=False)
    for options in ({"execution": "parallel", "devices": 1}, {"devices": 2}, {"execution": "debug"}, {"cohort": 3}):
        run: Any = fedpd.simulate(SGD, whole, rounds=3, progress=False, **options)
        np.testing.assert_allclose(run.model["1.weight"], expected.model["1.weight"], atol=1e-6)
    monkeypatch.setenv("FEDPD_STATE", str(tmp_path))

    def local(context: Context) -> Problem:
        return whole.subset([int(context.node_config["partition-id"])])

    grid = InProcessGrid(client_app(lambda config: SGD, lambda config: whole.start, local), agents=3, config={})
    result = federate(grid, SGD, whole.start, Settings(agents=3, rounds=3, poll=0.01))
    np.testing.assert_allclose(result.model["1.weight"], expected.model["1.weight"], atol=1e-6)


@pytest.mark.slow
def test_a_full_gradient_has_one_set_of_random_numbers_per_round() -> None:
    gd = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
    runs = [
        fedpd.simulate(gd, problem(), rounds=2, execution=how, progress=False) for how in ("sequential", "parallel")
    ]
    np.testing.assert_allclose(runs[0].model["1.weight"], runs[1].model["1.weight"], atol=1e-6)
    module: Any = torch_module()
    quiet = problems.network(module[1:], agents())
    plain = fedpd.simulate(gd, quiet, rounds=2, progress=False)
    assert np.abs(plain.model["1.weight"] - runs[0].model["1.weight"]).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "named"),
    [
        (algorithms.fedpd(eta=1.0, oracle=oracles.vr(gamma=1.0, iterations=2, refresh=2)), "oracle = 'vr"),
        (algorithms.fedpd(eta=1.0, oracle=oracles.lbfgs()), "oracle = 'lbfgs"),
        (algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.1, iterations=2), memory=3), "algorithm = 'fedpd"),
        (algorithms.fedpd(eta="auto", oracle=oracles.gd(step=0.1, iterations=2)), "algorithm = 'fedpd"),
        (algorithms.lbfgs(), "algorithm = 'lbfgs"),
        (algorithms.newton_cg(), "algorithm = 'newton_cg"),
    ],
)
def test_methods_that_compare_rounds_are_refused(method: Any, named: str) -> None:
    with pytest.raises(FedpdError, match=rf"{named}.*compares gradients of different rounds.*Remove the random layers"):
        fedpd.simulate(method, problem(), rounds=2, progress=False)


@pytest.mark.slow
def test_dp_sgd_trains_with_dropout() -> None:
    dp_sgd = oracles.dp_sgd(0.1, 2, clip=100.0, noise_multiplier=1e-6)
    module: Any = torch_module()
    models = [
        fedpd.simulate(
            algorithms.fedavg(oracle=dp_sgd), problems.network(one, agents()), rounds=1, progress=False
        ).model
        for one in (module, nn.Sequential(nn.Identity(), module[1]))
    ]
    assert np.abs(models[0]["1.weight"] - models[1]["1.weight"]).max() > 1e-3


@pytest.mark.slow
def test_dropout_and_batch_normalisation() -> None:
    class Both(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
            return linen.Dense(CLASSES)(linen.Dropout(0.5, deterministic=not train)(x))

    class Two(nnx.Module):
        def __init__(self) -> None:
            self.norm, self.inner = nnx.BatchNorm(INPUTS, rngs=nnx.Rngs(0)), Nnx()

        def __call__(self, x: Any) -> Any:
            return self.inner(self.norm(x))

    for module in (Both(), Two()):
        made = problems.network(module, agents())
        assert made.random is not None
        assert made.statistics is not None
        own = jax.tree.map(jnp.asarray, agents().train[0]["x"])
        statistics = made.statistics(made.start, {"x": own})
        mean = next(leaf for path, leaf in jax.tree_util.tree_leaves_with_path(statistics) if "mean" in str(path))
        if isinstance(module, Two):
            np.testing.assert_allclose(mean, own.mean(0), atol=1e-6)
        run = fedpd.simulate(SGD, made, rounds=1, progress=False)
        assert np.isfinite(run.history["test_accuracy"]).all()
