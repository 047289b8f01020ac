"""Modules of PyTorch by torchax: layers as in PyTorch, errors that name the layer, the import of torchax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedpd
from fedpd import FedpdError, algorithms, data, oracles, problems
from fedpd.flower.torch import model_of
from fedpd.problems.adapters.torchax import Missing, is_named_dimension, without_named_dimensions
from fedpd.problems.layers import FEW, LARGE, PARTS, product_by_rows
from tests.problems.adapters.same_network import CLASSES, INPUTS, agents, parameters, torch_module

aten = torch.ops.aten
METHOD = algorithms.fedavg(oracle=oracles.sgd(step=0.1, iterations=2, batch=4))


def images(classes: int = 3) -> data.Federated:
    rng = np.random.default_rng(0)
    own = {
        name: {"x": rng.normal(size=(6, 2, 9, 8)).astype(np.float32), "y": rng.integers(0, classes, 6)}
        for name in ("a", "b")
    }
    return data.from_arrays(own, classes=classes)


class Layers(nn.Module):
    """Convolutions and pooling that fedpd computes itself, and some that it leaves to torchax."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0))
        self.grouped = nn.Conv2d(4, 4, 3, padding="same", groups=2, dilation=1)
        self.norm = nn.GroupNorm(2, 4)
        self.scores = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.grouped(self.own(x)))), 2)
        x = functional.max_pool2d(functional.pad(x, (0, 1, 1, 0)), 2, stride=1)
        return self.scores(x.flatten(1))


def test_layers_and_gradients_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    module, x = Layers(), images().train[0]["x"]
    module(torch.from_numpy(x))
    problem = problems.network(module, images())
    batch = {"x": x, "y": images().train[0]["y"].astype(np.int32)}
    losses = functional.cross_entropy(
        module(torch.from_numpy(x)), torch.from_numpy(batch["y"]).long(), reduction="none"
    )
    losses.mean().backward()
    np.testing.assert_allclose(jax.jit(problem.losses)(problem.start, batch), losses.detach(), atol=1e-6)
    gradient = jax.jit(jax.grad(lambda model: problem.losses(model, batch).mean()))(problem.start)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(gradient[name], parameter.grad.numpy(), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shape", [(1, 3, 5), (FEW + 1, 3, 5), (2, PARTS, LARGE // PARTS)])
def test_a_dense_layer_is_a_product(shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.normal(size=s).astype(np.float32)) for s in ((rows, inputs), (outputs, inputs)))
    weight = weight / inputs**0.5

    def value(product: Any, x: Any, weight: Any) -> Any:
        return jnp.sum(jnp.tanh(product(x, weight)))

    found = jax.value_and_grad(value, (1, 2))(product_by_rows, x, weight)
    expected = jax.value_and_grad(value, (1, 2))(lambda x, weight: x @ weight.T, x, weight)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), found, expected)


def test_a_trained_model_loads_into_the_module() -> None:
    module, x = torch_module(parameters()), agents().train[0]["x"]
    problem = problems.network(module, agents())
    deployed = model_of(module)  # the start of a Flower app of `fedpd new-app --framework torch`
    assert all(np.array_equal(problem.start[name], array) for name, array in deployed.items())
    assert set(deployed) == set(problem.start)
    run = fedpd.simulate(METHOD, problem, rounds=2, progress=False)
    assert problems.load_model(module, run.model) is module
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(tensor, run.model[name])
    loss = functional.cross_entropy(
        module(torch.from_numpy(x)), torch.from_numpy(agents().train[0]["y"]).long(), reduction="none"
    )
    batch = {"x": x, "y": agents().train[0]["y"].astype(np.int32)}
    np.testing.assert_allclose(problem.losses(run.model, batch), loss.detach(), atol=1e-6)
    with pytest.raises(FedpdError, match="are not parameters of the module"):
        problems.load_model(nn.Linear(2, 2), run.model)


