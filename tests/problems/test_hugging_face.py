"""Features that are a dict, taken by name: models of transformers equal a plain PyTorch loop, also on Flower."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fedpd import FedpdError, algorithms, data, oracles, problems, simulate
from fedpd.core import Problem
from fedpd.flower import InProcessGrid, Settings, client_app, federate, torch_oracles
from fedpd.flower.torch import model_of, torch_local

TOKENS, LENGTH = 11, 6
Agents = dict[str, dict[str, Any]]


class Masked(nn.Module):
    """A classifier of texts that has only two arguments, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        weights = attention_mask / attention_mask.sum(1, keepdim=True)
        return {"logits": self.head((self.embedding(input_ids) * weights[:, :, None]).sum(1))}


def texts(rng: np.random.Generator, samples: int, length: int = LENGTH) -> dict[str, np.ndarray]:
    mask = np.arange(length) < rng.integers(3, length + 1, samples)[:, None]
    return {"input_ids": rng.integers(1, TOKENS, (samples, length)) * mask, "attention_mask": mask}


def labelled(seed: int = 0, sizes: tuple[int, ...] = (5, 5)) -> Agents:
    rng = np.random.default_rng(seed)
    return {f"site {i}": {"x": texts(rng, n), "y": rng.permutation(n) % 3} for i, n in enumerate(sizes)}


def following(seed: int = 0, sizes: tuple[int, ...] = (5, 5)) -> Agents:
    rng, found = np.random.default_rng(seed), {}
    for i, n in enumerate(sizes):
        whole = texts(rng, n, LENGTH + 1)
        y = np.where(whole["attention_mask"][:, 1:], whole["input_ids"][:, 1:], -100)
        y[0] = np.where(np.arange(LENGTH) < 3, y[0], -100)  # samples differ in their numbers of tokens
        found[f"site {i}"] = {"x": {name: leaf[:, :-1] for name, leaf in whole.items()}, "y": y}
    return found


def masked() -> nn.Module:
    torch.manual_seed(0)
    return Masked()


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    off: Any = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=TOKENS, max_position_embeddings=8, num_labels=3, **sizes, **off)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": TOKENS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    off: Any = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **off))


def token_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean over the texts of their means over tokens."""
    each = functional.cross_entropy(scores.movedim(-1, 1), y, reduction="none")
    return (each.sum(1) / (y != -100).sum(1)).mean()


def plain_loop(module: nn.Module, own: Agents, loss: Callable[[Tensor, Tensor], Tensor], steps: int) -> list[float]:
    """Train the module by gradient descent on the mean of the agents' losses in PyTorch; return the losses."""
    optimiser, found = torch.optim.SGD(module.parameters(), lr=0.2), []
    for _ in range(steps + 1):
        optimiser.zero_grad()
        parts = []
        for one in own.values():
            inputs = {name: torch.from_numpy(leaf).long() for name, leaf in one["x"].items()}
            out = module(**inputs)
            parts.append(loss(out["logits"], torch.from_numpy(one["y"]).long()))
        value = torch.stack(parts).mean()
        value.backward()
        found.append(value.item())
        if len(found) <= steps:
            optimiser.step()
    return found


def agrees(problem: Problem, make: Callable[[], nn.Module], own: Agents, loss: Any) -> None:
    """Compare two rounds of gradient descent with a plain loop."""
    run, module = simulate(algorithms.gradient_descent(step=0.2), problem, rounds=2), make()
    np.testing.assert_allclose(run.history["loss"], plain_loop(module, own, loss, 2), rtol=1e-5)
    for name, tensor in module.named_parameters():
        np.testing.assert_allclose(run.model[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("backend", [pytest.param("jax", marks=pytest.mark.slow), "callback"])
def test_a_dict_of_features_is_given_by_name(backend: Any) -> None:
    own = labelled(sizes=(5, 8))
    problem = problems.network(masked(), data.from_arrays(own, own), backend=backend)
    agrees(problem, masked, own, functional.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "callback"])
def test_bert_is_that_of_a_plain_loop(backend: Any) -> None:
    own = labelled(sizes=(5, 8))
    agrees(problems.network(bert(), data.from_arrays(own), backend=backend), bert, own, functional.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "callback"])
def test_gpt2_is_that_of_a_plain_loop(backend: Any) -> None:
    own = following(sizes=(5, 8))
    agents = data.from_arrays(own, classes=False)
    agrees(problems.next_token(gpt2(), agents, backend=backend), gpt2, own, token_loss)


