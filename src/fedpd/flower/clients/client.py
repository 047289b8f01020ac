"""The client's side as a Flower ClientApp."""

import logging
from collections.abc import Callable
from typing import Any

import jax
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from tree_math import Vector

from fedpd.base.checks import FedpdError
from fedpd.base.precision import is_double, scope
from fedpd.base.value import constant
from fedpd.core import Method, Problem, Tree, form_with_absent
from fedpd.engine.privacy import private_oracle
from fedpd.flower.carry.masked_client import asks_for_masks, hash_of, masking_mod, promised_clients
from fedpd.flower.carry.protocol import (
    PREFIX,
    Order,
    Proposal,
    Reply,
    read_order,
    read_proposal,
    reply_content,
    reply_without_work,
)
from fedpd.flower.carry.records import RefusedError, arrays_of, pack
from fedpd.flower.clients import store
from fedpd.flower.clients.errors import AppError, told
from fedpd.flower.clients.site_policy import (
    SitePolicy,
    check_clients,
    check_config,
    check_evaluations,
    check_masks,
    check_method,
    check_privacy,
    check_proposal,
    policy_file,
    read_policy,
)
from fedpd.flower.clients.store import ClientMemory
from fedpd.flower.method.agent import (
    ClientSetup,
    Local,
    LostStateError,
    carry_out,
    check_one_step,
    message_of,
    set_up_client,
)
from fedpd.flower.method.evaluation import evaluate, refusal
from fedpd.flower.method.identity import check_same_method
from fedpd.flower.method.privacy import is_private, private_kinds, spending_of
from fedpd.flower.method.settings import Config, MakeAlgorithm, MakeStart
from fedpd.flower.method.shapes import Shapes, check_algorithm, check_start, shapes

log = logging.getLogger(f"flwr.{__name__}")  # a child of Flower's logger, so that the lines go to the same place

MakeLocal = Callable[[Context], Local | Problem]
GetName = Callable[[Context], str]
LOCAL = "fedpd-local"  # in a node's configuration, which only its operator writes: programs of the site itself ask
# Errors that would recur: the client reports them at once. After others (memory, disk, devices), the server asks again.
DETERMINISTIC = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
KEPT_BYTES = 2**30  # a process keeps at most this much of its clients' samples in memory


def client_name(context: Context) -> str:
    """Return a client's stable name: `name` of its node's configuration, else `partition-id`, else Flower's node id.

    A SuperNode without a registered key gets a new node id when it restarts, and the client would lose its state.
    """
    return str(context.node_config.get("name", context.node_config.get("partition-id", context.node_id)))


class _Setups:
    """The methods and setups that a process builds once per run and client, so that it compiles them once.

    They are plain dictionaries, because Ray copies the app to other processes.
    """

    def __init__(
        self, algorithm: MakeAlgorithm, start: MakeStart, local: MakeLocal, defaults: Config | None, name: GetName
    ) -> None:
        self.algorithm, self.start, self.local, self.defaults, self.name = algorithm, start, local, defaults, name
        self.methods: dict[Any, tuple[Method, Tree]] = {}
        self.shapes: dict[Any, Shapes] = {}
        self.clients: dict[Any, ClientSetup] = {}
        self.kept = 0  # bytes of the samples of `clients`

    def method(self, context: Context, form: str = "whole") -> tuple[Method, Tree]:
        """Return the method in a form, and the model that it starts from."""
        key = _method_key(context, form)
        if key not in self.methods:
            config = {**(self.defaults or {}), **context.run_config}
            whole = check_algorithm(self.algorithm(config))
            chosen = constant(form_with_absent(whole)) if form == "partial" else whole
            self.methods[key] = chosen, check_start(self.start(config))
        return self.methods[key]

    def client(self, context: Context, form: str, rounds: int = 1) -> ClientSetup:
        """Return the setup of the client of this context, for a run of T `rounds` if its noise depends on them."""
        name = self.name(context)
        method = _method_key(context, form)
        chosen, model = self.method(context, form)
        oracle = private_oracle(chosen)
        rounds = 1 if oracle is None or oracle.epsilon is None else rounds
        key = (name, context.node_id, *method, rounds)
        if key not in self.clients:
            if method not in self.shapes:  # the same for all clients: tracing a round takes longer than the other steps
                self.shapes[method] = shapes(chosen, model)
            made = set_up_client(self.local(context), model, chosen, self.shapes[method], name, rounds)
            self.kept += _size(made)
            while self.clients and self.kept > KEPT_BYTES:  # remove the oldest clients until the new one fits
                self.kept -= _size(self.clients.pop(next(iter(self.clients))))
            self.clients[key] = made
        return self.clients[key]


