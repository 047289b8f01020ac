"""Functions whose content changed between two runs: no run uses the compiled program of the old content."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpd
from fedpd import Column, FedpdError, Measure, algorithms, data, oracles, problems, simulate, sweep, theory

ROWS = np.random.default_rng(0).normal(size=(3, 5, 4))
START = np.ones(4)
METHOD = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=2))
WEIGHT = 0.0
TABLE = {"weight": 0.0}
ARRAY = np.zeros(1)
UNKNOWN = iter([1])  # nothing tells whether it is the same as before


def squares(x: Any, rows: Any) -> Any:
    return (rows @ x - 1) ** 2


def by_global(x: Any, rows: Any) -> Any:
    return squares(x, rows) + WEIGHT * jnp.sum(x * x)


def by_table(x: Any, rows: Any) -> Any:
    return squares(x, rows) + TABLE["weight"] * jnp.sum(x * x)


def by_array(x: Any, rows: Any) -> Any:
    return squares(x, rows) + ARRAY[0] * jnp.sum(x * x)


def by_attribute(x: Any, rows: Any) -> Any:
    return squares(x, rows) + by_attribute.weight * jnp.sum(x * x)  # type: ignore[attr-defined]


def by_helper(x: Any, rows: Any) -> Any:
    return by_global(x, rows)


def scanned(total: Any, x: Any) -> tuple[Any, None]:
    return total + WEIGHT * x, None


def by_body_of_scan(x: Any, rows: Any) -> Any:
    return squares(x, rows) + jax.lax.scan(scanned, 0.0, x * x)[0]


def by_unknown(x: Any, rows: Any) -> Any:
    assert UNKNOWN is not None
    return by_global(x, rows)


class Ridge:
    weight = 0.0
    table = {"weight": 0.0}  # noqa: RUF012

    def __init__(self) -> None:
        self.own = 0.0

    def by_self(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.own * jnp.sum(x * x)

    def by_class(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.weight * jnp.sum(x * x)

    def by_table(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.table["weight"] * jnp.sum(x * x)


class Slots:
    __slots__ = ("__dict__", "__weakref__", "weight")
    weight: float

    def __call__(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.weight * jnp.sum(x * x)


class OnlySlots:
    __slots__ = ("weight",)

    def __init__(self) -> None:
        self.weight = 0.0

    def losses(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.weight * jnp.sum(x * x)


class KeepsItsMethod:
    plain = True  # a name that fedpd uses itself

    def __init__(self) -> None:
        self.weight, self.function = 0.0, self.losses

    def losses(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.weight * jnp.sum(x * x)


@dataclass(frozen=True)
class Named:
    """Equal to every other one, because its weight does not count."""

    weight: float = field(compare=False)

    def __call__(self, x: Any, rows: Any) -> Any:
        return squares(x, rows) + self.weight * jnp.sum(x * x)


RIDGE, SLOTS, ONLY_SLOTS, KEEPS = Ridge(), Slots(), OnlySlots(), KeepsItsMethod()


def by_object(x: Any, rows: Any) -> Any:
    return KEEPS.losses(x, rows)


LOSSES: dict[str, Callable[..., Any]] = {
    "a global": by_global,
    "a dict": by_table,
    "an array": by_array,
    "an attribute of the function": by_attribute,
    "a global of a function inside": by_helper,
    "a global inside of jit": jax.jit(by_global),
    "a global inside of checkpoint": jax.checkpoint(by_global),
    "a global inside of vmap": jax.vmap(lambda x, row: by_global(x, row[None])[0], (None, 0)),
    "a global in the body of a scan": by_body_of_scan,
    "an attribute of self": RIDGE.by_self,
    "an attribute of the class": RIDGE.by_class,
    "a dict of the class": RIDGE.by_table,
    "a slot": SLOTS,
    "a slot of an object without weak references": ONLY_SLOTS.losses,
    "an object that keeps its own method": KEEPS.function,
    "an object with an attribute of the name plain": by_object,
    "beside a value that cannot be identified": by_unknown,
    "a name that the user gave": fedpd.named("ridge", by_global),
}


def set_weight(weight: float) -> None:
    """Change what all the losses read."""
    global WEIGHT
    WEIGHT = TABLE["weight"] = ARRAY[0] = RIDGE.own = Ridge.weight = Ridge.table["weight"] = SLOTS.weight = weight
    ONLY_SLOTS.weight = KEEPS.weight = weight
    by_attribute.weight = weight  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_weight() -> None:
    set_weight(0.0)


def plain_loss(weight: float, x: np.ndarray = START) -> float:
    return float(np.mean((ROWS @ x - 1) ** 2) + weight * x @ x)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_its_content_now(name: str) -> None:
    problem = problems.from_losses(LOSSES[name], ROWS, START, check=False)
    assert simulate(METHOD, problem, rounds=1).history["loss"][0] == pytest.approx(plain_loss(0.0))
    set_weight(1.0)
    for one in (problem, problems.from_losses(LOSSES[name], ROWS, START, check=False)):
        assert simulate(METHOD, one, rounds=1).history["loss"][0] == pytest.approx(plain_loss(1.0))


def test_equal_objects_with_another_content_do_not_share_a_program() -> None:
    for weight in (0.0, 1.0, 0.0):
        run = simulate(METHOD, problems.from_losses(Named(weight), ROWS, START), rounds=1)
        assert run.history["loss"][0] == pytest.approx(plain_loss(weight))


MODES: dict[str, dict[str, Any]] = {
    "cohort": {"cohort": 2},
    "seeds": {"seed": [0, 1]},
    "debug": {"execution": "debug"},
    "sample": {"metrics_agents": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "store", "solve", "sweep", "smoothness", "objective", "personalize"])
def test_every_way_to_run_sees_the_change(mode: str, tmp_path: Path) -> None:
    problem = problems.from_losses(by_global, ROWS, START)

    def first_loss() -> float:
        if mode == "objective":
            return theory.objective(problem, START)
        if mode == "smoothness":  # L = largest eigenvalue of the mean Hessians + 2 weight
            return theory.smoothness(problem) - 2 * WEIGHT
        if mode == "personalize":
            tuned = simulate(METHOD, problem, rounds=1).personalize(problem, 1, step=0.1)
            return float(jax.tree.leaves(tuned.models)[0][0] @ np.ones(4))
        if mode == "solve":
            return fedpd.solve(problem, target=1e3, max_communications=2).history["loss"][0]
        if mode == "sweep":
            return sweep(lambda step: METHOD, problem, grid={"step": [0.1]}, rounds=1).runs[0][0].history["loss"][0]
        options = {"store": tmp_path / str(WEIGHT)} if mode == "store" else MODES[mode]
        run: Any = simulate(METHOD, problem, rounds=1, **options)
        return (run.mean if "seed" in options else run.history)["loss"][0]

    def fresh() -> float:
        jax.clear_caches()
        return first_loss()

    for weight in (0.0, 1.0):
        set_weight(weight)
        assert first_loss() == pytest.approx(fresh(), rel=1e-5)
        if mode not in ("smoothness", "personalize"):
            assert first_loss() == pytest.approx(plain_loss(weight))


def test_a_penalty_a_metric_a_column_and_a_schedule_see_the_change() -> None:
    samples = {"x": ROWS, "y": np.zeros((3, 5))}
    largest = Column("largest", "", measure=Measure(agent=lambda view, x: (WEIGHT, None)), merge=lambda t, *_: t)
    weighted = {"weighted": lambda outputs, y: WEIGHT + 0 * y}
    own = {str(i): {name: leaf[i] for name, leaf in samples.items()} for i in range(3)}
    measured = problems.regression(lambda x, rows: rows @ x, data.from_arrays(own, own), start=START, metrics=weighted)
    penalized = problems.from_losses(squares, ROWS, START, penalty=lambda x: WEIGHT * jnp.sum(x * x))
    scheduled = algorithms.fedavg(oracle=oracles.gd(step=lambda r, q: 0.1 + WEIGHT, iterations=1))
    plain = problems.from_losses(squares, ROWS, START)
    slope = np.mean([2 * rows.T @ (rows @ START - 1) / 5 for rows in ROWS], axis=0)
    for weight in (0.0, 1.0):
        set_weight(weight)
        assert simulate(METHOD, penalized, rounds=1).history["loss"][0] == pytest.approx(plain_loss(weight))
        assert simulate(METHOD, plain, rounds=1, record=[largest]).history["largest"][0] == 3 * weight
        assert simulate(METHOD, measured, rounds=1).history["weighted"][0] == weight
        np.testing.assert_allclose(simulate(scheduled, plain, rounds=1).model, START - (0.1 + weight) * slope)


def test_a_builder_of_a_sweep_sees_the_change() -> None:
    problem = problems.from_losses(squares, ROWS, START)

    def build(step: float) -> fedpd.Algorithm:
        return algorithms.fedavg(oracle=oracles.gd(step=step * (1 + WEIGHT), iterations=1))

    once = sweep(build, problem, grid={"step": [0.1, 0.2]}, rounds=1).runs
    set_weight(1.0)
    twice = sweep(build, problem, grid={"step": [0.1, 0.2]}, rounds=1).runs
    assert twice[0][0].history["loss"][-1] == pytest.approx(once[1][0].history["loss"][-1])


def test_a_run_whose_functions_changed_does_not_continue_or_resume(tmp_path: Path) -> None:
    problem = problems.from_losses(by_global, ROWS, START)
    scheduled = algorithms.fedavg(oracle=oracles.gd(step=lambda r, q: 0.1 + WEIGHT, iterations=1))
    plain = problems.from_losses(squares, ROWS, START)
    runs = simulate(METHOD, problem, rounds=2), simulate(scheduled, plain, rounds=2, checkpoints=tmp_path)
    set_weight(1e-5)  # too little for the loss to tell
    with pytest.raises(FedpdError, match=r"its problem\.losses is another"):
        simulate(METHOD, problem, rounds=4, start=runs[0])
    with pytest.raises(FedpdError, match=r"its algorithm\.oracle\.step"):
        simulate(scheduled, plain, rounds=4, start=runs[1])
    with pytest.raises(FedpdError, match=r"its algorithm\.oracle\.step"):
        simulate(scheduled, plain, rounds=4, checkpoints=tmp_path)


def test_what_a_function_counts_itself_drops_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, total = [], 0

    def counting(x: Any, rows: Any) -> Any:
        nonlocal total
        total += 1
        calls.append(1)
        return squares(x, rows)

    problem = problems.from_losses(counting, ROWS, START)
    monkeypatch.setattr(jax, "clear_caches", partial(pytest.fail, "dropped all programs"))
    simulate(METHOD, problem, rounds=1)
    simulate(METHOD, problem, rounds=1)
    assert len(calls) == total > 0


def test_a_compiled_loss_that_the_user_called_before_is_traced_again() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4])

    @jax.jit
    def losses(x: Any, rows: Any) -> Any:
        return squares(x, rows) + WEIGHT + jnp.sum(weights * x)

    losses(START, ROWS[0])  # in float32, the precision of JAX outside of fedpd
    set_weight(1.0)
    run = simulate(METHOD, problems.from_losses(losses, ROWS, START), rounds=1)
    assert run.history["loss"][0] == pytest.approx(plain_loss(0.0) + 2.0, rel=1e-14)


def schedule_of(box: list[float]) -> Callable[[Any, Any], Any]:
    return lambda r, q: box[0] * jnp.ones(())


@pytest.mark.parametrize("store", [False, True])
def test_a_method_as_another_was_before_it_changed(store: bool, tmp_path: Path) -> None:
    """The program of the changed function must not be found by a function that is as the first was before."""
    problem = problems.from_losses(squares, ROWS, START)
    box = [0.1]
    first = algorithms.fedavg(oracle=oracles.gd(step=schedule_of(box), iterations=2))

    def model(method: Any) -> np.ndarray:
        options: Any = {"store": tmp_path} if store else {}
        return np.asarray(simulate(method, problem, rounds=2, **options).model)

    before = model(first)
    box[0] = 0.02
    assert not np.allclose(model(first), before)
    again = model(algorithms.fedavg(oracle=oracles.gd(step=schedule_of([0.1]), iterations=2)))
    assert np.array_equal(again, before)


def test_two_functions_of_one_name_in_files(tmp_path: Path) -> None:
    problem = problems.from_losses(squares, ROWS, START)
    steps = [fedpd.named("own", schedule_of([step])) for step in (0.1, 0.02)]
    methods = [algorithms.fedavg(oracle=oracles.gd(step=step, iterations=2)) for step in steps]
    models = [np.asarray(simulate(one, problem, rounds=2, store=tmp_path).model) for one in methods]
    assert not np.allclose(models[0], models[1])


def skipping(box: list[float]) -> Callable[[Any], Any]:
    return lambda r: box[0] + 0.0 * r


def test_the_coin_of_agents_in_files_is_that_of_the_method(tmp_path: Path) -> None:
    problem, box = problems.from_losses(squares, ROWS, START), [1.0]

    def communications(p: Any) -> int:
        method = algorithms.fedpd(eta=0.3, oracle=oracles.gd(0.1, 2), p=p)
        return int(simulate(method, problem, rounds=3, store=tmp_path).history["communications"][-1])

    first = skipping(box)
    assert communications(first) == 0
    box[0] = 0.0
    assert communications(first) == 3
    assert communications(skipping([1.0])) == 0
