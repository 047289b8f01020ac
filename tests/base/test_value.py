"""Values: which fields are leaves, how a value is changed, and that values that differ never share a program."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, named, oracles, problems, schedules, simulate, transforms
from fedpd.base.identity import UnidentifiedError
from fedpd.base.spec import Spec
from fedpd.base.value import (
    Value,
    constant,
    constant_where_equal,
    makes,
    parts_of,
    stacked,
    with_counts,
)
from fedpd.core import Method, Oracle, Work

GD = oracles.gd(step=0.1, iterations=8)


class Inner(Value):
    step: float
    iterations: int = 3
    counts: ClassVar = ("iterations",)


class Outer(Value):
    eta: float
    inner: Value | None = None
    word: str = "a"
    width: float = 1.5
    shapes: ClassVar = ("width",)


class Kept(Value):
    rate: float
    memory: int


@makes(Kept)
def kept(rate: float, memory: int = 0, *, mode: str = "plain") -> Kept:
    """Return something with a memory."""
    if rate <= 0:
        raise FedpdError("rate must be positive.")
    return Kept(rate=rate, memory=memory)


def structure(value: Value) -> Any:
    return jax.tree.structure(value)


def fedpd(eta: float = 0.3, step: float = 0.2, iterations: int = 8, **more: Any) -> Method:
    return algorithms.fedpd(eta=eta, oracle=oracles.gd(step=step, iterations=iterations), **more)


# --- leaves ---------------------------------------------------------------------------------------------------------


def test_floats_are_leaves_and_counts_are_not() -> None:
    made = algorithms.fedpd(eta=1, oracle=oracles.gd(step=np.float64(0.1), iterations=8), p=0.5)
    paths, _ = jax.tree_util.tree_flatten_with_path(made)
    assert {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths} == {
        "eta": 1.0,
        "oracle.step": 0.1,
        "p": 0.5,
    }
    assert structure(fedpd(p=0.1)) == structure(made)
    assert hash(structure(fedpd(p=0.1))) == hash(structure(made))
    assert structure(fedpd(iterations=9, p=0.1)) != structure(made)
    assert structure(fedpd()) != structure(made)  # p = 0: no coin


@pytest.mark.parametrize("number", [0.0, -0.0, np.inf, -np.inf, np.nan, 0])
def test_zero_and_what_is_not_finite_are_static(number: float) -> None:
    assert jax.tree.leaves(Outer(eta=number)) == []
    assert jax.tree.leaves(Outer(eta=1e-300)) == [1e-300]


def test_integers_are_floats_where_floats_belong() -> None:
    assert jax.tree.leaves(Outer(eta=2)) == [2.0]
    assert jax.tree.leaves(Inner(step=np.float32(0.5), iterations=2)) == [0.5]  # type: ignore[arg-type]
    assert type(Outer(eta=2).eta) is float
    assert type(Inner(step=0.1, iterations=np.int64(2)).iterations) is int  # type: ignore[arg-type]


def test_a_float_that_shapes_the_program_is_static() -> None:
    assert jax.tree.leaves(Outer(eta=0.1, width=2.5)) == [0.1]
    assert structure(Outer(eta=0.1, width=2.5)) != structure(Outer(eta=0.1))


def test_values_and_tuples_of_values_are_inner_nodes() -> None:
    inner = Inner(step=0.2)
    assert jax.tree.leaves(Outer(eta=0.1, inner=inner)) == [0.1, 0.2]
    chain = transforms.wrap(fedpd(), up=[transforms.top_k(0.25), transforms.quantize(8)])
    assert {transforms.top_k(0.25), transforms.quantize(8)} <= set(parts_of(chain))
    assert parts_of(Outer(eta=0.1, inner=inner)) == [Outer(eta=0.1, inner=inner), inner]


def test_a_tree_of_other_leaves_is_not_checked() -> None:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((), float), fedpd(p=0.5))
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [(), (), ()]
    again = jax.tree.map(lambda leaf: leaf, fedpd(p=0.5))
    assert again == fedpd(p=0.5)


# --- changes --------------------------------------------------------------------------------------------------------


def test_replace_makes_another_value() -> None:
    one = Outer(eta=0.1, inner=Inner(step=0.2))
    other = dataclasses.replace(one, eta=0.0)
    assert (one.eta, other.eta, other.inner) == (0.1, 0.0, one.inner)
    assert jax.tree.leaves(other) == [0.2]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'eta'"):
        one.eta = 0.3  # type: ignore[misc]


def test_a_setting_of_a_part_is_changed_by_its_name_with_dots() -> None:
    step = schedules.inverse_sqrt(0.04, 8)
    made = algorithms.fedavg(oracle=oracles.sgd(step=step, iterations=8, batch=2))
    changed = made.changed({"oracle.step.initial": 0.5, "oracle.batch": 3})
    expected = oracles.sgd(step=schedules.inverse_sqrt(0.5, 8), iterations=8, batch=3)
    assert changed == algorithms.fedavg(oracle=expected)
    assert made.changed({}) == made
    assert Outer(eta=0.1, inner=Inner(step=0.2)).changed({"inner.step": 0.3}).inner == Inner(step=0.3)
    adam = algorithms.fedavg(oracle=oracles.optax(oracles.optimizer("adam", learning_rate=0.1), 2))
    faster = algorithms.fedavg(oracle=oracles.optax(oracles.optimizer("adam", learning_rate=0.2), 2))
    assert adam.changed({"oracle.optimizer.learning_rate": 0.2}) == faster


def test_a_changed_method_is_of_the_class_that_its_settings_ask_for() -> None:
    assert fedpd().changed({"p": 0.5, "drift": "corrected"}) == fedpd(p=0.5, drift="corrected")
    assert fedpd(p=0.5, drift="corrected").changed({"drift": None}) == fedpd(p=0.5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"etta": 1.0}, r"setting = 'etta': fedpd has no setting 'etta'\. Did you mean 'eta'"),
        ({"oracle.stap": 1.0}, r"setting = 'oracle.stap': gd has no setting 'stap'\. Did you mean 'step'"),
        ({"eta.inner": 1}, "eta = 0.3: has no setting 'inner': it is not made by a function of fedpd"),
        ({"oracle.step.initial": 1}, "step = 0.2: has no setting 'initial'"),
        ({"oracle.iterations": 0}, "iterations = 0: must be an integer of at least 1"),
        ({"eta": -1.0}, "eta = -1.0: must be"),
    ],
)
def test_changes_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        fedpd().changed(changes)


# --- factories and specs --------------------------------------------------------------------------------------------


def test_a_factory_checks_and_explains() -> None:
    made: Any = kept
    assert made(0.5).memory == 0
    assert made.__doc__ == "Return something with a memory."
    with pytest.raises(FedpdError, match="rate = 'fast': must be a number, not str"):
        made("fast")
    with pytest.raises(FedpdError, match=r"memory = 2147483648: must be an integer below 2\^31 in size"):
        made(0.5, 2**31)
    with pytest.raises(FedpdError, match="rate must be positive"):
        made(-0.5)
    with pytest.raises(TypeError, match="missing a required argument: 'rate'"):
        made()
    with pytest.raises(TypeError, match="unexpected keyword argument 'ratte'"):
        made(0.5, ratte=1)


def test_a_spec_has_the_arguments_of_the_factory() -> None:
    spec = kept(0.5).spec
    assert spec == Spec.of("kept", rate=0.5, memory=0, mode="plain")
    assert spec.usual == {"memory", "mode"}
    assert kept(0.5, 3).name == "kept"
    assert kept(0.5, 3).description == repr(kept(0.5, 3)) == "kept(rate=0.5, memory=3)"
    assert kept(0.5, 3).changed({"memory": 4}) == kept(0.5, 4)


def test_another_name_stays_with_its_copies() -> None:
    mine = kept(0.5).called(Spec.of("mine", a=1))
    assert (mine.name, mine.description, mine.rate) == ("mine", "mine(a=1)", 0.5)
    assert mine != kept(0.5)


def test_a_class_of_ones_own_is_its_fields_and_its_code() -> None:
    def with_factor(factor: float) -> Value:
        class Mine(Value):
            step: float
            iterations: int = 3

            def __call__(self, r: Any) -> Any:
                return factor * self.step

        return Mine(step=0.1)

    one, same, other = with_factor(1.0), with_factor(1.0), with_factor(2.0)
    assert one.description == "Mine(step=0.1)"
    assert one.spec == same.spec
    assert one.spec != other.spec
    assert one.changed({"iterations": 4}).iterations == 4
    with pytest.raises(FedpdError, match=r"Mine has no setting 'stap'\. Did you mean 'step'"):
        one.changed({"stap": 1})
    assert one.spec.plain()["code"]["sha256"] == same.spec.plain()["code"]["sha256"]


def test_what_a_function_captures_belongs_to_a_class_of_ones_own() -> None:
    factor = [1.0]

    class Mine(Value):
        eta: float

        def oracle(self) -> Any:
            return oracles.gd(step=factor[0] * self.eta, iterations=2)

    first = Mine(eta=0.1).spec.plain()
    assert Mine(eta=0.1).spec.plain() == first
    factor[0] = 2.0
    assert Mine(eta=0.1).spec.plain() != first


def test_what_cannot_be_identified_has_a_label_only() -> None:
    rest: Any = iter([])
    made = oracles.gd(step=lambda r, q: (rest, 0.1)[1], iterations=2)
    assert made.description == "gd(step=<lambda>, iterations=2)"
    with pytest.raises(
        UnidentifiedError, match=r"list_iterator cannot be identified in another process\. Give it a name"
    ):
        made.spec.plain()


def test_equal_values_have_equal_hashes() -> None:
    assert Inner(step=0.1) == Inner(step=0.1)
    assert hash(Inner(step=0.1)) == hash(Inner(step=0.1))
    assert Inner(step=0.1) != Inner(step=np.nextafter(0.1, 1))
    assert fedpd(p=0.5) == fedpd(p=0.5)
    assert fedpd(p=0.5) != fedpd()
    assert len({fedpd(), fedpd(), fedpd(eta=0.4)}) == 2
    assert Inner(step=0.1) != 0.1


# --- functions and arrays -------------------------------------------------------------------------------------------


def test_functions_that_differ_make_structures_that_differ() -> None:
    def with_step(factor: float) -> Method:
        return algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=lambda r, q: factor / (1 + r), iterations=2))

    assert structure(with_step(0.1)) == structure(with_step(0.1))
    assert structure(with_step(0.1)) != structure(with_step(0.2))


def test_two_functions_of_one_name_differ() -> None:
    def with_step(factor: float) -> Method:
        step = named("warm-up", lambda r, q: factor / (1 + r))
        return algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=step, iterations=2))

    assert with_step(0.1).spec == with_step(0.2).spec
    assert structure(with_step(0.1)) != structure(with_step(0.2))


def test_a_subclass_is_another_structure() -> None:
    kind: Any = type(GD)

    class Changed(kind):
        pass

    changed = Changed(step=0.1, iterations=8, tolerance=None)
    assert structure(changed) != structure(GD)
    one, other = (algorithms.fedpd(eta=0.1, oracle=oracle) for oracle in (GD, changed))
    assert structure(one) != structure(other)


@pytest.mark.parametrize("array", [np.asarray, jax.numpy.asarray])
def test_arrays_are_part_of_the_structure(array: Any) -> None:
    mixing = array(np.eye(3))

    def mix(weights: Any) -> Method:
        return algorithms.coop_sgd(oracle=GD, mixing=weights)

    assert structure(mix(mixing)) == structure(mix(mixing))
    assert structure(mix(mixing)) != structure(mix(np.full((3, 3), 1 / 3)))


# --- what is traced -------------------------------------------------------------------------------------------------


def test_a_constant_has_no_leaves_and_is_the_same_value() -> None:
    made = fedpd(p=0.5)
    fixed = constant(made)
    assert jax.tree.leaves(fixed) == []
    assert fixed == made
    assert structure(fixed) == structure(constant(fedpd(p=0.5)))
    assert structure(fixed) != structure(constant(fedpd(p=0.4)))
    assert jax.tree.leaves(made) == [0.3, 0.2, 0.5]


def test_counts_are_leaves_if_asked_for() -> None:
    assert jax.tree.leaves(with_counts(Outer(eta=0.1, inner=Inner(step=0.2, iterations=7)))) == [0.1, 0.2, 7]
    assert structure(with_counts(fedpd(iterations=8))) == structure(with_counts(fedpd(iterations=9)))
    adam = oracles.optax(oracles.optimizer("adam", learning_rate=0.5), 2)
    assert jax.tree.leaves(with_counts(adam)) == [0.5]


def test_numbers_that_all_share_are_static() -> None:
    made = [fedpd(eta=eta, step=0.2, p=p) for eta, p in ((0.1, 0.5), (0.3, 0.5), (0.1, 0.5))]
    found = constant_where_equal(made)
    assert [jax.tree.leaves(one) for one in found] == [[0.1], [0.3], [0.1]]
    assert found == made
    assert jax.tree.leaves(constant_where_equal(made[:1])[0]) == []


def test_stacked_values_have_an_axis() -> None:
    made = [with_counts(fedpd(eta=eta, iterations=steps)) for eta, steps in ((0.1, 2), (0.3, 5))]
    eta, step, iterations = jax.tree.leaves(stacked(made))
    assert eta.tolist() == [0.1, 0.3]
    assert step.tolist() == [0.2, 0.2]
    assert iterations.tolist() == [2, 5]
    assert iterations.dtype == np.int32
    steps = jax.vmap(lambda method: method.eta * method.oracle.step)(stacked(made))
    np.testing.assert_allclose(steps, [0.02, 0.06], rtol=1e-6)


def test_another_number_compiles_nothing() -> None:
    traces = []

    @jax.jit
    def square(value: Any) -> Any:
        traces.append(value.description)
        return value.eta * value.eta + value.inner.step

    found = [float(square(Outer(eta=eta, inner=Inner(step=0.5)))) for eta in (1.0, 2.0, 3.0)]
    assert found == [1.5, 4.5, 9.5]
    assert len(traces) == 1
    square(Outer(eta=1.0, inner=Inner(step=0.5), word="b"))
    assert len(traces) == 2
    square(Outer(eta=1.0, inner=Inner(step=0.5, iterations=4)))
    assert len(traces) == 3


def test_equal_functions_share_a_program() -> None:
    traces = []

    @jax.jit
    def first_step(oracle: Any) -> Any:
        traces.append(oracle.name)
        return oracle.step(jnp.int32(0), jnp.int32(0))

    for _ in range(3):
        assert float(first_step(oracles.gd(step=lambda r, q: 0.5 / (1 + r), iterations=2))) == 0.5
    assert len(traces) == 1
    assert float(first_step(oracles.gd(step=lambda r, q: 0.25 / (1 + r), iterations=2))) == 0.25
    assert len(traces) == 2


def test_a_class_without_a_function_is_refused_with_its_name() -> None:
    class Bare(Method):
        step: float

    class Still(Bare):
        """Its state is the model itself."""

        def init(self, f: Any, x: Any) -> Any:
            return x

        def local(self, f: Any, agent: Any, r: Any, key: Any) -> Any:
            return agent, Work(jnp.int32(1), jnp.int32(0))

        def send(self, agent: Any) -> Any:
            return agent

    problem = problems.opposing_quadratics()
    with pytest.raises(FedpdError, match=r"class = 'Bare': its class has no function init\(self, f, x\)"):
        simulate(Bare(step=0.1), problem, rounds=1)
    with pytest.raises(FedpdError, match=r"'Still': its class has no function receive\(self, agent, broadcast\)"):
        simulate(Still(step=0.1), problem, rounds=1)


def test_a_broadcast_replaces_only_an_x_that_is_the_copy_of_the_model() -> None:
    class Two(NamedTuple):
        x: Any
        x0: Any

    class Own(Method):
        """The global model is in x0, so that a broadcast must not replace x."""

        def init(self, f: Any, x: Any) -> Any:
            return Two(x, x)

        def local(self, f: Any, agent: Any, r: Any, key: Any) -> Any:
            return agent, Work(jnp.int32(1), jnp.int32(0))

        def send(self, agent: Any) -> Any:
            return agent.x

        def model(self, agent: Any) -> Any:
            return agent.x0

    class More(Own):
        """The server sends more than a model."""

        def model(self, agent: Any) -> Any:
            return Method.model(self, agent)

        def aggregate(self, server: Any, mean: Any, share: Any) -> Any:
            return mean, (mean, mean)

    class Usual(More):
        model = Method.model

    for kind in (Own, More, Usual):
        with pytest.raises(FedpdError, match=rf"'{kind.__name__}': its class has no function receive\(self, agent"):
            simulate(kind(), problems.opposing_quadratics(), rounds=1)


def test_a_factory_that_stores_something_else_is_refused() -> None:
    class Scaled(Method):
        eta: float

    @makes(Scaled)
    def scaled(eta: float, scale: float = 1.0) -> Method:
        return Scaled(eta=eta * scale)

    assert scaled(1).description == "scaled(eta=1)"
    with pytest.raises(FedpdError, match=r"eta = 0\.1: is not 0\.2, its value in Scaled"):
        scaled(0.1, 2.0)


def test_a_field_with_the_name_of_a_function_is_refused() -> None:
    with pytest.raises(FedpdError, match="field = 'server': Odd inherits a function of this name"):
        type("Odd", (Method,), {"__annotations__": {"server": float}})


def test_a_field_with_the_name_of_an_attribute_is_required() -> None:
    class Own(Oracle):
        batch: int

    assert Own(batch=2).batch == 2
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'batch'"):
        Own()  # type: ignore[call-arg]


def test_a_class_with_its_own_construction_has_leaves() -> None:
    class Own(Value):
        rate: float

        def __post_init__(self) -> None:
            pass

    assert jax.tree.leaves(Own(rate=0.5)) == [0.5]


def test_oracles_in_a_dict_are_parts() -> None:
    class Several(Method):
        solvers: dict[str, Oracle]

    assert Several(solvers={"a": oracles.sgd(0.1, 2, 7)}).samples_per_step == 7
