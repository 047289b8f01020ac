"""The agents' side as a Flower ClientApp."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedpd.base.checks import FedpdError
from fedpd.base.precision import is_double, scope
from fedpd.core import Algorithm, Problem, Tree
from fedpd.flower.carry.masking import masked, wants_masks
from fedpd.flower.carry.protocol import DONE, LOST, PREFIX, REFUSED, Order, Reply, no_reply, read_order, reply_content
from fedpd.flower.carry.records import RefusedError, pack
from fedpd.flower.clients import store
from fedpd.flower.method.agent import Local, LostError, Site, message_of, obey, settle
from fedpd.flower.method.evaluation import evaluate
from fedpd.flower.method.identity import check_same_method
from fedpd.flower.method.settings import Config, MakeAlgorithm, MakeStart
from fedpd.flower.method.shapes import check_algorithm, check_start, shapes

log = logging.getLogger(f"flwr.{__name__}")  # beside Flower's own lines, wherever they go

MakeLocal = Callable[[Context], Local | Problem]
SITES = 64  # clients whose samples a process keeps at hand


def client_name(context: Context) -> str:
    """A client's stable name: `name` of its node's configuration, else `partition-id`, else Flower's id of the node.

    The last does not survive a SuperNode without a registered key: its state would be lost with it.
    """
    return str(context.node_config.get("name", context.node_config.get("partition-id", context.node_id)))


def client_app(
    algorithm: MakeAlgorithm,
    start: MakeStart,
    local: MakeLocal,
    *,
    defaults: Config | None = None,
    name: Callable[[Context], str] = client_name,
    mods: list[Mod] | None = None,
    secure: bool = False,
) -> ClientApp:
    """A ClientApp that takes part in a federation of any method.

    algorithm: run configuration -> Algorithm, the same function as the server's.
    start:     run configuration -> the model x^0, likewise; here only its structure and shapes matter.
    local:     context -> this client's own samples: a Local, or a problem of one agent, e.g. `problems.network` of its
               data. Called once a process and client.
    defaults:  what the run's configuration says where it is silent, as at the server.
    name:      context -> the client's stable name, under which it keeps its state.
    mods:      Flower's mods around the messages of training (clipping, local differential privacy, ...).
    secure:    messages only leave under masks (SecAgg+, the outermost mod), and evaluations without gradients: then the
               server learns sums over all clients. It must ask for it (`secure-range`); other orders are refused.
    """
    app = ClientApp()
    # What a process need not make twice, above all compiled programs, which belong to the functions of one Algorithm.
    # Plain dictionaries: Ray carries the app to other processes.
    methods: dict[Any, tuple[Algorithm, Tree]] = {}
    sites: dict[Any, Site] = {}

    def method(context: Context, form: str = "whole") -> tuple[Algorithm, Tree]:
        key = (*sorted(context.run_config.items()), form)
        if key not in methods:
            config = {**(defaults or {}), **context.run_config}
            chosen = check_algorithm(algorithm(config))
            methods[key] = (chosen.away.partial or chosen) if form == "partial" else chosen, check_start(start(config))
        return methods[key]

    def site(context: Context, form: str) -> Site:
        key = (name(context), context.node_id, *sorted(context.run_config.items()), form)
        if key not in sites:
            if len(sites) == SITES:
                sites.pop(next(iter(sites)))
            chosen, model = method(context, form)
            sites[key] = settle(local(context), model, chosen, shapes(chosen, model), name(context))
        return sites[key]

    def precision(context: Context) -> AbstractContextManager[Any]:
        return scope(is_double(method(context)[1]))

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({"config": ConfigRecord({PREFIX + "name": name(context)})}), reply_to=message)

    @app.train(mods=[masked(name), *(mods or [])] if secure else mods)
    def train(message: Message, context: Context) -> Message:
        if wants_masks(message) and not secure:
            raise FedpdError("the server wants masked messages (secure-range). Build this app with secure=True.")
        order = read_order(message.content)
        try:
            with precision(context):
                content = answer(site(context, order.form), order, message.content, name(context), context)
        except FedpdError as error:
            log.warning("Client %r refuses: %s", name(context), error)
            content = reply_content(no_reply(order, name(context), REFUSED, str(error)))
        return Message(content, reply_to=message)

    @app.evaluate()
    def judge(message: Message, context: Context) -> Message:
        with precision(context):
            form = str(message.content.config_records["config"][PREFIX + "form"])
            return Message(evaluate(site(context, form), message.content, secure=secure), reply_to=message)

    return app


def answer(site: Site, order: Order, content: RecordDict, name: str, context: Context) -> RecordDict:
    """Carry out an order, or, where it is a repetition, answer it again; the state is on disk before this returns."""
    check_same_method(order.algorithm, site.spec)
    path = store.file(store.folder(context, name), order.run)
    saved = store.load(path, site.shapes)
    if saved is not None and saved.number > order.number:
        raise RefusedError(f"order: number {order.number} comes after {saved.number} has been carried out; ignored.")
    if saved is None or saved.number < order.number:
        try:
            saved = obey(site, order, content, saved)
        except LostError:
            log.warning("Client %r has lost its state; it asks the server for what it needs to go on.", name)
            return reply_content(no_reply(order, name, LOST))
        store.save(path, saved)
        if saved.rebuilt:
            log.warning("Client %r had lost its state; it goes on from the server's model.", name)
    message = message_of(site, order, saved.after)
    updates, samples = saved.updates.tolist(), saved.samples.tolist()
    reply = Reply(order.run, name, order.number, DONE, "", saved.rebuilt, updates, samples, int(site.shard.sizes))
    return reply_content(reply, None if message is None else pack(message))
