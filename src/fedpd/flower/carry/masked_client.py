"""Secure aggregation at the client: a mod around training and evaluation, through which nothing leaves without masks.

The client masks x_{0,i}^+ - x_0, not x_{0,i}^+, because fixed-point numbers need a range. It refuses an entry outside
this range: a message that was cut silently does not fit the dual that the client keeps. It refuses orders without
masks, a sum of fewer clients than the server promised it, both secrets of one client, and what its memory of earlier
sums forbids (`Memory`). An order that comes again must have the same arrays: a refusal by the range tells how far the
message is from them, and many would tell the message. All clients of an attempt mask with a hash of what they were
told: the order, the clients and their keys. If the server tells two clients different things, their masks do not
cancel.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpd.flower.carry.masks import (
    MESSAGES,
    NUMBERS,
    PURPOSE,
    SEALING,
    SHARE,
    Keys,
    circle,
    common,
    confirmations,
    derived,
    fixed_number,
    is_signed,
    neighbourhood,
    neighbours,
    new_keys,
    quantized,
    seal,
    sign,
    split_secret,
    transcript,
    unseal,
)
from fedpd.flower.carry.protocol import TRAIN, read_order, read_reply, reply_content, reply_without_work
from fedpd.flower.carry.records import RefusedError, arrays_of

RECORD = "masks"  # in every message of secure aggregation; at the client also the name of what it keeps in between
KEYS, SHARES, VECTORS, SIGN, UNMASK = "keys", "shares", "vectors", "sign", "unmask"  # the stages
LEAST = 3  # clients in a sum: one of two would know the other's message from it
BEFORE = {SHARES: (KEYS,), VECTORS: (SHARES,), SIGN: (VECTORS,), UNMASK: (VECTORS, SIGN)}


class Subject(NamedTuple):
    """The subject of a sum, as the server tells it to all clients.

    Attributes:
        kind: Flower's type of the messages: training or evaluation.
        run: The identity of the run.
        number: The number of the communication.
        everyone: N, the clients of which the sum may consist.
        least: The least number of clients in the sum.
        bound: The largest entry of a change; 0 for an evaluation.
        levels: The levels of the fixed point.
    """

    kind: str
    run: str
    number: int
    everyone: int
    least: int
    bound: float
    levels: int


class OutOfTurnError(RefusedError):
    """A stage does not follow the stage before it, because the client or the server has started again."""


class Memory(Protocol):
    """A client's memory of the sums that it took part in, on its disk, and the rules of its policy about them."""

    def settled(self, context: Context, subject: Subject) -> Sequence[str]:
        """Return the clients in the sum that this client has revealed for this order; none if it has not."""

    def check(self, context: Context, subject: Subject, clients: Sequence[str]) -> None:
        """Refuse to take part in an attempt with these clients."""

    def remember(self, context: Context, subject: Subject, clients: Sequence[str], digest: str) -> None:
        """Write down the clients in a sum before it is revealed, or refuse it.

        Args:
            context: The client's context.
            subject: What is added up.
            clients: The clients in the sum.
            digest: The hash of the model to evaluate; "": the sum is not of an evaluation.
        """


def asks_for_masks(message: Message) -> bool:
    """Return whether a message belongs to a stage of secure aggregation."""
    return RECORD in message.content.config_records


def promised_clients(context: Context) -> int:
    """Return the least number of clients in the sum of the present attempt; 0 if there is none."""
    state: Any = context.state.config_records.get(RECORD, {})
    return _subject(state["about"]).least if "about" in state else 0


