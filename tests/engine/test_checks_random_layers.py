"""Every oracle and every method trains with the random layers of a model, or is refused."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import Algorithm, FedpdError, Oracle, Problem, algorithms, oracles, problems, simulate
from tests.algorithms.test_conformance import AGENTS, ROWS

FIRST = {row.make().description.split("(")[0]: row for row in reversed(ROWS.values())}  # a row for each method
ORACLES = {
    "gd": oracles.gd(0.1, 2),
    "gd to a tolerance": oracles.gd(0.1, 2, tolerance=1e-9),
    "sgd": oracles.sgd(0.1, 2, batch=2),
    "sgd on all samples": oracles.sgd(0.1, 2, batch=None),
    "optax": oracles.optax(oracles.optimizer("sgd", learning_rate=0.1), 2),
    "dp_sgd": oracles.dp_sgd(0.1, 2, clip=9.0, noise_multiplier=1e-9),
}
QUICK = ("fedavg", "scaffold", "newton_cg")
REFUSED = ("barzilai_borwein", "fedosaa", "lag", "lbfgs", "newton_cg", "pr_spider")


def losses(x: Any, batch: Any) -> Any:
    return 0.5 * jnp.sum((x - batch["a"]) ** 2, axis=-1)


def masked(x: Any, batch: Any, key: Any) -> Any:
    return losses(x, batch) * 2 * jax.random.bernoulli(key, 0.5, (len(batch["a"]),))


def plain() -> Problem:
    rng = np.random.default_rng(0)
    agents = [{"a": rng.standard_normal((n, 3))} for n in range(3, 3 + AGENTS)]
    return problems.from_losses(losses, agents, np.zeros(3), check=False)


def assert_random(algorithm: Algorithm) -> None:
    """Training draws from the random layers, and the rows do not."""
    without, random = (
        simulate(algorithm, problem, rounds=2, metrics_every=2)
        for problem in (plain(), replace(plain(), random=masked, block=16))
    )
    assert np.abs(random.model - without.model).max() > 1e-4
    assert random.history["loss"][0] == pytest.approx(without.history["loss"][0])


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_every_oracle_draws_from_the_random_layers(oracle: Oracle) -> None:
    assert_random(algorithms.fedavg(oracle=oracle))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in algorithms.__all__]
)
def test_every_method_draws_from_the_random_layers_or_is_refused(name: str) -> None:
    method = FIRST[name].make()
    if name not in REFUSED:
        assert_random(method)
        return
    with pytest.raises(FedpdError, match="compares gradients of different rounds"):
        assert_random(method)
