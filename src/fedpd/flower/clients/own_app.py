"""Run a method in a Flower app that does not change: a mod for `ClientApp(mods=[mod(method)])`.

The app loads the arrays that it receives into its module, trains by a loop of its own, and replies with the module's
arrays. The mod adds the method's terms to the gradients before each step of a PyTorch optimiser, and turns the reply
into the method's message, whose mean is the next model. So Flower's own FedAvg is the server, with weights by examples
or without. Which array a parameter is, follows from its values: before its first step it equals the array received.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.core import Method
from fedpd.core.message import opened
from fedpd.own_loop import Agent, Step, check_method, local, objective
from fedpd.torch import Terms

Next = Callable[[Message, Context], Message]
Arrays = dict[str, np.ndarray]
STATE = "fedpd.state"  # of the agent, in the context that Flower keeps for a node
ABOUT = "fedpd.about"


def mod(method: Method) -> Callable[[Message, Context, Next], Message]:
    """Return a mod of Flower's that makes training messages rounds of a method. The app itself does not change.

        app = ClientApp(mods=[fedpd.flower.mod(algorithms.fedpd(eta=0.2, oracle=oracles.own_loop(), start="server"))])

    The server averages: it is Flower's FedAvg strategy with all nodes in every round. What an agent keeps, such as its
    dual, is in the context that Flower keeps for its node; an agent that lost it starts as a new one.

    Args:
        method: A method whose server sends the mean of the messages, such as FedPD with p = 0, FedProx or FedAvg.

    Raises:
        FedpdError: The method needs another server, or the app trains other parameters than those that it received.
    """
    _check_mean(method)

    def around(message: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            return train(message, context, call_next)
        except AppError as error:
            return error.reply

    def train(message: Message, context: Context, call_next: Next) -> Message:
        key, received = _arrays_of(message.content)
        agent, names = _read(context.state, method)
        received = {name: _of(received, name) for name in names or received}
        with local(method, received, agent) as step:
            begin = {name: step.start[name] for name in names}
            message.content[key] = _changed(message.content.array_records[key], begin)
            terms = Matched(step, received | begin)
            with terms.added():
                reply = call_next(message, context)
            if reply.has_error():
                raise AppError(reply)
            if not terms.matched:
                rule = "no optimizer of PyTorch took a step"
                refuse(
                    "app", "its training", rule, "Train by an optimizer of torch.optim, or use fedpd.flower.client_app"
                )
            own, result = _arrays_of(reply.content)
            # An array that is not trained, such as a buffer, is no part of the method: it travels as the app sends it.
            # Only the first round shows which these are.
            step.result = received | {name: _of(result, name) for name in terms.matched}
            step.updates = max(terms.counts.values())
        _write(context.state, method, agent, terms.matched)
        reply.content[own] = _changed(
            reply.content.array_records[own], {name: step.message[name] for name in terms.matched}
        )
        return reply

    return around


class AppError(Exception):
    """The app replied with an error. It leaves the block of the local work, so that the agent keeps its state."""

    def __init__(self, reply: Message) -> None:
        super().__init__("the app replied with an error")
        self.reply = reply


def _check_mean(method: Method) -> None:
    """Refuse a method whose server sends something else than the mean of the messages."""
    x, mean = Vector({"x": np.zeros(2)}), Vector({"x": np.array([1.0, 3.0])})
    check_method(method, x)
    state = method.init(objective(x), x)
    _, broadcast = method.aggregate(method.server(x), mean, 1.0)
    one_model = isinstance(opened(method.send(state)), Vector)
    if not one_model or not np.array_equal(broadcast.tree["x"], mean.tree["x"]):
        rule = "its server does more than average, and Flower's FedAvg does not"
        refuse("method", method.description, rule, "Use fedpd.flower.client_app and server_app")


class Matched(Terms):
    """Finds the array of each parameter by its values, before the parameter's first step.

    Attributes:
        matched: The names of the arrays whose parameters took a step, in order.
    """

    def __init__(self, step: Step, arrays: Arrays) -> None:
        super().__init__(step)
        self.matched: list[str] = []
        self._arrays, self._known = arrays, set[int]()

    def parameters(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
        found = super().parameters(optimizer)
        for parameter in found:
            if id(parameter) not in self._known and parameter.requires_grad:
                self._known.add(id(parameter))
                name = self._name(parameter)
                self.matched.append(name)
                self.include(name, parameter)
        return found

    def _name(self, parameter: torch.Tensor) -> str:
        value = parameter.detach().cpu().numpy()
        for name, array in self._arrays.items():  # equal arrays, such as two zero biases, are taken in their order
            if name not in self.matched and array.shape == value.shape and np.array_equal(array, value):
                return name
        rule = f"a parameter of shape {tuple(value.shape)} is none of the arrays that it received"
        remedy = "Load them before training, or use fedpd.flower.client_app"
        return refuse("app", "its training", rule, remedy)


def _arrays_of(content: RecordDict) -> tuple[str, Arrays]:
    """Return the key of the only array record of a message, and its arrays of real numbers."""
    keys = list(content.array_records)
    if len(keys) != 1:
        refuse("message", keys, "must hold one array record, the model", "Use fedpd.flower.client_app")
    arrays = {name: array.numpy() for name, array in content.array_records[keys[0]].items()}
    return keys[0], {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _of(result: Arrays, name: str) -> np.ndarray:
    if name not in result:
        refuse("reply", sorted(result)[:3], f"has no array {name!r}, which was trained", "Reply with the whole model")
    return result[name]


def _changed(record: ArrayRecord, arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return a record with other values of some of its arrays."""
    changed = {name: Array(np.asarray(value, record[name].numpy().dtype)) for name, value in arrays.items()}
    return ArrayRecord({name: changed.get(name, array) for name, array in record.items()})


def _read(state: RecordDict, method: Method) -> tuple[Agent, list[str]]:
    """Return what the agent keeps, and the names of the arrays that it trains; of a new one, nothing."""
    if STATE not in state:
        return Agent(), []
    about: Any = state[ABOUT]
    if about["method"] != method.description:
        rule = f"the node keeps the state of {about['method']}"
        refuse("method", method.description, rule, "Start a new run")
    names = list(about["trained"])
    x = Vector(dict.fromkeys(names, np.zeros(1)))
    structure = jax.tree.structure(method.init(objective(x), x))
    leaves = [array.numpy() for _, array in sorted(state.array_records[STATE].items())]
    kept = jax.tree.unflatten(structure, leaves)
    return Agent(kept, int(about["rounds"]), int(about["updates"])), names


def _write(state: RecordDict, method: Method, agent: Agent, trained: list[str]) -> None:
    def only_trained(part: Any) -> Any:
        return Vector({name: part.tree[name] for name in trained}) if isinstance(part, Vector) else part

    kept_state = jax.tree.map(only_trained, agent.state, is_leaf=lambda part: isinstance(part, Vector))
    leaves = jax.tree.leaves(kept_state)
    state[STATE] = ArrayRecord({f"{i:06d}": Array(np.asarray(leaf)) for i, leaf in enumerate(leaves)})
    kept: Any = {"rounds": agent.rounds, "updates": agent.updates, "trained": trained, "method": method.description}
    state[ABOUT] = ConfigRecord(kept)
