"""Rounds of FedAvg on PyTorch modules are those of a plain PyTorch loop, whatever the modules do."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedpd
from fedpd import algorithms, data, oracles, problems
from tests.differential.torch_modules import CLASSES, FEATURES, LENGTH, QUICK, SLOW, WORDS

SIZES, STEP, STEPS, ROUNDS = (8, 4), 0.2, 3, 2
METHOD = algorithms.fedavg(oracle=oracles.gd(step=STEP, iterations=STEPS))


def federated(inputs: str, dtype: Any = np.float32) -> data.Federated:
    rng = np.random.default_rng(0)
    make: dict[str, Any] = {
        "vectors": lambda n: rng.normal(size=(n, FEATURES)).astype(dtype),
        "tokens": lambda n: rng.integers(0, WORDS, (n, LENGTH)),
        "images": lambda n: rng.normal(size=(n, 6, 6)).astype(dtype),
    }
    return data.from_arrays(
        {str(n): {"x": make[inputs](n), "y": rng.integers(0, CLASSES, n)} for n in SIZES}, classes=CLASSES
    )


def by_pytorch(module: nn.Module, own: data.Federated) -> dict[str, np.ndarray]:
    """Return the model after rounds of FedAvg, as a user of PyTorch writes them."""
    server = copy.deepcopy(module)
    for _ in range(ROUNDS):
        agents = []
        for samples in own.train:
            agent = copy.deepcopy(server).train()
            optimiser = torch.optim.SGD([one for one in agent.parameters() if one.requires_grad], lr=STEP)
            for _ in range(STEPS):
                optimiser.zero_grad()
                scores = agent(torch.as_tensor(samples["x"]))
                functional.cross_entropy(scores, torch.as_tensor(samples["y"]).long()).backward()
                optimiser.step()
            agents.append(dict(agent.named_parameters()))
        with torch.no_grad():
            for name, parameter in server.named_parameters():
                parameter.copy_(torch.stack([agent[name] for agent in agents]).mean(0))
    return {name: one.detach().numpy() for name, one in server.named_parameters() if one.requires_grad}


def check_against_pytorch(kind: type[Any], dtype: Any = np.float32) -> list[str]:
    """Compare the rounds, and return the warnings of fedpd."""
    torch.manual_seed(0)
    module = kind().to(torch.float64 if dtype == np.float64 else torch.float32)
    own = federated(kind.inputs, dtype)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        problem = problems.network(module, own)
    run = fedpd.simulate(METHOD, problem, rounds=ROUNDS, progress=False)
    expected = by_pytorch(module, own)
    assert set(run.model) == set(expected)
    tolerance = 1e-10 if dtype == np.float64 else 2e-5
    for name, array in expected.items():
        np.testing.assert_allclose(run.model[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
    return [str(one.message) for one in given if "torchax" in str(one.message)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_rounds_are_those_of_a_pytorch_loop(kind: type[Any]) -> None:
    hidden = kind.__name__ in ("NoGrad", "DataOfATensor", "HookOnATensor", "AutogradFunction", "DetachedSlice")
    warned = check_against_pytorch(kind)
    assert bool(warned) == hidden
    assert all('give backend="callback"' in sentence for sentence in warned)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_more_rounds_are_those_of_a_pytorch_loop(kind: type[Any]) -> None:
    check_against_pytorch(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [one for one in (*QUICK, *SLOW) if one.inputs == "vectors"])
def test_in_float64_they_agree_to_ten_digits(kind: type[Any]) -> None:
    check_against_pytorch(kind, np.float64)
