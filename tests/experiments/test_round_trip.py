"""An algorithm written to TOML and read again is the same algorithm: every method, oracle, schedule and regulariser."""

import inspect
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpd import Algorithm, FedpdError, Oracle, algorithms, oracles, regularizers, schedules, transforms
from fedpd.experiments import calls
from fedpd.experiments.calls import build_algorithm, table_of, toml_text

positive = st.floats(1e-300, 1e300)
share = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, 2**31 - 1)
some = settings(max_examples=25, deadline=None)


def optional(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | numbers


STEPS: dict[str, st.SearchStrategy[Any]] = {
    name: st.builds(getattr(schedules, name), positive, counts)
    for name in ("inverse_sqrt", "program_fedpd_sgd", "program_fedavg_sgd")
} | {
    "exponential": st.builds(schedules.exponential, positive, st.floats(1e-9, 1)),
    "cosine": st.builds(schedules.cosine, st.floats(1e-3, 1), counts, st.floats(0, 1e-3)),
    "piecewise": st.builds(schedules.piecewise, positive, st.just([5, 10]), st.tuples(positive, positive)),
}
STEPS["warmup"] = st.builds(schedules.warmup, st.one_of(positive, *STEPS.values()), counts)
SKIPS: dict[str, st.SearchStrategy[Any]] = {
    "decreasing_skips": st.builds(schedules.decreasing_skips, counts),
    "every": st.builds(schedules.every, counts),
}
weight = st.floats(0, 1e300)
REGULARIZERS: dict[str, st.SearchStrategy[Any]] = {
    "l1": st.builds(regularizers.l1, weight),
    "l2": st.builds(regularizers.l2, weight),
    "group_l1": st.builds(regularizers.group_l1, weight),
    "box": st.builds(regularizers.box, st.floats(max_value=0), st.floats(min_value=0)),
}
steps = st.one_of(positive, *STEPS.values())
stop: dict[str, Any] = {"iterations": counts, "tolerance": optional(positive)}
optimizers = st.one_of(
    st.builds(oracles.optimizer, st.just("adam"), learning_rate=positive, b1=share),
    st.builds(oracles.optimizer, st.just("adam"), learning_rate=st.one_of(*STEPS.values())),
    st.builds(oracles.optimizer, st.just("sgd"), learning_rate=positive, momentum=share, nesterov=st.booleans()),
)
ORACLES: dict[str, st.SearchStrategy[Any]] = {
    "gd": st.builds(oracles.gd, step=steps, **stop),
    "sgd": st.builds(oracles.sgd, step=steps, batch=counts, **stop)
    | st.builds(
        oracles.sgd,
        step=steps,
        batch=counts,
        epochs=counts,
        momentum=share,
        weight_decay=share,
        clip=optional(positive),
    ),
    "dp_sgd": st.builds(
        oracles.dp_sgd,
        step=steps,
        iterations=counts,
        clip=positive,
        noise_multiplier=positive,
        share=st.floats(1e-9, 1),
    ),
    "vr": st.builds(oracles.vr, gamma=positive | st.just(np.inf), refresh=counts, batch=counts, **stop),
    "optax": st.builds(
        oracles.optax, optimizer=optimizers, batch=optional(counts), keep_state=st.booleans(), label=st.text(), **stop
    ),
    "lbfgs": st.builds(oracles.lbfgs, tolerance=positive, iterations=counts, pairs=counts),
}
PARTS = {
    "oracle": st.one_of(*ORACLES.values()),
    "g": st.one_of(*REGULARIZERS.values()),
    "p": st.one_of(*SKIPS.values()),
}
GRADIENT_STEPS = ORACLES["gd"] | st.builds(oracles.sgd, step=steps, batch=counts, **stop)  # plain ones
# The first three need a number, and scaffold's oracle stands for a loop of the user's own.
NOT_DRAWN = {("proxskip", "p"), ("tamuna", "p"), ("locodl", "p"), ("scaffold", "oracle")}
NEED_STEPS = {
    (name, "oracle") for name in ("fedcm", "feddc", "fednova", "fedsam", "fedspeed")
}  # they refuse other oracles


def reread(algorithm: Algorithm) -> Algorithm:
    return build_algorithm(tomllib.loads(toml_text(table_of(algorithm.spec))), rounds=50)


def assert_same(algorithm: Algorithm) -> None:
    spec, again = algorithm.spec, reread(algorithm).spec
    assert again == spec
    assert again.plain() == spec.plain()
    assert again.label() == spec.label()
    assert again.unusual() == spec.unusual()


def test_every_function_of_a_file_has_numbers_here() -> None:
    assert set(ORACLES) == set(calls.ORACLES)
    assert set(STEPS) == set(calls.STEPS)
    assert set(SKIPS) == set(calls.SKIPS)
    assert set(REGULARIZERS) == set(calls.REGULARIZERS)


@pytest.mark.parametrize("label", algorithms.variants())
@some
@given(L=st.floats(1e-100, 1e100), agents=st.integers(1, 10**6), scale=st.floats(1e-6, 1.0))
def test_every_method_as_its_card_makes_it(label: str, L: float, agents: int, scale: float) -> None:
    assert_same(algorithms.variants()[label].rule(L, agents, scale))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (name, part)
        for name in algorithms.__all__
        for part in PARTS
        if part in inspect.signature(getattr(algorithms, name)).parameters and (name, part) not in NOT_DRAWN
    ],
)
@some
@given(data=st.data())
def test_every_method_with_every_part(name: str, part: str, data: st.DataObject) -> None:
    """`part` is an oracle, a regulariser or a schedule of skips; the other arguments are those of the method's card."""
    usual = algorithms.cards()[name].variants[0].rule(1.0, 10, 1.0).spec
    gd = oracles.gd(step=0.1, iterations=3)
    arguments = {key: gd if key in ("oracle", "own") else usual[key] for key in usual.unusual()}
    drawn = data.draw(GRADIENT_STEPS if (name, part) in NEED_STEPS else PARTS[part])
    assert_same(getattr(algorithms, name)(**arguments | {part: drawn}))


