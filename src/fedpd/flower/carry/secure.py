"""The server's side of secure aggregation: the four stages of SecAgg+, by which it learns the sum of messages alone.

All agents' public keys to all agents; their shares of each other's secrets, encrypted, to those they are for; the
order, and masked answers; then enough shares to take the masks off the sum. Flower 1.41 leads these stages for its
older API only, so they are led here, with Flower's own cryptography, towards Flower's own mod (see `masking`).

Shares are asked for only when all N have answered. Were the sum of fewer ever shown, a repetition with one client more
would show that client's own message. So an attempt that lacks anyone is begun anew, with new keys; clients answer the
same order again without carrying it out twice.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.serverapp import Grid

from fedpd.base.checks import refuse
from fedpd.core import Algorithm, Tree
from fedpd.flower.carry.collect import Collected, Patience, collect
from fedpd.flower.carry.directory import FederationError, Roll
from fedpd.flower.carry.masking import is_alike
from fedpd.flower.carry.protocol import TRAIN
from fedpd.flower.carry.records import RefusedError, named
from fedpd.flower.method.server import Answer, Desk
from fedpd.flower.method.settings import Settings
from fedpd.flower.method.shapes import Shapes

log = logging.getLogger(f"flwr.{__name__}")

MODULUS = 2**32  # of Flower's masks
ATTEMPTS = 3
Contents = dict[str, RecordDict]
Ask = Callable[[Contents, Callable[[str, RecordDict], Any]], dict[str, Any]]  # a stage: orders out, answers in


class Range(NamedTuple):
    """Fixed point: entries within +-bound, in so many levels that the sum over all clients stays below the modulus."""

    bound: float
    levels: int


def fixed_point(bound: float, clients: int) -> Range:
    most = min((MODULUS - 1) // clients, 2**30)  # Flower quantises to int32
    return Range(bound, 2 ** (most.bit_length() - 1))


def check_secure(algorithm: Algorithm, shapes: Shapes, settings: Settings) -> None:
    """Refuse what the sum of all messages is not enough for."""
    if not settings.secure_range:
        return
    what, name = "secure-range", algorithm.description
    if settings.agents < 3:
        refuse(what, settings.secure_range, f"the sum of {settings.agents} clients hides nobody", "Have at least 3")
    if settings.on_timeout != "fail":
        rule = "the sums of different clients would show those in which they differ, so all must answer"
        refuse("on-timeout", settings.on_timeout, rule, 'Use "fail" with secure-range')
    if settings.clip:
        refuse("clip", settings.clip, "the server sees no client's own message", "Use a clipping mod at the clients")
    if any(exchange.speaks is not None for exchange in algorithm.exchanges):
        refuse(what, settings.secure_range, f"agents of {name} do not always send", "Use a method in which they do")
    if not all(jnp.issubdtype(leaf.dtype, np.floating) for leaf in jax.tree.leaves(shapes.messages)):
        refuse(what, settings.secure_range, f"messages of {name} are not all real numbers", "Use another method")


def collect_sum(grid: Grid, roll: Roll, desk: Desk, patience: Patience, bound: float) -> tuple[Collected, Tree | None]:
    """All agents' replies, without their messages, and the mean of these; None where not all agents have answered."""
    heard: list[Collected] = []
    until, lost, declined = time.monotonic() + patience.deadline, set[str](), set[str]()

    def ask(contents: Contents, read: Callable[[str, RecordDict], Any]) -> dict[str, Any]:
        left = max(until - time.monotonic(), patience.poll)
        # A client refuses a stage that it has been through, so nothing is sent again but in a new attempt.
        heard.append(collect(grid, roll, contents, TRAIN, Patience(left, left, patience.poll, attempts=1), read))
        return heard[-1].answers

    for attempt in range(1, ATTEMPTS + 1):
        answers, mean = _attempt(ask, dict(roll.nodes), desk, bound, lost, declined)
        if mean is not None or declined or time.monotonic() >= until:
            break
        log.warning("Secure aggregation lacks clients at attempt %d of %d: %s", attempt, ATTEMPTS, _absent(heard[-1]))
    bytes_up, bytes_down = sum(one.bytes_up for one in heard), sum(one.bytes_down for one in heard)
    absent = ({}, {}) if mean is not None else (heard[-1].refused, heard[-1].missing)
    return Collected(answers, *absent, bytes_up, bytes_down), mean


def _absent(found: Collected) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in (found.refused | found.missing).items())


def _attempt(
    ask: Ask, nodes: Mapping[str, int], desk: Desk, bound: float, lost: set[str], declined: set[str]
) -> tuple[dict[str, Answer], Tree | None]:
    """The four stages once, from new keys. Who has `lost` its state or `declined` the order is noted."""
    everyone, form = len(nodes), fixed_point(bound, len(nodes))
    threshold = 2 * everyone // 3 + 1
    keys = ask({name: _setup(everyone, threshold, form) for name in nodes}, KEYS)
    if len(keys) < everyone:
        return {}, None
    public = {str(nodes[name]): list(pair) for name, pair in keys.items()}
    shares = ask({name: _content(Stage.SHARE_KEYS, **public) for name in nodes}, SEALED)
    if len(shares) < everyone:
        return {}, None
    read = _reader(desk, lost, declined)
    found = ask(_orders(desk, nodes, shares, lost), read)
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
            f"secure aggregation: a client's shares are wrong ({error}). Start the run again."
        ) from None
    return {name: answer for name, (answer, _) in found.items()}, _mean(desk, total, form, everyone)


