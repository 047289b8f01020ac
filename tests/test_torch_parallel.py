"""Loops that PyTorch distributes or compiles: equal to the plain loop, or refused with a sentence."""

import json
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from tests.test_own_loop import AGENTS, METHODS

torch = pytest.importorskip("torch")
import fedpd.torch  # noqa: E402  # it needs PyTorch

FEDPD = METHODS["FedPD from the server"]


def rounds(net: Any, x: Any, y: Any, agent: Any, number: int = 3) -> dict[str, np.ndarray]:
    """Train for some rounds with one agent, as its own server."""
    for _ in range(number):
        with fedpd.torch.local(FEDPD, net, agent):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
            for _ in range(5):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(x)[:, 0], y).backward()
                optimizer.step()
    return fedpd.torch.parameters_of(net)


def linear() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1, dtype=torch.float64)


def one_of_two(rank: int, port: int, start: float) -> None:
    """Print the model of one process of two, or the sentence that refuses it."""
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        net = torch.nn.parallel.DistributedDataParallel(linear())
        with torch.no_grad():
            net.module.bias += start * rank
        x, y = (torch.tensor(part[rank::2]) for part in AGENTS[2])
        print(json.dumps({name: part.tolist() for name, part in rounds(net, x, y, fedpd.torch.Agent()).items()}))
    except FedpdError as error:
        print(json.dumps(str(error)))
    finally:
        torch.distributed.destroy_process_group()


def in_two_processes(start: float) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.test_torch_parallel", str(port), str(start)]
    programs = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
    return [json.loads(program.communicate()[0].splitlines()[-1]) for program in programs]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes_of_distributed_data_parallel_are_one_agent() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[2])
    alone = rounds(linear(), x, y, fedpd.torch.Agent())
    for model in in_two_processes(start=0.0):
        for name, value in alone.items():
            np.testing.assert_allclose(model[name], value, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_processes_that_begin_from_different_models_are_refused() -> None:
    assert all("Load the same model, and keep one Agent" in one for one in in_two_processes(start=1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dynamo, about PyTorch's own code
def test_a_compiled_module_is_the_module() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[2])
    alone, compiled = linear(), linear()
    expected = rounds(alone, x, y, fedpd.torch.Agent())
    found = rounds(torch.compile(compiled, backend="aot_eager"), x, y, fedpd.torch.Agent())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dynamo, about PyTorch's own code
def test_a_compiled_step_is_the_step() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[2])

    def train(net: Any, step: Any, optimizer: Any) -> Any:
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x)[:, 0], y).backward()
            step()

    models = []
    for compiled in (False, True):
        net, agent = linear(), fedpd.torch.Agent()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for _ in range(2):  # the terms of the second round are others
            with fedpd.torch.local(FEDPD, net, agent):
                train(net, step, optimizer)
        models.append(fedpd.torch.parameters_of(net))
    for name, value in models[0].items():
        np.testing.assert_allclose(models[1][name], value, rtol=0, atol=1e-13)


if __name__ == "__main__":
    one_of_two(int(sys.argv[3]), int(sys.argv[1]), float(sys.argv[2]))