def _size(setup: ClientSetup) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(setup.shard))


def _method_key(context: Context, form: str) -> tuple[Any, ...]:
    return (*sorted(context.run_config.items()), form)


def client_app(
    algorithm: MakeAlgorithm,
    start: MakeStart,
    local: MakeLocal,
    *,
    defaults: Config | None = None,
    name: GetName = client_name,
    mods: list[Mod] | None = None,
    secure: bool = False,
) -> ClientApp:
    """Return a ClientApp that takes part in a federation with any method.

    Args:
        algorithm: Run configuration -> Method, the same function as the server's.
        start: Run configuration -> the model x^0, the same function as the server's; the client uses only its structure
            and shapes.
        local: Context -> this client's own samples: a Local, or a problem with one agent, e.g. `problems.network` of
            its data. Called once per process and client.
        defaults: Default values for entries of the run's configuration, the same as the server's.
        name: Context -> the client's stable name, under which it keeps its state.
        mods: Flower's mods around the messages of training (clipping, local differential privacy, ...).
        secure: Whether the client sends only masked messages (SecAgg+, the outermost mod), and evaluations without
            gradients, so that the server learns only sums over all clients. The run must set `secure-range`; the client
            refuses orders without masks.
    """
    app, setups, memory = ClientApp(), _Setups(algorithm, start, local, defaults, name), ClientMemory(name)
    masks = [masking_mod(name, memory)] if secure else []

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        problem, samples = check_run(setups, memory, message.content, context, masked=secure)
        record = ConfigRecord({PREFIX + "name": name(context), PREFIX + "problem": problem})
        record[PREFIX + "nonce"] = str(message.content.config_records["config"].get(PREFIX + "nonce", ""))
        record[PREFIX + "samples"] = samples
        return Message(RecordDict({"config": record}), reply_to=message)

    @app.query("dry_step")
    def dry_step(message: Message, context: Context) -> Message:
        problem, samples = try_one_step(setups, context)
        record = ConfigRecord({PREFIX + "problem": problem})
        record[PREFIX + "samples"] = samples
        return Message(RecordDict({"config": record}), reply_to=message)

    @app.train(mods=[_private_errors(name), *masks, *(mods or [])])
    def train(message: Message, context: Context) -> Message:
        masked = asks_for_masks(message)
        if masked and not secure:
            raise RefusedError("the server asks for masked messages (secure-range). Build this app with secure=True.")
        order = read_order(message.content)
        try:
            policy = read_rules(context)
            check_method(policy, order.algorithm)
            check_masks(policy, masked or not order.sends)
            check_clients(policy, promised_clients(context) if masked else order.agents, masked=secure)
            check_config(policy, {**(defaults or {}), **context.run_config})
            with scope(is_double(setups.method(context)[1])):
                setup = setups.client(context, order.form, order.rounds)
                check_privacy(policy, private_kinds(setup.algorithm))
                content = answer_order(setup, order, message.content, name(context), context, memory, masked=masked)
        except (FedpdError, *DETERMINISTIC) as error:
            note = _note(error, context, name(context))
            content = reply_content(reply_without_work(order, name(context), "refused", note))
        return Message(content, reply_to=message)

    @app.evaluate(mods=[_private_errors(name), *masks])
    def evaluate_model(message: Message, context: Context) -> Message:
        try:
            policy = read_rules(context)
            check_evaluations(policy)
            check_masks(policy, secure)
            check_clients(policy, promised_clients(context) if secure else policy.min_clients, masked=secure)
            check_config(policy, {**(defaults or {}), **context.run_config})
            if not secure:
                memory.count_evaluation(context)
            with scope(is_double(setups.method(context)[1])):
                form = str(message.content.config_records["config"][PREFIX + "form"])
                if private_kinds(setups.method(context, form)[0]):
                    remedy = "Set evaluate-every = 0."
                    raise RefusedError(f"the method is private, and noise does not cover evaluations. {remedy}")
                setup, saved = setups.client(context, form), None
                if setup.algorithm.is_personal is not None:
                    run = str(message.content.config_records["config"][PREFIX + "run"])
                    saved = store.load(store.file(store.folder(context, name(context)), run), setup.shapes)
                content = evaluate(setup, message.content, saved, secure=secure)
        except (FedpdError, *DETERMINISTIC) as error:
            content = refusal(message.content, _note(error, context, name(context)))
        return Message(content, reply_to=message)

    return app


