"""A model that a federation trained in PyTorch loads into its module."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context

import fedpd
from fedpd import Algorithm, algorithms
from fedpd.base import checkpoint
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate, torch_oracles
from fedpd.flower.torch import model_of
from tests.flower.clients.test_torch import client, network


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
