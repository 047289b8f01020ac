"""FedJAX: its `fed_avg`, with one compiled function per step, or `pmap` if XLA has several devices."""

import time
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.peers.task import ALPHA, BETA, Outcome, Task, pace

LAYERS = {"Conv_0": "conv2_d", "Conv_1": "conv2_d_1", "Dense_0": "linear", "Dense_1": "linear_1"}
PARTS = {"kernel": "w", "bias": "b"}


def play(task: Task) -> Outcome:
    losses, regularizer, params = logistic(task) if task.kind == "linear" else network(task)
    order = fedjax.ShuffleRepeatBatchHParams(batch_size=task.batch, num_epochs=1, skip_shuffle=True)
    sgd = fedjax.optimizers.sgd
    backend = "pmap" if jax.local_device_count() > 1 else "jit"
    with fedjax.for_each_client_backend(backend):
        algorithm = fed_avg.federated_averaging(fedjax.grad(losses, regularizer), sgd(task.step), sgd(1.0), order)
    images = task.x if task.kind == "linear" else task.x[..., None]
    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(images, task.y, strict=True)]
    clients = [(i, dataset, jax.random.PRNGKey(i)) for i, dataset in enumerate(datasets)]
    state, marks = algorithm.init(params), []
    for _ in range(task.rounds):
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        marks.append(time.perf_counter())
    batches = [dataset.all_examples() for dataset in datasets]
    fit = np.mean([jnp.mean(losses(state.params, batch, None)) for batch in batches])
    return Outcome(pace(marks), float(fit + (regularizer(state.params) if regularizer else 0)))


def logistic(task: Task) -> tuple[Any, Any, Any]:
    def losses(params: Any, batch: Any, rng: Any) -> Any:
        return jax.nn.softplus(-batch["y"] * (batch["x"] @ params["w"]))

    def penalty(params: Any) -> Any:
        squares = ALPHA * params["w"] ** 2
        return BETA * jnp.sum(squares / (1 + squares))

    return losses, penalty, {"w": jnp.asarray(task.start["w"])}


def network(task: Task) -> tuple[Any, Any, Any]:
    def scores(x: Any) -> Any:
        for channels in (8, 16):
            x = jax.nn.relu(hk.Conv2D(channels, 5)(x))
            x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
        x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
        return hk.Linear(task.classes)(x)

    forward = hk.without_apply_rng(hk.transform(scores))

    def losses(params: Any, batch: Any, rng: Any) -> Any:
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], forward.apply(params, batch["x"]))

    params: dict[str, Any] = {layer: {} for layer in LAYERS.values()}
    for name, array in task.start.items():
        layer, part = name.split("/")
        params[LAYERS[layer]][PARTS[part]] = jnp.asarray(array)
    return losses, None, params
