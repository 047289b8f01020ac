"""Options of `simulate` and `sweep` that cannot be meant are refused with a sentence, before anything runs."""

import re
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems, simulate, sweep

QUADRATIC = problems.random_quadratic(agents=3, dimension=2)
ORACLE = oracles.gd(step=0.1, iterations=2)
METHOD = algorithms.fedpd(eta=0.2, oracle=ORACLE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"checkpoints": 5}, "checkpoints = 5: must be a text, a path or None, not int"),
        ({"checkpoints": ""}, "checkpoints = '': must not be empty"),
        ({"store": 3}, "store = 3: must be a text, a path or None"),
        ({"progress": "yes"}, "progress = 'yes': must be True or False, a function or None"),
        ({"record": "heterogeneity"}, "record = 'heterogeneity': must be a list"),
        ({"log": 3}, "log = 3: must be a function or None"),
        ({"callback": 1}, "callback = 1: must be a function or None"),
        ({"callback": lambda r: None}, "callback is a function of r: it must take 3 arguments"),
        ({"start": np.array([np.nan, 1.0])}, "start holds NaN or infinity"),
        ({"seed": [0, 0]}, "seed = [0, 0]: holds a seed twice"),
        ({"seed": jax.random.key(0)}, "must be an integer or a list of integers"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(options: Any, sentence: Any) -> None:
    with pytest.raises(FedpdError) as error:
        simulate(METHOD, QUADRATIC, rounds=1, **options)
    assert sentence in str(error.value)


@pytest.mark.parametrize("name", ["checkpoints", "store"])
@pytest.mark.parametrize("place", ["file", "file/below", "zero\0byte", "long" * 100])
def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, name: Any, place: Any) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FedpdError, match=r"cannot be a folder|must be a folder|cannot be written"):
        simulate(METHOD, QUADRATIC, rounds=1, **{name: tmp_path / place})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(jnp.full(2, x))])
def test_a_run_inside_of_a_transformation_is_refused(transform: Any) -> None:
    def last_loss(eta: Any) -> Any:
        return simulate(algorithms.fedpd(eta=eta, oracle=ORACLE), QUADRATIC, rounds=1).model.sum()

    with pytest.raises(FedpdError, match=r"inside of jax\.jit or another transformation"):
        transform(last_loss)(0.1)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (lambda r, q: "x", "step(0, 0) = 'x': must be a finite number"),
        (lambda r, q: None, "step(0, 0) = None: must be a finite number"),
        (lambda r, q: jnp.ones(2), "step(0, 0) = [1.0, 1.0]: must be a finite number"),
        (lambda r, q: jnp.where(r < 1, 0.1, jnp.nan), "step(1, 0) = nan: must be a finite number of at least 0"),
        (lambda r, q: -0.1, "step(0, 0) = -0.1: must be a finite number of at least 0"),
        (lambda: 0.1, "step is a function of nothing: it must take 2 arguments"),
    ],
)
def test_a_step_function_is_tried_before_the_run(step: Any, sentence: Any) -> None:
    method = algorithms.fedavg(oracle=oracles.gd(step=step, iterations=2))
    with pytest.raises(FedpdError) as error:
        simulate(method, QUADRATIC, rounds=3)
    assert sentence in str(error.value)


def test_a_state_beyond_the_memory_is_a_sentence() -> None:
    method = algorithms.fedpd(eta=0.1, oracle=ORACLE, memory=10**6)
    with pytest.raises(FedpdError, match="the run needs more memory than there is"):
        simulate(method, QUADRATIC, rounds=1)


def test_a_start_at_which_f_is_not_finite_is_refused() -> None:
    problem = problems.from_losses(lambda x, rows: jnp.log(rows @ x - 1), [np.ones((3, 2))], np.zeros(2), check=False)
    for run in (lambda: simulate(METHOD, problem, rounds=2), lambda: fedpd.solve(problem)):
        with pytest.raises(FedpdError, match=r"f\(x\^0\) = nan: must be finite"):
            run()


@pytest.mark.parametrize(
    ("grid", "options", "sentence"),
    [
        ({1: [0.1]}, {}, "grid = 1: its names must be texts"),
        ({"eta": np.linspace(0.1, 1, 1000), "oracle.step": np.linspace(0.1, 1, 1000)}, {}, "at most 100,000 points"),
        ({"eta": [0.1]}, {"seeds": [1, 1]}, "holds a seed twice"),
        ({"eta": [0.1]}, {"static": "eta"}, "static = 'eta': must be a list of names"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(grid: Any, options: Any, sentence: Any) -> None:
    with pytest.raises(FedpdError, match=re.escape(sentence)):
        sweep(METHOD, QUADRATIC, grid, rounds=1, **options)


def test_a_builder_that_returns_no_method_is_refused() -> None:
    with pytest.raises(FedpdError, match="build = 'NoneType'"):
        sweep(cast(Any, lambda eta: None), QUADRATIC, {"eta": [0.1]}, rounds=1)


def test_a_target_that_is_no_number_is_refused() -> None:
    tried = sweep(METHOD, QUADRATIC, {"eta": [0.1]}, rounds=1)
    with pytest.raises(FedpdError, match="target = 'low': must be a number"):
        tried.costs(cast(Any, "low"))


@pytest.mark.parametrize("methods", [[], ["FedPD-GD", "FedPD-GD"]])
def test_tune_refuses_no_method_and_one_method_twice(methods: Any) -> None:
    with pytest.raises(FedpdError, match="at least one label, and each once"):
        fedpd.tune(QUADRATIC, methods=methods, rounds=1)


def test_an_accuracy_in_percent_is_refused() -> None:
    with pytest.raises(FedpdError, match=r"test_accuracy = 90: must be at most 1.* Give 0.9 for 90 %"):
        fedpd.search.tune.target_of("test_accuracy", 90)


def test_a_mixing_matrix_that_drives_the_agents_apart_is_refused() -> None:
    with pytest.raises(FedpdError, match="an eigenvalue of size 3"):
        algorithms.coop_sgd(oracle=ORACLE, mixing=[[2, -1], [-1, 2]])


@pytest.mark.parametrize("folder", [None, "", Path("a" * 300), "zero\0byte"])
def test_save_refuses_an_impossible_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = simulate(METHOD, QUADRATIC, rounds=1)
    with pytest.raises(FedpdError, match=r"must be the path of a folder|cannot be"):
        run.save(folder)
    with pytest.raises(FedpdError, match="width = 1000000000"):
        run.plot(width=10**9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, abs), "name = 3: must be a text that is not empty"),
        (("", abs), "name = '': must be a text that is not empty"),
        (("a", 3), "function = 3: must be a function, not int"),
    ],
)
def test_named_needs_a_name_and_a_function(arguments: Any, message: str) -> None:
    with pytest.raises(FedpdError, match=message):
        fedpd.named(*arguments)
