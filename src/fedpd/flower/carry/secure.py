"""Secure aggregation (SecAgg+), from which the server learns only the sum of messages: masks, client, server.

The masks come from a cryptographic generator with 256-bit keys. Flower reduces a seed to 32 bits and gives it to a
generator that is not cryptographic, so that a server can find the masks by search. Here HKDF makes a key of 256 bits
from the whole seed, and ChaCha20 (RFC 8439) expands it. The numbers are uniform modulo 2^32, so a masked number says
nothing. A seed is used once: every attempt has new seeds.

At the client, Flower's own mod does the stages of the keys and shares. The stage of the masked vectors is done here,
with these masks and three rules. The client masks x_{0,i}^+ - x_0, not x_{0,i}^+, because fixed-point numbers need a
range. It refuses an entry outside this range: a message that was cut silently does not fit the dual that the client
keeps. It does not carry out an order without masks.

The server runs four stages, which Flower 1.41 has for its older API only. In the first stage, it passes all public keys
to all agents. In the second, it passes on the encrypted shares of the agents' secrets. In the third, it sends the
orders and receives masked replies. In the fourth, it asks for enough shares to remove the masks from the sum.

Without a quorum, the server asks for shares only after all clients that send in this communication have replied. If one
is missing, it starts again with the same clients and new keys. With a quorum (on-timeout = "partial"), clients may drop
out at every stage, as long as two thirds of all clients plus one are left. If a client drops out after the others have
masked their messages with its key, they send their shares of that key, and the server removes these masks too. The
client's own mask stays secret, so a message that comes late cannot be read. Once the server has asked for shares, it
never repeats the communication with other clients, because the difference of two sums would reveal a message.

Clients reply to the same order again without carrying it out twice. The attempts share the deadline: each may take an
equal part of the time that is left.
"""

import logging
import math
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import Grid

from fedpd.core import Tree
from fedpd.flower.carry.collect import Collected, Timeouts, collect
from fedpd.flower.carry.directory import ClientDirectory, FederationError
from fedpd.flower.carry.protocol import (
    TRAIN,
    CheckedReply,
    Reply,
    read_order,
    read_reply,
    reply_content,
    reply_without_work,
)
from fedpd.flower.carry.records import RefusedError, arrays_of, leaves_by_name
from fedpd.flower.private import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    SecAggPlusState,
    Stage,
    bytes_to_ndarray,
    bytes_to_private_key,
    bytes_to_public_key,
    check_configs,
    check_stage,
    combine_shares,
    decrypt,
    generate_shared_key,
    ndarray_to_bytes,
    quantize,
    secaggplus_mod,
    share_keys_plaintext_separate,
)

log = logging.getLogger(f"flwr.{__name__}")

MODULUS = 2**32
PURPOSE = b"fedpd: mask of secure aggregation"
START = bytes(16)  # the block counter and the nonce of ChaCha20


def keystream(key: bytes, length: int) -> bytes:
    """Return the first bytes that ChaCha20 makes from a key of 256 bits.

    Examples:
        >>> from fedpd.flower.carry.secure import keystream
        >>> keystream(bytes(32), 4).hex()  # RFC 8439, appendix A.1, test vector 1
        '76b8e0ad'
    """
    return Cipher(ChaCha20(key, START), mode=None).encryptor().update(bytes(length))


