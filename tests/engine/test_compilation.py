"""Compilation: numbers are arguments of a program, and programs are shared only where nothing else differs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import monitoring
from torch import nn

import fedpd
from fedpd import algorithms, data, oracles, problems, simulate, transforms
from fedpd.algorithms.fedavg import FedAvg
from fedpd.algorithms.fedpd import FedPD
from fedpd.algorithms.gradient_descent import GradientDescent
from fedpd.base.precision import scope
from fedpd.base.value import constant
from fedpd.core import Algorithm, Exchange, message_kinds, vectors_of
from fedpd.engine import plan
from fedpd.engine.backends.compiled import SMALL, compiled_by_size
from fedpd.engine.backends.memory import MemoryBackend, compile_ahead
from fedpd.engine.config import RunConfig
from fedpd.engine.loop import one_round
from fedpd.engine.simulate import make_plan

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3))
COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Yield a list of the programs that are compiled meanwhile."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == COMPILED:
            found.append(str(about.get("fun_name")))

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(listen)


def method(step: float, **more: Any) -> Algorithm:
    return algorithms.fedpd(eta=step, oracle=oracles.gd(step=step, iterations=8), **more)


@pytest.mark.parametrize("options", [{}, {"participation": 0.5, "stragglers": 0.5}], ids=str)
def test_other_steps_rounds_and_seeds_compile_nothing(options: dict[str, Any]) -> None:
    simulate(method(0.1, p=0.5), PROBLEM, rounds=3, **options)
    with compilations() as found:
        for step, rounds, seed in ((0.2, 3, 0), (0.3, 5, 0), (0.4, 300, 0), (0.5, 5, 7)):
            simulate(method(step, p=step), PROBLEM, rounds=rounds, seed=seed, metrics_every=rounds, **options)
    assert found == []


def test_another_problem_of_the_same_shape_compiles_nothing() -> None:
    def losses(x: jax.Array, rows: jax.Array) -> jax.Array:
        return (rows @ x - 1) ** 2

    first, second = (problems.from_losses(losses, np.full((2, 3, 4), fill), np.zeros(4)) for fill in (0.1, 0.2))
    one = simulate(method(0.1), first, rounds=4)
    with compilations() as found:
        two = simulate(method(0.1), second, rounds=4)
    assert found == []
    assert one.history["loss"][-1] != two.history["loss"][-1]


class Partly(nn.Module):
    """A module with a frozen layer and a buffer, as adapters of peft and Hugging Face's models have them."""

    positions: torch.Tensor

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.first, self.head, self.shift = nn.Linear(3, 4), nn.Linear(4, 2), shift
        self.first.weight.requires_grad = False
        self.register_buffer("positions", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(x)) + self.positions + self.shift)


def test_a_module_with_frozen_arrays_compiles_once_also_for_other_data() -> None:
    def agents(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return data.from_arrays({name: {"x": rng.normal(size=(4, 3)), "y": np.arange(4) % 2} for name in "ab"})

    torch.manual_seed(0)
    net = Partly()
    first, second = (problems.network(net, agents(seed)) for seed in (0, 1))
    one = simulate(method(0.1), first, rounds=2)
    with compilations() as found:
        again = simulate(method(0.1), first, rounds=3)
        two = simulate(method(0.1), second, rounds=2)
    assert found == []
    assert again.history["loss"][2] == one.history["loss"][2] != two.history["loss"][2]
    net.shift = 1.0  # another function, though of the same layers
    with compilations() as found:
        three = simulate(method(0.1), problems.network(net, agents(1), check=False), rounds=2)
    assert "_rounds" in str(found)
    assert three.history["loss"][0] != two.history["loss"][0]


def test_functions_that_changed_since_are_not_shared() -> None:
    def made(factor: list[float]) -> Any:
        return problems.from_losses(
            lambda x, rows: factor[0] * (rows @ x - 1) ** 2, np.full((2, 3, 4), 0.1), np.zeros(4)
        )

    changing = [1.0]
    first = made(changing)
    simulate(method(0.1), first, rounds=1)
    changing[0] = 3.0
    assert simulate(method(0.1), made([1.0]), rounds=1).history["loss"][0] == 1.0
    assert simulate(method(0.1), first, rounds=1).history["loss"][0] == 3.0


def test_a_second_run_of_a_problem_with_metrics_compiles_nothing() -> None:
    one = {"x": np.eye(4, 3), "y": np.arange(4) % 2}
    both = data.from_arrays({"a": one, "b": one}, {"a": one, "b": one})
    brier = lambda scores, targets: (jax.nn.softmax(scores)[:, 1] - targets) ** 2  # noqa: E731
    problem = problems.classification(lambda x, a: a @ x, both, np.zeros((3, 2)), metrics={"brier": brier})
    first = simulate(method(0.1), problem, rounds=2)
    with compilations() as found:
        second = simulate(method(0.2), problem, rounds=3)
    assert found == []
    assert first.history["brier"][0] == second.history["brier"][0] == 0.25


def test_a_number_that_is_an_argument_gives_what_a_constant_gives() -> None:
    one_program = constant(method(0.3))
    assert not jax.tree.leaves(one_program)
    for options in ({"seed": [1, 2]}, {"devices": 2}):
        traced, fixed = (simulate(one, PROBLEM, rounds=20, **options) for one in (method(0.3), one_program))
        for one, other in zip(getattr(traced, "runs", [traced]), getattr(fixed, "runs", [fixed]), strict=True):
            np.testing.assert_allclose(one.model, other.model, rtol=1e-12)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_program_that_was_compiled_ahead_is_not_compiled_again(devices: int) -> None:
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=3 + devices))
    options = RunConfig(devices=devices)
    with scope(PROBLEM.double), compilations() as ahead:
        compile_ahead(make_plan(algorithm, PROBLEM, 5, [0], False, options))
    assert {"jit(_begin)", "jit(_rounds)"} <= set(ahead)
    with compilations() as found:
        simulate(algorithm, PROBLEM, rounds=5, devices=devices)
    assert found == []


