"""FedNova: a NumPy program, agents that do different numbers of steps, stragglers."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedpd import FedpdError, Oracle, algorithms, problems, simulate, transforms
from fedpd.core import Subproblem, Work

from .plain import EVERYONE, GD, PROBLEM, SOME, STEP, agents, assert_model, descend


class Uneven(Oracle):
    """Agent i does i + 1 gradient steps."""

    step: float

    def solve(self, phi: Subproblem, x: Any, memory: None, r: Any, key: Any) -> tuple[Any, None, Work]:
        steps = phi.f.agent + 1
        x = lax.fori_loop(0, steps, lambda q, x: x - self.step * phi.gradient(x), x)
        return x, None, Work.of(steps, steps, phi.f.size)


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_a_numpy_program(present: np.ndarray) -> None:
    x = np.zeros(3)
    for here in present:
        some = agents(here)
        changes = [(descend(i, x, steps=i + 1) - x) / (i + 1) for i in some]
        x = x + np.mean([i + 1 for i in some]) * np.mean(changes, axis=0)
    assert_model(algorithms.fednova(oracle=Uneven(step=STEP)), present, x)


def test_it_removes_the_bias_of_agents_with_more_steps() -> None:
    """With small steps FedAvg goes to the minimum of sum (i + 1) f_i, and FedNova to that of f."""
    oracle, options = Uneven(step=1e-3), dict[str, Any](rounds=40_000, metrics_every=40_000)
    minimiser = np.asarray(PROBLEM.answer.minimiser)
    nova = simulate(algorithms.fednova(oracle=oracle), PROBLEM, **options).model
    fedavg = simulate(algorithms.fedavg(oracle=oracle), PROBLEM, **options).model
    assert np.abs(nova - minimiser).max() < 0.01 < 0.2 < np.abs(fedavg - minimiser).max()


def test_a_straggler_counts_as_much_as_others() -> None:
    """f_1 = (x - 1)^2/2 and f_2 = (x + 1)^2/2: the mean gradient at 0 is 0, however many steps each agent does."""
    problem = problems.quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]))
    tiny = algorithms.fednova(oracle=steps_of(1e-6))
    run = simulate(tiny, problem, rounds=5, stragglers=0.5)
    assert len(set(run.updates.tolist())) == 2, "one of them did fewer steps"
    fedavg = simulate(algorithms.fedavg(oracle=steps_of(1e-6)), problem, rounds=5, stragglers=0.5)
    assert abs(run.model[0]) < 1e-3 * abs(fedavg.model[0])


def steps_of(step: float) -> Oracle:
    return GD.changed({"step": step, "iterations": 20})


class Heavy(Uneven):
    """An oracle with momentum."""

    momentum: float


@pytest.mark.parametrize("factory", [algorithms.fednova, algorithms.fedcm, partial(algorithms.feddc, alpha=1.0)])
def test_momentum_in_the_local_steps_is_refused(factory: Any) -> None:
    """The change of a local model is then not the sum of steps times gradients."""
    with pytest.raises(FedpdError, match="must not have momentum"):
        factory(oracle=Heavy(step=0.1, momentum=0.9))
    assert factory(oracle=Heavy(step=0.1, momentum=0.0)).name


def test_samples_weigh_both_means() -> None:
    data = [{"a": np.ones((n, 1)), "b": np.full(n, 1.0 + n)} for n in (1, 3)]
    problem = problems.from_losses(lambda x, rows: (rows["a"] @ x - rows["b"]) ** 2 / 2, data, jnp.zeros(1))
    weighted = transforms.wrap(algorithms.fednova(oracle=Uneven(step=0.5)), mean=transforms.weighted("samples"))
    # agent 1: one step to 1, d = 1; agent 2: two steps to 2 and 3, d = 1.5
    expected = (1 * 1 + 3 * 2) / 4 * (1 * 1 + 3 * 1.5) / 4
    assert simulate(weighted, problem, rounds=1).model[0] == pytest.approx(expected, rel=1e-14)
