"""PyTorch clients: the same numbers as JAX's, sample by sample and step by step."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flwr.app import Context
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from tree_math import Vector

import fedpd
from fedpd import Algorithm, algorithms, oracles, problems
from fedpd.base import checkpoint
from fedpd.base.precision import scope
from fedpd.checks import FedpdError
from fedpd.core import LocalObjective, Oracle, Subproblem
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate, torch_oracles
from fedpd.flower.torch import TorchLosses, load_model, model_of, torch_local
from tests.engine.test_compilation import compilations

AGENTS, SAMPLES, INPUTS, CLASSES = 3, 12, 4, 3


def samples(agent: int, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(agent)
    return generator.normal(agent, 1, (SAMPLES, INPUTS)).astype(dtype), generator.integers(0, CLASSES, SAMPLES)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, CLASSES)).to(dtype)


def loader(agent: int, dtype: Any = np.float64) -> DataLoader:
    inputs, targets = samples(agent, dtype)
    return DataLoader(TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets)), batch_size=5)


def client(agent: int = 0, module: nn.Module | None = None) -> Local:
    return torch_local(module or network(), nn.CrossEntropyLoss(), loader(agent))


def jax_losses(model: Any, batch: Any) -> jax.Array:
    """The same network and loss in JAX."""
    inputs, targets = batch
    hidden = jnp.tanh(inputs @ model["0.weight"].T + model["0.bias"])
    outputs = hidden @ model["2.weight"].T + model["2.bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1)[:, 0]


def objective(losses: Any, data: Any) -> LocalObjective:
    return LocalObjective(losses, None, data, jnp.int32(SAMPLES), None, None, jnp.int32(0))


def both() -> tuple[LocalObjective, LocalObjective]:
    local = client()
    return objective(local.losses, local.data), objective(jax_losses, samples(0))


def close(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), one, other)


def test_values_and_gradients_are_jaxs() -> None:
    with scope(True):
        x = Vector(model_of(network()))
        in_torch, in_jax = both()
        rows = jnp.array([3, 1, 4, 1])

        @partial(jax.jit, static_argnums=0)
        def everything(number: int, x: Vector) -> Any:
            f = (in_torch, in_jax)[number]
            return f.value_and_gradient(x), f.stochastic_gradient(x, f.rows(rows))

        close(everything(0, x), everything(1, x))


ORACLES: list[tuple[Any, Any]] = [
    (torch_oracles.sgd(step=0.1, iterations=7, batch=2), oracles.sgd(step=0.1, iterations=7, batch=2)),
    (torch_oracles.sgd(step=0.1, iterations=3, batch=None), oracles.gd(step=0.1, iterations=3)),
    (
        torch_oracles.sgd(step=lambda r, q: 0.1 / (1 + r + q), iterations=4),
        oracles.sgd(step=lambda r, q: 0.1 / (1 + r + q), iterations=4),
    ),
    (torch_oracles.sgd(step=0.1, epochs=2, batch=5), oracles.sgd(step=0.1, epochs=2, batch=5)),
    (torch_oracles.sgd(step=0.1, epochs=2, batch=None), oracles.gd(step=0.1, iterations=2)),
    (
        torch_oracles.optimizer(lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9), epochs=2, batch=5),
        oracles.sgd(step=0.1, epochs=2, batch=5, momentum=0.9),
    ),
    (torch_oracles.vr(gamma=0.1, iterations=5, refresh=2), oracles.vr(gamma=0.1, iterations=5, refresh=2)),
    (
        torch_oracles.optimizer(lambda x: torch.optim.SGD(x, lr=0.1), iterations=6, batch=3),
        oracles.sgd(step=0.1, iterations=6, batch=3),
    ),
]


@pytest.mark.parametrize(("in_torch", "in_jax"), ORACLES)
def test_an_oracle_takes_the_steps_of_jaxs(in_torch: Oracle, in_jax: Oracle) -> None:
    """Round after round, on the same batches, with a linear and a quadratic term."""
    with scope(True):
        x = y = Vector(model_of(network()))
        linear = 0.1 * x
        f, g = both()
        solve = jax.jit(lambda *state: in_torch.solve(Subproblem(f, linear, 2.0), *state))
        solve_in_jax = jax.jit(lambda *state: in_jax.solve(Subproblem(g, linear, 2.0), *state))
        one, other = in_torch.init(f, x), in_jax.init(g, x)
        for r in range(3):
            key = jax.random.key(r)
            x, one, work = solve(x, one, jnp.int32(r), key)
            y, other, expected = solve_in_jax(y, other, jnp.int32(r), key)
            close(x, y)
            assert (work.updates, work.samples) == (expected.updates, expected.samples)


def simulate_both(rounds: int, refresh: int, p: float = 0.0, **options: Any) -> list[fedpd.Run]:
    """FedPD with Oracle II on all agents: with one module in PyTorch that holds the data of all, and in JAX."""
    data = [samples(agent) for agent in range(AGENTS)]
    dataset = TensorDataset(*(torch.from_numpy(np.concatenate(part)) for part in zip(*data, strict=True)))
    local = torch_local(network(), nn.CrossEntropyLoss(), DataLoader(dataset, batch_size=5))
    start = model_of(network())
    indices = list(np.split(local.data, AGENTS))
    settings: dict[str, Any] = {"gamma": 0.2, "iterations": 4, "refresh": refresh}
    made = [
        (problems.from_losses(local.losses, indices, start), torch_oracles.vr(**settings)),
        (problems.from_losses(jax_losses, data, start), oracles.vr(**settings)),
    ]
    return [
        fedpd.simulate(algorithms.fedpd(eta=0.2, oracle=oracle, p=p), problem, rounds=rounds, seed=1, **options)
        for problem, oracle in made
    ]


def assert_same_run(one: fedpd.Run, other: fedpd.Run) -> None:
    close(one.model, other.model, 1e-11)
    np.testing.assert_array_equal(one.history["samples"], other.history["samples"])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_all_agents_of_a_simulation_are_jaxs(devices: int) -> None:
    """With skipped communications, and one module that all devices take turns at."""
    assert_same_run(*simulate_both(rounds=4, refresh=2, p=0.3, devices=devices))


@pytest.mark.slow
def test_an_agent_that_first_appears_between_two_full_gradients_is_jaxs() -> None:
    """It starts from grad f_i(x^0), whose samples count in its first round, not from a gradient at the current x."""
    present = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]], bool)
    in_torch, in_jax = simulate_both(rounds=len(present), refresh=4, participation=present)
    assert_same_run(in_torch, in_jax)
    full = [2, 0, 1, 0, 3, 0]  # full gradients per round: rounds 0 and 4 renew, and agent 2 first appears in round 2
    steps = 4 * 2 * present.sum(1)  # four steps, each with two gradients of one sample
    np.testing.assert_array_equal(np.diff(in_torch.history["samples"]), SAMPLES * np.array(full) + steps)


def solve_once(oracle: Oracle, local: Local, seed: int = 0, start: Any = None) -> tuple[Any, Any]:
    with scope(True):
        f = objective(local.losses, local.data)
        assert isinstance(local.losses, TorchLosses)
        x = Vector(model_of(local.losses.module) if start is None else start)
        solve = jax.jit(lambda *state: oracle.solve(Subproblem(f), *state))
        x, memory, _ = solve(x, oracle.init(f, x), jnp.int32(0), jax.random.key(seed))
        return jax.device_get((x.tree, memory))


@pytest.mark.parametrize("settings", [{"reduction": "sum"}, {"weight": torch.ones(CLASSES, dtype=torch.float64)}])
def test_a_loss_that_pytorch_does_not_average_over_samples_is_warned_of(settings: Any) -> None:
    with pytest.warns(UserWarning, match="fedpd divides the sum of the losses by the number of samples"):
        torch_local(network(), nn.CrossEntropyLoss(**settings), loader(0))


@pytest.mark.parametrize("left_in_training", [True, False])
def test_dropout_is_off_where_a_client_measures_and_drawn_from_the_key_in_training(left_in_training: bool) -> None:
    module = nn.Sequential(nn.Linear(INPUTS, CLASSES), nn.Dropout(0.5)).double().train(left_in_training)
    local, model = client(module=module), model_of(module)
    inputs, targets = (torch.from_numpy(array) for array in samples(0))
    expected = nn.functional.cross_entropy(module[0](inputs), targets, reduction="none").detach()
    random = local.random
    assert random is not None
    with scope(True):
        close(local.losses(model, local.data), expected.numpy())
        one, again, other = (np.asarray(random(model, local.data, jax.random.key(k))) for k in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert (one != other).any()
        slopes = [jax.grad(lambda m, k=k: random(m, local.data, jax.random.key(k)).sum())(model) for k in (0, 1)]
        assert (slopes[0]["0.weight"] != slopes[1]["0.weight"]).any()
    assert module.training == left_in_training


def test_without_random_numbers_a_client_has_one_loss() -> None:
    assert client().random is None
    norm = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    assert client(module=norm).random is None


def test_jax_oracles_train_a_client_with_dropout(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FEDPD_STATE", str(tmp_path))
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(INPUTS, CLASSES)).double()
    method = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=1))
    start, local = model_of(module), client(module=module)
    grid = InProcessGrid(client_app(lambda config: method, lambda config: start, lambda context: local), 1, config={})
    model = federate(grid, method, start, Settings(agents=1, rounds=1, poll=0.01)).model
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in start.items()})
    inputs, targets = (torch.from_numpy(array) for array in samples(0))
    parameter = next(module.parameters())
    quiet = torch.autograd.grad(nn.functional.cross_entropy(module[1](inputs), targets), parameter)[0]
    step = (start["1.weight"] - model["1.weight"]) / 0.1
    assert np.abs(step - quiet.numpy()).max() > 1e-3  # dropout was on


def test_dropout_is_drawn_from_the_key_and_the_users_generator_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, CLASSES), nn.Dropout(0.5)).double()
    oracle = torch_oracles.sgd(step=0.1, iterations=3, batch=4)
    state, start = torch.random.get_rng_state(), model_of(module)
    one, again, other = (solve_once(oracle, client(module=module), seed, start)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert not np.array_equal(one["0.weight"], other["0.weight"])


def test_buffers_stay_in_the_oracles_memory() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    model, memory = solve_once(torch_oracles.sgd(step=0.1, iterations=3, batch=4), client(module=module))
    assert not any("running" in name for name in model)
    assert memory["buffers"]["1.num_batches_tracked"] == 3
    assert not np.array_equal(memory["buffers"]["1.running_mean"], np.zeros(5))
    for name, tensor in module.named_buffers():
        assert torch.equal(tensor, before[name])


@pytest.mark.slow
def test_a_batch_norm_in_a_federation(tmp_path: Path) -> None:
    """Every round saves and loads the state, including the buffers; there are three batches per round."""

    def module() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()

    def local(context: Context) -> Local:
        return torch_local(module(), nn.CrossEntropyLoss(), loader(int(context.node_config["partition-id"])))

    def method(config: Any = None) -> Algorithm:
        return algorithms.fedpd(eta=0.2, oracle=torch_oracles.sgd(step=0.1, iterations=3, batch=4))

    def start(config: Any = None) -> Any:
        return model_of(module())

    settings = Settings(agents=2, rounds=3, deadline=60.0, poll=0.001)
    outcome = federate(InProcessGrid(client_app(method, start, local), 2, {}), method(), start(), settings)
    assert set(outcome.model) == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert outcome.history["loss"][-1] < outcome.history["loss"][0]
    kept = [checkpoint.read(file)[0] for file in (tmp_path / "clients").rglob("*.safetensors")]
    counts = [array for arrays in kept for name, array in arrays.items() if "num_batches_tracked" in name]
    assert sorted(np.ravel(counts)) == [6, 6, 9, 9]  # of two clients, before and after the last order


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["sgd", "vr"])
def test_batch_normalisation_on_flower_is_that_of_the_simulation(oracle: str) -> None:
    """Losses, accuracies and rounds: a client measures its own statistics at the model, on its training samples."""

    def module() -> nn.Module:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(5, track_running_stats=oracle == "sgd")
        return nn.Sequential(nn.Linear(INPUTS, 5), norm, nn.Dropout(0.0), nn.Linear(5, CLASSES)).double()

    def local(context: Context) -> Local:
        own = int(context.node_config["partition-id"])
        return torch_local(module(), nn.CrossEntropyLoss(), loader(own), test=loader(own + AGENTS))

    def method(config: Any = None, oracles: Any = torch_oracles) -> Algorithm:
        made = oracles.sgd(step=0.1, iterations=3, batch=4)
        if oracle == "vr":
            made = oracles.vr(gamma=0.2, iterations=2, refresh=2, batch=4)
        return algorithms.fedpd(eta=0.2, oracle=made)

    def start(config: Any = None) -> Any:
        return model_of(module())

    settings = Settings(agents=AGENTS, rounds=2, deadline=60.0, poll=0.001)
    there = federate(InProcessGrid(client_app(method, start, local), AGENTS, {}), method(), start(), settings)
    train, test = (
        {str(i): dict(zip("xy", samples(i + first), strict=True)) for i in range(AGENTS)} for first in (0, AGENTS)
    )
    problem = problems.network(module(), fedpd.data.from_arrays(train, test, classes=CLASSES))
    here = fedpd.simulate(method(oracles=oracles), problem, rounds=2, progress=False)
    close(there.model, here.model, 1e-10)
    for name in ("loss", "stationarity", "test_loss", "test_accuracy", "train_accuracy"):
        np.testing.assert_allclose(there.history[name], here.history[name], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("norm", [False, True])
def test_clients_of_a_process_share_their_compiled_programs(norm: bool) -> None:
    """A second client compiles nothing of its own, and computes with its own module, samples and functions."""

    def local(agent: int) -> Local:
        torch.manual_seed(0)
        middle: nn.Module = nn.BatchNorm1d(5) if norm else nn.Tanh()
        module = nn.Sequential(nn.Linear(INPUTS, 5), middle, nn.Linear(5, CLASSES)).double()
        own = {"mean": lambda outputs, targets: outputs.mean(1)}
        return torch_local(module, nn.CrossEntropyLoss(), loader(agent), test=loader(agent + AGENTS), metrics=own)

    def method() -> Algorithm:
        return algorithms.fedpd(eta=0.2, oracle=torch_oracles.vr(gamma=0.2, iterations=2, refresh=2, batch=4))

    def run(algorithm: Algorithm, agent: int) -> tuple[fedpd.flower.Federated, int]:
        """Return the result of a federation with one client, and the number of programs that it compiled."""
        made = local(agent)
        assert isinstance(made.losses, TorchLosses)
        begin = model_of(made.losses.module)
        grid = InProcessGrid(client_app(lambda _: algorithm, lambda _: begin, lambda _: made), 1, {})
        with compilations() as compiled:
            found = federate(grid, algorithm, begin, Settings(agents=1, rounds=2, deadline=300.0, poll=0.001))
        return found, len(compiled)

    shared = method()
    first, own = run(shared, 0)
    (second, other), (_, repeated) = run(shared, 1), run(shared, 0)
    assert other == repeated < own
    expected, _ = run(method(), 1)  # with programs that client 0 has not used
    close(second.model, expected.model, 0)
    for name in ("loss", "stationarity", "test_loss", "test_accuracy", "mean"):
        np.testing.assert_array_equal(second.history[name], expected.history[name], err_msg=name)
    assert not np.array_equal(second.history["mean"], first.history["mean"])


def test_data_without_their_client_are_refused() -> None:
    kept, data = client().losses, client().data
    gc.collect()  # the second client
    with scope(True), pytest.raises(Exception, match="is not in this process"):
        jax.block_until_ready(kept(model_of(network()), data))


def test_other_buffers_are_another_program() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    before = client(module=module).losses
    assert isinstance(module[1], nn.BatchNorm1d)
    assert module[1].running_mean is not None
    module[1].running_mean.add_(1.0)
    assert client(module=module).losses != before


def test_steps_on_one_sample_are_refused_with_batch_normalisation() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()

    def method(config: Any = None) -> Algorithm:
        return algorithms.fedpd(eta=0.2, oracle=torch_oracles.sgd(step=0.1, iterations=3))

    grid = InProcessGrid(client_app(method, lambda _: model_of(module), lambda _: client(module=module)), 1, {})
    with pytest.raises(fedpd.flower.FederationError, match="batch = 1: must be at least 2"):
        federate(grid, method(), model_of(module), Settings(agents=1, rounds=1, poll=0.001))


@pytest.mark.slow
def test_lbfgs_and_a_dataset_of_python_objects() -> None:
    """The optimiser evaluates the function several times per step, and samples are fetched one by one."""

    class Lines(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            inputs, targets = samples(0)
            return torch.from_numpy(inputs[i]), int(targets[i])

    local = torch_local(network(), nn.CrossEntropyLoss(), DataLoader(Lines(), batch_size=5))
    oracle = torch_oracles.optimizer(lambda x: torch.optim.LBFGS(x, line_search_fn="strong_wolfe"), iterations=3)
    model, _ = solve_once(oracle, local)
    with scope(True):
        f = objective(local.losses, local.data)
        assert f.value(Vector(model)) < 0.5 * f.value(Vector(model_of(network())))


def test_accuracy_on_test_samples() -> None:
    local = torch_local(network(), nn.CrossEntropyLoss(), loader(0), test=loader(1))
    assert local.correct is not None
    inputs, targets = samples(1)
    expected = network()(torch.from_numpy(inputs)).argmax(1).numpy() == targets
    with scope(True):
        np.testing.assert_array_equal(local.correct(model_of(network()), local.test), expected)


def test_a_model_is_loaded_back() -> None:
    model = {name: leaf + 1 for name, leaf in model_of(network()).items()}
    close(model_of(load_model(network(), model)), model)


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: torch_local(cast(Any, nn.Linear), nn.MSELoss(), loader(0)), "must be an nn.Module"),
        (lambda: torch_local(network(), nn.MSELoss(), cast(Any, [1, 2])), "must be a DataLoader"),
        (lambda: torch_local(network(), nn.MSELoss(), DataLoader(Endless())), "has no indices"),
        (lambda: torch_local(nn.Tanh(), nn.MSELoss(), loader(0)), "no parameters that require a gradient"),
        (lambda: torch_local(network(torch.bfloat16), nn.MSELoss(), loader(0)), "must be float32 or float64"),
        (lambda: torch_oracles.optimizer(torch.optim.Adam, 0), "iterations"),
        (lambda: load_model(network(), {"weight": np.zeros(2)}), "must hold the parameters"),
    ],
)
def test_mistakes_are_told_as_sentences(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        make()


def test_a_torch_oracle_needs_a_torch_client() -> None:
    oracle = torch_oracles.sgd(step=0.1, iterations=1)
    with scope(True):
        x, key, (_, f) = Vector(model_of(network())), jax.random.key(0), both()
        with pytest.raises(FedpdError, match="made by torch_local"):
            oracle.solve(Subproblem(f), x, {}, jnp.int32(0), key)


def method(config: Any = None) -> Algorithm:
    return algorithms.fedpd(eta=0.2, oracle=torch_oracles.sgd(step=0.1, iterations=2, batch=4))


def start(config: Any = None) -> Any:
    return model_of(network())


def local(context: Context) -> Local:
    return client(int(context.node_config["partition-id"]))


def test_load_state_dict_takes_what_load_model_returns(tmp_path: Path) -> None:
    settings = Settings(agents=2, rounds=1, deadline=60.0, poll=0.001, out=tmp_path)
    found = federate(InProcessGrid(client_app(method, start, local), 2, {}), method(), start(), settings)
    module = network()
    torch.nn.init.zeros_(module.get_parameter("0.weight"))
    module.load_state_dict(fedpd.load_model(tmp_path))
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), found.model[name])
    assert not np.array_equal(found.model["0.weight"], start()["0.weight"])
    assert "module.load_state_dict(fedpd.load_model(" in (tmp_path / "log.txt").read_text()
    best = fedpd.load_model(tmp_path / "best.safetensors")
    assert all(isinstance(leaf, torch.Tensor) for leaf in best.values())


def test_a_file_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.write(path, checkpoint.flatten("state", start()), {"algorithm": "FedPD", "seed": 0, "rounds": 1})
    with pytest.raises(fedpd.FedpdError, match="it holds no model"):
        fedpd.load_model(path)
