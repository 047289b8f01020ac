"""The server's side of secure aggregation: the four stages of SecAgg+, from which it learns only the sum of messages.

In the first stage, the server passes all public keys to all agents. In the second, it passes on the encrypted shares of
the agents' secrets. In the third, it sends the orders and receives masked replies. In the fourth, it asks for enough
shares to remove the masks from the sum. Flower 1.41 has these stages for its older API only, so this file runs them,
with Flower's own keys and shares, and with masks from a cryptographic generator (see `masking` and `masks`).

The server asks for shares only after all clients that send in this communication have replied. If it saw the sum of
fewer clients, a repetition with one more client would reveal that client's message. So if a client is missing, the
server starts again with the same clients and new keys. Clients reply to the same order again without carrying it out
twice. The attempts share the deadline: each may take an equal part of the time that is left.
"""

import logging
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.serverapp import Grid

from fedpd.core import Tree
from fedpd.flower.carry.collect import Collected, Timeouts, collect
from fedpd.flower.carry.directory import ClientDirectory, FederationError
from fedpd.flower.carry.masking import has_shapes
from fedpd.flower.carry.masks import MODULUS, mask
from fedpd.flower.carry.protocol import TRAIN, CheckedReply, Reply
from fedpd.flower.carry.records import RefusedError, leaves_by_name

log = logging.getLogger(f"flwr.{__name__}")

ATTEMPTS = 3
Contents = dict[str, RecordDict]
Ask = Callable[[Contents, Callable[[str, RecordDict], Any]], dict[str, Any]]  # one stage: contents -> answers


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


def collect_sum(
    grid: Grid, directory: ClientDirectory, communication: OrdersAndReplies, timeouts: Timeouts, bound: float
) -> tuple[Collected, Tree | None]:
    """Return the replies of all agents without their messages, and the mean of the messages.

    The mean is None if not all agents have replied.
    """
    until, lost, declined = time.monotonic() + timeouts.deadline, set[str](), set[str]()
    attempt_until, senders = until, communication.senders_by_name()
    silent = {name: order for name, order in communication.orders().items() if name not in senders}
    worked = collect(grid, directory, silent, TRAIN, timeouts, communication.read)
    if len(worked.answers) < len(silent):
        return worked, None
    stages = [worked]

    def ask(contents: Contents, read: Callable[[str, RecordDict], Any]) -> dict[str, Any]:
        left = max(attempt_until - time.monotonic(), timeouts.poll)
        # A client refuses a stage that it has already done, so the server sends nothing twice within an attempt.
        once = Timeouts(left, left, timeouts.poll, attempts=1)
        stages.append(collect(grid, directory, contents, TRAIN, once, read))
        return stages[-1].answers

    for attempt in range(1, ATTEMPTS + 1):
        now = time.monotonic()
        attempt_until = now + (until - now) / (ATTEMPTS + 1 - attempt)
        nodes = {name: directory.nodes[name] for name in senders}
        answers, mean = _attempt(ask, nodes, communication, bound, lost, declined)
        if mean is not None or declined or time.monotonic() >= until:
            break
        log.warning("Secure aggregation lacks clients at attempt %d of %d: %s", attempt, ATTEMPTS, _absent(stages[-1]))
    bytes_up, bytes_down = sum(one.bytes_up for one in stages), sum(one.bytes_down for one in stages)
    absent = ({}, {}) if mean is not None else (stages[-1].refused, stages[-1].missing)
    return Collected(worked.answers | answers, *absent, bytes_up, bytes_down), mean


def _absent(found: Collected) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in (found.refused | found.missing).items())


def _attempt(
    ask: Ask,
    nodes: Mapping[str, int],
    communication: OrdersAndReplies,
    bound: float,
    lost: set[str],
    declined: set[str],
) -> tuple[dict[str, CheckedReply], Tree | None]:
    """Do the four stages once, with new keys. Clients that lost their state go to `lost`, refusals to `declined`.

    Returns:
        The replies, and the mean message; None if a client is missing.
    """
    everyone, form = len(nodes), fixed_point(bound, len(nodes))
    threshold = 2 * everyone // 3 + 1
    keys = ask({name: _setup(everyone, threshold, form) for name in nodes}, KEYS)
    if len(keys) < everyone:
        return {}, None
    public = {str(nodes[name]): list(pair) for name, pair in keys.items()}
    shares = ask({name: _content(Stage.SHARE_KEYS, **public) for name in nodes}, ENCRYPTED)
    if len(shares) < everyone:
        return {}, None
    read = _reader(communication, lost, declined)
    found = ask(_orders(communication, nodes, shares, lost), read)
    if len(found) < everyone:
        return {}, None
    active = {Key.ACTIVE_NODE_ID_LIST: list(nodes.values()), Key.DEAD_NODE_ID_LIST: []}
    secrets = ask({name: _content(Stage.UNMASK, **active) for name in nodes}, SHARES)
    if len(secrets) < threshold:
        return {}, None
    try:
        total = _unmask([vectors for _, vectors in found.values()], list(secrets.values()), list(nodes.values()))
    except ValueError as error:
        raise FederationError(
            f"secure aggregation: the shares of a client are wrong ({error}). Start the run again."
        ) from None
    return {name: answer for name, (answer, _) in found.items()}, _mean(communication, total, form, everyone)


def _content(stage: str, **fields: Any) -> RecordDict:
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **fields})})


def _setup(everyone: int, threshold: int, form: FixedPoint) -> RecordDict:
    fields: dict[str, Any] = {Key.SAMPLE_NUMBER: everyone, Key.SHARE_NUMBER: everyone, Key.THRESHOLD: threshold}
    fields |= {Key.CLIPPING_RANGE: float(form.bound), Key.TARGET_RANGE: form.levels, Key.MOD_RANGE: MODULUS}
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
    """Return the orders, each with the encrypted shares for its agent."""
    contents = {name: order for name, order in communication.orders(lost=lost).items() if name in nodes}
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


def _unmask(masked: list[list[np.ndarray]], secrets: list[Any], nodes: list[int]) -> list[np.ndarray]:
    """Return the sum of all vectors modulo `MODULUS`.

    Masks between two agents cancel. The server computes an agent's own mask from the shares.
    """
    total = [np.sum(parts, axis=0) for parts in zip(*masked, strict=True)]
    for node in nodes:
        parts = [
            share for owners, shares in secrets for owner, share in zip(owners, shares, strict=True) if owner == node
        ]
        own = mask(combine_shares(parts), [part.shape for part in total])
        total = [part - one for part, one in zip(total, own, strict=True)]
    return [part % MODULUS for part in total]


def _mean(communication: OrdersAndReplies, total: list[np.ndarray], form: FixedPoint, everyone: int) -> Tree:
    """Return the mean message: the mean change, in the type of the messages, plus the broadcast that agents changed."""
    (weight,), *sums = total
    if weight != everyone * form.levels:
        raise FederationError("secure aggregation: the sum does not have every client once. Start the run again.")
    step = 2 * form.bound / form.levels
    like, received = communication.message_shapes(), communication.newest_broadcast()
    wanted = leaves_by_name(like)
    same = has_shapes(received, {name: tuple(leaf.shape) for name, leaf in wanted.items()})
    leaves = []
    for (name, leaf), part in zip(wanted.items(), sums, strict=True):
        change = part * (step / everyone) - form.bound
        leaves.append((change + (received[name].numpy() if same else 0)).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
