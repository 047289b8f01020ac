"""Describe to apps with loops of their own (`fedpd.flower.mod`) which arrays they have, and which are the model.

An app loads its own arrays by name, such as a `state_dict`. The method's model is a part of them. An order describes
both in its entry MODULE, and carries the other arrays in its record REST.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

from fedpd.base.checks import refuse
from fedpd.flower.carry.protocol import PREFIX
from fedpd.flower.carry.records import RefusedError

MODULE, REST = PREFIX + "module", "rest"


class OwnApp(NamedTuple):
    """The arrays of an app.

    Attributes:
        model: The model, arrays by name.
        sources: By name of the app's arrays, in their order, the array of the model that it is; "": none.
        rest: The arrays that are no part of the model.
    """

    model: dict[str, np.ndarray]
    sources: dict[str, str]
    rest: ArrayRecord

    @property
    def description(self) -> str:
        """The entry of an order."""
        shapes = {name: [str(array.dtype), list(array.shape)] for name, array in self.model.items()}
        return json.dumps({"sources": list(self.sources.items()), "model": shapes})


def own_app(start: Any) -> OwnApp:
    """Return the arrays of an app that trains this PyTorch module, or these arrays by name."""
    if hasattr(start, "state_dict") and hasattr(start, "named_parameters"):
        return _of_module(start)
    if not isinstance(start, Mapping) or not all(isinstance(name, str) for name in start):
        rule = "must be a PyTorch module, or arrays by name, for apps with loops of their own"
        refuse("start", type(start).__name__, rule, "Give the module that the apps train")
    model = {name: np.asarray(array) for name, array in start.items()}
    return OwnApp(model, {name: name for name in model}, ArrayRecord())


def _of_module(module: Any) -> OwnApp:
    from fedpd.torch import parameters_of  # a federation of arrays needs no PyTorch

    model, state = parameters_of(module), module.state_dict(keep_vars=True)
    names = {id(parameter): name for name, parameter in module.named_parameters()}  # a shared one has its first name
    sources = {name: names.get(id(value), "") for name, value in state.items()}
    sources = {name: source if source in model else "" for name, source in sources.items()}
    rest = {name: Array(state[name].detach().cpu().numpy()) for name, source in sources.items() if not source}
    return OwnApp(model, sources, ArrayRecord(rest))


def read_own_app(config: Mapping[str, Any], rest: ArrayRecord) -> OwnApp:
    """Return the arrays of an app from an order; those of the model are zeros."""
    try:
        found = json.loads(config[MODULE])
        model = {name: np.zeros(shape, dtype) for name, (dtype, shape) in found["model"].items()}
        return OwnApp(model, dict(found["sources"]), rest)
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"order: does not say which arrays the app has ({error}).") from None


def record_for_app(app: OwnApp, model: Mapping[str, np.ndarray], kept: Mapping[str, Array]) -> ArrayRecord:
    """Return the arrays that an app loads, in its order: the model, and what the client keeps of the rest."""
    arrays = {}
    for name, source in app.sources.items():
        arrays[name] = Array(np.asarray(model[source])) if source else kept.get(name, app.rest[name])
    return ArrayRecord(arrays)
