"""Secure aggregation at the server, which learns only the sum of messages or of evaluations.

The server runs four stages. In the first stage, it collects the public keys of all clients. In the second, it passes
them to all, and collects encrypted shares of their secrets for their neighbours. In the third, it sends the orders with
these shares and receives masked replies. In the fourth, it asks for enough shares to remove the masks from the sum.
`masks` has the arithmetic, and `masked_client` the client's side.

Without a quorum, the server asks for shares only after all clients that send in this communication have replied. If one
is missing, it starts again with the same clients and new keys. With a quorum (on-timeout = "partial"), clients may drop
out at every stage, as long as two thirds of all clients plus one are left. If a client drops out after the others have
masked their messages with its key, they send their shares of that key, and the server removes these masks too. The
client's own mask stays secret, so a message that comes late cannot be read. In a sparse graph of neighbours, the
clients then sign the set of the sum before they send shares, so that the server cannot tell them different sets. Once
the server has asked for shares, it never repeats the communication with other clients, because the difference of two
sums would reveal a message: clients tell it the clients of a sum that they have revealed, and it asks these again.

Clients reply to the same order again without carrying it out twice. The attempts share the deadline: each may take an
equal part of the time that is left.
"""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpd.core import Tree
from fedpd.flower.carry.collect import Collected, Timeouts, collect
from fedpd.flower.carry.directory import ClientDirectory, FederationError
from fedpd.flower.carry.masked_client import KEYS, RECORD, SHARES, SIGN, UNMASK, VECTORS, Subject, has_shapes
from fedpd.flower.carry.masks import (
    MESSAGES,
    NUMBERS,
    PURPOSE,
    SHARE,
    Ring,
    circle,
    combine_shares,
    common,
    confirmations,
    neighbourhood,
    neighbours,
    number_of,
    public,
    threshold_of,
    transcript,
)
from fedpd.flower.carry.protocol import EVALUATE, TRAIN, CheckedReply, Reply
from fedpd.flower.carry.records import RefusedError, leaves_by_name, one_line

log = logging.getLogger(f"flwr.{__name__}")

ATTEMPTS = 3
Contents = dict[str, RecordDict]
Ask = Callable[[str, Contents, Callable[[str, RecordDict], Any]], dict[str, Any]]  # (stage, contents, read) -> answers
# With a quorum, the share of an attempt's time after which a stage does not wait for missing clients any more.
PATIENCE = {KEYS: 0.125, SHARES: 0.25, VECTORS: 1.0}
WRONG_SUM = "secure aggregation: the sum does not have every client once. Start the run again."


class FixedPoint(NamedTuple):
    """Fixed-point numbers in [-bound, bound], with few enough levels that sums over all clients fit the modulus."""

    bound: float
    levels: int


