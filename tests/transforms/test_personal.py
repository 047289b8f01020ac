"""Personal parameters: nothing personal is the method, everything is separate training, FedAvg is that of NumPy."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Context

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems, simulate, transforms
from fedpd.core import Problem
from fedpd.flower import InProcessGrid, Settings, client_app, federate

STEP, STEPS, SIZES = 0.05, 3, (5, 7, 6)
GD = oracles.gd(step=STEP, iterations=STEPS)


def samples(agent: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(agent)
    return {"a": rng.normal(size=(SIZES[agent], 3)), "y": rng.normal(size=SIZES[agent]) + agent}


def losses(model: Any, rows: Any) -> Any:
    return (rows["a"] @ model["w"] + model["b"] - rows["y"]) ** 2


def problem(agents: Any = range(len(SIZES))) -> Problem:
    return problems.from_losses(losses, [samples(i) for i in agents], {"w": np.zeros(3), "b": np.ones(())})


def is_bias(path: str) -> bool:
    return path == "b"


def everything(path: str) -> bool:
    return True


def nothing(path: str) -> bool:
    return False


def gradient(w: np.ndarray, b: float, rows: Any) -> tuple[np.ndarray, float, float]:
    """Return the gradient of the mean loss with respect to w and b, and the mean loss."""
    error = rows["a"] @ w + b - rows["y"]
    return 2 * rows["a"].T @ error / len(error), float(2 * error.mean()), float((error**2).mean())


def fedper(rounds: int, present: Any) -> tuple[np.ndarray, np.ndarray, list[float], list[float]]:
    """Return w and the biases after FedAvg with personal biases, and the losses and stationarities of all rounds."""
    w, b = np.zeros(3), np.ones(len(SIZES))
    found: list[tuple[float, float]] = []
    for r in range(rounds + 1):
        parts = [gradient(w, b[i], samples(i)) for i in range(len(SIZES))]
        shared = np.mean([part[0] for part in parts], axis=0)
        own = sum(part[1] ** 2 for part in parts) / len(SIZES) ** 2
        found.append((float(np.mean([part[2] for part in parts])), float(shared @ shared + own)))
        if r == rounds:
            break
        here, arrived = np.flatnonzero(present[r]), []
        for i in here:
            x = w.copy()
            for _ in range(STEPS):
                slope = gradient(x, b[i], samples(int(i)))
                x, b[i] = x - STEP * slope[0], b[i] - STEP * slope[1]
            arrived.append(x)
        w = np.mean(arrived, axis=0)
    return w, b, [one[0] for one in found], [one[1] for one in found]


def copies_of(run: fedpd.Run) -> Any:
    assert run.copies is not None
    return run.copies


@pytest.mark.parametrize("absent", [False, True])
def test_fedavg_with_a_personal_bias_is_that_of_numpy(absent: bool) -> None:
    present = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]], bool)
    method = transforms.wrap(algorithms.fedavg(oracle=GD), personal=is_bias)
    run = simulate(method, problem(), rounds=4, participation=present if absent else 1.0)
    w, b, values, squares = fedper(4, present if absent else np.ones((4, 3), bool))
    np.testing.assert_allclose(run.model["w"], w, rtol=1e-12)
    np.testing.assert_allclose(copies_of(run)["b"], b, rtol=1e-12)
    np.testing.assert_allclose(run.history["loss"], values, rtol=1e-12)
    np.testing.assert_allclose(run.history["stationarity"], squares, rtol=1e-12)
    own = [gradient(w, b[i], samples(i))[2] for i in range(len(SIZES))]
    np.testing.assert_allclose(run.per_agent("loss", problem()), own, rtol=1e-12)
    np.testing.assert_allclose(run.personal(problem()).own["loss"], own, rtol=1e-12)
    assert run.history["bytes_up"][-1] == 3 * 8 * (9 if absent else 12)  # w alone travels


def fedrep(rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return w and the biases of FedRep: in each round four steps on the bias, then two on w at the new bias."""
    w, b = np.zeros(3), np.ones(len(SIZES))
    for _ in range(rounds):
        arrived = []
        for i in range(len(SIZES)):
            x = w.copy()
            for _ in range(4):
                b[i] -= 0.1 * gradient(x, b[i], samples(i))[1]
            for _ in range(2):
                x -= STEP * gradient(x, b[i], samples(i))[0]
            arrived.append(x)
        w = np.mean(arrived, axis=0)
    return w, b


