"""Modules of flax.nnx: the model is a nested dict of their `nnx.Param`."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import FedpdError, below, refuse
from fedpd.base.errors import extra
from fedpd.core import Array, Key, Spec, Tree
from fedpd.problems.adapters.adapter import Adapter, identify
from fedpd.problems.classification import Normalisation

with extra("networks", "problems.network"):
    from flax import nnx

Path = tuple[Any, ...]


class Mode(NamedTuple):
    """A module without its arrays, and its variables by path."""

    graph: Any
    variables: list[tuple[Path, Any]]


class Modes(NamedTuple):
    """The module in training, in training without random layers, and in evaluation, and the module itself."""

    train: Mode
    quiet: Mode
    evaluate: Mode
    module: Any

    @property
    def spec(self) -> Spec:
        arrays = (nnx.Module, nnx.Variable, nnx.Rngs, nnx.RngStream)
        return identify(nnx.iter_modules(self.module), arrays)


def adapt(module: Any, example: Array, *, backend: str, seed: int) -> Adapter:
    """Return an nnx module as a function of its parameters; the module itself does not change.

    Args:
        module: An nnx module whose __call__ takes x.

    Raises:
        FedpdError: If the module has other variables than parameters, batch statistics and random numbers, or if
            `module.eval()` does not turn its random layers off.
    """
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if not isinstance(variable, nnx.Param | nnx.BatchStat | nnx.RngState):
            rule = "fedpd supports only nnx.Param, nnx.BatchStat and the random numbers of nnx"
            refuse(f"variable {'/'.join(map(str, path))}", type(variable).__name__, rule, "Use a module without it")
    settings = ((False, False), (True, False), (True, True))
    train, quiet, evaluate = (_in_mode(module, *setting) for setting in settings)
    modes = Modes(train, quiet, evaluate, module)
    start = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    if _draws(modes.evaluate, start, example):
        raise FedpdError(
            f"{type(module).__name__} draws random numbers (dropout) also after module.eval(), where fedpd measures. "
            "Use nnx.Dropout."
        )
    random = _draws(modes.train, start, example)
    momenta = {path: one.momentum for path, one in nnx.iter_modules(module) if isinstance(one, nnx.BatchNorm)}
    if not momenta:
        return Adapter(start, partial(_scores, modes), random)
    for path, momentum in momenta.items():
        remedy = "With 1 the statistics never change; 0.99 is usual"
        below(f"momentum of {'/'.join(map(str, path))}", momentum, 1, remedy)
    normalise = Normalisation(partial(_statistics, modes, momenta), partial(_evaluated, modes))
    return Adapter(start, partial(_scores, modes), random, normalise)


def plain(module: Any, parameters: Tree, x: Array, key: Key | None, train: bool) -> Array:
    """Return the scores as a user of nnx computes them: the module after `train()` or `eval()`, called."""
    own = load(nnx.clone(module), parameters)
    own.train() if train else own.eval()
    for number, (_, variable) in enumerate(nnx.to_flat_state(nnx.state(own))):
        if key is not None and isinstance(variable, nnx.RngKey):  # random layers draw the numbers of fedpd's
            variable.set_value(jax.random.fold_in(key, number))
    return own(x)


def load(module: Any, model: Tree) -> Any:
    """Return the module, changed to have the parameters of a model."""
    own = dict(nnx.to_flat_state(nnx.state(module, nnx.Param)))
    given = dict(_by_path(model))
    if not set(given) <= set(own) or any(np.shape(given[path]) != own[path].shape for path in given):
        rule = "must have paths and shapes of the module's parameters"
        refuse("model", sorted("/".join(map(str, path)) for path in given), rule, "Give the model of this module")
    flat = {path: own[path].replace(jnp.asarray(value)) for path, value in given.items()}
    nnx.update(module, nnx.from_flat_state(flat))
    return module


def _by_path(tree: Tree) -> list[tuple[Path, Any]]:
    """Return the leaves of nested dicts by path."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(key.key for key in path), leaf) for path, leaf in paths]


def _in_mode(module: Any, deterministic: bool, use_running_average: bool) -> Mode:
    own = nnx.clone(module)
    own.set_attributes(deterministic=deterministic, raise_if_not_found=False)
    own.set_attributes(use_running_average=use_running_average, raise_if_not_found=False)
    graph, state = nnx.split(own)
    return Mode(graph, list(nnx.to_flat_state(state)))


def _build(mode: Mode, parameters: Tree, statistics: Tree | None, key: Key | None) -> Any:
    """Return the module with these arrays; `statistics` are by path, and None are zeros."""
    own = dict(_by_path(parameters))

    def value(number: int, path: Path, variable: Any) -> Any:
        if isinstance(variable, nnx.Param):
            return own[path]
        if isinstance(variable, nnx.BatchStat):
            return jnp.zeros(variable.shape, variable.dtype) if statistics is None else statistics[path]
        if isinstance(variable, nnx.RngKey):
            return variable.get_value() if key is None else jax.random.fold_in(key, number)
        return jnp.zeros(variable.shape, variable.dtype)  # how many numbers were drawn

    flat = {path: one.replace(value(number, path, one)) for number, (path, one) in enumerate(mode.variables)}
    return nnx.merge(mode.graph, nnx.from_flat_state(flat))


def _draws(mode: Mode, start: Tree, example: Array) -> bool:
    """Return whether the module draws random numbers in this mode."""
    module = _build(mode, start, None, jax.random.key(0))
    module(example)
    return any(int(variable.get_value()) > 0 for _, variable in nnx.to_flat_state(nnx.state(module, nnx.RngCount)))


def _scores(modes: Modes, parameters: Tree, x: Array, key: Key | None) -> Array:
    return _build(modes.quiet if key is None else modes.train, parameters, None, key)(x)


def _statistics(modes: Modes, momenta: dict[Path, float], parameters: Tree, x: Array) -> Tree:
    """Return the statistics of the batch by path: nnx stores m s + (1 - m) b, and s = 0."""
    module = _build(modes.quiet, parameters, None, None)
    module(x)
    updated = nnx.to_flat_state(nnx.state(module, nnx.BatchStat))
    return {path: variable.get_value() / (1 - momenta[path[:-1]]) for path, variable in updated}


def _evaluated(modes: Modes, parameters: Tree, statistics: Tree, x: Array) -> Array:
    return _build(modes.evaluate, parameters, statistics, None)(x)
