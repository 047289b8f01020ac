"""A Flower grid without Flower's processes, for tests and debugging. It gives messages to a ClientApp in this process.

    grid = InProcessGrid(client_app(...), agents=4, config={...})
    federate(grid, algorithm, start, Settings(agents=4, rounds=10))

It serialises messages and reads them back, as on a network.
"""

import traceback
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedpd.flower.private import (
    ErrorCode,
    Run,
    TaskIdentity,
    get_all_nested_objects,
    inflate_object_from_contents,
    no_object_id_recompute,
    set_identity,
)


class InProcessGrid(Grid):
    """Nodes 1, ..., N in this process, with partition-id 0, ..., N-1.

    An exception in the ClientApp becomes an error reply, as with Flower's own processes.

    Args:
        app: The ClientApp of all nodes.
        agents: N, the number of nodes.
        config: The configuration of the run.
        **node_config: Further entries of the configuration of every node.
    """

    def __init__(self, app: ClientApp, agents: int, config: Mapping[str, Any], **node_config: Any) -> None:
        self.app = app
        self._run = Run.create_empty(1)
        self.contexts = {
            node: Context(
                1, node, {"partition-id": node - 1, "num-partitions": agents, **node_config}, RecordDict(), dict(config)
            )
            for node in range(1, agents + 1)
        }
        self.replies: dict[str, Message] = {}
        self.pushed = 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            self.pushed += 1
            identity = f"message-{self.pushed}"
            set_identity(message, identity)
            identities.append(identity)
            reply = self.deliver(serialise_and_read(message))
            if reply is not None:
                self.replies[identity] = serialise_and_read(reply)
        return identities

    def deliver(self, message: Message) -> Message | None:
        """Return the reply of a node, or None for no reply. Override it to make nodes fail."""
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "no such node"), reply_to=message)
        try:
            return self.app(message, context)
        except Exception:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, traceback.format_exc()), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(identity) for identity in message_ids if identity in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def serialise_and_read(message: Message) -> Message:
    """Return the message as it arrives over a network.

    Arrays are not serialised again, because they are bytes already, which nobody can change: the copy shares them.
    """
    arrays = dict(message.content.array_records.items()) if message.has_content() else {}
    places = list(message.content) if message.has_content() else []
    for name in arrays:
        del message.content[name]
    with no_object_id_recompute():
        contents = {identity: part.deflate() for identity, part in get_all_nested_objects(message).items()}
        arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    for name in places:
        for content, record in ((message.content, arrays.get(name)), (arrived.content, _shared(arrays.get(name)))):
            content[name] = content.pop(name) if record is None else record  # in their order
    set_identity(arrived, message.metadata.message_id)
    return arrived


def _shared(record: ArrayRecord | None) -> ArrayRecord | None:
    return None if record is None else ArrayRecord({name: copy(array) for name, array in record.items()})