def _content(stage: str, **fields: Any) -> RecordDict:
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **fields})})


def _setup(everyone: int, threshold: int, form: Range) -> RecordDict:
    fields: dict[str, Any] = {Key.SAMPLE_NUMBER: everyone, Key.SHARE_NUMBER: everyone, Key.THRESHOLD: threshold}
    fields |= {Key.CLIPPING_RANGE: float(form.bound), Key.TARGET_RANGE: form.levels, Key.MOD_RANGE: MODULUS}
    return _content(Stage.SETUP, **fields, **{Key.MAX_WEIGHT: 1.0})


def _fields(**kinds: Any) -> Callable[[str, RecordDict], Any]:
    """Reads entries of a stage's answer, each of its kind; lists of one answer are equally long."""

    def read(_: str, content: RecordDict) -> list[Any]:
        record: Any = content.config_records.get(RECORD_KEY_CONFIGS, {})
        values = [record.get(name) for name in kinds]
        fits = [_is(value, kind) for value, kind in zip(values, kinds.values(), strict=True)]
        if not all(fits) or len({len(value) for value in values if isinstance(value, list)}) > 1:
            raise RefusedError(f"secure aggregation: the answer does not have {', '.join(kinds)} as it should.")
        return values

    return read


def _is(value: Any, kind: Any) -> bool:
    """Whether it is of the kind `bytes`, `list[int]` or `list[bytes]`."""
    if kind is bytes:
        return isinstance(value, bytes)
    return isinstance(value, list) and all(isinstance(one, kind.__args__[0]) for one in value)


KEYS = _fields(**{Key.PUBLIC_KEY_1: bytes, Key.PUBLIC_KEY_2: bytes})
SEALED = _fields(**{Key.DESTINATION_LIST: list[int], Key.CIPHERTEXT_LIST: list[bytes]})
MASKED = _fields(**{Key.MASKED_PARAMETERS: list[bytes]})
SHARES = _fields(**{Key.NODE_ID_LIST: list[int], Key.SHARE_LIST: list[bytes]})


def _orders(desk: Desk, nodes: Mapping[str, int], shares: Mapping[str, Any], lost: set[str]) -> Contents:
    """The orders, each with the encrypted shares that are for its agent."""
    contents = desk.orders(lost=lost)
    for name, content in contents.items():
        sealed = [
            (nodes[sender], ciphertext)
            for sender, (to, ciphertexts) in shares.items()
            for node, ciphertext in zip(to, ciphertexts, strict=True)
            if node == nodes[name]
        ]
        fields = {
            Key.STAGE: Stage.COLLECT_MASKED_VECTORS,
            Key.SOURCE_LIST: [node for node, _ in sealed],
            Key.CIPHERTEXT_LIST: [ciphertext for _, ciphertext in sealed],
        }
        content[RECORD_KEY_CONFIGS] = ConfigRecord(fields)  # type: ignore[arg-type]
    return contents


def _reader(desk: Desk, lost: set[str], declined: set[str]) -> Callable[[str, RecordDict], Any]:
    """Reads a reply and its masked vectors: the weight, then one of every array of the message."""
    like = named(desk.message_shapes())
    wanted = [(1,), *(tuple(leaf.shape) for leaf in like.values())]

    def read(name: str, content: RecordDict) -> tuple[Answer, list[np.ndarray]]:
        try:
            reply = desk.reply(name, content)
        except RefusedError:
            declined.add(name)
            raise
        if isinstance(reply, RecordDict):
            lost.add(name)
            raise RefusedError("has lost its state; it is sent what it needs to go on.")
        (parts,) = MASKED(name, content)
        try:
            vectors = [bytes_to_ndarray(part) for part in parts]
        except ValueError as error:
            raise RefusedError(f"secure aggregation: the masked message is not arrays ({error}).") from None
        if [vector.shape for vector in vectors] != wanted or any(vector.dtype != np.int64 for vector in vectors):
            raise RefusedError("secure aggregation: the masked message has other shapes or types than the method's.")
        return Answer(None, reply), vectors

    return read


def _unmask(masked: list[list[np.ndarray]], secrets: list[Any], nodes: list[int]) -> list[np.ndarray]:
    """The sum of all vectors modulo `MODULUS`. Masks between two agents cancel; an agent's own is made from shares."""
    total = [np.sum(parts, axis=0) for parts in zip(*masked, strict=True)]
    for node in nodes:
        parts = [
            share for owners, shares in secrets for owner, share in zip(owners, shares, strict=True) if owner == node
        ]
        mask = pseudo_rand_gen(combine_shares(parts), MODULUS, [part.shape for part in total])
        total = [part - own for part, own in zip(total, mask, strict=True)]
    return [part % MODULUS for part in total]


def _mean(desk: Desk, total: list[np.ndarray], form: Range, everyone: int) -> Tree:
    """The mean message: the mean change in the messages' own type, onto what the agents changed it from."""
    (weight,), *sums = total
    if weight != everyone * form.levels:
        raise FederationError("secure aggregation: the sum is not that of all clients once. Start the run again.")
    step = 2 * form.bound / form.levels
    like = desk.message_shapes()
    heard = desk.newest()
    alike = is_alike({name: tuple(leaf.shape) for name, leaf in named(like).items()}, heard)
    leaves = []
    for (name, leaf), part in zip(named(like).items(), sums, strict=True):
        moved = part * (step / everyone) - form.bound
        leaves.append((moved + (heard[name].numpy() if alike else 0)).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
