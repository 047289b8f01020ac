"""Run a task with plain PyTorch: a loop over agents, without a library."""

import time

import numpy as np
import torch

from benchmarks import torch_loop
from benchmarks.peers import torch_models
from benchmarks.peers.task import Outcome, Task, pace


def play(task: Task) -> Outcome:
    module, data = torch_models.model(task), torch_models.samples(task, task.taking_part)
    draws = np.tile(np.arange(task.steps * task.batch).reshape(task.steps, task.batch), (task.cohorts.shape[1], 1, 1))
    x0, marks = [leaf.detach().clone() for leaf in module.parameters()], []
    for cohort in task.cohorts:
        x0 = torch_loop.fedavg_round(module, x0, [data[int(i)] for i in cohort], draws, task.step)
        marks.append(time.perf_counter())
    with torch.no_grad():
        for mine, value in zip(module.parameters(), x0, strict=True):
            mine.copy_(value)
    return Outcome(pace(marks), torch_models.final_loss(module, task))