def read_rules(context: Context) -> SitePolicy:
    """Return the client's own rules.

    Raises:
        RefusedError: If the file cannot be read.
    """
    try:
        return read_policy(policy_file(context.node_config))
    except FedpdError as error:
        raise RefusedError(str(error)) from None


def _note(error: Exception, context: Context, name: str) -> str:
    """Write an error to the client's own log, and return what the server is told of it."""
    log.warning("Client %r refuses: %s", name, error, exc_info=not isinstance(error, RefusedError))
    return told(error, texts=tells_texts(context))


def tells_texts(context: Context) -> bool:
    """Return whether texts of errors may leave: to programs of the site itself, or if its policy allows it."""
    try:
        return bool(context.node_config.get(LOCAL)) or read_rules(context).error_texts
    except RefusedError:
        return False


def _private_errors(name: GetName) -> Mod:
    """Return a mod that replaces errors, whose text Flower would send to the server, by their type and place."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return call_next(message, context)
        except Exception as error:
            raise AppError(_note(error, context, name(context))) from None

    return mod


def check_run(
    setups: _Setups, memory: ClientMemory, content: RecordDict, context: Context, *, masked: bool
) -> tuple[str, int]:
    """Return the reason why this client cannot take part in the proposed run, "" if it can; and |D_i|, 0 if not asked.

    It checks the client's policy, its data, the method, the shapes and types of one step, and the disk.

    Args:
        setups: The methods and data of this app.
        memory: The client's memory.
        content: The server's message.
        context: The client's context.
        masked: Whether the app masks this client's messages.
    """
    try:
        proposal = read_proposal(content)
        if proposal is None:
            return "", 0
        policy = read_rules(context)
        check_proposal(policy, proposal, masked=masked)
        check_config(policy, {**(setups.defaults or {}), **context.run_config})
        if masked != proposal.secure:
            rule = "this client's app masks its messages" if masked else "this client's app does not mask its messages"
            raise RefusedError(f"{rule}, but the run has {'no ' if masked else ''}secure-range. Set both or neither.")
        with scope(is_double(setups.method(context)[1])):
            setup = setups.client(context, proposal.form, proposal.rounds)
            check_same_method(proposal.algorithm, setup.spec)
            check_one_step(setup)
            check_privacy(policy, private_kinds(setup.algorithm))
            check_plan(memory, setup, proposal, context)
        if proposal.sizes and is_private(setup.algorithm):
            raise RefusedError("the method is private, and noise does not cover the number of samples.")
        store.check_disk(store.folder(context, setups.name(context)), setup.shapes)
        return "", int(setup.shard.sizes) if proposal.sizes else 0
    except Exception as error:  # before the run starts, every error is worth a report with the client's name
        return _note(error, context, setups.name(context)), 0


def check_plan(memory: ClientMemory, setup: ClientSetup, proposal: Proposal, context: Context) -> None:
    """Refuse a run whose rounds, all together, would spend more privacy than this client has left."""
    spending = spending_of(setup.algorithm, int(setup.shard.sizes), proposal.agents, proposal.rounds)
    if spending is not None:
        memory.check_plan(context, proposal.run, proposal.rounds, spending.delta, spending.epsilon_of)


def spend(memory: ClientMemory, setup: ClientSetup, order: Order, context: Context) -> None:
    """Write down what an order spends, before anything is computed, or refuse it."""
    spending = spending_of(setup.algorithm, int(setup.shard.sizes), order.agents, order.rounds)
    if spending is None:
        return
    limit, releases = setup.epsilon, spending.releases(order)
    memory.charge(context, order.run, releases, spending.delta, spending.epsilon_of, limit)


def try_one_step(setups: _Setups, context: Context) -> tuple[str, int]:
    """Read the client's data and do one local step from the start; return the problem, "" if none, and |D_i|."""
    if not context.node_config.get(LOCAL):
        return "only programs of this client's own site may ask for a step without a run.", 0
    try:
        _, model = setups.method(context)
        with scope(is_double(model)):
            setup = setups.client(context, "whole", int(context.run_config.get("rounds", 1)))
            start = RecordDict({"arrays": pack(Vector(model))})
            carry_out(setup, Order("", setup.spec, "whole", 0, 1, 0, 0, [0], 0, -1, [], []), start, None)
            return "", int(setup.shard.sizes)
    except Exception as error:  # an error of the user's own code, or of the data
        return told(error, texts=True), 0


