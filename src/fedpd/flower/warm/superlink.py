"""Flower's `flower-superlink`, which here refuses replies that are too large, and tells a node how it sees it.

- Flower stores what a client sends before anybody looks at it. The ServerApp of a run knows the size of a reply: it
  writes it down before the first order (`declare_limit`), and this process refuses an object beyond it, with HTTP 413.
- A SuperNode whose loop has ended looks like one that waits. `STATUS` answers a node with a registered key: its id,
  whether it is online, and until when.
"""

import logging
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from fastapi import HTTPException, Request

from fedpd.flower.private import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    ActivateNodeRequest,
    authenticate_node,
    change_superlink,
    delete_reply,
    flower_superlink,
    get_linkstate,
)
from fedpd.flower.warm.limits import read_limit
from fedpd.flower.warm.program import STATUS

log = logging.getLogger(f"flwr.{__name__}")


class Received(NamedTuple):
    """The bytes that a node has sent in reply to one order, by the name of the order."""

    order: str
    size: int


class ReplyLimits:
    """Counts the bytes of each node's reply, and refuses more than the run of the order allows."""

    def __init__(self, limit: Callable[[int], int | None] = read_limit) -> None:
        self.limit = limit
        self.received: dict[int, Received] = {}
        self.lock = Lock()

    def count(self, node: int, run: int, size: int, order: str | None = None) -> None:
        """Count bytes of a node; `order` names the order to which a new reply belongs.

        Raises:
            HTTPException: If they are more than a reply of this run may have.
        """
        with self.lock:
            before = self.received.get(node, Received("", 0))
            if order is not None and order != before.order:
                before = Received(order, 0)
            self.received[node] = before._replace(size=before.size + size)
            total = before.size + size
        limit = self.limit(run)
        if limit is not None and total > limit:
            log.warning("Node %d sends %d bytes; a reply of run %d has at most %d. Refused.", node, total, run, limit)
            raise HTTPException(413, f"A reply of this run has at most {limit} bytes.")

    def messages(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return Flower's handler of a reply and the list of its objects, with the count."""

        def counted(request: Any, state: Any) -> Any:
            for message in request.messages_list:
                about = message.metadata
                self.count(request.node.node_id, about.run_id, request.ByteSize(), about.reply_to_message_id)
            return handle(request=request, state=state)

        return counted

    def objects(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return Flower's handler of one object of a reply, with the count.

        After a refusal the reply is deleted, because the ServerApp would wait for the rest of it.
        """

        def counted(request: Any, state: Any) -> Any:
            try:
                self.count(request.node.node_id, request.run_id, len(request.object_content))
            except HTTPException:
                delete_reply(state, request.session_id)
                raise
            return handle(request=request, state=state)

        return counted


def node_status(request: Request) -> dict[str, Any]:
    """Return how this SuperLink sees the node whose key has signed a request.

    Raises:
        HTTPException: 401, if the signature is wrong or old.
    """
    try:
        key = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
    except NotBase64:
        key = b""
    request.state.protobuf_request = ActivateNodeRequest(public_key=key)
    authenticate_node(request)
    state = get_linkstate(request)
    node = state.get_node_id_by_public_key(key)
    if node is None:
        return {"node": None, "status": "unknown"}
    (info,) = state.get_node_info(node_ids=[node])
    return {"node": str(node), "status": info.status, "changed": info.last_deactivated_at or info.last_activated_at}


def prepare(limits: ReplyLimits) -> None:
    """Change Flower's SuperLink in this process."""
    change_superlink(limits.messages, limits.objects, {STATUS: node_status})


def main() -> None:
    """Run `flower-superlink`."""
    prepare(ReplyLimits())
    flower_superlink()


if __name__ == "__main__":
    main()