def masking_mod(name: Callable[[Context], str], memory: Memory) -> Mod:
    """Return the mod of clients that send only masked messages.

    Args:
        name: Returns the name of a client.
        memory: The client's memory of sums.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not asks_for_masks(message):
            return _without_masks(message, context, call_next, name(context))
        stage: Any = message.content.config_records[RECORD]
        try:
            kept = _kept(stage, context)
            if stage["stage"] == VECTORS:
                return _masked_reply(message, context, call_next, kept, name(context))
            answers = {KEYS: _send_keys, SHARES: _send_shares, SIGN: _send_signature, UNMASK: _send_unmasking}
            answer = answers[stage["stage"]]
            record = answer(stage, kept, context, name(context), memory)
        except RefusedError as error:
            record = {"note": str(error), "again": isinstance(error, OutOfTurnError)}
        return Message(_content(stage, **record), reply_to=message)

    return mod


def _content(stage: Any, **fields: Any) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"attempt": stage["attempt"], **fields})})


def _kept(stage: Any, context: Context) -> dict[str, Any]:
    """Return what the client keeps of an attempt; refuse a stage out of turn."""
    if stage["stage"] == KEYS:
        return {}
    state: Any = context.state.config_records.get(RECORD, {})
    if state.get("attempt") != stage["attempt"] or state.get("stage") not in BEFORE[stage["stage"]]:
        raise OutOfTurnError(f"secure aggregation: stage {stage['stage']!r} came out of turn, e.g. after a restart.")
    return dict(state)


def _keep(context: Context, kept: dict[str, Any], stage: str) -> None:
    context.state.config_records[RECORD] = ConfigRecord({**kept, "stage": stage})


def hash_of(record: ArrayRecord) -> str:
    """Return a hash of the arrays of an order or of an evaluation."""
    found = hashlib.sha256()
    for name, array in record.items():
        found.update(json.dumps([name, array.dtype, list(array.shape)]).encode())
        found.update(array.data)
    return found.hexdigest()


def _subject(about: str) -> Subject:
    return Subject(**json.loads(about))


def _without_masks(message: Message, context: Context, call_next: ClientAppCallable, name: str) -> Message:
    """Return the reply to an order that asks for no message; refuse any other that has no masks."""
    note = "this client sends only masked messages. Set secure-range in the run's configuration."
    if message.metadata.message_type != TRAIN:
        raise RefusedError(note)
    order = read_order(message.content)
    if order.sends:
        return Message(reply_content(reply_without_work(order, name, "refused", note)), reply_to=message)
    reply = call_next(message, context)
    if reply.has_content() and reply.content.array_records:
        raise RefusedError("this client sends only masked messages, but its reply has arrays without masks.")
    return reply


def _send_keys(stage: Any, kept: Any, context: Context, name: str, memory: Memory) -> dict[str, Any]:
    """Begin an attempt: new secrets, of which the public keys and a hash of the seed are sent."""
    subject, keys, seed = _subject(stage["about"]), new_keys(), os.urandom(32)
    if subject.least < LEAST:
        raise RefusedError(
            f"secure aggregation: the sum may have {subject.least} clients; {LEAST} or more must be in it."
        )
    if not 0 < subject.levels * subject.everyone < 2**MESSAGES.bits:
        raise RefusedError(f"secure aggregation: {subject.levels} levels of {subject.everyone} clients do not add up.")
    kept = {"attempt": stage["attempt"], "about": stage["about"], "seed": seed}
    _keep(context, kept | keys._asdict(), KEYS)
    settled = list(memory.settled(context, subject))
    return {"keys": keys.public(), "commitment": hashlib.sha256(seed).digest(), "settled": settled}


def _send_shares(stage: Any, kept: Any, context: Context, name: str, memory: Memory) -> dict[str, Any]:
    """Give every neighbour its shares of this client's secrets, encrypted for it."""
    names, keys, subject = list(stage["names"]), list(stage["keys"]), _subject(kept["about"])
    own = Keys(*(kept[one] for one in Keys._fields)).public()
    table = {one: keys[at : at + len(own)] for one, at in zip(names, range(0, len(keys), len(own)), strict=False)}
    wrong = len(table) < len(names) or len(keys) != len(own) * len(names) or len(set(keys)) < len(keys)
    if wrong or table.get(name) != own:
        raise RefusedError("secure aggregation: the keys of the clients are not one set for each.")
    if not subject.least <= len(names) <= subject.everyone:
        raise RefusedError(f"secure aggregation: {len(names)} clients have keys; {subject.least} or more must.")
    memory.check(context, subject, names)
    seed, size = transcript(kept["about"], names, keys), neighbourhood(len(names))
    holders = neighbours(circle(names, seed), name, size.neighbours)
    secrets = [split_secret(kept[one], size.threshold, len(holders)) for one in ("seed", "masking")]
    own_share, *texts = map(b"".join, zip(*secrets, strict=True))
    sealing = [derived(one, SEALING + seed) for one in common(kept["sealing"], [table[one][1] for one in holders[1:]])]
    known = {"names": names, "signers": [table[one][2] for one in names], "owners": holders, "agreed": seed}
    known |= {"keys": [table[one][0] for one in holders[1:]], "sealing": sealing, "shares": [own_share]}
    _keep(context, {**kept, **known}, SHARES)
    pairs = zip(sealing, texts, holders[1:], strict=True)
    return {"to": holders[1:], "sealed": [seal(key, text, _about(name, to)) for key, text, to in pairs]}


