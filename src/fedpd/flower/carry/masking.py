"""The client's side of secure aggregation: Flower's SecAgg+ around the training, so that the server sees only sums.

Flower's own mod implements the protocol (keys, shares, masks). This file adds three rules. The mod masks x_{0,i}^+ -
x_0, not x_{0,i}^+, because fixed-point numbers need a range. The client refuses an entry outside this range: Flower
would clip it silently, and a clipped message does not fit the dual that the client keeps. The client does not carry out
an order without masks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import Code, FitRes, Status
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key
from flwr.compat.common import recorddict_compat as legacy

from fedpd.flower.carry.protocol import read_order, read_reply, reply_content, reply_without_work
from fedpd.flower.carry.records import RefusedError, arrays_of


def asks_for_masks(message: Message) -> bool:
    """Return whether a message belongs to a stage of secure aggregation."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def masked_clients(context: Context) -> int:
    """Return the number of clients whose masks cancel, as the setup stage has set it; 0 before that stage."""
    state: Any = context.state.config_records.get(RECORD_KEY_STATE, {})
    number = state.get("sample_num", 0)
    return number if isinstance(number, int) else 0


class _NothingToMaskError(Exception):
    """Carries a reply without a message through Flower's mod, which cannot handle such replies."""

    def __init__(self, reply: Message) -> None:
        self.reply = reply


def masking_mod(name: Callable[[Context], str]) -> Mod:
    """Return the mod of clients that send only masked messages.

    Args:
        name: Returns the name of a client.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not asks_for_masks(message):
            note = "this client sends only masked messages. Set secure-range in the run's configuration."
            reply = reply_without_work(read_order(message.content), name(context), "refused", note)
            return Message(reply_content(reply), reply_to=message)
        try:
            return secaggplus_mod(message, context, partial(_change_to_mask, call_next))
        except _NothingToMaskError as only:
            return only.reply

    return mod


def _change_to_mask(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """Return the agent's reply with the change from the broadcast in place of its message, for Flower's mod to mask."""
    reply = call_next(message, context)
    if reply.has_error() or (said := read_reply(reply.content)).status != "done":
        raise _NothingToMaskError(reply)
    sent, received = arrays_of(reply.content, "arrays", "reply"), arrays_of(message.content, "arrays", "order")
    change, bound = _difference(sent, received), _masked_range(context)
    largest = max((float(np.abs(array).max(initial=0)) for array in change), default=0.0)
    if largest > bound:
        enough = 2.0 ** np.ceil(np.log2(largest))
        note = f"an entry of its change exceeds secure-range = {bound:g} and would be clipped. Try {enough:g} or more."
        raise _NothingToMaskError(Message(reply_content(said._replace(status="refused", note=note)), reply_to=message))
    record = ArrayRecord({str(number): Array(array) for number, array in enumerate(change)})
    parameters = legacy.arrayrecord_to_parameters(record, keep_input=False)
    result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})  # all agents have the same weight
    content = legacy.fitres_to_recorddict(result, keep_input=False)
    content["config"], content["metrics"] = reply.content["config"], reply.content["metrics"]
    return Message(content, reply_to=message)


def _masked_range(context: Context) -> float:
    """Return the largest entry that the masks allow, which the setup stage has set."""
    bound = context.state.config_records[RECORD_KEY_STATE][Key.CLIPPING_RANGE]
    if not isinstance(bound, int | float):
        raise RefusedError(f"secure aggregation: its range is {bound!r}, but must be a number.")
    return float(bound)


def _difference(sent: ArrayRecord, received: ArrayRecord) -> list[np.ndarray]:
    """Return `sent` minus `received` in float64, because Flower quantises in the type of its input."""
    same = has_shapes(received, {name: tuple(array.shape) for name, array in sent.items()})
    pairs = [(array.numpy().astype(np.float64), received[name].numpy() if same else 0) for name, array in sent.items()]
    return [np.asarray(now - before) for now, before in pairs]


def has_shapes(received: ArrayRecord, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a broadcast has the names and shapes of a message, as a model does. Both sides use this rule."""
    return shapes == {name: tuple(array.shape) for name, array in received.items()}
