"""Run a task with plain PyTorch: a loop over agents, without a library."""

import time

import numpy as np
import torch

from benchmarks import torch_loop
from benchmarks.peers import torch_models
from benchmarks.peers.task import Outcome, Task, pace


def play(task: Task) -> Outcome:
    module, data = torch_models.model(task), torch_models.agents(task)
    draws = np.tile(np.arange(task.y.shape[1]).reshape(task.steps, task.batch), (len(data), 1, 1))
    x0, marks = [leaf.detach().clone() for leaf in module.parameters()], []
    for _ in range(task.rounds):
        x0 = torch_loop.fedavg_round(module, x0, data, draws, task.step)
        marks.append(time.perf_counter())
    with torch.no_grad():
        for mine, value in zip(module.parameters(), x0, strict=True):
            mine.copy_(value)
    return Outcome(pace(marks), torch_models.mean_loss(module, task))