def fixed_point(bound: float, clients: int) -> FixedPoint:
    """Return the finest fixed point for this many clients."""
    most = min((2**MESSAGES.bits - 1) // clients, 2**30)
    return FixedPoint(bound, 2 ** (most.bit_length() - 1))


class OrdersAndReplies(Protocol):
    """Writes the orders of one communication and checks the replies, as the server's `Communication` does."""

    def subject(self) -> tuple[str, int]:
        """Return the identity of the run and the number of the communication."""

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


class Sum:
    """The sum of the masked vectors of one attempt, to which a valid reply adds its vector.

    Attributes:
        ring: The numbers of the vectors.
        size: The length of a vector; None: that of the first one.
        entries: The names of the numbers of an evaluation, which are those of the first reply.
        total: The sum so far; None: there is no vector yet.
    """

    def __init__(self, ring: Ring, size: int | None) -> None:
        self.ring, self.size = ring, size
        self.entries: list[str] | None = None
        self.total: np.ndarray | None = None

    def add(self, record: Any) -> None:
        """Add the vector of a reply, after a check of its length and of its names."""
        content, entries = record.get("vector"), record.get("entries")
        if not isinstance(content, bytes):
            raise RefusedError("secure aggregation: the reply must have a masked vector.")
        if self.size is None:
            if not isinstance(entries, list) or not all(isinstance(one, str) for one in entries):
                raise RefusedError("secure aggregation: the reply must have the names of its numbers.")
            self.size, self.entries = 1 + len(entries), entries
        if entries != self.entries:
            raise RefusedError("secure aggregation: the client evaluates other numbers than the first one to reply.")
        if len(content) != self.size * self.ring.bits // 8:
            rule = f"has {len(content)} bytes, but must have {self.size * self.ring.bits // 8}"
            raise RefusedError(f"secure aggregation: the masked vector {rule}.")
        vector = self.ring.read(content)
        self.total = vector.copy() if self.total is None else self.ring.add(self.total, vector)

    def unmask(self, seed: bytes, sign: int, purpose: bytes = PURPOSE) -> None:
        """Remove a mask that clients have added with this sign."""
        assert self.total is not None and self.size is not None  # noqa: PT018
        self.total = self.ring.add(self.total, self.ring.mask(seed, self.size, purpose), -sign)


class Question(NamedTuple):
    """The subject of a sum, and how its messages are written and read.

    Attributes:
        subject: What all clients are told.
        ring: The numbers of the vectors.
        size: The length of a vector; None: clients tell the names of their numbers.
        orders: (clients that have lost their state) -> the contents, by name.
        check: (name, content) -> a reply, or a RecordDict for a client that has lost its state.
    """

    subject: Subject
    ring: Ring
    size: int | None
    orders: Callable[[Container[str]], Contents]
    check: Callable[[str, RecordDict], Any]

    @property
    def about(self) -> str:
        """The subject as the text that is part of every mask."""
        return json.dumps(self.subject._asdict(), sort_keys=True)


def collect_sum(
    grid: Grid, directory: ClientDirectory, communication: OrdersAndReplies, timeouts: Timeouts, bound: float
) -> tuple[Collected, Tree | None]:
    """Return the replies of the agents without their messages, and the mean of the messages.

    The mean is None if agents are missing: any of them, or with `timeouts.quorum` too many.
    """
    until, senders = time.monotonic() + timeouts.deadline, communication.senders_by_name()
    silent = {name: order for name, order in communication.orders().items() if name not in senders}
    worked = collect(grid, directory, silent, TRAIN, timeouts, communication.read)
    if len(worked.answers) < len(silent) and timeouts.quorum is None:
        return worked, None
    everyone, least = _numbers(directory, senders, timeouts)
    form, like = fixed_point(bound, everyone), leaves_by_name(communication.message_shapes())
    run, number = communication.subject()
    subject = Subject(TRAIN, run, number, everyone, least, float(form.bound), form.levels)
    size = 1 + sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in like.values())

    def orders(lost: Container[str]) -> Contents:
        return communication.orders(lost=lost)

    question = Question(subject, MESSAGES, size, orders, communication.check_reply)
    stages, answers, found = _attempts(grid, directory, question, senders, timeouts, until)
    collected = _joined([worked, *stages], worked.answers | {n: CheckedReply(None, a) for n, a in answers.items()})
    mean = None if found is None else _mean(communication, found, form, len(answers))
    return collected, mean


def collect_numbers(
    grid: Grid,
    directory: ClientDirectory,
    subject: tuple[str, int],
    requests: Contents,
    timeouts: Timeouts,
    check: Callable[[str, RecordDict], Any],
) -> tuple[Collected, dict[str, float]]:
    """Return the replies to evaluations, and the sums of their numbers by name; no sums if clients are missing."""
    until = time.monotonic() + timeouts.deadline
    everyone, least = _numbers(directory, list(directory.nodes), timeouts)
    told = Subject(EVALUATE, *subject, everyone, least, 0.0, 1)

    question = Question(told, NUMBERS, None, lambda lost: {name: _copied(one) for name, one in requests.items()}, check)
    stages, answers, found = _attempts(grid, directory, question, list(requests), timeouts, until)
    if found is None:
        return _joined(stages, answers), {}
    assert found.total is not None and found.entries is not None  # noqa: PT018
    weight, *sums = found.total
    if weight != len(answers):
        raise FederationError(WRONG_SUM)
    return _joined(stages, answers), dict(zip(found.entries, map(number_of, sums), strict=True))


def _numbers(directory: ClientDirectory, senders: Sequence[str], timeouts: Timeouts) -> tuple[int, int]:
    """Return N, and the least number of clients of a sum: N, or with a quorum at least two thirds of N plus one."""
    if timeouts.quorum is None:
        return len(senders), len(senders)
    everyone = len(directory.nodes)
    return everyone, max(timeouts.quorum, threshold_of(everyone))


