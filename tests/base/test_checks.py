"""Messages have the value, the rule and the remedy; concrete numbers are checked, and traced ones pass."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, checks, oracles, transforms
from fedpd.base.checks import shown

REMEDY = "Give a better one"


def test_an_error_is_a_sentence_of_value_rule_and_remedy() -> None:
    with pytest.raises(FedpdError, match=r"^eta = -2: must be positive\. Give a better one\.?$"):
        checks.refuse("eta", -2, "must be positive", REMEDY)
    assert issubclass(FedpdError, ValueError)


@pytest.mark.parametrize("value", [1, 0.08, 1e-300, np.float32(0.5), np.int64(3), np.array(2.0), jnp.float32(2.0)])
def test_positive_hands_back_the_value_itself(value: Any) -> None:
    assert checks.positive("eta", value, REMEDY) is value


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "must be positive and finite"),
        (-0.0, "must be positive and finite"),
        (-1.5, "must be positive and finite"),
        (math.inf, "must be positive and finite"),
        (-math.inf, "must be positive and finite"),
        (math.nan, "must be a number, not NaN"),
        (np.array(math.nan), "must be a number, not NaN"),
        (True, "must be a number, not bool"),
        ("1", "must be a number, not str"),
        (None, "must be a number, not NoneType"),
        (1j, "must be a number, not complex"),
        (np.ones(2), "must be a number, not ndarray"),
    ],
)
def test_positive_refuses(value: Any, rule: str) -> None:
    with pytest.raises(FedpdError, match=rf"^eta = .*: {rule}\. {REMEDY}"):
        checks.positive("eta", value, REMEDY)


def test_infinity_is_positive_where_it_is_allowed() -> None:
    assert checks.positive("gamma", math.inf, REMEDY, infinite=True) == math.inf
    with pytest.raises(FedpdError, match=rf"gamma = 0: must be positive\. {REMEDY}"):
        checks.positive("gamma", 0, REMEDY, infinite=True)


def test_at_least_includes_its_bound() -> None:
    assert checks.at_least("beta", 0, 0, REMEDY) == 0
    assert checks.at_least("beta", 0.25, 0.25, REMEDY) == 0.25
    for value in (0.2499, -math.inf, math.inf):
        with pytest.raises(FedpdError, match=rf"beta = {value}: must be finite and at least 0\.25\. {REMEDY}"):
            checks.at_least("beta", value, 0.25, REMEDY)


def test_count_gives_a_python_integer() -> None:
    for value in (3, np.int64(3), np.uint8(3)):
        counted = checks.count("rounds", value, REMEDY)
        assert type(counted) is int
        assert counted == 3
    assert checks.count("seed", 0, REMEDY, least=0) == 0


@pytest.mark.parametrize("value", [0, -1, 1.0, np.float64(2), True, "3", None, math.nan])
def test_count_refuses(value: Any) -> None:
    with pytest.raises(FedpdError, match=rf"^rounds = .*: must be an integer of at least 1\. {REMEDY}"):
        checks.count("rounds", value, REMEDY)


def test_a_schedule_is_not_a_number_and_passes() -> None:
    def step(r: Any, q: Any) -> Any:
        return 1 / (r + q + 1)

    assert checks.positive_or_schedule("step", step, REMEDY) is step
    assert checks.positive_or_schedule("step", 0.5, REMEDY) == 0.5
    with pytest.raises(FedpdError, match="step = 0: must be positive and finite"):
        checks.positive_or_schedule("step", 0, REMEDY)


def test_skip_probability_is_a_function_of_the_round_or_nothing() -> None:
    def schedule(r: Any) -> Any:
        return 1 / (r + 1)

    half = checks.skip_probability(0.5)
    assert half is not None
    assert half(7) == 0.5
    assert checks.skip_probability(0) is None
    assert checks.skip_probability(0.0) is None
    assert checks.skip_probability(schedule) is schedule


@pytest.mark.parametrize("p", [1, 1.5, -0.01, math.nan, math.inf, True, "often", None])
def test_skip_probability_refuses_and_says_what_p_is(p: Any) -> None:
    with pytest.raises(FedpdError, match=r"^p = .*: must .*\. p is the probability of SKIPPING a communication"):
        checks.skip_probability(p)


def test_traced_numbers_pass_unchecked() -> None:
    def traced(value: Any) -> Any:
        skip = checks.skip_probability(value)
        assert skip is not None
        assert checks.is_traced(value)
        passed: list[Callable[..., Any]] = [checks.positive, checks.count, checks.positive_or_schedule]
        assert all(check("eta", value, REMEDY) is value for check in passed)
        assert checks.at_least("eta", value, 0, REMEDY) is value
        return skip(0)

    assert jax.jit(traced)(-3.0) == -3.0
    assert not checks.is_traced(jnp.float32(-3.0))


def test_a_choice_is_one_of_its_options() -> None:
    options = ("sequential", "parallel", "auto")
    assert checks.choice("execution", "parallel", options) == "parallel"
    with pytest.raises(
        FedpdError, match=r"execution = 'paralel': there is no such choice\. Did you mean 'parallel'\?$"
    ):
        checks.choice("execution", "paralel", options)
    with pytest.raises(FedpdError, match=r"execution = 'xyz': there is no such choice. Choose from: sequential, "):
        checks.choice("execution", "xyz", iter(options))


def test_nearest_suggests_a_name_or_lists_them() -> None:
    assert checks.nearest("fedpdd", ["fedavg", "fedpd"]) == "Did you mean 'fedpd'?"
    assert checks.nearest(17, ["fedavg", "fedpd"]) == "Choose from: fedavg, fedpd."
    assert checks.nearest("learning_rate", ["iterations", "step"]) == "Did you mean 'step'?"
    assert checks.nearest("learning_rate", ["eta", "p"]) == "Choose from: eta, p."


def test_a_message_shows_the_call_that_makes_an_object() -> None:
    assert shown([transforms.top_k(0.5), 3]) == "[top_k(share=0.5), 3]"
    assert shown(oracles.gd(step=0.1, iterations=2)) == "gd(step=0.1, iterations=2)"
