"""The user's own callbacks and columns: their arguments, and that they can stop a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import Column, FedpdError, Measure, algorithms, data, oracles, problems, simulate

PROBLEM = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=10, dimension=3))
FEDPD = algorithms.fedpd(eta=0.5, oracle=oracles.gd(step=0.3, iterations=2))


def test_a_callback_hears_every_row_with_its_model_and_stops_the_run(tmp_path: Path) -> None:
    seen: list[tuple[int, np.ndarray, dict[str, Any]]] = []

    def callback(number: int, model: np.ndarray, row: dict[str, Any]) -> bool:
        seen.append((number, model, row))
        return number >= 6

    options: dict[str, Any] = {"metrics_every": 2, "checkpoints": tmp_path, "checkpoint_every": 50}
    run = simulate(FEDPD, PROBLEM, rounds=20, callback=callback, **options)
    assert [number for number, _, _ in seen] == [0, 2, 4, 6]
    assert run.history["round"].tolist() == [0, 2, 4, 6]
    assert np.array_equal(seen[-1][1], run.model)
    assert seen[2][2]["stationarity"] == run.history["stationarity"][2]
    whole = simulate(FEDPD, PROBLEM, rounds=20, metrics_every=2)
    resumed = simulate(FEDPD, PROBLEM, rounds=20, **options)  # it was saved where it stopped
    assert np.array_equal(resumed.model, whole.model)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])


def test_an_unknown_option_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'seeds'"):
        simulate(FEDPD, PROBLEM, rounds=1, seeds=3)  # type: ignore[call-overload]


def largest_entry(name: str = "largest") -> Column:
    """max_i |largest entry of grad f_i|, from what each agent keeps."""
    return Column(
        name,
        "largest entry of an agent's gradient",
        measure=Measure(agent=lambda view, x: (None, abs(view.f.gradient(x).tree).max())),
        merge=lambda total, each, agents: each.max(),
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_a_column_of_ones_own_is_one_object(devices: int) -> None:
    run = simulate(FEDPD, PROBLEM, rounds=3, record=[largest_entry(), "heterogeneity"], devices=devices)
    assert list(run.history)[-2:] == ["largest", "heterogeneity"]
    features, labels = data.strongly_noniid(agents=4, samples=10, dimension=3)
    # At x = 0 the gradient of log(1 + exp(-b a^T x)) is -b a / 2, and the penalty's is 0.
    gradients = -(labels[..., None] * features).mean(axis=1) / 2
    assert run.history["largest"][0] == pytest.approx(abs(gradients).max())


@pytest.mark.parametrize("record", [[largest_entry("loss")], [largest_entry(), largest_entry()]])
def test_columns_need_names_of_their_own(record: list[Column]) -> None:
    with pytest.raises(FedpdError, match=r"a name that no other column has|recorded twice"):
        simulate(FEDPD, PROBLEM, rounds=1, record=record)


def test_results_show_themselves_in_a_few_lines() -> None:
    run, several = simulate(FEDPD, PROBLEM, rounds=3), simulate(FEDPD, PROBLEM, rounds=3, seed=[0, 1])
    assert repr(run).startswith("Run of fedpd(eta=0.5, oracle=gd(step=0.3, iterations=2)), seed 0\n  3 rounds, ")
    assert repr(several).startswith("Ensemble of fedpd(")
    assert max(len(repr(run)), len(repr(several))) < 400
    assert run.spec == FEDPD.spec


@pytest.mark.parametrize("execution", ["auto", "debug"])
@pytest.mark.parametrize("value", [lambda t, each, n: each, lambda t, each, n: each[:1], lambda t, each, n: None])
def test_a_column_must_be_one_number(value: Any, execution: Any) -> None:
    wrong = largest_entry()._replace(merge=value)
    with pytest.raises(FedpdError, match=r"value of column 'largest' = .*must be one real number\. Return a scalar"):
        simulate(FEDPD, PROBLEM, rounds=1, record=[wrong], execution=execution)
