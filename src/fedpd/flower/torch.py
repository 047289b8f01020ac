"""PyTorch clients: `torch_local` returns a `Local` from an nn.Module, a loss and a DataLoader.

    def local(context):
        return torch_local(module, nn.CrossEntropyLoss(), loader)

The model is a dict with the module's parameters by name. The module's buffers never leave the client: the oracles of
`torch_oracles` keep them in their memory between rounds. Batch normalisation follows the rule of simulations: a batch
is normalised by its own statistics, and for evaluation the client measures its statistics at the model. The data are
rows (number of the client, index of the sample). fedpd draws a batch from seed, round and agent as in a simulation, and
fetches it with the loader's own dataset and collate_fn. Any oracle works; the oracles of `torch_oracles` do a whole
local solve in PyTorch.

Clients of one process share compiled programs, which find the client's module and dataset by its number. Eight clients
of the PyTorch template in one process took 3.1 s of CPU for three rounds and 12.5 s with programs of their own.
"""

import copy
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.errors import extra
from fedpd.core import Array, Key, Tree
from fedpd.core.agents import BLOCK
from fedpd.data.labels import IGNORED
from fedpd.flower.method.agent import Local
from fedpd.flower.method.shapes import TorchArray
from fedpd.problems.adapters.torch_batch_norm import batch_norms, normalised_by_buffers, statistics
from fedpd.problems.adapters.torch_reference import (
    BY_CLASS,
    arguments_of,
    check_names,
    fitted,
    unwrapped,
    warn_of_mean,
)
from fedpd.problems.external import call_back, external
from fedpd.problems.scores import class_axis, has_one_output, is_right

with extra("torch", "fedpd.flower.torch"):
    import torch
    from torch import Tensor, nn
    from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, TensorDataset, default_collate

__all__ = ["load_model", "model_of", "torch_local"]

PerSample = Callable[[Any, Any], Tensor]  # (the module's outputs, targets) -> (B,)
FEW = 8  # samples on which the module's modes are compared
CHUNK = 256  # samples that a full gradient takes at a time, if the loader has no batch size
_NUMBERS = count(1)
_ONE_AT_A_TIME = threading.Lock()
_CLIENTS: WeakValueDictionary[int, "TorchLosses"] = WeakValueDictionary()  # the clients of this process, by number


def torch_local(
    module: nn.Module,
    loss: PerSample,
    loader: DataLoader,
    *,
    test: DataLoader | None = None,
    correct: PerSample | None = None,
    metrics: Mapping[str, PerSample] | None = None,
) -> Local:
    """Return a client's part of the problem.

    Args:
        module: The model; its parameters that require a gradient are trained. If it returns an object or a dict with
            `logits`, these are its outputs.
        loss: A loss of PyTorch's, or a function (outputs, targets) -> (B,), one loss per sample. Targets of -100 do not
            count in a cross entropy: the loss of a sample is the mean over its other targets.
        loader: Batches (inputs, targets), or dicts in which "labels" are the targets. Inputs that are a dict, such as
            {"input_ids": ..., "attention_mask": ...}, are given to the module by name. fedpd uses the loader's dataset,
            batch size and collate_fn, but draws its own order.
        test: Test samples.
        correct: (outputs, targets) -> (B,), whether the module is right. None: whether the largest output is that of
            the class, and of one output whether its sign is that of the class (0 and 1, or -1 and 1); if the targets
            are not classes, there are no accuracies.
        metrics: More to measure on test samples, {name: (outputs, targets) -> (B,)}.
    """
    size, more = (0 if one is None else _size(one) for one in (loader, test))
    dataset = loader.dataset if test is None else ConcatDataset([loader.dataset, test.dataset])
    losses = TorchLosses(module, loss, dataset, loader)
    rows = np.stack([np.full(size + more, losses.number), np.arange(size + more)], axis=1).astype(np.int32)
    _check_batch(losses, rows[: min(size, FEW)])
    if correct is None and test is not None and isinstance(loss, nn.BCELoss):
        rule = "needs probabilities, and fedpd takes one output for a logit, so that its accuracies would be wrong"
        remedy = "Use nn.BCEWithLogitsLoss() without a sigmoid, or give `correct`"
        refuse("loss", "BCELoss", rule, f"{remedy}, e.g. lambda p, y: (p.flatten() > 0.5) == (y.flatten() > 0.5)")
    if correct is None and test is not None and _predicts_classes(losses, rows[size : size + CHUNK]):
        correct = predicts_target
    judge = None if correct is None else losses.judged("correct", correct)
    own = {name: losses.judged(f"metric {name}", metric) for name, metric in (metrics or {}).items()}
    tests = None if test is None else rows[size:]
    local = Local(losses, rows[:size], correct=judge, test=tests, metrics=own, check=False)
    losses.modes_differ = _modes_differ(losses, rows[:size][:FEW] if size > 1 else rows[[0, 0]])
    if losses.modes_differ:
        local = local._replace(random=TrainingLosses(losses))
    if losses.judge is module:
        return local
    return local._replace(statistics=BatchStatistics(losses), test_losses=losses.judged("loss", losses.loss))


