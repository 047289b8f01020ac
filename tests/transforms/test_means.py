"""Robust means by hand, the server's optimisers, and attacks."""

from typing import Any, cast

import jax
import numpy as np
import optax
import pytest
from tree_math import Vector

from fedpd import Algorithm, FedpdError, algorithms, oracles, problems, simulate, transforms
from fedpd.transforms._attacks import Attributed
from tests.slow_cases import slow_but

MESSAGES = np.array([[1.0, 2.0], [3.0, 4.0], [1e9, -1e9], [5.0, 6.0], [0.0, 0.0]], np.float32)
SENT: Any = np.array([True, True, True, False, True])
PROBLEM = problems.random_quadratic(agents=10, dimension=4, seed=1)
GD = oracles.gd(step=0.3, iterations=8)
FEDPD = algorithms.fedpd(eta=0.3, oracle=GD)
FEDAVG = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=3))
BY_NOBODY = transforms.attack(FEDAVG, transforms.noise(1.0), agents=[99])
ALL: Any = np.ones
RULES: dict[str, transforms.MeanRule] = {
    "median": transforms.median(),
    "trimmed_mean": transforms.trimmed_mean(0.25),
    "krum": transforms.krum(1),
    "multi-krum": transforms.krum(1, m=2),
    "geometric_median": transforms.geometric_median(),
    "centered_clipping": transforms.centered_clipping(radius=1.0),
}


def test_means_by_hand() -> None:
    def mean(name: str) -> Any:
        return RULES[name].mean(MESSAGES, SENT)

    np.testing.assert_array_equal(mean("median"), [2.0, 1.0])
    np.testing.assert_array_equal(mean("trimmed_mean"), [2.0, 1.0])  # one of four is left out at each end
    # The nearest neighbour counts: (1, 2) and (3, 4) have 5 and 8, (0, 0) has 5. Of equal scores, the first wins.
    np.testing.assert_array_equal(mean("krum"), [1.0, 2.0])
    np.testing.assert_array_equal(mean("multi-krum"), [0.5, 1.0])
    assert np.linalg.norm(mean("centered_clipping") - np.array([2.0, 1.0])) < 3


