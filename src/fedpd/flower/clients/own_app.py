"""Run a method in a Flower app that does not change: a mod for `ClientApp(mods=[mod(method)])`.

The app loads the arrays that it receives into its module, trains by a loop of its own, and replies with the module's
arrays. The mod adds the method's terms to the gradients before each step of a PyTorch optimiser, and turns the reply
into the method's message. Which array a parameter is, follows from its values: before its first step it equals the
array received.

The server is Flower's own FedAvg, if the method's server sends the mean of the messages and all nodes take part; or
`fedpd.flower.Strategy`, for absent nodes, skipped rounds and methods that send more. What the agent keeps is in a file
(`store.py`) before the app's reply leaves the node, so a crash loses nothing.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from tree_math import Vector

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import is_double, scope
from fedpd.base.value import constant
from fedpd.core import Method, form_with_absent
from fedpd.core.message import opened
from fedpd.engine.measure.costs import Costs
from fedpd.flower.carry.protocol import PREFIX, Order, read_order, read_proposal, reply_content, reply_without_work
from fedpd.flower.carry.records import RefusedError, pack
from fedpd.flower.clients import errors, store
from fedpd.flower.clients.client import client_name, read_rules, tells_texts
from fedpd.flower.clients.errors import told
from fedpd.flower.clients.site_policy import (
    check_clients,
    check_config,
    check_masks,
    check_method,
    check_privacy,
    check_proposal,
)
from fedpd.flower.method.agent import LostStateError, SavedAgent, agent_at_first_step, check_finite, message_of
from fedpd.flower.method.identity import check_same_method, spec_text
from fedpd.flower.method.own_apps import REST, OwnApp, read_own_app, record_for_app
from fedpd.flower.method.privacy import is_private
from fedpd.flower.method.shapes import Shapes
from fedpd.own_loop import Step, begin, broadcast_like, finish, has_plain_steps, unknown
from fedpd.own_loop import check_method as check_own_loop
from fedpd.torch import Terms
from fedpd.transforms._means import Agent as WeightedAgent

log = logging.getLogger(f"flwr.{__name__}")
Next = Callable[[Message, Context], Message]
Arrays = dict[str, np.ndarray]
KEPT = "fedpd.rest"  # in the context that Flower keeps for a node
ROUND = "server-round"  # an entry of Flower's strategies


def mod(method: Method) -> Callable[[Message, Context, Next], Message]:
    """Return a mod of Flower's that makes training messages rounds of a method. The app itself does not change.

        method = algorithms.fedpd(eta=0.2, oracle=oracles.own_loop(), start="server")
        app = ClientApp(mods=[fedpd.flower.mod(method)])

    With Flower's FedAvg as the server, all nodes take part in every round, and the method's server sends the mean of
    the messages: FedPD with p = 0, FedProx, FedAvg. `fedpd.flower.Strategy(method, net, settings)` is the server for
    absent nodes, skipped rounds and other methods.

    Args:
        method: The method, whose oracle is `oracles.own_loop()`.

    Raises:
        FedpdError: The method needs more than a loop, or the app trains other parameters than those that it received.
    """
    check_own_loop(method, Vector({"x": np.zeros(2)}))
    if is_private(method):
        rule = "adds noise that only fedpd's own clients draw"
        refuse("method", method.description, rule, "Use fedpd.flower.client_app, or a mod of Flower's for privacy")
    averages = _sends_mean(method)

    def around(message: Message, context: Context, call_next: Next) -> Message:
        config: Mapping[str, Any] = message.content.config_records.get("config", {})
        try:
            if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
                return call_next(message, context)
            if PREFIX + "number" in config:
                return Message(_carry_out(method, message, context, call_next), reply_to=message)
            if PREFIX + "algorithm" in config:
                return Message(_hello(method, message.content, context), reply_to=message)
            if averages is not None:
                refuse("method", method.description, averages, "Use fedpd.flower.Strategy as the server")
            return _average(method, message, context, call_next)
        except AppError as error:
            return error.reply
        except FedpdError:
            raise
        except Exception as error:  # Flower would send its text to the server
            log.warning("Client %r: its app failed: %s", client_name(context), error, exc_info=True)
            raise errors.AppError(told(error, texts=tells_texts(context))) from None

    return around


class AppError(Exception):
    """The app replied with an error. It leaves the block of the local work, so that the agent keeps its state."""

    def __init__(self, reply: Message) -> None:
        super().__init__("the app replied with an error")
        self.reply = reply


def _sends_mean(method: Method) -> str | None:
    """Return None if the method's server sends the mean of the messages, as Flower's FedAvg does, else the reason."""
    if method.skips:
        return "skips communications, which Flower's FedAvg does not decide"
    x, mean = Vector({"x": np.zeros(2)}), Vector({"x": np.array([1.0, 3.0])})
    exchange: Any = method.exchanges()[0]
    with scope(double=True):
        message = opened(exchange.send(method.init(unknown(), x)))
        if isinstance(message, Vector):
            _, broadcast = exchange.aggregate(method.server(x), mean, 1.0)
            if isinstance(broadcast, Vector) and np.array_equal(broadcast.tree["x"], mean.tree["x"]):
                return None
    return "its server does more than average, and Flower's FedAvg does not"


def _run_app(
    method: Method, step: Step, arrays: Arrays, record: ArrayRecord, message: Message, context: Context, call: Next
) -> tuple[Message, list[str]]:
    """Let the app train from a record; set the step's result, and return the reply and the names of what was trained.

    Args:
        method: The method.
        step: The local problem; its `start` has the arrays that are known to be trained.
        arrays: All arrays in which a parameter may be found.
        record: What the app gets.
        message: The message, whose arrays are replaced.
        context: Flower's context.
        call: The app.
    """
    key = next(iter(message.content.array_records), "arrays")
    others = {name: one for name, one in message.content.items() if name not in message.content.array_records}
    message.content = RecordDict({key: record, **others})
    terms = Matched(step, arrays, plain=has_plain_steps(method))
    with terms.added():
        reply = call(message, context)
    if reply.has_error():
        raise AppError(reply)
    if not terms.matched:
        rule, remedy = "no optimizer of PyTorch took a step", "Train by an optimizer of torch.optim"
        refuse("app", "its training", rule, f"{remedy}, or use fedpd.flower.client_app")
    _, result = _arrays_of(reply.content)
    # An array that is not trained, such as a buffer, is no part of the method: it travels as the app sends it.
    step.result = arrays | {name: _of(result, name) for name in terms.matched}
    step.updates, step.length = terms.updates(), terms.length()
    return reply, terms.matched


def _average(method: Method, message: Message, context: Context, call_next: Next) -> Message:
    """Return the app's reply to a message of Flower's FedAvg, with the method's message in place of its model."""
    key, received = _arrays_of(message.content)
    path = store.file(store.folder(context, client_name(context)), f"{context.run_id:x}")
    trained = _trained(path, received)
    model = {name: _of(received, name) for name in trained or received}
    saved = store.load(path, _shapes(method, model)) if trained else None
    number = _round(message.content, saved)
    exchange, x = method.exchanges()[0], Vector(model)
    with scope(is_double(x)):
        if saved is None:
            state = method.init(unknown(), x)
        elif saved.number == number:  # the message came again: the first reply was lost
            state = saved.before
        else:
            _check_present(method, saved.number, number)
            state = exchange.receive(saved.after, x)
    before = jax.device_get(state)
    step = begin(method, state, number)
    record = message.content.array_records[key]
    begins = {name: step.start[name] for name in model}
    reply, matched = _run_app(method, step, received | begins, _changed(record, begins), message, context, call_next)
    after = finish(method, state, number, _within(step, model))
    check_finite(after)
    if not trained:  # the first round shows which arrays are trained
        before, after = _only(before, matched), _only(after, matched)
    work = np.array([step.updates]), np.array([0])
    store.save(path, SavedAgent(number, before, after, 0, *work))
    own, _ = _arrays_of(reply.content)
    sent: Any = opened(exchange.send(after))
    reply.content[own] = _changed(reply.content.array_records[own], {name: sent.tree[name] for name in matched})
    return reply


