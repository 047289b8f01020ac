"""Flower's simulation, on Ray: PyTorch clients and Flower's own FedAvg, as its tutorials write them."""

import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import torch_models
from benchmarks.peers.task import Outcome, Task, load, pace, save

# As many clients at a time as there are cores.
RESOURCES: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

client = ClientApp()


@cache
def _data(path: str) -> tuple[Task, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the data. It is read once per process, as by a client that caches its dataset."""
    task = load(path)
    return task, torch_models.agents(task)


@client.train()
def train(message: Message, context: Context) -> Message:
    task, agents = _data(str(message.content.config_records["config"]["path"]))
    x, y = agents[int(context.node_config["partition-id"])]
    module = torch_models.model(task)
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=task.step)
    for features, labels in zip(x.split(task.batch), y.split(task.batch), strict=True):
        optimizer.zero_grad()
        module.loss(features, labels).backward()
        optimizer.step()
    weight = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": weight}), reply_to=message)


def play(task: Task) -> Outcome:
    module, marks, server = torch_models.model(task), [], ServerApp()

    def mark(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:  # 0 is before the first round
            marks.append(time.perf_counter())

    def everyone_replied(replies: list[RecordDict], weight: str) -> MetricRecord:
        """Refuse a round without some clients: FedAvg averages those who replied, and that would be cheaper."""
        if len(replies) != len(task.x):
            raise RuntimeError(f"{len(replies)} of {len(task.x)} clients replied")
        return MetricRecord()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        save(task, path)

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = FedAvg(
                fraction_evaluate=0.0,
                min_train_nodes=len(task.x),  # the share of nodes is taken of those that are there already
                min_available_nodes=len(task.x),
                train_metrics_aggr_fn=everyone_replied,
            )
            result = strategy.start(
                grid,
                ArrayRecord(module.state_dict()),
                num_rounds=task.rounds,
                train_config=ConfigRecord({"path": str(path)}),
                evaluate_fn=mark,
            )
            module.load_state_dict(result.arrays.to_torch_state_dict())

        run_simulation(server, client, num_supernodes=len(task.x), backend_config=RESOURCES)
    return Outcome(pace(marks), torch_models.mean_loss(module, task))