def test_two_phases_with_a_personal_head_are_fedrep_in_numpy() -> None:
    oracle = oracles.phases(first=oracles.gd(0.1, 4), then=oracles.gd(STEP, 2), where=is_bias)
    method = transforms.wrap(algorithms.fedavg(oracle=oracle), personal=is_bias)
    run = simulate(method, problem(), rounds=4)
    w, b = fedrep(4)
    np.testing.assert_allclose(run.model["w"], w, rtol=1e-12)
    np.testing.assert_allclose(copies_of(run)["b"], b, rtol=1e-12)
    assert run.history["bytes_up"][-1] == 3 * 8 * 12  # w alone travels


METHODS = {
    "fedavg": algorithms.fedavg(oracle=GD),
    "fedpd": algorithms.fedpd(eta=0.5, oracle=GD),
    "skipping": algorithms.fedpd(eta=0.5, oracle=GD, p=0.4),
    "scaffold": algorithms.scaffold(step=0.05, iterations=3, batch=2),
    "feddyn": algorithms.feddyn(alpha=0.5, oracle=GD),
    "fedadam": algorithms.fedadam(oracle=GD),
}


@pytest.mark.parametrize("cohort", [None, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name == "fedpd" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_nothing_personal_is_the_method(name: str, cohort: int | None) -> None:
    plain = simulate(METHODS[name], problem(), rounds=4, cohort=cohort)
    with pytest.warns(UserWarning, match="false for all paths.*The paths are b, w"):
        run = simulate(transforms.wrap(METHODS[name], personal=nothing), problem(), rounds=4, cohort=cohort)
    for column in ("loss", "stationarity", "consensus", "bytes_up"):
        np.testing.assert_allclose(run.history[column], plain.history[column], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    "name", [name if name == "fedpd" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_everything_personal_is_separate_training(name: str) -> None:
    method = METHODS["fedpd" if name == "skipping" else name]
    run = simulate(transforms.wrap(method, personal=everything), problem(), rounds=4)
    assert run.history["bytes_up"][-1] == 0
    if name == "scaffold":
        return  # it draws samples by the agent's number, which is 0 in a problem of its own
    for i in range(len(SIZES)):
        alone = simulate(method, problem([i]), rounds=4)
        np.testing.assert_allclose(copies_of(run)["w"][i], alone.model["w"], rtol=1e-10)
        np.testing.assert_allclose(run.per_agent("loss", problem())[i], alone.history["loss"][-1], rtol=1e-10)


def test_a_saved_run_keeps_the_agents_models(tmp_path: Any) -> None:
    run = simulate(transforms.wrap(algorithms.fedavg(oracle=GD), personal=is_bias), problem(), rounds=1)
    np.testing.assert_array_equal(copies_of(fedpd.load(run.save(tmp_path / "run")))["b"], copies_of(run)["b"])


def test_a_federation_on_flower_keeps_personal_parameters(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEDPD_STATE", str(tmp_path))

    def local(context: Context) -> Problem:
        return problem([int(context.node_config["partition-id"])])

    def method(config: Any = None) -> Any:
        return transforms.wrap(algorithms.fedpd(eta=0.5, oracle=GD), personal=is_bias)

    def start(config: Any = None) -> Any:
        return problem().start

    settings = Settings(agents=3, rounds=3, deadline=60.0, poll=0.001)
    there = federate(InProcessGrid(client_app(method, start, local), 3, {}), method(), start(), settings)
    here = simulate(method(), problem(), rounds=3)
    np.testing.assert_allclose(there.history["loss"], here.history["loss"], rtol=1e-10)
    np.testing.assert_allclose(there.model["w"], here.model["w"], rtol=1e-10)
    assert there.model["b"] == 1.0  # the start's: nobody sent another


def test_what_is_refused() -> None:
    fedavg = algorithms.fedavg(oracle=GD)
    wrong: Any = "head"
    text: Any = str
    for sentence, make in {
        "must be a function of the path": lambda: transforms.wrap(fedavg, personal=wrong),
        "returns 'b'.*must return True or False": lambda: simulate(
            transforms.wrap(fedavg, personal=text), problem(), rounds=1
        ),
        "goes alone": lambda: transforms.wrap(fedavg, up=transforms.quantize(8), personal=is_bias),
        "personal.*goes alone": lambda: transforms.wrap(
            transforms.wrap(fedavg, personal=is_bias), mean=transforms.median()
        ),
        "is wrapped already": lambda: transforms.wrap(
            transforms.wrap(fedavg, up=transforms.quantize(8)), personal=is_bias
        ),
        "delivers a model of its own": lambda: transforms.wrap(algorithms.fedacg(oracle=GD), personal=is_bias),
        "metrics_agents": lambda: simulate(
            transforms.wrap(fedavg, personal=is_bias), problem(), rounds=1, metrics_agents=2
        ),
    }.items():
        with pytest.raises(FedpdError, match=sentence):
            make()
