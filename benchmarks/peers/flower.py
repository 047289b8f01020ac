"""Flower's simulation, on Ray: PyTorch clients and Flower's own FedAvg, as its tutorials write them."""

import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation

from benchmarks.peers import torch_models
from benchmarks.peers.task import Outcome, Task, load, pace, save

# As many clients at a time as there are cores.
RESOURCES: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

client = ClientApp()


class Cohorts(FedAvg):
    """Flower's FedAvg, which gives the agents of each round's cohort to nodes instead of drawing nodes."""

    def __init__(self, task: Task, path: Path) -> None:
        number = task.cohorts.shape[1]
        super().__init__(
            fraction_evaluate=0.0,
            min_train_nodes=number,
            min_available_nodes=nodes_of(task),
            train_metrics_aggr_fn=self.everyone_replied,
        )
        self.cohorts, self.path, self.nodes = task.cohorts, str(path), nodes_of(task)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        cohort = self.cohorts[server_round - 1]
        nodes, _ = sample_nodes(grid, self.nodes, len(cohort))
        return [self.message(arrays, int(agent), node) for agent, node in zip(cohort, nodes, strict=True)]

    def message(self, arrays: ArrayRecord, agent: int, node: int) -> Message:
        config = ConfigRecord({"path": self.path, "agent": agent})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return Message(content, dst_node_id=node, message_type=MessageType.TRAIN)

    def everyone_replied(self, replies: list[RecordDict], weight: str) -> MetricRecord:
        """Refuse a round without some clients: FedAvg averages those who replied, and that would be cheaper."""
        expected = self.cohorts.shape[1]
        if len(replies) != expected:
            raise RuntimeError(f"{len(replies)} of {expected} clients replied")
        return MetricRecord()


def nodes_of(task: Task) -> int:
    """Return the number of nodes: only the agents that take part in any round have one.

    Flower's simulation did not begin its first round within 5 minutes with one node for each of 342,477 agents.
    """
    return len(task.taking_part)


@cache
def _data(path: str) -> tuple[Task, dict[int, torch_models.Samples]]:
    """Return the data. It is read once per process, as by a client that caches its dataset."""
    task = load(path)
    return task, torch_models.samples(task, task.taking_part)


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content.config_records["config"]
    task, agents = _data(str(config["path"]))
    x, y = agents[int(config["agent"])]  # type: ignore[arg-type]
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

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        save(task, path)

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            arrays = ArrayRecord(module.state_dict())
            result = Cohorts(task, path).start(grid, arrays, num_rounds=task.rounds, evaluate_fn=mark)
            module.load_state_dict(result.arrays.to_torch_state_dict())

        run_simulation(server, client, num_supernodes=nodes_of(task), backend_config=RESOURCES)
    return Outcome(pace(marks), torch_models.final_loss(module, task))