def test_losses_of_pytorch() -> None:
    batch = {"x": agents().train[0]["x"], "y": agents().train[0]["y"].astype(np.int32)}
    usual = problems.network(torch_module(parameters()), agents())
    own = problems.network(torch_module(parameters()), agents(), loss=nn.CrossEntropyLoss(label_smoothing=0.0))
    np.testing.assert_allclose(own.losses(own.start, batch), usual.losses(usual.start, batch), atol=1e-6)


def test_an_operation_that_torchax_lacks_names_the_layer_and_callback_runs_it() -> None:
    class Strange(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.special.airy_ai(x.detach())

    module = nn.Sequential(nn.Linear(INPUTS, CLASSES), Strange())
    sentence = r"layer '1' \(Strange\) uses an operation that torchax does not have: .*airy.*backend=\"callback\""
    with pytest.raises(FedpdError, match=sentence):
        problems.network(module, agents())
    run = fedpd.simulate(METHOD, problems.network(module, agents(), backend="callback"), rounds=2, progress=False)
    assert np.isfinite(run.history["loss"]).all()


def test_a_module_that_fails_while_it_runs_is_a_sentence() -> None:
    class Detached(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    with pytest.raises(FedpdError, match="module = 'Detached': its scores have no gradient in PyTorch"):
        problems.network(Detached(INPUTS, CLASSES), agents())
    problem = problems.network(Detached(INPUTS, CLASSES), agents(), backend="callback", check=False)
    sentence = "the module failed: RuntimeError: element 0 of tensors does not require grad.*Check that it computes"
    with pytest.raises(FedpdError, match=sentence):
        fedpd.simulate(METHOD, problem, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("module", "options", "sentence"),
    [
        (nn.Linear(INPUTS, 2), {}, "number of scores = 2: must be at least 3, the number of classes"),
        (nn.Linear(INPUTS + 1, 3), {}, r"cannot be compiled by torchax for x of shape \(1, 4\)"),
        (nn.Linear(INPUTS, 3, dtype=torch.bfloat16), {}, r"type of parameter weight.*Use module.float\(\)"),
        (nn.Linear(INPUTS, 3), {"loss": lambda s, y: s.mean()}, "one loss per sample, not their mean"),
        (nn.Linear(INPUTS, 3), {"loss": "mse"}, "loss = 'mse': must be a function"),
        (nn.Flatten(), {}, "no parameters, so there is nothing to train"),
        (nn.Linear, {}, "module = 'Linear': must be a module .*not its class"),
        (nn.Linear(INPUTS, 3), {"backend": "tpu"}, "backend = 'tpu'"),
        (nn.Linear(INPUTS, 3), {"precision": "float16"}, "precision = 'float16'"),
        (nn.Linear(INPUTS, 3), {"precision": "bfloat16", "backend": "callback"}, "does not go with precision"),
    ],
)
def test_what_is_refused(module: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        problems.network(module, agents(), **options)


def test_overloads_with_named_dimensions_are_answered_only_during_the_import() -> None:
    with without_named_dimensions() as missing:
        assert isinstance(aten.prod.dim_Dimname, Missing)
        assert aten.prod.dim_int is torch.ops.aten.prod.dim_int  # what torch has is not replaced
        with pytest.raises(AttributeError, match="no_such_overload"):
            _ = aten.prod.no_such_overload
    assert missing == ["aten.prod.dim_Dimname"]
    with pytest.raises(AttributeError, match="dim_Dimname"):
        _ = aten.prod.dim_Dimname
    names = ("dim_Dimname", "names_ScalarOpt_dim", "correction_names", "Dimname_Scalar")
    assert all(map(is_named_dimension, names))
    assert not is_named_dimension("out")


@pytest.mark.filterwarnings("ignore")  # of Dynamo, about PyTorch's own code
def test_pytorch_compiles_modules_after_the_import_of_torchax() -> None:
    net, x = nn.Linear(2, 1), torch.ones(3, 2)
    compiled = torch.compile(net, backend="eager")
    torch.testing.assert_close(compiled(x), net(x))