def _copied(content: RecordDict) -> RecordDict:
    """Return a content with the same records, to which a record can be added."""
    return RecordDict(dict(content.items()))


def _joined(stages: Sequence[Collected], answers: dict[str, Any]) -> Collected:
    """Return the replies, the reasons for clients without one, and the bytes of all stages."""
    refused = {name: why for stage in stages for name, why in stage.refused.items() if name not in answers}
    missing = {name: why for stage in stages for name, why in stage.missing.items() if name not in answers | refused}
    return Collected(answers, refused, missing, sum(s.bytes_up for s in stages), sum(s.bytes_down for s in stages))


def _attempts(
    grid: Grid, directory: ClientDirectory, question: Question, senders: Sequence[str], timeouts: Timeouts, until: float
) -> tuple[list[Collected], dict[str, Any], Sum | None]:
    """Return what each stage of the last attempt collected, the replies and their sum; None: clients are missing."""
    lost, declined, quorum = set[str](), set[str](), timeouts.quorum
    stages: list[Collected] = []
    began = attempt_until = time.monotonic()

    def ask(stage: str, contents: Contents, read: Callable[[str, RecordDict], Any]) -> dict[str, Any]:
        part = 1.0 if quorum is None else PATIENCE.get(stage, 1.0)
        ends = until if quorum is not None and stage == UNMASK else began + part * (attempt_until - began)
        left = max(ends - time.monotonic(), timeouts.poll)
        # A client refuses a stage that it has already done, so the server sends nothing twice within an attempt.
        once = Timeouts(
            left, left, timeouts.poll, attempts=1, quorum=None if quorum is None else question.subject.least
        )
        stages.append(collect(grid, directory, contents, question.subject.kind, once, read))
        return stages[-1].answers

    first = 0
    for number in range(1, ATTEMPTS + 1):
        began, first = time.monotonic(), len(stages)
        attempt_until = began + (until - began) / (ATTEMPTS + 1 - number)
        attempt = Attempt(question, secrets.token_hex(8), number < ATTEMPTS, lost, declined)
        answers, total = attempt.run(ask, [name for name in senders if name in directory.nodes])
        if total is not None or (declined and quorum is None) or time.monotonic() >= until:
            break
        log.warning("Secure aggregation lacks clients at attempt %d of %d: %s", number, ATTEMPTS, _absent(stages[-1]))
    # of earlier attempts, only the bytes count; without a quorum, only the last stage says who is missing
    ended = range(first, len(stages)) if quorum is not None else range(len(stages) - (total is None), len(stages))
    kept = [one if i in ended else one._replace(refused={}, missing={}) for i, one in enumerate(stages)]
    return kept, answers, total


def _absent(found: Collected) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in (found.refused | found.missing).items())


