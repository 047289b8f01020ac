"""The server's orders and the agents' replies, as records of a Flower message.

A round r has E exchanges; step s = r E + e is exchange e of round r. Communications are numbered 0, 1, 2, ...; number n
ends at a step at which the coin (and `Exchange.when`) let agents communicate. Order n says: this was the outcome of
communication n-1; continue from step `first` to step `last`; report. The steps in between are skipped communications:
they cost no message. The server alone draws the coins, from the same key as a simulation.

A message has one ArrayRecord ("arrays"), one ConfigRecord ("config", which may hold entries of others, such as a
clipping norm), and a reply one MetricRecord ("metrics") as well: what Flower's mods expect. Only a client that was away
is sent more: the earlier outcomes that it needs ("past-<n>") and the start ("start").
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedpd.core import Tree
from fedpd.flower.carry.records import RefusedError

PREFIX = "fedpd-"
HELLO, TRAIN, EVALUATE = "query.hello", "train", "evaluate"
Form = Literal["whole", "partial"]
Status = Literal["done", "lost", "refused"]


class Order(NamedTuple):
    """Order n to one agent.

    Attributes:
        run: The identity of the run.
        algorithm: The exact spec of the method, as JSON.
        form: "whole", or "partial": `Away.partial`, the form for agents that come and go.
        seed: The seed of the run.
        agent: i, the number of the agent.
        number: n, the number of the communication.
        first: The first step to do.
        last: The last step to do, after which the agent reports.
        counted: The number of this agent's last reply that the server used; -1 if there is none.
        past: The communications whose outcomes the order carries, the newest (in "arrays") last; none at the start.
        exchanges: The exchange of each of them.
    """

    run: str
    algorithm: str
    form: str
    seed: int
    agent: int
    number: int
    first: int
    last: int
    counted: int
    past: list[int]
    exchanges: list[int]


class Reply(NamedTuple):
    """What an agent answers, beside its message.

    Attributes:
        run: The identity of the run.
        name: The client's name.
        number: The number of the order.
        status: "done"; "lost" if the client's state is gone and it needs the past; "refused" for the reason in `note`.
        note: Why the client refuses.
        rebuilt: 1 if the state had been lost and was made anew.
        updates: The local updates of every step.
        samples: The samples of every step.
        examples: |D_i|, under the name that Flower's strategies use.
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


class CheckedReply(NamedTuple):
    """A reply that fits its order, and its message; None where the agent had nothing to send."""

    message: Tree | None
    reply: Reply


STRINGS = ("run", "name", "status", "note")


def reply_without_work(order: Order, name: str, status: Status, note: str = "") -> Reply:
    """Return the reply of an agent that has not carried out its order."""
    return Reply(order.run, name, order.number, status, note, 0, [], [], 0)


def order_record(order: Order, config: Mapping[str, Any] | None = None) -> ConfigRecord:
    """Return the order beside the entries that `config` already holds."""
    return ConfigRecord({**(config or {}), **{PREFIX + name: value for name, value in order._asdict().items()}})


def read_order(content: RecordDict) -> Order:
    """Return the order of a message; a field of a wrong type is refused."""
    return Order(**_fields(Order, content.config_records.get("config", {}), "order"))


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
    """Return the reply of a message; a field of a wrong type is refused."""
    said: dict[str, Any] = {**content.config_records.get("config", {}), **content.metric_records.get("metrics", {})}
    return Reply(**_fields(Reply, {**said, PREFIX + "examples": said.get("num-examples")}, "reply"))


def _fields(kind: Any, record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the fields of an order or a reply, each of its type."""
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