def test_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]], np.float32)
    found = RULES["geometric_median"].mean(corners, ALL(3, bool))
    np.testing.assert_allclose(found, corners.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_two_wrong_messages_of_nine_do_not_move_the_mean_far(name: str) -> None:
    rng = np.random.default_rng(0)
    messages = {"a": rng.standard_normal((9, 3), np.float32), "b": rng.standard_normal((9, 2, 2), np.float32)}
    rule = {**RULES, "krum": transforms.krum(2), "multi-krum": transforms.krum(2, m=3)}[name]
    messages["a"][:2], messages["b"][:2] = 1e6 * rng.standard_normal((2, 3)), -1e6
    mean = jax.jit(rule.mean)(messages, ALL(9, bool))
    assert all(np.abs(leaf).max() < 4 for leaf in jax.tree.leaves(mean))


@pytest.mark.parametrize("name", RULES)
def test_equal_messages_are_their_own_mean(name: str) -> None:
    same = np.tile(np.array([1.5, -2.0, 0.25], np.float32), (7, 1))
    np.testing.assert_allclose(RULES[name].mean(same, ALL(7, bool)), same[0], rtol=1e-6)


@pytest.mark.parametrize("name", slow_but(["median", "krum"], RULES))
def test_every_rule_runs_in_place_of_the_mean(name: str) -> None:
    robust = transforms.wrap(FEDPD, mean=RULES[name])
    runs = [simulate(robust, PROBLEM, rounds=4, cohort=cohort) for cohort in (None, 5)]
    assert all(np.isfinite(run.history["stationarity"]).all() for run in runs)


def test_an_optimiser_that_takes_the_whole_step_is_the_method_itself() -> None:
    step = transforms.server_optimizer(optax.sgd(1.0))
    for method in (FEDPD, FEDAVG):
        same = simulate(transforms.wrap(method, mean=step), PROBLEM, rounds=6)
        np.testing.assert_allclose(same.model, simulate(method, PROBLEM, rounds=6).model, rtol=1e-12)


KEEP_MORE: dict[str, tuple[Algorithm, Any]] = {
    "fedpd": (FEDPD, {"cohort": 5}),
    "a_fedpd": (algorithms.a_fedpd(eta=0.3, oracle=GD), {"cohort": 5}),
    "feddyn": (algorithms.feddyn(alpha=3.0, oracle=GD), {}),
    "scaffold": (algorithms.scaffold(step=0.1, iterations=4), {"cohort": 5}),
}


@pytest.mark.parametrize("name", slow_but(["fedpd", "scaffold"], KEEP_MORE))
def test_an_optimiser_takes_the_step_of_a_server_that_keeps_more_than_a_model(name: str) -> None:
    method, options = KEEP_MORE[name]
    whole = transforms.wrap(method, mean=transforms.server_optimizer(optax.sgd(1.0)))
    same, plain = (simulate(one, PROBLEM, rounds=6, **options) for one in (whole, method))
    np.testing.assert_allclose(same.model, plain.model, rtol=1e-12)
    momentum = transforms.wrap(method, mean=transforms.server_optimizer(optax.sgd(0.5, momentum=0.4)))
    run = simulate(momentum, PROBLEM, rounds=600, metrics_every=600, **options)
    assert run.history["stationarity"][-1] < 1e-12  # the fixed points are the method's own


def test_momentum_of_the_server_by_hand() -> None:
    fedavgm = transforms.wrap(FEDAVG, mean=transforms.server_optimizer(optax.sgd(0.5, momentum=0.9)))
    velocity, x = np.zeros(4), np.zeros(4)
    for rounds in (1, 2, 3):
        plain = simulate(FEDAVG, PROBLEM, rounds=1, start=x).model
        velocity = 0.9 * velocity + (x - plain)
        x = x - 0.5 * velocity
        np.testing.assert_allclose(simulate(fedavgm, PROBLEM, rounds=rounds).model, x, rtol=1e-12)


def test_a_median_and_an_optimiser_compose() -> None:
    both = transforms.wrap(FEDAVG, mean=[transforms.median(), transforms.server_optimizer(optax.adam(0.1))])
    assert both.description.startswith("fedavg(")
    assert "median" in both.description
    assert np.isfinite(simulate(both, PROBLEM, rounds=3).model).all()


def test_attackers_send_what_the_attack_says() -> None:
    one = problems.random_quadratic(agents=3, dimension=4, seed=2)
    right = simulate(FEDAVG, one, rounds=1).model
    flipped = transforms.attack(FEDAVG, transforms.sign_flip(2.0), agents=[0, 1, 2])
    np.testing.assert_allclose(simulate(flipped, one, rounds=1).model, -2 * right, rtol=1e-12)  # from x = 0
    nobody = transforms.attack(FEDAVG, transforms.noise(1.0), agents=[])
    np.testing.assert_array_equal(simulate(nobody, one, rounds=1).model, right)


def test_a_little_is_the_others_mean_minus_deviations() -> None:
    attack = transforms.attack(FEDAVG, transforms.little(1.5), agents=[3])
    mean: Any = attack.exchanges()[0].mean
    messages = np.array([[1.0], [3.0], [5.0], [7.0]], np.float32)
    attackers: Any = np.array([False, False, False, True])
    marked = Attributed(Vector(messages), attackers)
    expected = (1 + 3 + 5 + 3 - 1.5 * np.sqrt(8 / 3)) / 4
    np.testing.assert_allclose(mean(marked, ALL(4, bool)).tree, [expected], rtol=1e-6)
    assert np.isfinite(simulate(attack, PROBLEM, rounds=3).model).all()
    robust: Any = transforms.wrap(attack, mean=transforms.median())
    np.testing.assert_allclose(robust.exchanges()[0].mean(marked, ALL(4, bool)).tree, [2])


def test_all_of_a_message_is_attacked_if_it_has_several_parts() -> None:
    scaffold = transforms.attack(algorithms.scaffold(step=0.1, iterations=2), transforms.little(1.0), agents=[0])
    history = simulate(scaffold, PROBLEM, rounds=2).history
    assert np.isfinite(history["loss"]).all()
    assert history["bytes_down"][-1] == 2 * 10 * 2 * 4 * 8  # the mark of an attacker does not come back


def test_a_client_that_lies_about_its_dual_moves_the_fixed_point_to_a_weighted_sum() -> None:
    lie = transforms.attack(FEDPD, transforms.false_dual(0.5), agents=[0])
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((4, 3, 3))
    hessians, linear = np.eye(3) + factors @ factors.swapaxes(1, 2) / 9, rng.standard_normal((4, 3))
    x = simulate(lie, problems.quadratic(hessians, linear), rounds=300).model
    gradients = hessians @ x - linear
    np.testing.assert_allclose(gradients[1:].sum(axis=0) + 0.5 * gradients[0], 0, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: transforms.trimmed_mean(0.5), "share = 0.5: must be below 0.5"),
        (lambda: transforms.krum(-1), "f = -1"),
        (lambda: transforms.centered_clipping(0.0), "radius = 0.0: must be"),
        (lambda: transforms.server_optimizer(cast(Any, "adam")), "must be"),
        (lambda: transforms.wrap(FEDAVG, mean=cast(Any, "median")), "must be rules of the server"),
        (lambda: transforms.wrap(FEDAVG, mean=[transforms.median()] * 2), "must have one rule of a kind"),
        (
            lambda: transforms.wrap(
                algorithms.fedpd(eta=0.3, oracle=GD, p="auto"), mean=transforms.server_optimizer(optax.sgd(1.0))
            ),
            "keeps more than a model",
        ),
        (lambda: transforms.attack(FEDAVG, transforms.noise(1.0), agents=[-1]), "must be a list of numbers"),
        (lambda: transforms.attack(FEDAVG, cast(Any, "noise"), agents=[1]), "must be an attack"),
        (lambda: simulate(BY_NOBODY, PROBLEM, rounds=1), r"agents = \[99\]: must be below"),
        (lambda: transforms.geometric_median(2**31 - 1), "iterations = 2147483647: must be at most 10000"),
        (
            lambda: transforms.wrap(transforms.wrap(FEDAVG, up=transforms.sign()), up=transforms.sign()),
            "its messages are packed already. Give all transforms in one call",
        ),
    ],
)
def test_wrong_uses_get_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        make()