def _about(sender: str, receiver: str) -> bytes:
    return json.dumps([sender, receiver]).encode()


def _open_shares(stage: Any, kept: Any, name: str) -> dict[str, Any]:
    """Return what the client keeps, of the neighbours that share their secrets: itself, then those that have sent."""
    around = dict(zip(kept["owners"][1:], zip(kept["sealing"], kept["keys"], strict=True), strict=True))
    senders, shares = list(stage["senders"]), list(kept["shares"])
    enough = len(senders) + 1 >= neighbourhood(len(kept["names"])).threshold
    if not enough or len(set(senders)) < len(senders) or not set(senders) <= around.keys():
        raise RefusedError("secure aggregation: not enough neighbours share their secrets.")
    for sender, sealed in zip(senders, stage["sealed"], strict=True):
        try:
            shares.append(unseal(around[sender][0], sealed, _about(sender, name)))
        except (InvalidTag, ValueError):
            raise RefusedError(f"secure aggregation: the shares of client {sender!r} were changed.") from None
    return {**kept, "owners": [name, *senders], "shares": shares, "keys": [around[one][1] for one in senders]}


def _masked_reply(
    message: Message, context: Context, call_next: ClientAppCallable, kept: dict[str, Any], name: str
) -> Message:
    """Return the reply to an order or an evaluation, with one masked vector in place of its numbers."""
    stage: Any = message.content.config_records[RECORD]
    kept = _open_shares(stage, kept, name)
    subject = _subject(kept["about"])
    _check_about(message, subject)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    if subject.kind == TRAIN:
        if read_reply(reply.content).status != "done":
            return reply
        ring, vector = MESSAGES, _encoded_change(message.content, reply.content, subject)
        content = RecordDict({"config": reply.content["config"], "metrics": reply.content["metrics"]})
        fields: dict[str, Any] = {}
    else:
        if "metrics" not in reply.content:  # a refusal
            return reply
        ring, entries = NUMBERS, flat(reply.content.metric_records["metrics"])
        vector, content = _encoded_numbers(entries, subject), RecordDict({"config": reply.content["config"]})
        fields = {"entries": list(entries)}
    total = ring.add(vector, ring.mask(kept["seed"], len(vector)))
    for other, shared in zip(kept["owners"][1:], common(kept["masking"], kept["keys"]), strict=True):
        sign = 1 if name > other else -1
        total = ring.add(total, ring.mask(shared, len(vector), PURPOSE + kept["agreed"]), sign)
    digest = "" if subject.kind == TRAIN else hash_of(arrays_of(message.content, "arrays", "order"))
    _keep(context, {**kept, "digest": digest}, VECTORS)
    content[RECORD] = ConfigRecord({"attempt": stage["attempt"], "vector": ring.write(total), **fields})
    return Message(content, reply_to=message)


def _check_about(message: Message, subject: Subject) -> None:
    """Refuse an order other than the one of which the client will remember the sum."""
    if message.metadata.message_type != subject.kind:
        kinds = f"{message.metadata.message_type!r}, but of {subject.kind!r} in the first stage"
        raise RefusedError(f"secure aggregation: the message is of the kind {kinds}.")
    if subject.kind == TRAIN:
        order = read_order(message.content)
        if (order.run, order.number) != (subject.run, subject.number):
            told = f"{subject.number} of run {subject.run} in the first stage"
            raise RefusedError(
                f"secure aggregation: the order is number {order.number} of {order.run}, but was {told}."
            )