def mask(seed: bytes, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return an array of numbers below 2^32, in int64, for each shape."""
    key = HKDF(SHA256(), length=32, salt=None, info=PURPOSE).derive(seed)
    sizes = [math.prod(shape) for shape in shapes]
    numbers = np.frombuffer(keystream(key, 4 * sum(sizes)), "<u4").astype(np.int64)
    parts = np.split(numbers, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def asks_for_masks(message: Message) -> bool:
    """Return whether a message belongs to a stage of secure aggregation."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def masked_clients(context: Context) -> int:
    """Return the least number of clients in a sum, as the setup stage has set it; 0 before that stage."""
    state: Any = context.state.config_records.get(RECORD_KEY_STATE, {})
    number = state.get("sample_num", 0)
    return number if isinstance(number, int) else 0


def masking_mod(name: Callable[[Context], str]) -> Mod:
    """Return the mod of clients that send only masked messages.

    Args:
        name: Returns the name of a client.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not asks_for_masks(message):
            if not read_order(message.content).sends:
                return _without_arrays(call_next(message, context))
            note = "this client sends only masked messages. Set secure-range in the run's configuration."
            reply = reply_without_work(read_order(message.content), name(context), "refused", note)
            return Message(reply_content(reply), reply_to=message)
        stage: Any = message.content.config_records[RECORD_KEY_CONFIGS]
        if stage.get(Key.STAGE) == Stage.COLLECT_MASKED_VECTORS:
            return _masked_reply(message, context, call_next)
        if stage.get(Key.STAGE) == Stage.UNMASK:
            _check_lists(stage, context)
        return secaggplus_mod(message, context, call_next)

    return mod


def _check_lists(stage: Any, context: Context) -> None:
    """Refuse to reveal both secrets of a client, or a sum of fewer clients than the setup stage has promised."""
    active, dead = (set(stage.get(name, [])) for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
    least = masked_clients(context)
    if active & dead or len(active) < least:
        raise ValueError(f"The server asks for the sum of {len(active)} clients; {least} or more must be in it, once.")


def _without_arrays(reply: Message) -> Message:
    """Return the reply to an order that asks for no message, after a check that it has none."""
    if reply.has_content() and reply.content.array_records:
        raise RefusedError("this client sends only masked messages, but its reply has arrays without masks.")
    return reply


def _masked_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Return the client's reply to an order, with masked vectors in place of its message: the weight 1, then a vector
    per array of the message."""
    state = SecAggPlusState(**context.state.config_records.get(RECORD_KEY_STATE, ConfigRecord()))
    stage: Any = message.content.config_records[RECORD_KEY_CONFIGS]
    check_stage(state.current_stage, stage)
    check_configs(Stage.COLLECT_MASKED_VECTORS, stage)
    reply = call_next(message, context)
    if reply.has_error() or (said := read_reply(reply.content)).status != "done":
        return reply
    sent, received = arrays_of(reply.content, "arrays", "reply"), arrays_of(message.content, "arrays", "order")
    change, bound = _difference(sent, received), _checked_range(state)
    largest = max((float(np.abs(array).max(initial=0)) for array in change), default=0.0)
    if largest > bound:
        enough = 2.0 ** np.ceil(np.log2(largest))
        note = f"an entry of its change exceeds secure-range = {bound:g} and would be clipped. Try {enough:g} or more."
        return Message(reply_content(said._replace(status="refused", note=note)), reply_to=message)
    senders = _keep_shares(state, stage)
    one = np.array([state.target_range], np.int64)  # all agents have the same weight
    masked = _masked(state, senders, [one, *quantize(change, bound, state.target_range)])
    state.current_stage = Stage.COLLECT_MASKED_VECTORS
    context.state.config_records[RECORD_KEY_STATE] = ConfigRecord(state.to_dict())
    content = RecordDict({"config": reply.content["config"], "metrics": reply.content["metrics"]})
    vectors = [ndarray_to_bytes(vector) for vector in masked]
    content[RECORD_KEY_CONFIGS] = ConfigRecord({Key.MASKED_PARAMETERS: vectors})
    return Message(content, reply_to=message)


def _keep_shares(state: SecAggPlusState, stage: Any) -> list[int]:
    """Put the shares of the other clients' secrets into the state, and return the nodes of these clients."""
    nodes, ciphertexts = stage[Key.SOURCE_LIST], stage[Key.CIPHERTEXT_LIST]
    if len(ciphertexts) + 1 < state.threshold or len(set(nodes)) < len(nodes):
        raise ValueError("Not enough clients share their secrets.")
    for node, ciphertext in zip(nodes, ciphertexts, strict=True):
        sender, receiver, *shares = share_keys_plaintext_separate(decrypt(state.ss2_dict[node], ciphertext))
        if (sender, receiver) != (node, state.nid):
            raise ValueError(f"Node {state.nid} received the shares of node {sender} for node {receiver}.")
        state.rd_seed_share_dict[node], state.sk1_share_dict[node] = shares
    return nodes


def _masked(state: SecAggPlusState, nodes: list[int], vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Return vectors plus the client's own mask, and plus or minus a mask for each other client, modulo 2^32."""
    shapes = [vector.shape for vector in vectors]
    total = [vector + own for vector, own in zip(vectors, mask(state.rd_seed, shapes), strict=True)]
    secret = bytes_to_private_key(state.sk1)
    for node in nodes:
        shared = mask(generate_shared_key(secret, bytes_to_public_key(state.public_keys_dict[node][0])), shapes)
        sign = 1 if state.nid > node else -1
        total = [part + sign * other for part, other in zip(total, shared, strict=True)]
    return [part % MODULUS for part in total]


def _checked_range(state: SecAggPlusState) -> float:
    """Return the largest entry that the masks allow; refuse another modulus than that of the masks."""
    if state.mod_range != MODULUS:
        raise RefusedError(f"secure aggregation: its modulus is {state.mod_range}, but must be 2^32.")
    return float(state.clipping_range)


def _difference(sent: ArrayRecord, received: ArrayRecord) -> list[np.ndarray]:
    """Return `sent` minus `received` in float64, because Flower quantises in the type of its input."""
    same = has_shapes(received, {name: tuple(array.shape) for name, array in sent.items()})
    pairs = [(array.numpy().astype(np.float64), received[name].numpy() if same else 0) for name, array in sent.items()]
    return [np.asarray(now - before) for now, before in pairs]


def has_shapes(received: ArrayRecord, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a broadcast has the names and shapes of a message, as a model does. Both sides use this rule."""
    return shapes == {name: tuple(array.shape) for name, array in received.items()}


ATTEMPTS = 3
Contents = dict[str, RecordDict]
Ask = Callable[[str, Contents, Callable[[str, RecordDict], Any]], dict[str, Any]]  # (stage, contents, read) -> answers
# With a quorum, the share of an attempt's time after which a stage does not wait for missing clients any more.
PATIENCE = {Stage.SETUP: 0.125, Stage.SHARE_KEYS: 0.25, Stage.COLLECT_MASKED_VECTORS: 1.0}


class FixedPoint(NamedTuple):
    """Fixed-point numbers in [-bound, bound], with few enough levels that sums over all clients fit the modulus."""

    bound: float
    levels: int


def fixed_point(bound: float, clients: int) -> FixedPoint:
    """Return the finest fixed point for this many clients."""
    most = min((MODULUS - 1) // clients, 2**30)  # Flower quantises to int32
    return FixedPoint(bound, 2 ** (most.bit_length() - 1))


class OrdersAndReplies(Protocol):
    """Writes the orders of one communication and checks the replies, as the server's `Communication` does."""

    def orders(self, config: Mapping[str, Any] | None = None, lost: Container[str] = ()) -> Contents:
        """Return the orders, by the names of the clients; `lost` are the clients that have lost their state."""

    def senders_by_name(self) -> list[str]:
        """Return the clients that send a message; the others only do the steps of skipped rounds."""

    def read(self, name: str, content: RecordDict) -> CheckedReply | RecordDict:
        """Return the reply to an order; for a client that has lost its state, return a new order for it."""

    def check_reply(self, name: str, content: RecordDict) -> Reply | RecordDict:
        """Return a reply; for a client that has lost its state, return a new order for it."""

    def message_shapes(self) -> Tree:
        """Return the shapes and types of a message."""

    def newest_broadcast(self) -> ArrayRecord:
        """Return the arrays in the orders."""


class Attempt(NamedTuple):
    """The clients of one attempt.

    Attributes:
        nodes: The nodes of the clients that can take part, by name.
        everyone: N, the number of all clients.
        least: The number of clients that every stage needs: N, or with a quorum at least two thirds of N plus one.
        form: The fixed point.
        restarts: Whether another attempt may follow.
    """

    nodes: Mapping[str, int]
    everyone: int
    least: int
    form: FixedPoint
    restarts: bool

    @property
    def threshold(self) -> int:
        """The number of shares that reveal a secret."""
        return threshold_of(self.everyone)


def threshold_of(everyone: int) -> int:
    """Return two thirds of all clients plus one."""
    return 2 * everyone // 3 + 1


def collect_sum(
    grid: Grid, directory: ClientDirectory, communication: OrdersAndReplies, timeouts: Timeouts, bound: float
) -> tuple[Collected, Tree | None]:
    """Return the replies of the agents without their messages, and the mean of the messages.

    The mean is None if agents are missing: any of them, or with `timeouts.quorum` too many.
    """
    until, lost, declined = time.monotonic() + timeouts.deadline, set[str](), set[str]()
    senders, quorum = communication.senders_by_name(), timeouts.quorum
    silent = {name: order for name, order in communication.orders().items() if name not in senders}
    worked = collect(grid, directory, silent, TRAIN, timeouts, communication.read)
    if len(worked.answers) < len(silent) and quorum is None:
        return worked, None
    stages = [worked]
    everyone = len(senders) if quorum is None else len(directory.nodes)
    least = everyone if quorum is None else max(quorum, threshold_of(everyone))
    began = attempt_until = time.monotonic()

    def ask(stage: str, contents: Contents, read: Callable[[str, RecordDict], Any]) -> dict[str, Any]:
        part = 1.0 if quorum is None else PATIENCE.get(stage, 1.0)
        ends = until if quorum is not None and stage == Stage.UNMASK else began + part * (attempt_until - began)
        left = max(ends - time.monotonic(), timeouts.poll)
        # A client refuses a stage that it has already done, so the server sends nothing twice within an attempt.
        once = Timeouts(left, left, timeouts.poll, attempts=1, quorum=None if quorum is None else least)
        stages.append(collect(grid, directory, contents, TRAIN, once, read))
        return stages[-1].answers

    for number in range(1, ATTEMPTS + 1):
        began, first = time.monotonic(), len(stages)
        attempt_until = began + (until - began) / (ATTEMPTS + 1 - number)
        nodes = {name: directory.nodes[name] for name in senders if name in directory.nodes}
        attempt = Attempt(nodes, everyone, least, fixed_point(bound, everyone), number < ATTEMPTS)
        answers, mean = _attempt(ask, attempt, communication, lost, declined)
        if mean is not None or (declined and quorum is None) or time.monotonic() >= until:
            break
        log.warning("Secure aggregation lacks clients at attempt %d of %d: %s", number, ATTEMPTS, _absent(stages[-1]))
    bytes_up, bytes_down = sum(one.bytes_up for one in stages), sum(one.bytes_down for one in stages)
    ended = stages[first:] if quorum is not None else stages[-1:] if mean is None else []
    refused = _without(answers, [one.refused for one in ended])
    missing = _without(answers, [one.missing for one in ended])
    return Collected(worked.answers | answers, refused, missing, bytes_up, bytes_down), mean


def _without(answers: Container[str], reasons: list[dict[str, str]]) -> dict[str, str]:
    """Return the reasons for clients without an answer."""
    return {name: why for stage in reasons for name, why in stage.items() if name not in answers}


def _absent(found: Collected) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in (found.refused | found.missing).items())


def _attempt(
    ask: Ask, attempt: Attempt, communication: OrdersAndReplies, lost: set[str], declined: set[str]
) -> tuple[dict[str, CheckedReply], Tree | None]:
    """Do the four stages once, with new keys. Clients that lost their state go to `lost`, refusals to `declined`.

    Returns:
        The replies, and the mean message; None if too few clients are left.
    """
    nodes, knew = attempt.nodes, set(lost)
    keys = ask(Stage.SETUP, {name: _setup(attempt) for name in nodes}, KEYS)
    if len(keys) < attempt.least:
        return {}, None
    public = {str(nodes[name]): list(pair) for name, pair in keys.items()}
    shares = ask(Stage.SHARE_KEYS, {name: _content(Stage.SHARE_KEYS, **public) for name in keys}, ENCRYPTED)
    if len(shares) < attempt.least:
        return {}, None
    read = _reader(communication, lost, declined)
    found = ask(Stage.COLLECT_MASKED_VECTORS, _orders(communication, nodes, shares, lost), read)
    if len(found) < attempt.least or (attempt.restarts and lost - knew):  # who lost its state needs another order
        return {}, None
    active, dead = [nodes[name] for name in found], [nodes[name] for name in shares if name not in found]
    lists = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
    secrets = ask(Stage.UNMASK, {name: _content(Stage.UNMASK, **lists) for name in found}, SHARES)
    if len(secrets) < attempt.threshold:
        if len(found) == attempt.everyone:
            return {}, None  # a repetition has the same sum
        rule = f"{len(secrets)} clients sent their shares, but {attempt.threshold} are needed"
        raise FederationError(f"secure aggregation: {rule}. Repair the others and start the run again to resume it.")
    try:
        total = _own_masks_removed([vectors for _, vectors in found.values()], list(secrets.values()), active)
        total = _pair_masks_removed(total, list(secrets.values()), dead, {nodes[name]: keys[name][0] for name in found})
    except ValueError as error:
        raise FederationError(
            f"secure aggregation: the shares of a client are wrong ({error}). Start the run again."
        ) from None
    return {name: reply for name, (reply, _) in found.items()}, _mean(communication, total, attempt.form, len(found))


def _content(stage: str, **fields: Any) -> RecordDict:
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **fields})})