def model_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Return the module's parameters as a model of fedpd, from which a server can start.

    A model that a federation trains from it loads as tensors: `module.load_state_dict(fedpd.load_model(out))`.
    """
    return {name: array_of(tensor).copy().view(TorchArray) for name, tensor in parameters_of(module).items()}


def load_model(module: nn.Module, model: Mapping[str, Any]) -> nn.Module:
    """Return the module with the parameters of a model; its buffers stay.

    Raises:
        FedpdError: If the model does not belong to this module.
    """
    parameters = parameters_of(module)
    if set(model) != set(parameters):
        refuse(
            "model", sorted(model), f"must hold the parameters {sorted(parameters)}", "Give the model of this module"
        )
    load(parameters, model)
    return module


class TorchLosses:
    """The losses F(x; xi) of a module, as a function of (parameters, rows of `torch_local`) for JAX code.

    Two of them are equal if a program that is compiled for one also computes for the other. A program calls `owner` for
    the client of its data. So only what is part of a program must be equal: the layers with batch normalisation and the
    buffers at the start.

    Attributes:
        number: The client's number in this process, from 1.
        modes_differ: Whether the module in training differs from the module in evaluation, e.g. by dropout. Then its
            losses are those in evaluation, and oracles train it as after `module.train()`; otherwise in its own mode.
        judges: The functions (outputs, targets) -> (B,) of `judged`, by name.
    """

    def __init__(self, module: nn.Module, loss: PerSample, dataset: Any, loader: DataLoader) -> None:
        self.module, self.loss, self.dataset = module, _per_sample(loss), dataset
        self.collate, self.chunk = loader.collate_fn or default_collate, loader.batch_size or CHUNK
        self.parameters = parameters_of(module)
        self.norms = batch_norms(module)
        self.judge = normalised_by_buffers(module) if self.norms else module
        self.chunk = BLOCK if self.norms else self.chunk  # f_i is made of batches of this size
        self.judges: dict[str, PerSample] = {}
        self.modes_differ = False
        self._call = external(self._values, self._gradient)
        self._program = tuple((name, layer.num_features) for name, layer in self.norms.items()), _digest(module)
        self.number = next(_NUMBERS)
        _CLIENTS[self.number] = self

    def __call__(self, model: Tree, batch: Tree) -> Array:
        return self._call(model, batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchLosses) and self._program == other._program

    def __hash__(self) -> int:
        return hash(self._program)

    def owner(self, rows: np.ndarray) -> "TorchLosses":
        """Return the losses of the client that these rows belong to; rows with number 0 fill up a batch.

        Raises:
            FedpdError: If that client is no longer in this process.
        """
        number = int(rows[:, 0].max(initial=0))
        found = _CLIENTS.get(number, None if number else self)
        if found is None:
            raise FedpdError(f"client number {number} is not in this process. Keep its `Local` while you use its data.")
        return found

    def losses(self, indices: np.ndarray) -> Tensor:
        """Return the losses (B,) at the module's own parameters."""
        inputs, targets = self.fetch(indices)
        return values_of(self.loss, outputs_of(self.module, inputs), targets, len(indices))

    def fetch(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Return the inputs and the targets of these samples, on the module's device."""
        rows = indices[:, 1].tolist()
        if isinstance(self.dataset, TensorDataset) and self.collate is default_collate:
            batch: Any = [tensor[rows] for tensor in self.dataset.tensors]
        elif hasattr(self.dataset, "__getitems__"):
            batch = self.collate(self.dataset.__getitems__(rows))
        else:
            batch = self.collate([self.dataset[row] for row in rows])
        device = next(iter(self.parameters.values())).device
        pair = _inputs_and_targets(batch)
        return jax.tree.map(lambda part: part.to(device) if isinstance(part, Tensor) else part, pair)

    def set_mode(self, *, train: bool) -> None:
        """Set the module's mode; batches are normalised by their own statistics in both. Use it if modes differ."""
        self.module.train(train)
        for layer in self.norms.values():
            layer.train()

    def gradient(self, indices: np.ndarray, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return the gradient of the mean of the losses, or of their weighted sum, at the module's own parameters."""
        losses = self.losses(indices)
        value = losses.mean() if weights is None else (losses * weights.to(losses)).sum()
        return dict(zip(self.parameters, torch.autograd.grad(value, list(self.parameters.values())), strict=True))

    def weighted_gradient(self, indices: np.ndarray, weights: Tensor) -> dict[str, Tensor]:
        """Return the gradient of the weighted sum of the losses of any number of samples, computed in chunks."""
        total = {name: torch.zeros_like(tensor) for name, tensor in self.parameters.items()}
        for first in range(0, len(indices), self.chunk):
            piece = slice(first, first + self.chunk)
            for name, part in self.gradient(indices[piece], weights[piece]).items():
                total[name] += part
        return total

    def full_gradient(self, indices: np.ndarray, weight: float) -> dict[str, Tensor]:
        """Return the gradient of the sum of all losses times a weight; with batch normalisation, by batches of f_i."""
        size = len(indices)
        weights = torch.full((size,), weight, dtype=torch.float64)
        if self.norms:  # the first samples fill up the last batch, and are not summed again
            indices = np.resize(indices, (size + -size % BLOCK, 2))
            weights = torch.cat([weights, torch.zeros(len(indices) - size, dtype=torch.float64)])
        return self.weighted_gradient(indices, weights)

    def judged(self, name: str, values: PerSample) -> "Judged":
        """Return values(outputs, targets) as a function of (model, indices), in evaluation."""
        self.judges[name] = values
        return Judged(self, name)

    @contextmanager
    def at(self, model: Tree, seed: int = 0, *, train: bool = False) -> Iterator[None]:
        """Compute at a model, in evaluation or in training if these differ, with the random numbers of a seed."""
        with locked(self.module), seeded(seed):
            load(self.parameters, model)
            if self.modes_differ:
                self.set_mode(train=train)
            yield

    def _values(self, model: Tree, indices: np.ndarray) -> np.ndarray:
        own = self.owner(indices)
        with torch.no_grad(), own.at(model):
            return array_of(own.losses(indices))

    def _gradient(self, model: Tree, indices: np.ndarray, weights: np.ndarray) -> Tree:
        own = self.owner(indices)
        with own.at(model):
            return {name: array_of(part) for name, part in own.weighted_gradient(indices, tensor_of(weights)).items()}


@dataclass(frozen=True)
class TrainingLosses:
    """The losses in training, as a function of (model, rows, key) for JAX code; random numbers come from the key."""

    losses: TorchLosses

    def __call__(self, model: Tree, batch: Tree, key: Key) -> Array:
        return external(self._values, self._gradient)(model, (batch, jax.random.bits(key, dtype=jnp.uint32)))

    def _values(self, model: Tree, batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        indices, seed = batch
        own = self.losses.owner(indices)
        pieces = range(0, len(indices), own.chunk)  # those of the gradient, so that they draw the same numbers
        with torch.no_grad(), own.at(model, int(seed), train=True):
            return np.concatenate([array_of(own.losses(indices[first : first + own.chunk])) for first in pieces])

    def _gradient(self, model: Tree, batch: tuple[np.ndarray, np.ndarray], weights: np.ndarray) -> Tree:
        indices, seed = batch
        own = self.losses.owner(indices)
        with own.at(model, int(seed), train=True):
            return {name: array_of(part) for name, part in own.weighted_gradient(indices, tensor_of(weights)).items()}


@dataclass(frozen=True)
class Judged:
    """A function of `TorchLosses.judges`, as a function of (model, rows) for JAX code.

    With batch normalisation it is a function of ((model, statistics), rows).
    """

    losses: TorchLosses
    name: str

    def __call__(self, model: Tree, batch: Tree) -> Array:
        return external(self._compute, _no_gradient)(model, batch)

    def _compute(self, model: Tree, indices: np.ndarray) -> np.ndarray:
        own = self.losses.owner(indices)
        with torch.no_grad(), locked(own.judge), seeded(0):
            own.judge.eval()
            given = {**model[0], **model[1]} if own.norms else model
            tensors = dict(own.judge.named_parameters()) | dict(own.judge.named_buffers())
            load({name: tensors[name] for name in given}, given)
            inputs, targets = own.fetch(indices)
            found = values_of(own.judges[self.name], outputs_of(own.judge, inputs), targets, len(indices))
            return array_of(found.to(next(iter(own.parameters.values())).dtype))


@dataclass(frozen=True)
class BatchStatistics:
    """The statistics that batch normalisation uses for a batch, as a function of (model, rows) for JAX code."""

    losses: TorchLosses

    def __call__(self, model: Tree, batch: Tree) -> Tree:
        dtype, norms = jnp.result_type(*jax.tree.leaves(model)), self.losses.norms
        names = [f"{layer}.{own}".lstrip(".") for layer in norms for own in ("running_mean", "running_var")]
        sizes = [one.num_features for one in norms.values() for _ in range(2)]
        shapes = {name: jax.ShapeDtypeStruct((size,), dtype) for name, size in zip(names, sizes, strict=True)}
        return call_back(self._compute, shapes, model, batch)

    def _compute(self, model: Tree, indices: np.ndarray) -> Tree:
        own = self.losses.owner(indices)
        with torch.no_grad(), locked(own.module):
            load(own.parameters, model)
            own.module.eval()
            for layer in own.norms.values():
                layer.train()
            return {name: array_of(one) for name, one in statistics(own.module, {}, own.fetch(indices)[0]).items()}


def _modes_differ(losses: TorchLosses, indices: np.ndarray) -> bool:
    """Return whether `module.train()` changes the outputs for some samples, apart from batch statistics."""
    inputs = losses.fetch(indices)[0]

    def outputs(train: bool, seed: int) -> tuple[list[Tensor], bool]:
        with torch.no_grad(), locked(losses.module), seeded(seed):
            losses.set_mode(train=train)
            before = torch.get_rng_state()
            found = [one for one in jax.tree.leaves(outputs_of(losses.module, inputs)) if isinstance(one, Tensor)]
            return found, torch.equal(before, torch.get_rng_state())

    (quiet, _), (train, is_still), (other, _) = outputs(False, 0), outputs(True, 0), outputs(True, 1)
    pairs = [*zip(train, quiet, strict=True), *zip(train, other, strict=True)]
    return not (is_still and all(torch.allclose(a, b, equal_nan=True) for a, b in pairs))


def _predicts_classes(losses: TorchLosses, indices: np.ndarray) -> bool:
    """Return whether the targets of these samples are classes, for which the outputs are scores."""
    with torch.no_grad(), locked(losses.module), seeded(0):
        inputs, targets = losses.fetch(indices)
        return are_classes(outputs_of(losses.module.eval(), inputs), targets)


def _size(loader: DataLoader) -> int:
    if not isinstance(loader, DataLoader):
        refuse("loader", loader, "must be a DataLoader", "Give DataLoader(dataset, batch_size=32)")
    if isinstance(loader.dataset, IterableDataset):
        rule = "has no indices, so a batch cannot be drawn from seed, round and agent"
        refuse("loader", type(loader.dataset).__name__, rule, "Give a dataset with __len__ and __getitem__")
    dataset: object = loader.dataset
    if not isinstance(dataset, Sized):
        rule = "has no length, so a batch cannot be drawn from seed, round and agent"
        refuse("loader", type(dataset).__name__, rule, "Give a dataset with __len__ and __getitem__")
    if not len(dataset):
        raise FedpdError("the loader has no samples, so f_i is not defined. Leave the client out.")
    return len(dataset)


def _digest(module: nn.Module) -> str:
    """Return a hash of the module's buffers, by name, type, shape and value."""
    found = hashlib.sha256()
    for name, tensor in module.named_buffers():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + array_of(tensor).tobytes())
    return found.hexdigest()


def _per_sample(loss: PerSample) -> PerSample:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        warn_of_mean(loss)
        loss = copy.copy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 - nn.Module types its attributes as tensors
    return loss


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """Return the two parts of a batch of a loader."""
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            refuse("batch of the loader", sorted(batch), 'must have "labels"', "Give the targets by this name")
        return {name: part for name, part in batch.items() if name != "labels"}, batch["labels"]
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        what = f"{len(batch)} parts" if isinstance(batch, list | tuple) else type(batch).__name__
        refuse("batch of the loader", what, "must be (inputs, targets)", 'Return two parts, or a dict with "labels"')
    inputs, targets = batch
    return dict(inputs) if isinstance(inputs, Mapping) else inputs, targets


def _check_batch(losses: TorchLosses, indices: np.ndarray) -> None:
    """Refuse inputs that the module does not take, and targets that are the tokens themselves."""
    inputs, targets = losses.fetch(indices)
    check_names(losses.module, inputs)
    if not isinstance(inputs, dict) or not isinstance(targets, Tensor) or targets.ndim < 2:
        return
    for name, entry in inputs.items():
        same = isinstance(entry, Tensor) and entry.shape == targets.shape and bool((targets != IGNORED).any())
        if same and bool(((entry == targets) | (targets == IGNORED)).all()) and len(targets.unique()) > 2:
            rule = f"are {name} itself, but must be the tokens that follow"
            refuse("targets", f"{tuple(targets.shape)}", rule, "Shift them: inputs tokens[:-1], targets tokens[1:]")


def outputs_of(module: nn.Module, inputs: Any) -> Any:
    """Return what the module returns for a batch, or its `logits`."""
    positional, named = arguments_of(inputs)
    found = module(*positional, **named)
    outputs = unwrapped(found)
    if outputs is not found and outputs.ndim == 3 and outputs.shape[1] == outputs.shape[2]:
        rule = "could be the scores of the classes along either axis"
        refuse("shape of the logits", tuple(outputs.shape), rule, "Pad the texts to another length")
    return outputs


def values_of(values: PerSample, outputs: Any, targets: Any, number: int) -> Tensor:
    """Return (B,) the values of a loss or a metric; a loss of PyTorch's takes them in its own form.

    A cross entropy of several targets per sample, such as tokens, is the mean over those that are not ignored.
    """
    ignored: Any = None
    if isinstance(values, nn.Module) and isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        if isinstance(values, BY_CLASS) and outputs.ndim > 2 and class_axis(outputs.shape, targets.shape) == -1:
            outputs = outputs.movedim(-1, 1)
        outputs, targets = fitted(values, outputs, targets)
        ignored = getattr(values, "ignore_index", None)
    found = values(outputs, targets)
    if ignored is None or found.ndim < 2 or found.shape != targets.shape:
        return one_per_sample(found, number)
    known = (targets != ignored).flatten(1).sum(1)
    return one_per_sample(found, number) * (found[0].numel() / known.clamp(min=1)).to(found.dtype)


def _no_gradient(model: Tree, indices: np.ndarray, weights: np.ndarray) -> Tree:
    raise FedpdError("the function `correct` has no gradient. Train with a loss.")


def one_per_sample(values: Tensor, number: int) -> Tensor:
    """Return the values (B,) of B samples, means over the other axes; refuse values that are averaged over samples."""
    if values.shape[:1] != (number,):
        shape = tuple(values.shape)
        refuse("shape of the loss", shape, f"must be ({number},), one per sample", "Give it reduction='none'")
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name; refuse a module without such parameters."""
    if not isinstance(module, nn.Module):
        refuse("module", module, "must be an nn.Module", "Give the model itself, not its class")
    parameters = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    if not parameters:
        raise FedpdError("the module has no parameters that require a gradient. Set requires_grad of some to True.")
    for name, tensor in parameters.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            refuse(f"type of parameter {name}", str(tensor.dtype), "must be float32 or float64", "Use module.float()")
    return parameters


def load(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Copy arrays into tensors, in place."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(tensor_of(values[name]))


def tensor_of(array: Any) -> Tensor:
    """Return a copy of an array as a tensor."""
    return torch.from_numpy(np.array(array))  # a copy: JAX's arrays must not be written to


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array on the CPU."""
    return tensor.detach().cpu().numpy()


@contextmanager
def locked(module: nn.Module) -> Iterator[None]:
    """Lock the module, and restore its buffers and mode at the end.

    JAX calls back from one thread per device, and there is one module. Without the lock, threads would compute with
    each other's parameters.
    """
    with _ONE_AT_A_TIME:
        mode, buffers = module.training, {name: tensor.clone() for name, tensor in module.named_buffers()}
        try:
            yield
        finally:
            module.train(mode)
            for name, tensor in module.named_buffers():
                tensor.copy_(buffers[name])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Use this seed for the module's random numbers (dropout); restore the user's generators at the end."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # torchax adds a device without generators
        torch.manual_seed(seed)
        yield


def predicts_target(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether the outputs predict the targets, by the rule of simulations."""
    if not are_classes(outputs, targets):
        rule = "other targets of the same data set are classes, 0 and 1 or -1 and 1 for one output"
        refuse("targets", targets.unique().tolist()[:5], rule, "Give torch_local a function `correct`")
    right = is_right(outputs, targets)
    if right.ndim < 2:
        return right
    known = (targets != IGNORED).flatten(1)
    return (right.flatten(1) & known).sum(1) / known.sum(1).clamp(min=1)


def are_classes(outputs: Tensor, targets: Any) -> bool:
    """Return whether targets are numbers of classes, for which the outputs are scores."""
    if not isinstance(targets, Tensor) or not isinstance(outputs, Tensor):
        return False
    if has_one_output(outputs.shape, targets.shape):
        found = set(targets.flatten().tolist())
        return found <= {0, 1} or found <= {-1, 1}
    whole = not targets.is_floating_point() or bool((targets == targets.round()).all())
    return whole and class_axis(outputs.shape, targets.shape) is not None
