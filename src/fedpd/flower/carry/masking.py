"""An agent's side of secure aggregation: Flower's SecAgg+ around the training, so that the server is shown sums alone.

Flower's own mod keeps the protocol (keys, shares, masks). What is added here: x_{0,i}^+ - x_0 is masked, not x_{0,i}^+,
since fixed point needs a range; an entry beyond that range is refused, where Flower would cut it silently, and a cut
message no longer fits the dual that its client keeps; and an order without masks is not carried out at all.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import Code, FitRes, Status
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key
from flwr.compat.common import recorddict_compat as legacy

from fedpd.flower.carry.protocol import DONE, REFUSED, no_reply, read_order, read_reply, reply_content


def wants_masks(message: Message) -> bool:
    return RECORD_KEY_CONFIGS in message.content.config_records


class _NothingToMaskError(Exception):
    """Carries an answer that holds no message past Flower's mod, which knows no such answer."""

    def __init__(self, reply: Message) -> None:
        self.reply = reply


def masked(name: Callable[[Context], str]) -> Mod:
    """The mod of clients whose messages only leave under masks."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not wants_masks(message):
            note = "its messages only leave under masks. Set secure-range in the run's configuration."
            reply = no_reply(read_order(message.content), name(context), REFUSED, note)
            return Message(reply_content(reply), reply_to=message)
        try:
            return secaggplus_mod(message, context, partial(_change, call_next))
        except _NothingToMaskError as only:
            return only.reply

    return mod


def _change(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """What the agent says, its message in the form in which Flower's mod masks it: as the change from the broadcast."""
    reply = call_next(message, context)
    if reply.has_error() or (said := read_reply(reply.content)).status != DONE:
        raise _NothingToMaskError(reply)
    moved = _difference(reply.content.array_records["arrays"], message.content.array_records["arrays"])
    bound = float(context.state.config_records[RECORD_KEY_STATE][Key.CLIPPING_RANGE])  # type: ignore[arg-type]
    largest = max((float(np.abs(array).max(initial=0)) for array in moved), default=0.0)
    if largest > bound:
        enough = 2.0 ** np.ceil(np.log2(largest))
        note = f"an entry of its change is beyond secure-range = {bound:g} and would be cut. Try {enough:g} or more."
        raise _NothingToMaskError(Message(reply_content(said._replace(status=REFUSED, note=note)), reply_to=message))
    record = ArrayRecord({str(number): Array(array) for number, array in enumerate(moved)})
    parameters = legacy.arrayrecord_to_parameters(record, keep_input=False)
    result = FitRes(Status(Code.OK, ""), parameters, num_examples=1, metrics={})  # every agent counts alike
    content = legacy.fitres_to_recorddict(result, keep_input=False)
    content["config"], content["metrics"] = reply.content["config"], reply.content["metrics"]
    return Message(content, reply_to=message)


def _difference(said: ArrayRecord, heard: ArrayRecord) -> list[np.ndarray]:
    """The arrays `said` less those `heard`, in float64: Flower quantises in the type of what it is given."""
    alike = is_alike({name: tuple(array.shape) for name, array in said.items()}, heard)
    pairs = [(array.numpy().astype(np.float64), heard[name].numpy() if alike else 0) for name, array in said.items()]
    return [np.asarray(now - before) for now, before in pairs]


def is_alike(shapes: dict[str, tuple[int, ...]], heard: ArrayRecord) -> bool:
    """Whether what is said has the names and shapes of what was heard, as models have; both sides decide it alike."""
    return shapes == {name: tuple(array.shape) for name, array in heard.items()}