def _setup(attempt: Attempt) -> RecordDict:
    numbers = {Key.SAMPLE_NUMBER: attempt.least, Key.SHARE_NUMBER: attempt.everyone, Key.THRESHOLD: attempt.threshold}
    fields: dict[str, Any] = numbers | {Key.CLIPPING_RANGE: float(attempt.form.bound)}
    fields |= {Key.TARGET_RANGE: attempt.form.levels, Key.MOD_RANGE: MODULUS}
    return _content(Stage.SETUP, **fields, **{Key.MAX_WEIGHT: 1.0})


def _fields(**kinds: Any) -> Callable[[str, RecordDict], Any]:
    """Return a function that reads entries of a stage's reply and checks their types; lists must have equal lengths."""

    def read(_: str, content: RecordDict) -> list[Any]:
        record: Any = content.config_records.get(RECORD_KEY_CONFIGS, {})
        values = [record.get(name) for name in kinds]
        fits = [_is(value, kind) for value, kind in zip(values, kinds.values(), strict=True)]
        if not all(fits) or len({len(value) for value in values if isinstance(value, list)}) > 1:
            raise RefusedError(f"secure aggregation: the reply must have {', '.join(kinds)} with the right types.")
        return values

    return read


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value has the type `bytes`, `list[int]` or `list[bytes]`."""
    if kind is bytes:
        return isinstance(value, bytes)
    return isinstance(value, list) and all(isinstance(one, kind.__args__[0]) for one in value)


KEYS = _fields(**{Key.PUBLIC_KEY_1: bytes, Key.PUBLIC_KEY_2: bytes})
ENCRYPTED = _fields(**{Key.DESTINATION_LIST: list[int], Key.CIPHERTEXT_LIST: list[bytes]})
MASKED = _fields(**{Key.MASKED_PARAMETERS: list[bytes]})
SHARES = _fields(**{Key.NODE_ID_LIST: list[int], Key.SHARE_LIST: list[bytes]})


def _orders(
    communication: OrdersAndReplies, nodes: Mapping[str, int], shares: Mapping[str, Any], lost: set[str]
) -> Contents:
    """Return the orders for the clients that sent shares, each with the encrypted shares for its agent."""
    contents = {name: content for name, content in communication.orders(lost=lost).items() if name in shares}
    for name, content in contents.items():
        encrypted = [
            (nodes[sender], ciphertext)
            for sender, (to, ciphertexts) in shares.items()
            for node, ciphertext in zip(to, ciphertexts, strict=True)
            if node == nodes[name]
        ]
        fields: dict[str, Any] = {
            Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
            Key.SOURCE_LIST: [node for node, _ in encrypted],
            Key.CIPHERTEXT_LIST: [ciphertext for _, ciphertext in encrypted],
        }
        content[RECORD_KEY_CONFIGS] = ConfigRecord(fields)
    return contents


def _reader(
    communication: OrdersAndReplies, lost: set[str], declined: set[str]
) -> Callable[[str, RecordDict], tuple[CheckedReply, list[np.ndarray]]]:
    """Return a function that reads a reply and its masked vectors: the weight, then one per array of the message."""
    like = leaves_by_name(communication.message_shapes())
    wanted = [(1,), *(tuple(leaf.shape) for leaf in like.values())]

    def read(name: str, content: RecordDict) -> tuple[CheckedReply, list[np.ndarray]]:
        try:
            reply = communication.check_reply(name, content)
        except RefusedError:
            declined.add(name)
            raise
        if isinstance(reply, RecordDict):
            lost.add(name)
            raise RefusedError("the client has lost its state; the server sends it a new order.")
        (parts,) = MASKED(name, content)
        try:
            vectors = [bytes_to_ndarray(part) for part in parts]
        except ValueError as error:
            raise RefusedError(f"secure aggregation: the masked message must be arrays ({error}).") from None
        if [vector.shape for vector in vectors] != wanted or any(vector.dtype != np.int64 for vector in vectors):
            raise RefusedError("secure aggregation: the masked message has other shapes or types than the method's.")
        return CheckedReply(None, reply), vectors

    return read


def _own_masks_removed(masked: list[list[np.ndarray]], secrets: list[Any], active: list[int]) -> list[np.ndarray]:
    """Return the sum of the vectors modulo `MODULUS`, without the own mask of each agent, which the shares reveal.

    Masks between two of these agents cancel.
    """
    total = [np.sum(parts, axis=0) for parts in zip(*masked, strict=True)]
    for node in active:
        own = mask(_secret(secrets, node), [part.shape for part in total])
        total = [part - one for part, one in zip(total, own, strict=True)]
    return [part % MODULUS for part in total]


def _pair_masks_removed(
    total: list[np.ndarray], secrets: list[Any], dead: list[int], public: Mapping[int, bytes]
) -> list[np.ndarray]:
    """Return a sum modulo `MODULUS` without the masks that agents share with agents that dropped out.

    Args:
        total: The sum.
        secrets: The shares, of which enough reveal the key of an agent that dropped out.
        dead: The nodes of the agents that dropped out.
        public: The public keys of the others, by node.
    """
    for node in dead:
        key = bytes_to_private_key(_secret(secrets, node))
        for other, its_key in public.items():
            shared = mask(generate_shared_key(key, bytes_to_public_key(its_key)), [part.shape for part in total])
            sign = 1 if other > node else -1  # as the other agent added it
            total = [part - sign * one for part, one in zip(total, shared, strict=True)]
    return [part % MODULUS for part in total]


def _secret(secrets: list[Any], node: int) -> bytes:
    """Return the secret of a node from the shares of the others: its seed, or its key if it dropped out."""
    return combine_shares(
        [share for owners, shares in secrets for o, share in zip(owners, shares, strict=True) if o == node]
    )


def _mean(communication: OrdersAndReplies, total: list[np.ndarray], form: FixedPoint, number: int) -> Tree:
    """Return the mean message: the mean change, in the type of the messages, plus the broadcast that agents changed."""
    (weight,), *sums = total
    if weight != number * form.levels:
        raise FederationError("secure aggregation: the sum does not have every client once. Start the run again.")
    step = 2 * form.bound / form.levels
    like, received = communication.message_shapes(), communication.newest_broadcast()
    wanted = leaves_by_name(like)
    same = has_shapes(received, {name: tuple(leaf.shape) for name, leaf in wanted.items()})
    leaves = []
    for (name, leaf), part in zip(wanted.items(), sums, strict=True):
        change = part * (step / number) - form.bound
        leaves.append((change + (received[name].numpy() if same else 0)).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