def _trained(path: Path, received: Arrays) -> list[str]:
    """Return the names of the arrays that the app trains, which the client's file shows; of a new client, none."""
    try:
        kept = checkpoint.read(path)[0] if path.exists() else {}
    except checkpoint.CheckpointError as error:
        log.warning("The client's state is lost, and it starts as a new one: %s", error)
        kept = {}
    return [name for name in received if any(one.endswith(f"[{name!r}]") for one in kept)]


def _shapes(method: Method, model: Arrays) -> Shapes:
    """Return the shapes of an agent's state and of a broadcast."""
    x = Vector(model)
    with scope(is_double(x)):
        return Shapes(model, method.init(unknown(), x), [], [broadcast_like(method, x)], Costs((), ()))


def _within(step: Step, model: Arrays) -> Step:
    step.result = {name: step.result[name] for name in model}
    return step


def _round(content: RecordDict, saved: SavedAgent | None) -> int:
    """Return the round of Flower's strategy; of one that does not say it, the next one."""
    for record in content.config_records.values():
        said = record.get(ROUND)
        if isinstance(said, int):
            return said
    return 0 if saved is None else saved.number + 1


def _check_present(method: Method, last: int, now: int) -> None:
    """Refuse a round after an absence, if the method's server would then need more than a mean."""
    if now != last + 1 and type(form_with_absent(method)) is not type(method):
        rule = f"this node missed the rounds from {last + 1} to {now - 1}, and the mean of those present is then biased"
        refuse("server-round", now, rule, "Use fedpd.flower.Strategy as the server")


