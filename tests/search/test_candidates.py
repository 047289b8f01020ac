"""The methods of a comparison: names, functions, tables, and the same local work for all."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, Method, algorithms, oracles, problems
from fedpd.algorithms import cards, variants
from fedpd.search.candidates import Candidate, Conditions, factory_name, make_candidates, make_work

PROBLEM = problems.penalized_logistic([np.ones((n, 2)) for n in (3, 7, 20)], [np.ones(n) for n in (3, 7, 20)])


def made(methods: Any, ranges: dict[str, Any] | None = None, own_work: bool = False, **work: Any) -> list[Candidate]:
    conditions = Conditions(make_work(PROBLEM, False, **work), 3, 2, lambda: 4.0, ranges or {}, 10)
    return make_candidates(methods, conditions, own_work)


def first(candidate: Candidate) -> Method:
    return candidate.method([axis.start for axis in candidate.axes.values()])


def test_names_get_the_local_work_of_the_comparison() -> None:
    found = made(["fedavg", "SCAFFOLD", "FedPD-SGD", "feddyn"], iterations=6, batch=4)
    assert [one.label for one in found] == ["FedAvg", "SCAFFOLD", "FedPD", "FedDyn"]
    oracle = oracles.sgd(step=0.1, iterations=6, batch=4)
    expected = [
        algorithms.fedavg(oracle=oracle),
        algorithms.scaffold(step=0.1, iterations=6, batch=4),
        algorithms.fedpd(eta=5 * 0.1 * 6, oracle=oracle, start="server"),
        algorithms.feddyn(alpha=1 / (5 * 0.1 * 6), oracle=oracle),
    ]
    assert [first(one).description for one in found] == [one.description for one in expected]
    assert [list(one.axes) for one in found] == [
        ["step"],
        ["step", "server_step"],
        ["step", "penalty", "start"],
        ["step", "penalty"],
    ]


def test_an_untuned_method_has_nothing_to_search() -> None:
    (one,) = made(["fedpd_n"], iterations=6, batch=4)
    assert one.axes == {}
    assert first(one).description == algorithms.fedpd_n(iterations=6, batch=4, cohort=2).description


@pytest.mark.parametrize("name", [*cards(), *variants()])
def test_every_method_of_the_package_has_a_name_here(name: str) -> None:
    assert factory_name(name) in cards()
    (one,) = made([name], own_work=True, iterations=2)  # by its own rule if it cannot take local work
    assert isinstance(first(one), Method)


def test_full_gradients_begin_at_the_smoothness() -> None:
    (one,) = made(["fedavg"], iterations=8)
    assert one.axes["step"].first == 1 / 8
    assert made(["local_gd"], iterations=8)[0].axes["step"].first == 1 / 8


def test_functions_get_what_they_ask_for_and_the_rest_is_searched() -> None:
    def own(rho: float, oracle: Any, agents: int, momentum: float = 0.5) -> Method:
        assert agents == 3
        return algorithms.fedprox(rho=rho * momentum, oracle=oracle)

    (one, two, three) = made(
        {
            "own": own,
            "steps": lambda step, batch: algorithms.fedavg(oracle=oracles.sgd(step, 3, batch)),
            "fixed": algorithms.fedavg(oracle=oracles.gd(0.1, 1)),
        },
        ranges={"rho": [0.1, 0.2, 0.4]},
        iterations=6,
        batch=4,
    )
    assert list(one.axes) == ["step", "rho", "momentum"]
    assert one.axes["rho"].values == (0.1, 0.2, 0.4)
    assert one.axes["momentum"].below_one
    assert first(one).description == "fedprox(rho=0.1, oracle=sgd(step=0.1, iterations=6, batch=4))"
    assert first(two).description == "fedavg(oracle=sgd(step=0.1, iterations=3, batch=4))"
    assert three.axes == {}


def test_defaults_of_a_function_are_where_a_search_begins() -> None:
    def own(step: float = 0.02, iterations: int = 3, rounds_apart: int = 4, plain: bool = True) -> Method:
        assert (iterations, rounds_apart, plain) == (6, 4, True)
        return algorithms.fedavg(oracle=oracles.sgd(step, iterations, 4))

    (one,) = made({"own": own}, iterations=6, batch=4)
    assert list(one.axes) == ["step"]
    assert first(one).description == "fedavg(oracle=sgd(step=0.02, iterations=6, batch=4))"
    (listed,) = made({"own": own}, ranges={"own": {"rounds_apart": [4, 8]}}, iterations=6, batch=4)
    assert listed.axes["rounds_apart"].values == (4, 8)


def test_lists_in_a_table_are_searched() -> None:
    table = {"name": "fedprox", "rho": [0.1, 1.0], "oracle": {"name": "sgd", "step": [0.1, 0.2, 0.4], "iterations": 2}}
    (one,) = made({"prox": table})
    assert {name: axis.values for name, axis in one.axes.items()} == {"rho": (0.1, 1.0), "oracle.step": (0.1, 0.2, 0.4)}
    assert first(one).description == "fedprox(rho=1, oracle=sgd(step=0.2, iterations=2))"


def test_local_work_in_words_and_its_defaults() -> None:
    assert make_work(PROBLEM, True).words == "8 local steps with full gradients"
    usual = make_work(PROBLEM, False)
    assert (usual.words, usual.steps) == ("1 epoch with batch 7", (1 + 1 + 3) / 3)
    more = make_work(PROBLEM, False, 4, 6, decay=0.998, weight_decay=1e-3, clip=10)
    assert more.words == "6 local steps with batch 4, weight decay 0.001, clip 10, step sizes times 0.998 per round"


@pytest.mark.parametrize(
    ("methods", "options", "answer"),
    [
        ("fedavg", {}, r"methods = 'fedavg': must be a list of names. Give e.g. \['fedavg'\]"),
        (["fedavgg"], {}, "methods = 'fedavgg': there is no such method. Did you mean 'fedavg'"),
        (["fedavg", "FedAvg"], {}, "must hold at least one method, and each once"),
        ([], {}, "must hold at least one method"),
        ([3], {}, "methods = 3: must be the name of a method"),
        (["nesterov"], {"iterations": 2}, "methods = 'nesterov': fedpd does not know how to give it 2 local steps"),
        (["fedpd_n"], {"iterations": 2}, "methods = 'fedpd_n': needs mini-batches"),
        (["local_gd"], {"iterations": 2, "batch": 4}, "methods = 'local_gd': takes no batch, which this comparison"),
        ({"a": 3}, {}, r"methods\['a'\] = 3: is not a function that makes a method"),
        (["fedavg"], {"ranges": {"stepp": [1.0]}}, "ranges = 'stepp': is not a setting of any method. Did you mean"),
        (["fedavg"], {"ranges": {"step": 1.0}}, r"ranges\['step'\] = 1.0: must be a list of values"),
        (["fedavg"], {"iterations": 2, "epochs": 1}, "epochs = 1: iterations = 2 is given too. Give one of them"),
        (["fedavg"], {"batch": 0}, "batch = 0"),
        (["fedavg"], {"decay": 0}, "decay = 0"),
    ],
)
def test_wrong_requests_are_refused(methods: Any, options: dict[str, Any], answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        made(methods, **options)


def test_a_function_that_makes_no_method_is_refused() -> None:
    (one,) = made({"mine": lambda step: step})
    with pytest.raises(FedpdError, match="methods = 'mine': its function returned float"):
        first(one)