class Attempt(NamedTuple):
    """One attempt, with keys of its own.

    Attributes:
        question: What the clients add up.
        identity: A random text, which every reply repeats.
        restarts: Whether another attempt may follow.
        lost: The clients that have lost their state, which later attempts tell more.
        declined: The clients that refuse, e.g. by their policy.
    """

    question: Question
    identity: str
    restarts: bool
    lost: set[str]
    declined: set[str]

    def run(self, ask: Ask, senders: list[str]) -> tuple[dict[str, Any], Sum | None]:
        """Do the four stages once; return the replies and their sum, or None if too few clients are left."""
        least, knew = self.question.subject.least, set(self.lost)
        about = self.question.about
        keys = self._again(ask(KEYS, dict.fromkeys(senders, self.content(KEYS, about=about)), self.reading(_keys)))
        if len(keys) < least:
            return {}, None
        names = list(keys)
        table = {"names": names, "keys": [key for one in keys.values() for key in one.public]}
        shares = ask(SHARES, dict.fromkeys(names, self.content(SHARES, **table)), self.reading(_sealed))
        if len(shares) < least:
            return {}, None
        total = Sum(self.question.ring, self.question.size)
        found = ask(VECTORS, self._orders(shares), self._vector_reader(total))
        if len(found) < least or (self.restarts and self.lost - knew):  # who lost its state needs another order
            return {}, None
        active, missing = list(found), [name for name in shares if name not in found]
        settled = [one.settled for one in keys.values() if one.settled]
        if settled and set(settled[0]) != set(active):
            return {}, None
        lists: dict[str, Any] = {"active": active, "missing": missing}
        needed = confirmations(len(names), least)
        if needed:
            signed = ask(SIGN, dict.fromkeys(active, self.content(SIGN, **lists)), self.reading(_signature))
            if len(signed) < needed:
                return {}, None
            lists |= {"signed": list(signed), "signatures": list(signed.values())}
        told = ask(UNMASK, dict.fromkeys(active, self.content(UNMASK, **lists)), self.reading(_revealed))
        group = _Group(about, names, keys, told)
        lacking = group.lacking([*active, *missing])
        if lacking is not None:
            if len(found) == self.question.subject.everyone and not self.declined:
                return {}, None  # a repetition has the same sum
            raise FederationError(
                f"secure aggregation: {lacking}. Repair the others and start the run again to resume it."
            )
        for name in active:
            total.unmask(group.seed(name), 1)
        for name in missing:
            others = [other for other in group.neighbours(name) if other in found]
            pairs = common(group.key(name), [keys[other].public[0] for other in others])
            for other, shared in zip(others, pairs, strict=True):  # as the other one added it
                total.unmask(shared, 1 if other > name else -1, PURPOSE + group.hash)
        return found, total

    def _again(self, keys: dict[str, Any]) -> dict[str, Any]:
        """Return the clients of a sum that some client has revealed before for this order, or else all."""
        settled = next((set(one.settled) for one in keys.values() if one.settled), None)
        return keys if settled is None else {name: one for name, one in keys.items() if name in settled}

    def content(self, stage: str, **fields: Any) -> RecordDict:
        """Return the content of a stage's message."""
        return RecordDict({RECORD: ConfigRecord({"stage": stage, "attempt": self.identity, **fields})})

    def record(self, name: str, content: RecordDict) -> Any:
        """Return the record of a reply; refuse a refusal, and a reply to another attempt."""
        record: Any = content.config_records.get(RECORD, {})
        if note := record.get("note"):
            if not record.get("again"):
                self.declined.add(name)
            raise RefusedError(f"the client refuses: {one_line(str(note))}")
        if record.get("attempt") != self.identity:
            raise RefusedError("secure aggregation: the reply belongs to another attempt.")
        return record

    def reading(self, read: Callable[[Any], Any]) -> Callable[[str, RecordDict], Any]:
        """Return a function of (name, content) that reads the record of a reply."""
        return lambda name, content: read(self.record(name, content))

    def _orders(self, shares: Mapping[str, Mapping[str, bytes]]) -> Contents:
        """Return the orders for the clients that sent shares, each with the encrypted shares for its client."""
        contents = {name: content for name, content in self.question.orders(self.lost).items() if name in shares}
        for name, content in contents.items():
            sealed = {sender: to[name] for sender, to in shares.items() if name in to}
            stage = self.content(VECTORS, senders=list(sealed), sealed=list(sealed.values()))
            content[RECORD] = stage.config_records[RECORD]
        return contents

    def _vector_reader(self, total: Sum) -> Callable[[str, RecordDict], Any]:
        """Return a function that reads a reply and adds its vector to the sum."""

        def read(name: str, content: RecordDict) -> Any:
            record = self.record(name, content) if RECORD in content.config_records else None
            try:
                reply = self.question.check(name, content)
            except RefusedError:
                self.declined.add(name)
                raise
            if isinstance(reply, RecordDict):
                self.lost.add(name)
                raise RefusedError("the client has lost its state; the server sends it a new order.")
            total.add(self.record(name, content) if record is None else record)
            return reply

        return read


class _Told(NamedTuple):
    """The keys of a client, a hash of its seed, and the clients of the sum that it has revealed for this order."""

    public: list[bytes]
    commitment: bytes
    settled: list[str]


def _keys(record: Any) -> _Told:
    keys, commitment, settled = record.get("keys"), record.get("commitment"), record.get("settled", [])
    if not _is(keys, bytes) or [len(key) for key in keys] != [32, 32, 32] or not isinstance(commitment, bytes):
        raise RefusedError("secure aggregation: the reply must have keys of 32 bytes.")
    if not _is(settled, str):
        raise RefusedError("secure aggregation: the reply must have a list of clients.")
    return _Told(keys, commitment, settled)