def test_transforms_that_are_not_used_add_nothing_to_a_round() -> None:
    def program(algorithm: Algorithm) -> str:
        with scope(PROBLEM.double):
            begun = MemoryBackend(make_plan(algorithm, PROBLEM, 5, [0], False, RunConfig()))
            nothing: Any = None  # in place of the method, which the program has
            inputs = begun.inputs._replace(method=nothing)
            return str(jax.make_jaxpr(partial(one_round, begun.program))(inputs, begun.state))

    class Bare(FedPD):
        def send(self, agent: Any) -> Any:
            return vectors_of(super().send(agent))

        def exchanges(self) -> tuple[Exchange, ...]:
            return tuple(one._replace(mean=None, restore=None, with_message=None) for one in super().exchanges())

    plain = method(0.1)
    bare = Bare(eta=0.1, oracle=oracles.gd(step=0.1, iterations=8), p=0.0, start="local")
    assert message_kinds(bare) != message_kinds(plain)
    texts = [program(one) for one in (plain, bare, transforms.wrap(plain))]
    assert texts[0] == texts[1] == texts[2]
    assert program(transforms.wrap(plain, up=transforms.top_k(0.5))) != texts[0]


def test_a_method_that_branches_on_its_numbers_still_runs() -> None:
    class Careful(FedAvg):
        step: float

        def local(self, f: Any, agent: Any, r: Any, key: Any) -> tuple[Any, Any]:
            oracle = oracles.gd(step=self.step if self.step < 0.2 else 0.2, iterations=2)
            return FedAvg(oracle=oracle).local(f, agent, r, key)

    oracle = oracles.gd(step=0.2, iterations=2)
    run, same = (simulate(Careful(step=step, oracle=oracle), PROBLEM, rounds=3) for step in (5.0, 0.2))
    assert np.array_equal(run.model, same.model)


def test_functions_that_differ_never_share_a_program() -> None:
    finals = set()
    for factor in (0.1, 0.2):
        step = fedpd.named("same name", lambda r, q, factor=factor: factor)
        algorithm = algorithms.fedavg(oracle=oracles.gd(step=step, iterations=2))
        finals.add(float(simulate(algorithm, PROBLEM, rounds=3).history["loss"][-1]))
    assert len(finals) == 2


def test_bits_do_not_depend_on_who_compiled_first() -> None:
    alone = simulate(method(0.25), PROBLEM, rounds=10)
    jax.clear_caches()
    simulate(method(0.7), PROBLEM, rounds=2)
    after = simulate(method(0.25), PROBLEM, rounds=10)
    assert np.array_equal(alone.model, after.model)
    assert np.array_equal(alone.history["stationarity"], after.history["stationarity"])


@pytest.mark.parametrize("cohort", [None, 2])
def test_a_python_number_in_the_first_state_does_not_compile_the_rounds_twice(cohort: int | None) -> None:
    class WithNumber(GradientDescent):
        def server(self, x: Any) -> Any:
            return {"inner": super().server(x), "least": jnp.asarray(float("inf"))}

        def aggregate(self, server: Any, mean: Any, share: Any) -> tuple[Any, Any]:
            inner, broadcast = super().aggregate(server["inner"], mean, share)
            return {"inner": inner, "least": jnp.minimum(server["least"], jnp.float64(1))}, broadcast

    with compilations() as found:
        simulate(WithNumber(step=0.1), PROBLEM, rounds=9, cohort=cohort)
    assert sum("_rounds" in name for name in found) == 1


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
def test_all_chunks_of_a_cohort_on_two_devices_are_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LONG_ROUND", 0)  # chunks of one round
    options: dict[str, Any] = {"cohort": 2, "devices": 2, "execution": "sequential"}
    with compilations() as found:
        simulate(algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=3)), PROBLEM, rounds=3, **options)
    assert sum("_rounds" in name for name in found) == 1


def test_small_problems_compile_quickly_to_the_same_numbers() -> None:
    def steps(x: Any) -> Any:
        return jax.lax.fori_loop(0, 50, lambda q, x: x - 0.1 * jnp.tanh(x @ x) * jnp.sin(x), x)

    choose, x = compiled_by_size(steps), jnp.linspace(-1.0, 1.0, 7)
    small, large = (problems.random_quadratic(agents=agents, dimension=10) for agents in (10, 1 + SMALL // 10))
    assert choose(small) is not choose(large)
    np.testing.assert_allclose(choose(small)(x), choose(large)(x), rtol=1e-5)