def answer_order(
    setup: ClientSetup,
    order: Order,
    content: RecordDict,
    name: str,
    context: Context,
    memory: ClientMemory,
    *,
    masked: bool,
) -> RecordDict:
    """Return the reply to an order or to a repeated order; the state is on disk before this returns."""
    check_same_method(order.algorithm, setup.spec)
    path = store.file(store.folder(context, name), order.run)
    saved = store.load(path, setup.shapes, order)
    if saved is not None and saved.number > order.number:
        raise RefusedError(
            f"order: number {order.number} came after number {saved.number} was done; it is ignored. If the server "
            f"resumes from a backup, run at this client: fedpd restore STATE --run {order.run} --number {order.number}"
        )
    arrays = hash_of(arrays_of(content, "arrays", "order")) if masked else ""
    if masked and saved is not None and saved.number == order.number and saved.arrays not in ("", arrays):
        log.warning("Client %r has done order %d with other arrays, and answers only that.", name, order.number)
        return reply_content(reply_without_work(order, name, "lost"))  # the server sends the whole order again
    if saved is None or saved.number < order.number:
        spend(memory, setup, order, context)
        try:
            saved = carry_out(setup, order, content, saved)._replace(arrays=arrays)
        except LostStateError:
            log.warning("Client %r has lost its state and asks the server for the data to continue.", name)
            return reply_content(reply_without_work(order, name, "lost"))
        store.save(path, saved)
        if saved.rebuilt:
            log.warning("Client %r had lost its state; it continues from the server's model.", name)
    message = message_of(setup.algorithm, order, saved.after)
    told = 0 if is_private(setup.algorithm) else 1  # noise does not cover the work and the number of samples
    updates, samples = (told * saved.updates).tolist(), (told * saved.samples).tolist()
    examples = told * int(setup.shard.sizes)
    reply = Reply(order.run, name, order.number, "done", "", saved.rebuilt, updates, samples, examples, order.nonce)
    if private_oracle(setup.algorithm) is not None:
        reply = reply._replace(epsilon=memory.spent(context, order.run).epsilon)
    return reply_content(reply, None if message is None else pack(message))
