"""FedJAX: its `fed_avg`, with one compiled function per step, or `pmap` if XLA has several devices."""

import time
from functools import partial
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from fedjax.algorithms import fed_avg

from benchmarks.peers.task import ALPHA, BETA, Outcome, Task, pace

LAYERS = {
    "Conv_0": "conv2_d",
    "Conv_1": "conv2_d_1",
    "Dense_0": "linear",
    "Dense_1": "linear_1",
    "Embed_0": "embed",
}
PARTS = {"kernel": "w", "bias": "b", "embedding": "embeddings"}


def play(task: Task) -> Outcome:
    losses, regularizer, params = logistic(task) if task.kind == "linear" else classifier(task)
    order = fedjax.ShuffleRepeatBatchHParams(batch_size=task.batch, num_epochs=1, skip_shuffle=True)
    sgd = fedjax.optimizers.sgd
    backend = "pmap" if jax.local_device_count() > 1 else "jit"
    with fedjax.for_each_client_backend(backend):
        algorithm = fed_avg.federated_averaging(fedjax.grad(losses, regularizer), sgd(task.step), sgd(1.0), order)
    data = {i: dataset(task, x, y) for i, (x, y) in task.samples(task.taking_part).items()}
    keys = {i: jax.random.PRNGKey(i) for i in data}
    state, marks = algorithm.init(params), []
    for cohort in task.cohorts.tolist():
        state, _ = algorithm.apply(state, [(i, data[i], keys[i]) for i in cohort])
        jax.block_until_ready(state.params)
        marks.append(time.perf_counter())
    fit = mean(losses, state.params, dataset(task, *task.last_samples()))
    return Outcome(pace(marks), float(fit + (regularizer(state.params) if regularizer else 0)))


def dataset(task: Task, x: Any, y: Any) -> fedjax.ClientDataset:
    return fedjax.ClientDataset({"x": x[..., None] if task.kind == "cnn" else x, "y": y})


def mean(losses: Any, params: Any, samples: fedjax.ClientDataset) -> Any:
    parts = [jnp.sum(losses(params, batch, None)) for batch in samples.batch(batch_size=100)]
    return sum(parts) / len(samples)


def logistic(task: Task) -> tuple[Any, Any, Any]:
    def losses(params: Any, batch: Any, rng: Any) -> Any:
        return jax.nn.softplus(-batch["y"] * (batch["x"] @ params["w"]))

    def penalty(params: Any) -> Any:
        squares = ALPHA * params["w"] ** 2
        return BETA * jnp.sum(squares / (1 + squares))

    return losses, penalty, {"w": jnp.asarray(task.start["w"])}


def classifier(task: Task) -> tuple[Any, Any, Any]:
    """Return the cross entropy of the task's network, no regulariser, and the start in haiku's names and layout."""
    forward: Any = hk.without_apply_rng(hk.transform(partial(SCORES[task.kind], task)))

    def losses(params: Any, batch: Any, rng: Any) -> Any:
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], forward.apply(params, batch["x"]))

    params: dict[str, Any] = {}
    for name, array in task.start.items():
        layer, part = name.split("/")
        params.setdefault(LAYERS[layer], {})[PARTS[part]] = jnp.asarray(array)
    return losses, None, params


def small_cnn(task: Task, x: Any) -> Any:
    for channels in (8, 16):
        x = jax.nn.relu(hk.Conv2D(channels, 5)(x))
        x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(task.classes)(x)


def cifar(task: Task, x: Any) -> Any:
    for channels in (32, 64):
        x = jax.nn.relu(hk.Conv2D(channels, 3, padding="VALID")(x))
    x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(task.classes)(x)


def softmax(task: Task, x: Any) -> Any:
    return hk.Linear(task.classes)(x)


def tags(task: Task, x: Any) -> Any:
    words, width = task.start["Embed_0/embedding"].shape
    return hk.Linear(task.classes)(hk.Embed(words, width)(x).mean(axis=-2))


SCORES = {"cnn": small_cnn, "cifar": cifar, "softmax": softmax, "tags": tags}