def _hello(method: Method, content: RecordDict, context: Context) -> RecordDict:
    """Return the node's name, and the reason why it cannot take part, "" if it can."""
    problem = ""
    try:
        proposal = read_proposal(content)
        assert proposal is not None
        check_proposal(read_rules(context), proposal, masked=False)
        check_same_method(proposal.algorithm, spec_text(method))
        if proposal.secure:
            raise RefusedError("this app does not mask its messages, but the run has secure-range.")
        if proposal.sizes:
            raise RefusedError('this app does not say how many samples it has, which sampling = "size" needs.')
    except Exception as error:  # before the run starts, every error is worth a report with the client's name
        log.warning("This client cannot take part: %s", error, exc_info=not isinstance(error, FedpdError))
        problem = told(error, texts=isinstance(error, FedpdError) or tells_texts(context))
    record = ConfigRecord({PREFIX + "name": client_name(context), PREFIX + "problem": problem, PREFIX + "samples": 0})
    record[PREFIX + "nonce"] = str(content.config_records["config"].get(PREFIX + "nonce", ""))
    return RecordDict({"config": record})


def _carry_out(method: Method, message: Message, context: Context, call_next: Next) -> RecordDict:
    """Return the reply to an order of `fedpd.flower.Strategy`; the state is on disk before this returns."""
    order, name = read_order(message.content), client_name(context)
    try:
        policy = read_rules(context)
        check_method(policy, order.algorithm)
        check_masks(policy, not order.sends)
        check_clients(policy, order.agents, masked=False)
        check_config(policy, context.run_config)
        check_privacy(policy, ())  # noise of the app's own mods is not counted here
        check_same_method(order.algorithm, spec_text(method))
        form = constant(form_with_absent(method)) if order.form == "partial" else constant(method)
        config: Any = message.content.config_records["config"]
        app = read_own_app(config, message.content.array_records.get(REST, ArrayRecord()))
        with scope(is_double(app.model)):
            return _answer(form, order, app, message, context, call_next)
    except FedpdError as error:
        log.warning("Client %r refuses: %s", name, error)
        return reply_content(reply_without_work(order, name, "refused", str(error)))


def _answer(
    method: Method, order: Order, app: OwnApp, message: Message, context: Context, call_next: Next
) -> RecordDict:
    """Return the reply to an order or to a repeated order."""
    made, name = _shapes(method, app.model), client_name(context)
    path = store.file(store.folder(context, name), order.run)
    saved, examples = store.load(path, made, order), 0
    if saved is not None and saved.number > order.number:
        raise RefusedError(f"order: number {order.number} came after number {saved.number} was done; it is ignored.")
    if saved is None or saved.number < order.number:
        try:
            saved, examples = _steps(method, made, order, app, message, context, call_next, saved)
        except LostStateError:
            log.warning("Client %r has lost its state and asks the server for the data to continue.", name)
            return reply_content(reply_without_work(order, name, "lost"))
        store.save(path, saved)
    sent = message_of(method, order, saved.after)
    done = reply_without_work(order, name, "done")
    reply = done._replace(updates=saved.updates.tolist(), samples=saved.samples.tolist(), rebuilt=saved.rebuilt)
    return reply_content(reply._replace(examples=examples), None if sent is None else pack(sent))