class Rows(torch.utils.data.Dataset):
    """Samples as dicts, as `datasets` returns them."""

    def __init__(self, samples: dict[str, Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples["y"])

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        inputs = {name: torch.tensor(leaf[i].astype(np.int64)) for name, leaf in self.samples["x"].items()}
        return inputs | {"labels": torch.tensor(int(y) if (y := self.samples["y"][i]).ndim == 0 else y)}


@pytest.mark.slow
@pytest.mark.parametrize("make", [masked, gpt2, bert])
def test_torch_clients_on_flower_are_those_of_the_simulation(make: Any) -> None:
    own = following() if make is gpt2 else labelled()
    agents = data.from_arrays(own, own, classes=False if make is gpt2 else None)
    problem = problems.next_token(make(), agents) if make is gpt2 else problems.network(make(), agents)

    def local(context: Context) -> Any:
        rows = Rows(own[f"site {context.node_config['partition-id']}"])
        return torch_local(make(), nn.CrossEntropyLoss(), DataLoader(rows, batch_size=2), test=DataLoader(rows))

    def method(config: Any = None, kind: Any = torch_oracles) -> Any:
        return algorithms.fedpd(eta=1.0, oracle=kind.sgd(step=0.1, iterations=2, batch=2), start="server")

    def start(config: Any = None) -> Any:
        return model_of(make())

    settings = Settings(agents=2, rounds=2, deadline=60.0, poll=0.001)
    found = federate(InProcessGrid(client_app(method, start, local), 2, {}), method(), start(), settings)
    run = simulate(method(kind=oracles), problem, rounds=2)
    np.testing.assert_allclose(found.history["loss"], run.history["loss"], rtol=1e-4)
    np.testing.assert_allclose(found.history["test_accuracy"], run.history["test_accuracy"], rtol=1e-5)


def test_dicts_pass_through_the_functions_of_data() -> None:
    own = labelled(sizes=(6, 8))
    agents = data.from_arrays(own)
    assert agents.features["input_ids"] == ((LENGTH,), np.dtype(np.int32))
    assert agents.train[0]["x"]["attention_mask"].dtype == np.int32  # a mask is no picture
    assert "attention_mask (6,) int32, input_ids (6,) int32" in repr(agents)
    assert data.describe(agents).shape == {"attention_mask": (LENGTH,), "input_ids": (LENGTH,)}
    divided = data.split(data.take(agents, ["site 1", "site 0"]), 0.25)
    assert divided.test_sizes.tolist() == [2, 2]
    both = data.pool([*data.merge(divided, [[0, 1]]).train])
    assert both["x"]["input_ids"].shape == (10, LENGTH)
    rows = data.ragged(data.pool([*agents.train]), sizes=[6, 8])
    flat = problems.network(masked(), data.from_rows(rows))
    run = simulate(algorithms.gradient_descent(step=0.2), flat, rounds=1, test=both)
    plain = simulate(algorithms.gradient_descent(step=0.2), problems.network(masked(), agents), rounds=1, test=both)
    np.testing.assert_allclose(run.history["loss"], plain.history["loss"], rtol=1e-5)
    np.testing.assert_allclose(run.history["central_loss"], plain.history["central_loss"], rtol=1e-5)


def test_what_is_refused() -> None:
    own = labelled()
    x, y = own["site 0"]["x"], own["site 0"]["y"]

    def refused(sentence: str, build: Callable[[], Any]) -> None:
        with pytest.raises(FedpdError, match=sentence):
            build()

    def of(x: Any, y: Any = y, **more: Any) -> Any:
        return data.from_arrays({"a": {"x": x, "y": y}}, **more)

    refused("labels.*Give them as y", lambda: problems.network(masked(), of(x | {"labels": y})))
    refused(
        "token_type_ids.*is no argument of Masked.forward",
        lambda: problems.network(masked(), of(x | {"token_type_ids": x["input_ids"]})),
    )
    refused(
        "x = 'one array'.*Give all agents the same",
        lambda: data.from_arrays({"a": {"x": x, "y": y}, "b": {"x": x["input_ids"], "y": y}}),
    )
    refused("needs one array", lambda: problems.softmax_regression(of(x)))
    refused("is for features that are one array", lambda: of(x, dtype=np.float32))
    refused("must have a row for each", lambda: of(x | {"input_ids": x["input_ids"][:2]}))
    tokens = x["input_ids"]
    refused("are the tokens of x themselves", lambda: problems.next_token(masked(), of(x, tokens, classes=False)))
    shifted = DataLoader(Rows({"x": x, "y": tokens}), batch_size=2)
    refused("are input_ids itself", lambda: torch_local(masked(), nn.CrossEntropyLoss(), shifted))
