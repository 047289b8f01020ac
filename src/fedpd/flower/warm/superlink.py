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
from typing import Any

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


MOST = 100_000  # the newest replies whose bytes are remembered


class ReplyLimits:
    """Counts the bytes of each reply, and refuses more than the run of its order allows.

    A reply has one account per node and order, also if a node sends it in several sessions. Flower stores an object
    only in a session that an accepted reply has opened, so a node cannot open an account by itself.
    """

    def __init__(self, limit: Callable[[int], int | None] = read_limit) -> None:
        self.limit = limit
        self.received: dict[tuple[int, str], int] = {}  # by node and order, or session if its order is not known: bytes
        self.orders: dict[tuple[int, str], str] = {}  # by node and session
        self.lock = Lock()

    def count(self, node: int, run: int, size: int, order: str) -> None:
        """Count bytes of the reply of a node to an order.

        Raises:
            HTTPException: If they are more than a reply of this run may have.
        """
        with self.lock:
            total = self.received[node, order] = self.received.get((node, order), 0) + size
            while len(self.received) > MOST:
                del self.received[next(iter(self.received))]
        limit = self.limit(run)
        if limit is not None and total > limit:
            log.warning("Node %d sends %d bytes; a reply of run %d has at most %d. Refused.", node, total, run, limit)
            raise HTTPException(413, f"A reply of this run has at most {limit} bytes.")

    def messages(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return Flower's handler of a reply and the list of its objects, with the count."""

        def counted(request: Any, state: Any) -> Any:
            if not request.messages_list:
                return handle(request=request, state=state)
            node, about = request.node.node_id, request.messages_list[0].metadata  # Flower takes no other
            account = node, about.reply_to_message_id
            is_new = account not in self.received
            self.count(node, about.run_id, request.ByteSize(), account[1])
            answer = handle(request=request, state=state)
            with self.lock:
                if answer.objects_to_push:
                    self.orders[node, answer.session_id] = account[1]
                    while len(self.orders) > MOST:
                        del self.orders[next(iter(self.orders))]
                elif is_new:  # Flower has not accepted it, e.g. because there is no such order
                    self.received.pop(account, None)
            return answer

        return counted

    def objects(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return Flower's handler of one object of a reply, with the count.

        After a refusal the reply is deleted, because the ServerApp would wait for the rest of it.
        """

        def counted(request: Any, state: Any) -> Any:
            node, session = request.node.node_id, request.session_id
            try:
                order = self.orders.get((node, session), session)
                self.count(node, request.run_id, len(request.object_content), order)
            except HTTPException:
                delete_reply(state, session)
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