def _steps(
    method: Method,
    made: Shapes,
    order: Order,
    app: OwnApp,
    message: Message,
    context: Context,
    call_next: Next,
    saved: SavedAgent | None,
) -> tuple[SavedAgent, int]:
    """Return the state after the app's training in each round of an order, and the app's number of examples."""

    def rebuild(agent: Any) -> Any:
        try:
            return None if method.rebuild is None else method.rebuild(unknown(), agent)
        except FedpdError:
            rule = (
                "the client has lost its state, and only a gradient of f_i could rebuild it, which a loop does not give"
            )
            raise RefusedError(f"{rule}. Restore its file, or start a new run.") from None

    def make(x: Vector) -> Any:
        return method.init(unknown(), x)

    new = None if method.rebuild is None else rebuild
    agent, rebuilt = agent_at_first_step(method, made, order, message.content, saved, make, new)
    before, updates, examples = jax.device_get(agent), [], 0
    for r in order.steps:
        step = begin(method, agent, r)
        kept = context.state.array_records.get(KEPT, ArrayRecord())
        record = record_for_app(app, step.start, kept)
        reply, _ = _run_app(method, step, dict(step.start), record, message, context, call_next)
        _keep_rest(app, reply, context)
        examples = _examples(reply)
        agent = _weighed(finish(method, agent, r, step), examples)
        updates.append(step.updates)
    check_finite(agent)
    counts = np.array(updates, np.int64), np.zeros(len(updates), np.int64)
    return SavedAgent(order.number, before, agent, rebuilt, *counts, order.sends), examples


def _keep_rest(app: OwnApp, reply: Message, context: Context) -> None:
    """Keep the arrays of the app that are no part of the model, such as buffers, as its training left them."""
    key = next(iter(reply.content.array_records))
    kept = {name: array for name, array in reply.content.array_records[key].items() if app.sources.get(name) == ""}
    if kept:
        context.state[KEPT] = ArrayRecord(kept)


def _examples(reply: Message) -> int:
    """Return the number of examples that the app reports, under the name of Flower's strategies; 0: none."""
    found: list[Any] = [
        record["num-examples"] for record in reply.content.metric_records.values() if "num-examples" in record
    ]
    return int(found[0]) if found else 0


def _weighed(agent: Any, examples: int) -> Any:
    """Return the state with the weight of this agent, where the server weighs agents by their samples."""
    if not isinstance(agent, WeightedAgent):
        return agent
    if examples < 1:
        rule = "the method weighs agents by their samples, and the app's reply does not say how many it has"
        refuse("num-examples", examples, rule, 'Reply with MetricRecord({"num-examples": n})')
    weight: Any = np.asarray(examples, np.asarray(agent.weight).dtype)
    return agent._replace(weight=weight)


class Matched(Terms):
    """Finds the array of each parameter by its values, before the parameter's first step.

    Attributes:
        matched: The names of the arrays whose parameters took a step, in order.
    """

    def __init__(self, step: Step, arrays: Arrays, *, plain: bool = False) -> None:
        super().__init__(step, plain=plain)
        self.matched: list[str] = []
        self._arrays, self._known = arrays, set[int]()

    def find(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if id(parameter) not in self._known and parameter.requires_grad:
                self._known.add(id(parameter))
                name = self._name(parameter)
                self.matched.append(name)
                self.include(name, parameter)

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


def _only(state: Any, names: list[str]) -> Any:
    """Return a state with these arrays of each model."""

    def part_of(part: Any) -> Any:
        return Vector({name: part.tree[name] for name in sorted(names)}) if isinstance(part, Vector) else part

    return jax.tree.map(part_of, state, is_leaf=lambda part: isinstance(part, Vector))
