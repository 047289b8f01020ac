"""The server's orders and the agents' replies, as records of a Flower message.

A round r has E exchanges; step s = r E + e is exchange e of round r. Communications are numbered 0, 1, 2, ...;
communication n takes place at a step that is not skipped (by the skip probability and `Exchange.when`). Order n
contains the outcome of communication n-1, and asks the client to do its steps up to `last` and to report. The steps
before `last` are skipped communications, which need no message. Only the server draws the random numbers for skipping,
from the same key as a simulation. With a cohort, a client whose steps all belong to skipped rounds gets an order too:
it does these steps and reports without a message.

As Flower's mods expect, a message has one ArrayRecord ("arrays") and one ConfigRecord ("config", which may have entries
of other programs, such as a clipping norm), and a reply also has one MetricRecord ("metrics"). Only a client that was
absent receives more: the earlier outcomes that it needs ("past-<n>") and the start ("start").
"""

import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedpd.core import Tree
from fedpd.flower.carry.records import RefusedError

PREFIX = "fedpd-"
HELLO, DRY_STEP, TRAIN, EVALUATE = "query.hello", "query.dry_step", "train", "evaluate"
Form = Literal["whole", "partial"]
Status = Literal["done", "lost", "refused"]


class Order(NamedTuple):
    """Order n to one agent.

    Attributes:
        run: The identity of the run.
        algorithm: The exact spec of the method, as JSON.
        form: "whole", or "partial": `Away.partial`, the form for partial participation.
        seed: The seed of the run.
        agents: N, the number of clients.
        agent: i, the number of the agent.
        number: n, the number of the communication.
        steps: The steps to do, in order.
        last: The step of the communication. If it is not one of `steps`, the agent has no message to send.
        used: The number of this agent's last reply that the server used; -1 if there is none.
        past: The communications whose outcomes the order contains, the newest (in "arrays") last; empty at the start.
            It lacks `used` if the newest outcome replaces all that outcome `used` would leave at the agent.
        exchanges: The exchange of each of them.
        nonce: A random text, which the reply repeats, so that an old reply is not taken for one to this order.
        rounds: T, the rounds of the run, for which a private method's noise may be chosen.
    """

    run: str
    algorithm: str
    form: str
    seed: int
    agents: int
    agent: int
    number: int
    steps: list[int]
    last: int
    used: int
    past: list[int]
    exchanges: list[int]
    nonce: str = ""
    rounds: int = 0

    @property
    def sends(self) -> bool:
        """Whether the agent takes part in the communication itself, and not only in skipped rounds before it."""
        return self.last in self.steps


class Proposal(NamedTuple):
    """A description of a run, with which the server asks every node for its name. Clients check it before they join.

    Attributes:
        algorithm: The exact spec of the method, as JSON.
        form: "whole" or "partial", as in `Order`.
        agents: N, the number of clients.
        secure: Whether the server asks for masked messages only.
        evaluates: Whether the server asks for evaluations.
        sizes: Whether the server needs |D_i| before the first round.
        run: The identity of the run.
        rounds: T, the number of rounds.
    """

    algorithm: str
    form: str
    agents: int
    secure: bool
    evaluates: bool
    sizes: bool
    run: str
    rounds: int


class Reply(NamedTuple):
    """An agent's reply, without its message.

    Attributes:
        run: The identity of the run.
        name: The client's name.
        number: The number of the order.
        status: "done"; "lost" if the client has lost its state and needs the past; "refused" with a reason in `note`.
        note: Why the client refuses.
        rebuilt: 1 if the state had been lost and was rebuilt.
        updates: The local updates of every step.
        samples: The samples of every step.
        examples: |D_i|, under the name that Flower's strategies use.
        nonce: That of the order.
        epsilon: The epsilon of one sample that the client has spent in this run; 0: its samples are not private.
    """

    run: str
    name: str
    number: int
    status: str
    note: str
    rebuilt: int
    updates: list[int]
    samples: list[int]
    examples: int
    nonce: str
    epsilon: float = 0.0


class CheckedReply(NamedTuple):
    """A reply that fits its order, and its message; the message is None if the agent had nothing to send."""

    message: Tree | None
    reply: Reply


STRINGS = ("run", "name", "status", "note", "nonce")


def reply_without_work(order: Order, name: str, status: Status, note: str = "") -> Reply:
    """Return the reply of an agent that has not carried out its order."""
    return Reply(order.run, name, order.number, status, note, 0, [], [], 0, order.nonce)


def order_record(order: Order, config: Mapping[str, Any] | None = None) -> ConfigRecord:
    """Return a record with the entries of `config` and the order."""
    return ConfigRecord({**(config or {}), **{PREFIX + name: value for name, value in order._asdict().items()}})


def proposal_fields(proposal: Proposal) -> dict[str, Any]:
    """Return the entries of the record with a proposal."""
    return {PREFIX + name: value for name, value in proposal._asdict().items()}


def read_proposal(content: RecordDict) -> Proposal | None:
    """Return the proposal of a message; None if the server only asks for the name."""
    config: Any = content.config_records.get("config", {})
    return Proposal(**_fields(Proposal, config, "proposal")) if PREFIX + "algorithm" in config else None


def read_order(content: RecordDict) -> Order:
    """Return the order of a message; refuse a field with a wrong type."""
    return Order(**_fields(Order, content.config_records.get("config", {}), "order"))


def new_nonce() -> str:
    """Return a random text of 128 bits."""
    return secrets.token_hex(16)


def check_nonce(nonce: str, found: Any) -> None:
    """Refuse a reply that does not repeat the nonce of its order."""
    if not isinstance(found, str) or not secrets.compare_digest(found.encode(), nonce.encode()):
        raise RefusedError("reply: does not repeat the nonce of its order, so it is old, replayed or forged.")


def reply_content(reply: Reply, arrays: ArrayRecord | None = None) -> RecordDict:
    """Return the content of a message with a reply and the arrays of the agent's own message."""
    fields = reply._asdict()
    config = ConfigRecord({PREFIX + name: fields.pop(name) for name in STRINGS})
    metrics = MetricRecord({"num-examples": fields.pop("examples")} | {PREFIX + k: v for k, v in fields.items()})
    content = RecordDict({"metrics": metrics, "config": config})
    if arrays is not None:
        content["arrays"] = arrays
    return content


def read_reply(content: RecordDict) -> Reply:
    """Return the reply of a message; refuse a field with a wrong type."""
    said: dict[str, Any] = {**content.config_records.get("config", {}), **content.metric_records.get("metrics", {})}
    return Reply(**_fields(Reply, {**said, PREFIX + "examples": said.get("num-examples")}, "reply"))


def _fields(kind: Any, record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the fields of an order or a reply, after a check of their types."""
    found = {}
    for name, wanted in kind.__annotations__.items():
        value = record.get(PREFIX + name)
        if wanted == list[int]:
            fits = isinstance(value, list) and all(isinstance(one, int) for one in value)
        else:
            fits = isinstance(value, wanted)
        if not fits:
            raise RefusedError(f"{what}: {name} = {value!r} is not {wanted}: the sender runs another version of fedpd.")
        found[name] = value
    return found