def _encoded_change(order: RecordDict, reply: RecordDict, subject: Subject) -> np.ndarray:
    """Return the weight of a client, then the change of each entry in fixed point."""
    sent, received = arrays_of(reply, "arrays", "reply"), arrays_of(order, "arrays", "order")
    same = has_shapes(received, {name: tuple(array.shape) for name, array in sent.items()})
    vector = np.full(1 + sum(_size(array) for array in sent.values()), subject.levels, np.uint32)
    rng, at, largest = np.random.default_rng(), 1, 0.0
    for name, array in sent.items():
        change = np.asarray(array.numpy(), np.float64)
        change = (change - received[name].numpy() if same else change).ravel()
        largest = max(largest, float(np.abs(change).max(initial=0)))
        vector[at : at + change.size] = quantized(change, subject.bound, subject.levels, rng)
        at += change.size
    if largest > subject.bound:
        rule = f"an entry of its change exceeds secure-range = {subject.bound:g} and would be clipped"
        raise RefusedError(f"{rule}. Try {2.0 ** np.ceil(np.log2(largest)):g} or more.")
    return vector


def _size(array: Any) -> int:
    return int(np.prod(array.shape, dtype=np.int64))


def has_shapes(received: ArrayRecord, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a broadcast has the names and shapes of a message, as a model does. Both sides use this rule."""
    return shapes == {name: tuple(array.shape) for name, array in received.items()}


def flat(metrics: Any) -> dict[str, float]:
    """Return the numbers of an evaluation by name: a metric's sum and number become "name/0" and "name/1"."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        parts = {f"{name}/{i}": one for i, one in enumerate(value)} if isinstance(value, list) else {name: value}
        found |= {key: float(one) for key, one in parts.items()}
    return found


def _encoded_numbers(entries: dict[str, float], subject: Subject) -> np.ndarray:
    """Return the weight 1, then each number of an evaluation in fixed point."""
    numbers = {name: fixed_number(value, subject.everyone) for name, value in entries.items()}
    for name, number in numbers.items():
        if number is None:
            raise RefusedError(f"evaluation: {name} is not finite or too large to add it up under masks.")
    return np.array([1, *numbers.values()], object)


def _send_signature(stage: Any, kept: Any, context: Context, name: str, memory: Memory) -> dict[str, Any]:
    """Sign the set of the sum, once per attempt, so that no two sets can be signed by most clients."""
    text = _set_of_sum(stage, kept, name)
    _keep(context, kept, SIGN)
    return {"signature": sign(kept["signing"], text)}


def _set_of_sum(stage: Any, kept: Any, name: str) -> bytes:
    """Return who is in the sum and who has dropped out, as all clients must have been told it, after a check."""
    active, missing, least = list(stage["active"]), list(stage["missing"]), _subject(kept["about"]).least
    known = set(kept["names"])
    if set(active) & set(missing) or not {*active, *missing} <= known or len(set(active)) < least:
        rule = f"{least} or more must be in it, once"
        raise RefusedError(f"the server asks for the sum of {len(set(active))} clients; {rule}.")
    if name not in active:
        raise RefusedError("secure aggregation: the server asks a client for shares whose message is not in the sum.")
    return bytes(kept["agreed"]) + json.dumps([sorted(active), sorted(missing)]).encode()


def _send_unmasking(stage: Any, kept: Any, context: Context, name: str, memory: Memory) -> dict[str, Any]:
    """Reveal this client's shares: of the seeds of those in the sum, and of the keys of those that dropped out."""
    text, subject = _set_of_sum(stage, kept, name), _subject(kept["about"])
    if needed := confirmations(len(kept["names"]), subject.least):
        signers = dict(zip(kept["names"], kept["signers"], strict=True))
        told = dict(zip(stage.get("signed", []), stage.get("signatures", []), strict=True))
        number = sum(is_signed(signers[one], text, told[one]) for one in signers.keys() & told.keys())
        if number < needed:
            rule = f"{number} clients have signed the set of the sum; {needed} or more must"
            raise RefusedError(f"secure aggregation: {rule}, so that no two sets are revealed.")
    memory.remember(context, subject, stage["active"], kept["digest"])
    active, holds = set(stage["active"]), dict(zip(kept["owners"], kept["shares"], strict=True))
    names = [one for one in (*stage["active"], *stage["missing"]) if one in holds]
    shares = [holds[one][:SHARE] if one in active else holds[one][SHARE:] for one in names]
    _keep(context, {"attempt": stage["attempt"]}, UNMASK)  # the secrets are gone, so no other set can be revealed
    return {"names": names, "shares": shares}
