"""pfl-research: its `FederatedAveraging` of a PyTorch model on its simulated backend.

Under torchrun its processes share a round's agents.
"""

import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import torch_models
from benchmarks.peers.task import Outcome, Task, pace


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.marks: list[float] = []

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
        self.marks.append(time.perf_counter())
        return False, Metrics()


def play(task: Task) -> Outcome:
    module, data = torch_models.model(task), torch_models.samples(task, task.taking_part)

    def metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:  # pfl asks for them at its first round, untimed
        return {"loss": Weighted(len(x) * module.loss(x, y).item(), len(x))}

    module.metrics = metrics  # type: ignore[assignment]
    users = {i: PyTorchTensorDataset(samples, user_id=str(i)) for i, samples in data.items()}
    order = [int(i) for cohort in task.cohorts for i in cohort]
    federation = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(order))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(task.rounds, task.rounds, train_cohort_size=task.cohorts.shape[1], val_cohort_size=0),
        SimulatedBackend(federation, federation),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=task.batch, local_num_epochs=1, local_learning_rate=task.step),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return Outcome(pace(clock.marks), torch_models.final_loss(module, task))