def _signature(record: Any) -> bytes:
    if not isinstance(signature := record.get("signature"), bytes):
        raise RefusedError("secure aggregation: the reply must have a signature.")
    return signature


def _sealed(record: Any) -> dict[str, bytes]:
    return _pairs(record, "to", "sealed")


def _revealed(record: Any) -> dict[str, bytes]:
    found = _pairs(record, "names", "shares")
    if any(len(share) != SHARE for share in found.values()):
        raise RefusedError(f"secure aggregation: the reply must have shares of {SHARE} bytes.")
    return found


def _pairs(record: Any, names: str, values: str) -> dict[str, bytes]:
    keys, content = record.get(names), record.get(values)
    if not _is(keys, str) or not _is(content, bytes) or len(keys) != len(content):
        raise RefusedError(f"secure aggregation: the reply must have {names}, {values} with the right types.")
    return dict(zip(keys, content, strict=True))


def _is(value: Any, kind: type) -> bool:
    """Return whether a value is a list of values of a type."""
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


class _Group:
    """The clients of an attempt and the shares that they have revealed.

    Attributes:
        hash: The hash of what all clients were told.

    Args:
        about: The subject, as a text.
        names: The clients with keys.
        keys: What they told in the first stage.
        told: By holder, the shares of the secrets of its neighbours.
    """

    def __init__(
        self, about: str, names: list[str], keys: Mapping[str, _Told], told: Mapping[str, Mapping[str, bytes]]
    ) -> None:
        self.keys, self.told, self.liars = keys, told, set[str]()
        self.hash = transcript(about, names, [key for name in names for key in keys[name].public])
        self.order, self.size = circle(names, self.hash), neighbourhood(len(names))

    def neighbours(self, name: str) -> list[str]:
        """Return the holders of a client's shares, itself first."""
        return neighbours(self.order, name, self.size.neighbours)

    def lacking(self, names: Sequence[str]) -> str | None:
        """Return what is missing to reveal a secret of each of these clients; None: nothing."""
        for name in names:
            number = sum(name in self.told.get(holder, {}) for holder in self.neighbours(name))
            if number < self.size.threshold:
                return f"{number} clients sent their shares, but {self.size.threshold} are needed"
        return None

    def seed(self, name: str) -> bytes:
        """Return the seed of a client's own mask."""
        return self._secret(name, lambda seed: hashlib.sha256(seed).digest() == self.keys[name].commitment)

    def key(self, name: str) -> bytes:
        """Return the secret key of a client that dropped out."""
        return self._secret(name, lambda key: public(key) == self.keys[name].public[0])

    def _secret(self, name: str, fits: Callable[[bytes], bool]) -> bytes:
        """Return a secret; if a client sent a wrong share, find it, and leave out all its shares from then on."""
        holders = enumerate(self.neighbours(name), 1)
        shares = {
            holder: (place, self.told[holder][name])
            for place, holder in holders
            if holder not in self.liars and name in self.told.get(holder, {})
        }
        for liar in (None, *shares):
            used = [pair for holder, pair in shares.items() if holder != liar][: self.size.threshold]
            secret = combine_shares(used) if len(used) == self.size.threshold else None
            if secret is not None and fits(secret):
                if liar is not None:
                    log.warning("Secure aggregation: client %r sent wrong shares, which are not used.", liar)
                    self.liars.add(liar)
                return secret
        raise FederationError(f"secure aggregation: shares of client {name!r} are wrong. Start the run again.")


def _mean(communication: OrdersAndReplies, found: Sum, form: FixedPoint, number: int) -> Tree:
    """Return the mean message: the mean change, in the type of the messages, plus the broadcast that agents changed."""
    assert found.total is not None
    weight, sums = int(found.total[0]), found.total[1:]
    if weight != number * form.levels:
        raise FederationError(WRONG_SUM)
    step = 2 * form.bound / form.levels
    like, received = communication.message_shapes(), communication.newest_broadcast()
    wanted = leaves_by_name(like)
    same = has_shapes(received, {name: tuple(leaf.shape) for name, leaf in wanted.items()})
    leaves, at = [], 0
    for name, leaf in wanted.items():
        size = int(np.prod(leaf.shape, dtype=np.int64))
        change = (sums[at : at + size] * (step / number) - form.bound).reshape(leaf.shape)
        leaves.append((change + (received[name].numpy() if same else 0)).astype(leaf.dtype))
        at += size
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