@pytest.mark.filterwarnings("ignore:absent='naive'")
@some
@given(
    eta=positive,
    p=share,
    start=st.sampled_from(["local", "server"]),
    choices=st.fixed_dictionaries({"drift": st.sampled_from([None, "paper", "corrected", "corrected-exact"])})
    | st.fixed_dictionaries({"x0_rule": st.just("matlab"), "absent": st.sampled_from(["mean_of_duals", "naive"])}),
)
def test_the_choices_of_fedpd(eta: float, p: float, start: Any, choices: dict[str, Any]) -> None:
    assert_same(algorithms.fedpd(eta=eta, oracle=oracles.gd(step=0.1, iterations=3), p=p, start=start, **choices))


@some
@given(a=st.floats(0.1, 0.9), b=st.floats(0.1, 0.9))
def test_a_matrix(a: float, b: float) -> None:
    """Its entries come back to the last bit."""
    swap = np.eye(3)[[1, 0, 2]]
    mixing = a * np.eye(3) + (1 - a) * (b * swap + (1 - b) * np.full((3, 3), 1 / 3))
    assert_same(algorithms.coop_sgd(oracle=oracles.gd(step=0.1, iterations=3), mixing=mixing))


def test_none_where_the_default_is_a_number() -> None:
    assert_same(algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=3, batch=None)))


def test_what_only_runs_from_python_is_refused_with_a_sentence() -> None:
    steps = oracles.gd(step=lambda r, q: 0.1, iterations=3)
    with pytest.raises(FedpdError, match=r"step = .*: cannot be in an experiment file\. Use a function of fedpd"):
        table_of(algorithms.fedavg(oracle=steps).spec)


def test_a_class_of_ones_own_is_refused_with_a_sentence() -> None:
    class ByHand(Oracle):
        pass

    with pytest.raises(FedpdError, match=r'is a class of your own, so a file needs its module.*"module:ByHand"'):
        table_of(algorithms.fedavg(oracle=ByHand()).spec)


def test_transforms_are_keys_of_the_method() -> None:
    plain = algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=0.1, iterations=3))
    both = transforms.wrap(plain, up=[transforms.top_k(0.1), transforms.quantize(8)], down=transforms.quantize(4))
    assert_same(both)
    assert_same(transforms.wrap(algorithms.fedavg(oracle=oracles.sgd(0.1, 3)), mean=transforms.median()))
    table = table_of(both.spec)
    assert table["up"] == [{"name": "top_k", "share": 0.1}, {"name": "quantize", "bits": 8}]
    table["up"][0]["shar"] = table["up"][0].pop("share")
    with pytest.raises(FedpdError, match=r"\[\[algorithm\]\] up top_k: shar = 0.1: there is no such key"):
        build_algorithm(table, rounds=5)
    with pytest.raises(FedpdError, match="up = 'top_k': must be tables"):
        build_algorithm(table | {"up": "top_k"}, rounds=5)
