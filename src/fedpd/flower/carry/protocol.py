"""What is said: the server's orders and the agents' replies, as records of a Flower message.

A round r has E exchanges; step s = r E + e is exchange e of round r. Communications are numbered 0, 1, 2, ...; number n
ends at a step at which the coin (and `Exchange.when`) let agents communicate. Order n says: this was the outcome of
communication n-1; go on from step `first` to step `last`; report. The steps in between are skipped communications: they
cost no message. The server alone draws the coins, from the same key as a simulation.

A message has one ArrayRecord ("arrays"), one ConfigRecord ("config", which may hold entries of others, such as a
clipping norm), and a reply one MetricRecord ("metrics") as well: what Flower's mods expect. Only a client that was away
is sent more: the earlier outcomes that it needs ("past-<n>") and the start ("start").
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedpd.flower.carry.records import RefusedError

PREFIX = "fedpd-"
HELLO, TRAIN, EVALUATE = "query.hello", "train", "evaluate"
# A reply's status: as asked; the client's state is gone, and it needs the past; it does not do that (see its note).
DONE, LOST, REFUSED = "done", "lost", "refused"


class Order(NamedTuple):
    """Order n to one agent."""

    run: str  # the identity of the run
    algorithm: str  # the exact spec of the method, as JSON
    form: str  # "whole" or "partial": Algorithm.partial, for agents that come and go
    seed: int
    agent: int  # i
    number: int  # n
    first: int
    last: int
    counted: int  # the number of this agent's last reply that was used; -1: none
    past: list[int]  # the communications whose outcomes come along, the newest (in "arrays") last; none at the start
    exchanges: list[int]  # the exchange of each of them


class Reply(NamedTuple):
    """What an agent says, beside its message."""

    run: str
    name: str
    number: int
    status: str
    note: str  # why, where it refuses
    rebuilt: int  # 1: the state had been lost, and was made anew
    updates: list[int]  # of every step
    samples: list[int]
    examples: int  # |D_i|, under the name that Flower's strategies use


def no_reply(order: Order, name: str, status: str, note: str = "") -> Reply:
    """The reply of an agent that has not carried out its order."""
    return Reply(order.run, name, order.number, status, note, 0, [], [], 0)


STRINGS = ("run", "name", "status", "note")


def order_record(order: Order, config: Mapping[str, Any] | None = None) -> ConfigRecord:
    """The order beside what `config` already holds."""
    return ConfigRecord({**(config or {}), **{PREFIX + name: value for name, value in order._asdict().items()}})


def read_order(content: RecordDict) -> Order:
    return Order(**_fields(Order, content.config_records.get("config", {}), "order"))


def reply_content(reply: Reply, arrays: Any = None) -> RecordDict:
    fields = reply._asdict()
    config = ConfigRecord({PREFIX + name: fields.pop(name) for name in STRINGS})
    metrics = MetricRecord({"num-examples": fields.pop("examples")} | {PREFIX + k: v for k, v in fields.items()})
    content = RecordDict({"metrics": metrics, "config": config})
    if arrays is not None:
        content["arrays"] = arrays
    return content


def read_reply(content: RecordDict) -> Reply:
    said: dict[str, Any] = {**content.config_records.get("config", {}), **content.metric_records.get("metrics", {})}
    return Reply(**_fields(Reply, {**said, PREFIX + "examples": said.get("num-examples")}, "reply"))


def _fields(kind: Any, record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields of an order or a reply, each of its type."""
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
